"""Where model folders lie and whether one is whole, told from file names and JSON alone.

No torch and no transformers here: launch checks a configuration with it in milliseconds, before any process starts. It
neither makes folders (`learner.model_store` does) nor loads weights.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TypeGuard

from computerrl.common.errors import ConfigError, Problem, SetupError
from computerrl.common.models.hub import cached_folder, is_hub_name, snapshot_at, unfetched
from computerrl.common.models.weight_files import ONE_FILE, weight_files, weight_problems

BUILT_IN_MODELS = {"smollm2-135m": 8192, "tiny-vision": 8192, "tiny-random": 2048}
"""Name that `learner.model_store` can make without a network -> its context in tokens."""
BUILT_IN_EDITIONS = {"tiny-vision": "05bcdc83"}
"""Name of a built-in model that the package carries weights of -> how the SHA-256 of their file begins: a folder made from other
weights is another folder."""

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""Any one of them is a tokenizer that transformers can load offline."""


def cache_folder() -> Path:
    """Where made models are kept: `$COMPUTERRL_CACHE`, else `~/.cache/computerrl`."""
    chosen = os.environ.get("COMPUTERRL_CACHE")
    if chosen:
        return Path(chosen)
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        step = "set COMPUTERRL_CACHE to a folder that you can write to"
        raise SetupError(Problem("COMPUTERRL_CACHE", "is not set, and this user has no home folder", step))
    return Path(home) / ".cache" / "computerrl"


def model_folder(name: str, cache: Path | None = None) -> Path:
    """The folder of model ``name``: a built-in name, a path, or a name of the hub, whose folder is that of its newest revision in
    the local cache. It need not exist yet when the name is built in.

    ``cache`` replaces `cache_folder`."""
    if name in BUILT_IN_MODELS:
        edition = BUILT_IN_EDITIONS.get(name)
        return (cache or cache_folder()) / "models" / (f"{name}-{edition}" if edition else name)
    if is_hub_name(name) and (cached := cached_folder(name)) is not None:
        return cached
    return Path(os.path.expanduser(name))  # A user who does not exist is left as written.


def is_model_folder(path: Path, *, weights: bool = True) -> bool:
    """True when `check_model_folder` finds nothing missing."""
    return not model_folder_problems(path, weights=weights)


def has_vision_tower(folder: Path) -> bool:
    """Whether the model in ``folder`` takes images. False where there is no model, which `check_model_folder` reports."""
    return "vision_config" in (read_json(folder / "config.json") or {})


def image_token_id(folder: Path) -> int | None:
    """The token that stands for a piece of an image, by config.json in ``folder``; None: it names none."""
    tree = read_json(folder / "config.json") or {}
    token = tree.get("image_token_id")
    return token if type(token) is int and token >= 0 else None


def named_image_token(folder: Path) -> str | None:
    """Text of the image token by the files of the processor and tokenizer in ``folder``; None: they name none."""
    for file in ("processor_config.json", "tokenizer_config.json"):
        tree = read_json(folder / file) or {}
        extra = tree.get("extra_special_tokens")
        for named in (tree.get("image_token"), extra.get("image_token") if isinstance(extra, dict) else None):
            text = named.get("content") if isinstance(named, dict) else named
            if isinstance(text, str):
                return text
    return None


def sliding_window(name: str) -> int | None:
    """How many tokens back model ``name`` sees in its narrowest layers; None: all of them, or there is no such model."""
    text = _text_settings(model_folder(name))
    layers = text.get("layer_types")
    has_narrow = not isinstance(layers, list) or "sliding_attention" in layers
    window = text.get("sliding_window") if has_narrow and text.get("use_sliding_window", True) else None
    return window if type(window) is int and window > 0 else None


def context_length(name: str) -> int | None:
    """Positions that model ``name`` was made for, its rope scaling included; None: its files name no limit, or there is no such
    model. The tokenizer's `model_max_length` is no property of the model."""
    if name in BUILT_IN_MODELS:
        return BUILT_IN_MODELS[name]
    text = _text_settings(model_folder(name))
    named = [text.get(key) for key in _POSITIONS]
    positions = next((number for number in named if type(number) is int and number > 0), None)
    if positions is None:
        return None
    return max([positions, *(_scaled(positions, rope) for rope in _rope_settings(text))])


def context_problems(name: str, *, max_prompt_tokens: int, max_new_tokens: int) -> list[Problem]:
    """What is wrong with prompts and answers of so many tokens for model ``name``: it sees fewer."""
    window, positions, longest = sliding_window(name), context_length(name), max_prompt_tokens + max_new_tokens
    if positions is not None and positions < longest:
        reason, seen = f"{name!r} has a context of {positions} tokens", positions
    elif window is not None and window < longest:
        reason, seen = f"layers of {name!r} see {window} tokens back", window
    else:
        return []
    reason += f", and a prompt with its answer may have {max_prompt_tokens} + {max_new_tokens} = {longest}"
    room = seen - max_new_tokens
    step = f"set it to {room} or less" if room > 0 else "use a model with a longer context, or lower actor.max_new_tokens as well"
    return [Problem("actor.prompt.max_prompt_tokens", reason, step)]


def sharing_problems(name: str) -> list[Problem]:
    """What keeps ranks from sharing the packs of model ``name`` (`learner.context_parallel_size` above 1)."""
    folder = model_folder(name)
    if has_vision_tower(folder):
        reason = f"{name!r} takes images, and ranks cannot share packs with images"
    elif any(_text_settings(folder).get(key) for key in _EXPERTS):
        reason = f"{name!r} is a mixture of experts, whose packs ranks cannot share"
    else:
        return []
    return [Problem("learner.context_parallel_size", reason, "set it to 1, or use another model")]


_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Names of the number of experts in config.json, by family."""
_POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length", "seq_length")
"""Names of the number of positions in config.json, by family."""
_STRETCHED = ("linear", "dynamic", "ntk")
_ALREADY_STRETCHED = ("default", "llama3", "longrope", "su", "mrope")
"""Kinds of rope scaling whose `max_position_embeddings` counts the stretched positions."""


def _rope_settings(text: dict[str, Any]) -> list[dict[str, Any]]:
    """Rope settings of a model, which may have one for each kind of layer."""
    found = [text.get(key) for key in ("rope_parameters", "rope_scaling")]
    settings = [one for one in found if isinstance(one, dict)]
    return settings + [inner for one in settings for inner in one.values() if isinstance(inner, dict)]


def _scaled(positions: int, rope: dict[str, Any]) -> int:
    kind, factor = rope.get("rope_type", rope.get("type")), rope.get("factor")
    if not _is_factor(factor) or kind in _ALREADY_STRETCHED:
        return positions
    original = rope.get("original_max_position_embeddings")
    if kind == "yarn" and type(original) is int:
        return int(original * factor)
    return int(positions * factor) if kind in (*_STRETCHED, "yarn") else positions


def _is_factor(value: Any) -> TypeGuard[float]:
    """JSON knows infinities, NaN and numbers of any size."""
    return type(value) in (int, float) and 0 < value <= _MAX_FACTOR


_MAX_FACTOR = 1e6
_MAX_TOKENS = 2**31
"""Ids travel as int32."""


def vocabulary_size(path: Path) -> int | None:
    """Tokens that the model in ``path`` knows; None where its config.json does not tell."""
    size = _text_settings(path).get("vocab_size")
    return size if type(size) is int and size > 0 else None


def named_end_tokens(path: Path) -> list[int]:
    """Ids of the tokens that end a text or a turn by generation_config.json and config.json, each once; of those that the model
    has."""
    named: list[Any] = []
    for tree in (read_json(path / "generation_config.json") or {}, read_json(path / "config.json") or {}, _text_settings(path)):
        found = tree.get("eos_token_id")
        named.extend(found if isinstance(found, list) else [found])
    size = vocabulary_size(path) or _MAX_TOKENS
    return list(dict.fromkeys(token for token in named if type(token) is int and 0 <= token < size))


def _text_settings(path: Path) -> dict[str, Any]:
    """config.json's settings of the language model, which has a section of its own where the model takes pictures as well."""
    tree = read_json(path / "config.json") or {}
    text = tree.get("text_config")
    return text if isinstance(text, dict) else tree


def check_model_folder(path: Path, *, field: str = "model.name", weights: bool = True) -> None:
    """Raise `ConfigError` naming everything that keeps ``path`` from being a model folder. ``weights``: must it hold any?"""
    problems = [Problem(field, reason, step) for reason, step in model_folder_problems(path, weights=weights)]
    if problems:
        raise ConfigError(problems)


def model_folder_problems(path: Path, *, weights: bool = True) -> list[tuple[str, str]]:
    """(reason, next step) for each thing missing in ``path``: folder, config.json, weights, tokenizer."""
    try:
        is_there = path.exists()
    except OSError as error:  # A name too long for the file system, or a folder above it that may not be entered.
        return [(f"{str(path)!r:.200} cannot be read: {error.strerror}", "give the path of a model folder that you can read")]
    if not is_there:
        known = ", ".join(BUILT_IN_MODELS)
        if is_hub_name(str(path)):
            reason = f"{str(path)!r} is no folder, and not in the cache of the Hugging Face hub; nothing is downloaded by itself"
            return [(reason, _fetching(f"hf download {path}"))]
        if (snapshot := snapshot_at(path)) is not None:
            reason = f"revision {snapshot.commit} of {snapshot.name!r} is no longer in the cache {str(snapshot.cache)!r}"
            return [(reason, _fetching(snapshot.command))]
        return [(f"no model of that name and no folder {str(path)!r}", f"use one of {known}, or the path of a model folder")]
    if not path.is_dir():
        return [(f"{str(path)!r} is a file, not a model folder", "give the folder that holds config.json")]
    if not os.access(path, os.R_OK | os.X_OK):
        return [(f"{str(path)!r} cannot be read by this user", "give the path of a model folder that you can read")]
    if (path / "adapter_config.json").is_file() and not (path / "config.json").is_file():
        step = "merge it into its base model: PeftModel.merge_and_unload(), then save_pretrained()"
        return [(f"{str(path)!r} holds an adapter, not a model", step)]
    pointers = pointer_problems(path, weights=weights)
    if pointers:
        # What else seems wrong with such a folder follows from them.
        return pointers
    if cut_off := _fetched_in_part(path, weights=weights):
        return [cut_off]
    of_weights = weight_problems(path, _text_settings(path)) if weights else []
    return [*_config_problems(path), *of_weights, *_tokenizer_problems(path)]


def _fetched_in_part(path: Path, *, weights: bool) -> tuple[str, str] | None:
    """(reason, next step) where ``path`` is a folder of the hub's cache that lacks files; None where it is none, or whole."""
    snapshot = snapshot_at(path)
    if snapshot is None:
        return None
    lacking = [] if (path / "config.json").is_file() else ["config.json"]
    lacking += [] if any((path / name).is_file() for name in _TOKENIZER_FILES) else ["tokenizer.json"]
    if weights:
        is_other = any(file.is_file() and file.suffix in _WEIGHT_SUFFIXES for file in path.iterdir())
        named = weight_files(path) or ([] if is_other else [ONE_FILE])
        lacking += [name for name in named if not (path / name).is_file()]
    lacking += [name for name in unfetched(path) if weights or not name.endswith(".safetensors")]
    lacking = list(dict.fromkeys(lacking))
    if not lacking:
        return None
    listed = f"{', '.join(lacking[:_MAX_NAMED])}{', ...' if len(lacking) > _MAX_NAMED else ''}"
    reason = f"only a part of {snapshot.name!r} is in the cache: revision {snapshot.commit} lacks {listed}"
    return reason, _fetching(snapshot.command)


def _fetching(command: str) -> str:
    """The next step for a model of the hub that ``command`` fetches."""
    return f"{command}, or `computerrl train CONFIG --download`, on a machine with internet that has the same HF_HOME"


_MAX_NAMED = 3
_WEIGHT_SUFFIXES = frozenset({".safetensors", ".bin", ".pth", ".gguf"})
"""Of files that hold weights in some form: `weight_problems` names what is wrong with those."""

_POINTERS = {
    b"version https://git-lfs.github.com/spec/": ("Git LFS", "git lfs pull"),
    b"/annex/objects/": ("git-annex", "git annex get ."),
}
_READ_FILES = ("*.json", "*.jinja", "*.txt", "tokenizer.model")
_MAX_POINTER_BYTES = 1024


def pointer_problems(path: Path, *, weights: bool = False) -> list[tuple[str, str]]:
    """(reason, next step) for each file in ``path`` that only says where its content is stored."""
    patterns = (*_READ_FILES, *(("*.safetensors",) if weights else ()))
    problems = []
    for file in sorted({file for pattern in patterns for file in path.glob(pattern) if file.is_file()}):
        if file.stat().st_size > _MAX_POINTER_BYTES:
            continue
        content = file.read_bytes()
        for beginning, (kind, command) in _POINTERS.items():
            if content.startswith(beginning):
                reason = f"{file.name} in {str(path)!r} is a {kind} pointer, not the file itself"
                problems.append((reason, f"run `{command}` in that folder, or copy it from where the files are whole"))
    return problems


def _config_problems(path: Path) -> list[tuple[str, str]]:
    tree = read_json(path / "config.json")
    if tree is None:
        return [(f"{str(path)!r} holds no readable config.json", "save the model with save_pretrained() into that folder")]
    if not tree.get("model_type"):
        return [(f"config.json in {str(path)!r} names no model_type", "use a Hugging Face causal language model")]
    kind = tree.get("quantization_config")
    if kind:
        method = kind.get("quant_method") if isinstance(kind, dict) else kind
        reason = f"the weights in {str(path)!r} are quantised (quantization_config: {method!s:.40}), which nothing here trains"
        return [(reason, "use the model before it was quantised, or dequantise it and save_pretrained()")]
    text = _text_settings(path)
    sizes = [
        f"{name} {text[name]!r:.40}, not a whole number above 0"
        for name in ("vocab_size", "hidden_size", "num_hidden_layers")
        if name in text and (type(text[name]) is not int or text[name] < 1)
    ]
    factors = [rope["factor"] for rope in _rope_settings(text) if rope.get("factor") is not None]
    odd = [f"a rope scaling factor of {factor!r:.40}, which is none" for factor in factors if not _is_factor(factor)]
    return [(f"config.json in {str(path)!r} has {fault}", "copy the model folder again") for fault in (*sizes, *odd)]


def _tokenizer_problems(path: Path) -> list[tuple[str, str]]:
    if any(_filled(path / name) for name in _TOKENIZER_FILES):
        return []
    return [(f"{str(path)!r} holds no tokenizer (tokenizer.json)", "save the tokenizer with save_pretrained() next to the model")]


def _filled(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in file ``path``; None where there is none that can be read."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return tree if isinstance(tree, dict) else None
