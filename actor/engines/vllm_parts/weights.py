"""Weights by the names that learners send: which a model has, which belong together, and how vLLM takes them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from computerrl.common.errors import ConfigError, Problem, WeightError
from computerrl.common.models.folder import has_vision_tower

FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Matrices that vLLM keeps as one: reloading only a part of one silently leaves the others undefined."""


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
    # Without this the packed copy of the output matrix keeps its old values, and vLLM reports success. Families of models have
    # these modules in different places.
    for name, module in runner.get_model().named_modules():
        method = getattr(module, "quant_method", None)
        if name.endswith(("lm_head", "embed_tokens")) and method is not None and module.weight.device.type == "cpu":
            method.process_weights_after_loading(module)
