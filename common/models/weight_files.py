"""The safetensors files of a model folder: which of them hold the weights, and what is wrong with them by their headers.

No weight is read and torch is not needed, so that a download that was cut off or weights of another model are named before a run
starts. Whether the tensors are all that the model has is told where it is loaded (`common.models.loading`).
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ONE_FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
_MAX_HEADER_BYTES = 100_000_000
"""Of the safetensors format."""
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight")
_LAYER = re.compile(r"(?:model\.|language_model\.)*layers\.(\d+)\.")
_MAX_DIGITS = 9
"""Of a layer's number; Python reads no number of thousands of digits."""
_OTHERS = {
    "*adapter_model*": ("an adapter", "merge it into its base model: PeftModel.merge_and_unload(), then save_pretrained()"),
    "*.bin": ("pickled weights, which are never loaded", "load them where you trust them, then save_pretrained() there"),
    "*.pth": ("pickled weights, which are never loaded", "load them where you trust them, then save_pretrained() there"),
    "*.gguf": ("GGUF weights", "from_pretrained(folder, gguf_file=NAME), then save_pretrained() into a folder"),
    "*.safetensors": (f"no {ONE_FILE}", f"name the file {ONE_FILE}, or copy {INDEX} as well"),
}
"""Files that people take for a model's weights -> what such a folder holds, and the next step; the first that fits counts."""

Found = tuple[str, str]
"""(reason, next step)."""


def weight_files(folder: Path) -> list[str]:
    """Names of the files that hold the weights; empty where there are none. transformers takes the single file first."""
    if (folder / ONE_FILE).is_file():
        return [ONE_FILE]
    return sorted(set(_places(folder).values()))


def weight_problems(folder: Path, settings: Mapping[str, Any]) -> list[Found]:
    """What keeps the weights in ``folder`` from being those of a model with ``settings``: config.json's of the language model."""
    single = folder / ONE_FILE
    if not single.is_file() and not (folder / INDEX).is_file():
        return [_no_weights(folder)]
    places = {} if single.is_file() else _places(folder)
    names = [ONE_FILE] if single.is_file() else sorted(set(places.values()))
    if not names:
        return [(f"{INDEX} in {str(folder)!r} names no weight files", "copy the model folder again")]
    problems: list[Found] = []
    tensors: dict[str, Mapping[str, Any]] = {}
    for name in names:
        try:
            held = _header(folder / name) if Path(name).name == name else None
        except ValueError as error:
            problems.append((f"weight file {name!r} in {str(folder)!r} {error}", "copy the whole model folder again"))
            continue
        if held is None:
            problems.append((f"weight file {name!r} is missing in {str(folder)!r}", "copy the whole model folder"))
            continue
        tensors |= held
    lacking = places.keys() - tensors.keys()
    if lacking and not problems:
        reason = f"the weight files in {str(folder)!r} lack {min(lacking)!r}, which {INDEX} names"
        problems.append((reason, "copy the whole model folder again: its files are of different models"))
    return problems or _tensor_problems(folder, tensors, settings)


def _no_weights(folder: Path) -> Found:
    for pattern, (held, step) in _OTHERS.items():
        if any(folder.glob(pattern)):
            return f"{str(folder)!r} holds {held}{'' if held.endswith(ONE_FILE) else f', and no {ONE_FILE}'}", step
    return f"{str(folder)!r} holds no {ONE_FILE}", "save the model with safe_serialization into that folder"


def _places(folder: Path) -> dict[str, str]:
    """Tensor -> file, by the index; empty where it is not readable."""
    try:
        tree = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    places = tree.get("weight_map") if isinstance(tree, dict) else None
    return {name: str(file) for name, file in places.items()} if isinstance(places, dict) else {}


def _header(file: Path) -> dict[str, Mapping[str, Any]] | None:
    """Tensor -> its dtype and shape; None where there is no file. Raises `ValueError`: why it is not whole."""
    try:
        if not file.is_file():
            return None
        with file.open("rb") as opened:
            size, head = os.fstat(opened.fileno()).st_size, opened.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
            if not 2 <= length <= min(size - 8, _MAX_HEADER_BYTES):
                raise ValueError("is no safetensors file, or the beginning of one")
            text = opened.read(length)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    try:
        tensors = {name: entry for name, entry in json.loads(text).items() if name != "__metadata__"}
        end = max((int(entry["data_offsets"][1]) for entry in tensors.values()), default=0)
        is_whole = all(isinstance(entry["shape"], list) and isinstance(entry["dtype"], str) for entry in tensors.values())
    except (ArithmeticError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        is_whole = False  # JSON knows infinities, which are no integers.
    if not is_whole:
        raise ValueError("has a damaged header")
    if 8 + length + end != size:
        raise ValueError(f"has {size} bytes, and its header tells of {8 + length + end}")
    return tensors


def _tensor_problems(folder: Path, tensors: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Any]) -> list[Found]:
    problems = []
    packed = next((name for name, one in tensors.items() if name.endswith("weight") and one.get("dtype") not in _FLOATS), None)
    if packed is not None:
        reason = f"{packed!r} in {str(folder)!r} is of type {tensors[packed].get('dtype')}, not floating-point"
        problems.append((reason, "use the model before it was quantised, or save it in bfloat16"))
    embedding = next((name for name in tensors if name.endswith(_EMBEDDINGS)), None)
    size = settings.get("vocab_size")
    if embedding is not None and isinstance(size, int) and tensors[embedding]["shape"][:1] != [size]:
        rows = tensors[embedding]["shape"][:1]
        reason = f"config.json in {str(folder)!r} names vocab_size {size}, but {embedding!r} has {rows} rows"
        problems.append((reason, "copy config.json and weights of the same model"))
    has_head = settings.get("tie_word_embeddings") is False and embedding == "model.embed_tokens.weight"
    if has_head and "lm_head.weight" not in tensors:
        reason = f"the weights in {str(folder)!r} lack 'lm_head.weight', and config.json says tie_word_embeddings: false"
        problems.append((reason, "copy the whole model folder, or set tie_word_embeddings to true where that is so"))
    layers = {int(found[1][:_MAX_DIGITS]) for found in map(_LAYER.match, tensors) if found}
    wanted = settings.get("num_hidden_layers")
    if layers and isinstance(wanted, int) and (lacking := sorted(set(range(min(wanted, 10_000))) - layers)):
        reason = f"config.json in {str(folder)!r} names {wanted} layers, and the weights lack layer {lacking[0]}"
        problems.append((reason, "copy config.json and weights of the same model"))
    return problems
