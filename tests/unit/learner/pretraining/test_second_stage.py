"""Questions that share a page are answered as if each were alone, and what was trained is what the saved model computes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from computerrl.common.vision.processor import load_processor
from computerrl.learner.model_store import ensure_model
from computerrl.learner.pretraining.questions import Question, make_batch
from computerrl.learner.pretraining.reader import BEGINNING, Reader
from computerrl.learner.pretraining.things import Item
from computerrl.learner.pretraining.tower import Eyes
from computerrl.learner.tiny_vision import SIDE, save_tiny_vision

ITEM = Item((0, 0, 1, 1), ("button",))


def language_model() -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(ensure_model("tiny-random"), dtype=torch.float32)


@pytest.fixture(scope="module")
def reader() -> Reader:
    torch.manual_seed(3)
    model = language_model()
    made = Reader(model, Eyes(model.config.to_dict())).eval()
    with torch.no_grad():
        for parameter in filter(lambda one: one.requires_grad, made.parameters()):
            # The saved file keeps half as many bits. Larger than at the start, so that images matter.
            parameter.copy_((parameter + 0.1 * torch.randn_like(parameter)).bfloat16().float())
    return made


def image(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (3, SIDE, SIDE)).astype(np.float32)


def question(seed: int) -> Question:
    rng = np.random.default_rng(seed)
    ask, answer = rng.integers(100, 5000, 4 + seed % 3).tolist(), rng.integers(100, 5000, 5).tolist()
    return Question(ask, [1, 2], 2, answer, answer, [1.0] * 5, [-1] * 5, (0, 0, 0, 0), ITEM)


@torch.no_grad()
def answer_logits(reader: Reader, pages: list[Any]) -> torch.Tensor:
    batch = make_batch(pages)
    return reader.logits(reader(batch).hidden_QLE[batch.targets_QL >= 0])


def test_questions_about_one_page_do_not_see_each_other(reader: Reader) -> None:
    first, second, third = (question(seed) for seed in range(3))
    together = answer_logits(reader, [(image(1), [first, second]), (image(2), [third])])
    alone = torch.cat([answer_logits(reader, [(image(seed), [one])]) for seed, one in ((1, first), (1, second), (2, third))])
    # The tower runs in bfloat16, page by page or several at once.
    torch.testing.assert_close(together, alone, atol=2e-2, rtol=1e-2)
    other = answer_logits(reader, [(image(3), [first, second]), (image(2), [third])])
    assert (other[:10] - together[:10]).abs().max() > 0.1


def test_saved_model_computes_what_was_trained(reader: Reader, tmp_path: Path) -> None:
    import transformers

    save_file({name: tensor.bfloat16().contiguous() for name, tensor in reader.state().items()}, tmp_path / "trained.safetensors")
    save_tiny_vision(tmp_path / "model", language_model=ensure_model("tiny-random"), trained=tmp_path / "trained.safetensors")
    assert load_processor(tmp_path / "model").image_token == 15
    saved = transformers.AutoModelForImageTextToText.from_pretrained(tmp_path / "model", dtype=torch.float32)
    one = question(1)
    batch = make_batch([(image(1), [one])])
    expected = answer_logits(reader, [(image(1), [one])])
    shown = {"pixel_values": batch.images[:, None], "pixel_attention_mask": torch.ones(1, 1, SIDE, SIDE, dtype=torch.long)}
    with torch.no_grad():
        tokens_1T = torch.cat([torch.tensor([BEGINNING]), batch.tokens_QL], dim=1)
        found = saved(input_ids=tokens_1T, **shown).logits[:, len(BEGINNING) :][batch.targets_QL >= 0]
    torch.testing.assert_close(found, expected, atol=5e-2, rtol=2e-2)
    # Without the low-rank changes it is another model.
    plain = copy.deepcopy(reader)
    for lora in plain.changes.values():
        torch.nn.init.zeros_(lora.B)
    assert (answer_logits(plain, [(image(1), [one])]) - expected).abs().max() > 0.2


def test_training_begins_with_what_was_kept(reader: Reader) -> None:
    kept = {name: tensor.clone() for name, tensor in reader.state().items()}
    expected = answer_logits(reader, [(image(1), [question(1)])])
    other = copy.deepcopy(reader)
    for tensor in other.state().values():
        tensor.normal_(std=0.02)
    other.load(kept)
    torch.testing.assert_close(answer_logits(other, [(image(1), [question(1)])]), expected)
    with pytest.raises(KeyError):
        other.load({})
