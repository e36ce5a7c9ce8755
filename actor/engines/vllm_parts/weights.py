"""Weights by the names that learners send: which a model has, which belong together, and how vLLM takes them."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from computerrl.common.errors import ConfigError, Problem, WeightError
from computerrl.common.models.folder import has_vision_tower

FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Matrices that vLLM keeps as one: reloading only a part of one silently leaves the others undefined."""


_OF_EXPERTS = ".mlp.experts."
_EXPERTS = re.compile(r"(.*\.mlp\.experts)\.(gate_up_proj|down_proj)")
_FIRST_EXPERT = f"{_OF_EXPERTS}0.gate_proj.weight"


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the checkpoint's tensors, by both names where the output matrix is tied.

    Folders of vision-language models name tensors as the published ones do, learners as transformers names its modules. vLLM
    takes both, and so does this.
    """
    from safetensors import safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="numpy") as opened:
            shapes.update({name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()})  # noqa: SIM118
    if has_vision_tower(folder):
        shapes.update(_module_shapes(folder))
    if "model.embed_tokens.weight" in shapes:
        shapes.setdefault("lm_head.weight", shapes["model.embed_tokens.weight"])
    return shapes


def _module_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    with torch.device("meta"):
        model = transformers.AutoModelForImageTextToText.from_config(config)
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters(remove_duplicate=False)}


def num_embeddings(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Number of tokens that the model knows, by the shapes of its tensors."""
    return max(shape[0] for name, shape in shapes.items() if name.endswith((".embed_tokens.weight", "lm_head.weight")))


def check_tensors(shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise `WeightError` unless every tensor is known, fits, and came with those that vLLM fuses it with."""
    for name, tensor in tensors.items():
        shape = shapes.get(name)
        if shape is None:
            raise WeightError(f"the model has no tensor {name!r}")
        if shape != tuple(tensor.shape):
            raise WeightError(f"{name}: shape {tuple(tensor.shape)} does not fit {shape}")
        for group in FUSED:
            part = next((part for part in group if f".{part}." in name), None)
            if part is None:
                continue
            missing = [other for other in group if name.replace(part, other) not in tensors]
            if missing:
                raise WeightError(f"{name} came without {', '.join(missing)}: vLLM can only replace them together")
    for prefix in _experts_among(tensors):
        missing = [name for name in shapes if name.startswith(prefix) and name not in tensors]
        if missing:
            raise WeightError(f"experts of {prefix} came without {missing[0]}: vLLM can only replace them together")


def _experts_among(names: Iterable[str]) -> set[str]:
    """Beginnings of the names of experts, one for each layer with some."""
    return {f"{name.partition(_OF_EXPERTS)[0]}{_OF_EXPERTS}" for name in names if _OF_EXPERTS in name}


def require_one_tie(folder: Path) -> None:
    """Raises `ConfigError` for a vision-language model whose two settings of a tied output matrix disagree.

    transformers follows the outer one and vLLM that of the language model: with other values one of them computes with an output
    matrix that nobody wrote.
    """
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    outer, inner = (bool(getattr(one, "tie_word_embeddings", False)) for one in (config, config.get_text_config()))
    if outer != inner:
        reason = f"config.json in {str(folder)!r} has tie_word_embeddings {outer}, and {inner} in text_config"
        step = f"write {json.dumps(outer)}, by which transformers goes, in both places"
        raise ConfigError([Problem("model.name", reason, step)])


def published(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """``tensors`` by the names of published folders, which vLLM takes. transformers keeps the experts of a layer in one tensor
    [experts, out, in], with gate and up as one; folders have a tensor for each matrix of each expert. Nothing is copied."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        match = _EXPERTS.fullmatch(name)
        if match is None:
            found[name] = tensor
            continue
        for number, expert in enumerate(tensor):
            names = ("gate_proj", "up_proj") if match[2] == "gate_up_proj" else ("down_proj",)
            parts = zip(names, expert.chunk(len(names)), strict=True)
            found |= {f"{match[1]}.{number}.{part}.weight": matrix for part, matrix in parts}
    return found


def require_known_experts(folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises `ConfigError` for a mixture of experts whose folder has other names than `published` gives."""
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    text = settings.get("text_config", settings)
    has_experts = any(text.get(name) for name in ("num_experts", "num_local_experts", "n_routed_experts"))
    if has_experts and not any(name.endswith(_FIRST_EXPERT) for name in shapes):
        given = f"vllm, but its new weights of experts are not known for model type {settings.get('model_type')!r}"
        step = "use actor.engine: transformers, or a model whose folder names experts as Qwen3-MoE does"
        raise ConfigError([Problem("actor.engine", given, step)])


_SHARED = Path("/dev/shm")


@contextmanager
def shared_tensors(tensors: Mapping[str, torch.Tensor]) -> Iterator[Path]:
    """``tensors`` in a file in memory, for other processes of this user. Raises `WeightError` when there is no room for it."""
    from safetensors.torch import save_file

    with tempfile.TemporaryDirectory(prefix="computerrl-weights-", dir=_SHARED) as folder:
        file = Path(folder) / "tensors.safetensors"
        try:
            save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, file)
        except Exception as error:  # safetensors has an exception of its own for a full disk
            size_mb = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()) >> 20
            raise WeightError(f"{_SHARED} takes no {size_mb} MiB of weights for the engine's processes: {error}") from error
        yield file


def reload_from_file(worker: Any, file: str) -> None:
    """`reload_in_worker` with the tensors of ``file``, inside a worker that is a process of its own."""
    from safetensors.torch import load_file

    reload_in_worker(worker, load_file(file))


def reload_in_worker(worker: Any, tensors: Mapping[str, torch.Tensor]) -> None:
    """Runs inside vLLM's worker (same process): replace weights, then repack what vLLM forgets to."""
    runner = worker.model_runner
    # Copies, made one by one: vLLM may keep what it is given, and the caller's buffers receive the next version. What comes from
    # another device vLLM copies itself.
    given = ((name, tensor.clone() if tensor.device.type == runner.device.type else tensor) for name, tensor in tensors.items())
    runner.reload_weights(weights_iterator=given)
    if runner.device.type != "cpu":
        return
    # Without this the packed copy of the output matrix keeps its old values, and experts are taken for packed that are not; vLLM
    # reports success. Families of models have these modules in different places.
    changed = tuple(_experts_among(tensors))
    for name, module in runner.get_model().named_modules():
        method = getattr(module, "quant_method", None)
        if method is None:
            continue
        if name.endswith(("lm_head", "embed_tokens")):
            method.process_weights_after_loading(module)
        elif f"{name}.".startswith(changed) and hasattr(module, "w13_weight"):
            method.moe_kernel.fused_experts.process_weights_after_loading(module)
