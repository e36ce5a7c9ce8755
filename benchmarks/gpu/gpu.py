"""GPUs: checks that learner and engines are right on CUDA, and their speeds beside padded transformers and vLLM alone.

The parts run in this order, each in a process of its own. The call ends after four minutes, with --gpus after eight (--minutes);
parts that did not fit are named. The first model of `learner` takes 42 GiB of a GPU, and is left out on a smaller one.

attention, gradient, ranks, loop: the variable-length flash kernel and a step's gradient in bfloat16 against float32; FSDP2 over
NCCL with one rank beside one process; the whole loop in one process, on imitated desktops.

learner: optimizer steps of SmolLM2-135M and of a random Llama of 1.6 billion parameters beside padded transformers, and the
memory plan beside the measured peak.

vllm-alone, vllm: start and speed of 16, 64 and 256 episodes of that Llama through our engine beside vLLM's own LLM.generate with
the same prompts; updates of all weights from host memory, pinned memory and the GPU's own; log-prob gaps to the learner.

pictures: vLLM after images beside the learner, on random weights as wide as Qwen2.5-VL-3B's.

transformers: our other engine on SmolLM2-135M.

--gpus N adds, after the first checks, what needs N GPUs: broadcasts (NCCL to N-1 receivers), ranks-N (FSDP2 over N ranks beside
one process), split (vLLM with a part of each matrix on each GPU, and its updates). A GPU that is not there leaves a row that says
so. --quick takes about a minute: no vLLM alone, no pictures, SmolLM2-135M alone.

The exit code is 1 when a check failed, else 0, also when parts were not run. Without a GPU it is 2. vLLM, images and models come
from this installation; nothing is downloaded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from computerrl.benchmarks.gpu import _checks, _engines, _learner, _several
from computerrl.benchmarks.gpu._battery import Part, Stage, run_stages
from computerrl.benchmarks.gpu._rows import Row
from computerrl.benchmarks.gpu._sizes import FULL, QUICK, Sizes
from computerrl.benchmarks.learner._process import apart
from computerrl.common.errors import ConfigError, Problem
from computerrl.common.models.folder import is_model_folder, model_folder
from computerrl.learner.model_store import ensure_model

_MINUTES = 4.0
_MODELS = "models"
"""The part that writes random models. It runs whatever --part names."""
_SLOW = ("vllm-alone", "pictures")
"""Parts that --quick leaves out."""
_VLLM = ("vllm",)


def run(quick: bool, *, gpus: int = 1, minutes: float | None = None, part: Sequence[str] = ()) -> Iterator[Row]:
    """Rows of the battery as they are made. ``part``: names of the parts to run; none: all.

    Raises `ConfigError` without a GPU, and for a part that there is not.
    """
    import torch

    stages = chosen(make_stages(gpus), part, quick=quick)
    if not torch.cuda.is_available():
        step = "run it on a machine with an NVIDIA GPU and torch's CUDA build (make setup installs that one where a GPU is)"
        raise ConfigError([Problem("NAME", "torch sees no GPU, and this benchmark measures nothing else", step)])
    limit_s = 60 * (minutes or _MINUTES * (1 if gpus == 1 else 2))
    return play(stages, QUICK if quick else FULL, limit_s=limit_s, num_gpus=torch.cuda.device_count())


def play(stages: Sequence[Stage], sizes: Sizes, *, limit_s: float, num_gpus: int) -> Iterator[Row]:
    """``stages`` with a folder for their models. ``num_gpus``: GPUs that there are. Raises `SetupError` where the package with
    the models is not installed."""
    for name in sorted({sizes.checked_model, "tiny-random"}):
        if not is_model_folder(model_folder(name)):
            # Here, once: parts that begin at the same time would each make it.
            apart(ensure_model, name)
    with tempfile.TemporaryDirectory(prefix="computerrl-gpu-") as folder:
        yield from run_stages(stages, replace(sizes, models=Path(folder)), limit_s=limit_s, num_gpus=num_gpus)


def make_stages(num_gpus: int) -> list[Stage]:
    """All parts, the most important first. With ``num_gpus`` above 1 those that need as many."""
    several: list[Stage] = []
    if num_gpus > 1:
        several = [
            (Part("broadcasts", _several.broadcast_part, num_gpus=num_gpus),),
            (Part(f"ranks-{num_gpus}", _checks.ranks_part, num_gpus=num_gpus),),
            (Part("split", _several.split_part, _VLLM, num_gpus=num_gpus),),
        ]
    return [
        (
            Part(_MODELS, _learner.models_part),
            Part("attention", _checks.attention_part),
            Part("gradient", _checks.gradient_part),
            Part("ranks", _checks.ranks_part),
            Part("loop", _checks.loop_part),
        ),
        *several,
        (Part("learner", _learner.learner_part),),
        (Part("vllm-alone", _engines.vllm_alone_part, _VLLM),),
        (Part("vllm", _engines.vllm_part, _VLLM),),
        (Part("pictures", _engines.pictures_part, _VLLM),),
        (Part("transformers", _engines.transformers_part),),
    ]


def chosen(stages: Sequence[Stage], names: Sequence[str], *, quick: bool) -> list[Stage]:
    """``stages`` without parts that are not among ``names``, where there are any, and without those too slow for ``quick``.

    Raises `ConfigError` for an unknown name.
    """
    known = [part.name for stage in stages for part in stage]
    unknown = [name for name in names if name not in known]
    if unknown:
        reason = f"there is no part {', '.join(unknown)}"
        raise ConfigError([Problem("--part", reason, f"use some of {', '.join(known)}")])
    kept = {*names, _MODELS} if names else set(known) - set(_SLOW if quick else ())
    found = [tuple(part for part in stage if part.name in kept) for stage in stages]
    return [stage for stage in found if stage]
