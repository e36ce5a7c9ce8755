"""vLLM after images beside the learner, on random weights: gap of log-probs, tokens per second, time of an update.

Part of `gpu`. On a GPU the model is as wide as Qwen2.5-VL's of 3 billion parameters; the same script runs a tiny Idefics3 on a
CPU, the one family that vLLM loads there. Engine and learner live in processes of their own, one after the other.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from computerrl.actor.engines.vllm_parts.known import torchvision_problem
from computerrl.benchmarks.engines.rollout import logprobs_of, sample_of
from computerrl.benchmarks.gpu._rows import GAP_GOALS, Row, gap_row, measured, unmeasured
from computerrl.benchmarks.learner._process import apart
from computerrl.common.messages import ScreenshotRef, content_hash

NUM_REQUESTS = 16
NUM_ACTION_TOKENS = 16
_NAMES = ("<|vision_start|>", "<image>", "<|vision_end|>", "<|video_pad|>", "<fake_token_around_image>", "<global-img>")


@dataclass(frozen=True, slots=True)
class Size:
    """A model with random weights, and the screens that it sees."""

    model_type: str
    text: Mapping[str, Any]
    tower: Mapping[str, Any]
    processor: tuple[str, Mapping[str, Any]]
    """Class of transformers, and its settings."""
    screen: tuple[int, int]
    """Width and height in pixels."""
    more: Mapping[str, Any]
    """Other settings of config.json."""


QWEN_3B = Size(
    model_type="qwen2_5_vl",
    text={
        "vocab_size": 151_936,
        "hidden_size": 2048,
        "intermediate_size": 11_008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32_768,
        "rope_parameters": {"rope_type": "default", "mrope_section": [16, 24, 24], "rope_theta": 1e6},
    },
    tower={
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": 2048,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
    },
    processor=("Qwen2VLImageProcessor", {"size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}}),
    screen=(1280, 720),
    more={},
)
"""Sizes of the published Qwen2.5-VL-3B (arXiv 2502.13923)."""

WIDE = replace(
    QWEN_3B,
    text={**QWEN_3B.text, "num_hidden_layers": 12},
    tower={**QWEN_3B.tower, "depth": 8, "fullatt_block_indexes": [3, 7]},
)
"""As wide as that, a third of the layers: made, loaded and started in less time."""

TINY = Size(
    model_type="idefics3",
    text={
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": 2048,
        "pad_token_id": 0,
    },
    tower={
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 56,
        "patch_size": 14,
    },
    processor=("Idefics3ImageProcessor", {"size": {"longest_edge": 112}, "max_image_size": {"longest_edge": 56}}),
    screen=(160, 90),
    more={"scale_factor": 2, "pad_token_id": 0},
)
"""Heads of 32 numbers are the smallest that vLLM takes on a CPU."""


@dataclass(frozen=True, slots=True)
class Served:
    """Measurements of the engine's process."""

    tokens_per_s: list[float]
    update_s: list[float]
    sampled: list[tuple[np.ndarray, bytes, np.ndarray, np.ndarray]]
    """(prompt, encoded image, action, log-probs) before any update."""


def image_rows(size: Size, folder: Path, *, device: str, dtype: str, rounds: int) -> Iterator[Row]:
    """Rows of design section 6. ``folder``: an empty one for the model and the learner's images."""
    model = folder / "model"
    apart(save_random_model, size, model, device, dtype)
    problem = torchvision_problem(model)
    if problem is not None:
        yield unmeasured("pictures", "not run", problem.reason)
        return
    served: Served = apart(serve, model, size.screen, dtype, rounds)
    what = f"{size.model_type} of random weights, {dtype}, one screen of {size.screen[0]} x {size.screen[1]} a prompt"
    speed = f"action tokens/s of vLLM, {NUM_REQUESTS} requests with new images: {what}"
    yield measured(speed, served.tokens_per_s, "tokens/s", better="higher")
    yield measured(f"update of all weights of vLLM, tower and probe included: {what}", served.update_s, "s", better="lower")
    theirs = apart(learner_logprobs, model, folder, device, dtype, [one[:3] for one in served.sampled], size.screen)
    gaps = np.abs(np.concatenate([said for *_, said in served.sampled]) - np.concatenate(theirs))
    yield gap_row(f"log-prob gap of vLLM and learner, {what}", gaps, goal=GAP_GOALS[dtype])


def save_random_model(size: Size, path: Path, device: str, dtype: str) -> None:
    """The model, its image processor and a tokenizer that knows the tokens of images."""
    import torch
    import transformers
    from tokenizers import AddedToken, Tokenizer

    from computerrl.learner.model_store import ensure_model

    tokenizer = Tokenizer.from_file(str(ensure_model("tiny-random") / "tokenizer.json"))
    rows = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in (*_NAMES, *rows)])
    start, image, end, video = (tokenizer.token_to_id(name) for name in _NAMES[:4])
    ids = {"image_token_id": image}
    if size.model_type == "qwen2_5_vl":
        ids |= {"vision_start_token_id": start, "vision_end_token_id": end, "video_token_id": video}
    text = {"vocab_size": tokenizer.get_vocab_size(), "bos_token_id": 1, "eos_token_id": 2, **size.text}
    config = transformers.AutoConfig.for_model(size.model_type, text_config=text, vision_config=size.tower, **ids, **size.more)
    config.tie_word_embeddings = config.text_config.tie_word_embeddings = True
    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.AutoModelForImageTextToText.from_config(config, dtype=getattr(torch, dtype))
    model.save_pretrained(path)
    name, settings = size.processor
    getattr(transformers, name)(**settings).save_pretrained(path)
    tokenizer.save(str(path / "tokenizer.json"))
    # Names under which processors of the families look for their tokens.
    tokens = {"image_token": "<image>", "video_token": "<|video_pad|>", "eos_token": "<|vision_end|>"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **tokens, "extra_special_tokens": tokens}
    (path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def _screen(seed: int, width: int, height: int) -> Image.Image:
    """Boxes on white, as windows lie on a screen."""
    rng = np.random.default_rng(seed)
    pixels = np.full((height, width, 3), 255, dtype=np.uint8)
    for _ in range(20):
        x, y = int(rng.integers(width)), int(rng.integers(height))
        pixels[y : y + height // 5, x : x + width // 5] = rng.integers(0, 256, 3)
    return Image.fromarray(pixels)


def _encoded(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()


def serve(folder: Path, screen: tuple[int, int], dtype: str, rounds: int) -> Served:
    """Sample and update with vLLM, which changes torch for the whole process it lives in."""
    from safetensors.torch import load_file

    from computerrl.actor.engines.base import GenerationRequest, RequestImage
    from computerrl.actor.engines.vllm_engine import make_vllm_engine
    from computerrl.common.vision.processor import load_processor

    processor = load_processor(folder)
    num_prompt = processor.layout(*screen).num_pieces + 64
    engine = make_vllm_engine(
        folder,
        decode=lambda _: "",
        dtype=dtype,
        num_live=NUM_REQUESTS,
        max_tokens=num_prompt + NUM_ACTION_TOKENS,
        seed=0,
        num_threads=None,
        enforce_eager=True,  # half a minute less until it has started; the gap and updates are the same
    )
    try:
        engine.load(0, {})
        tokens_per_s, sampled = [], []
        # The first round warms up.
        for number in range(rounds + 1):
            images = [_screen(1000 * number + seed, *screen) for seed in range(NUM_REQUESTS)]
            encoded = [_encoded(image) for image in images]
            shown = [
                RequestImage(content_hash(data), processor.process(image)) for data, image in zip(encoded, images, strict=True)
            ]
            rng = np.random.default_rng(number)
            before, after = rng.integers(100, 40_000, (2, 32)).astype(np.int32)
            requests = []
            for one in shown:
                pieces = np.full(one.processed.layout.num_pieces, processor.image_token, dtype=np.int32)
                prompt = np.concatenate([before, pieces, after])
                requests.append(GenerationRequest(prompt, 1.0, NUM_ACTION_TOKENS, frozenset(), images=(one,)))
            started = time.perf_counter()
            answers = [future.result() for future in [engine.submit(request) for request in requests]]
            tokens_per_s.append(NUM_REQUESTS * NUM_ACTION_TOKENS / (time.perf_counter() - started))
            sampled += [
                (request.prompt_tokens, data, answer.tokens, answer.logprobs)
                for request, data, answer in zip(requests, encoded, answers, strict=True)
            ]
        tensors = {name: tensor for path in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(path).items()}
        probe = engine.probe()
        update_s = [engine.load(1 + number, tensors, expected_probe=probe) for number in range(rounds + 1)]
    finally:
        engine.close()
    return Served(tokens_per_s[1:], update_s[1:], sampled[:NUM_REQUESTS])


def learner_logprobs(
    folder: Path, run_dir: Path, device: str, dtype: str, sampled: Sequence[tuple[np.ndarray, bytes, np.ndarray]], screen: Any
) -> list[np.ndarray]:
    """[A] of each action, by the learner's policy."""
    from msgspec.structs import replace

    from computerrl.common.config import LearnerConfig, ModelConfig, RunConfig
    from computerrl.common.run_files.run_folder import RunFolder
    from computerrl.learner.images import ImageFolder
    from computerrl.learner.model.policy import load_policy

    config = RunConfig(
        run_dir=str(run_dir),
        model=ModelConfig.model_validate({"name": str(folder), "dtype": dtype}),
        learner=LearnerConfig.model_validate({"device": device}),
    )
    stored = {content_hash(data): data for _, data, _ in sampled}
    ImageFolder(RunFolder(config.folder).images).fetch(stored, lambda names: {name: stored[name] for name in names})
    samples = []
    for prompt, data, action in sampled:
        ref = ScreenshotRef(content_hash(data), "", 0, len(data), *screen)
        samples.append(replace(sample_of(prompt, action), images=(ref,)))
    return logprobs_of(load_policy(config), samples)
