"""Attestation with an image: learner and engines score the same probe, and a tower that was not updated is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from computerrl.actor.engines.threaded import ThreadedEngine
from computerrl.actor.engines.transformers_engine import make_transformers_engine
from computerrl.common.errors import WeightError
from computerrl.common.vision.probe import make_image_probe, num_probe_tokens, probe_image
from computerrl.common.vision.processor import load_processor
from computerrl.common.weight_plan import PROBE_TOLERANCE, probe_tokens
from computerrl.learner.model.policy import load_policy
from tests.support.data.vision_data import FAMILIES, IMAGE, make_config, save_model


def make_engine(folder: Path) -> ThreadedEngine:
    """Its prompts are shorter than the probe."""
    return make_transformers_engine(
        folder,
        decode=lambda _: "",
        dtype="float32",
        device="cpu",
        num_live=1,
        max_tokens=8,
        seed=0,
        num_threads=None,
        max_draft_tokens=0,
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_engine_with_an_older_tower_than_the_learners_is_refused(tmp_path: Path, family: str) -> None:
    folder = save_model(tmp_path / "model", model_type=family)
    policy = load_policy(make_config(folder, tmp_path, top_layers=None, vision="trained"))
    assert policy.vision is not None
    model: Any = policy.vision.model
    engine = make_engine(folder)
    try:
        # Matrices in half precision, where the language model has Llama's shape.
        np.testing.assert_allclose(engine.probe(), policy.probe_logprobs(), atol=0.01)
        engine.load(1, {}, expected_probe=policy.probe_logprobs())
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name in policy.tower_names:
                    parameter.mul_(1.5)
        tensors = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        text = {name: tensor for name, tensor in tensors.items() if name not in policy.tower_names}
        assert len(text) < len(tensors)
        with pytest.raises(WeightError, match="probe log-probs differ"):
            engine.load(2, text, expected_probe=policy.probe_logprobs())
        engine.load(2, tensors, expected_probe=policy.probe_logprobs())
        assert 0.0 < engine.metrics()["engine/probe_gap"] < 0.01
        assert engine.policy_version == 2
    finally:
        engine.close()


def test_probe_of_a_frozen_tower_is_the_same_again(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model")
    policy = load_policy(make_config(folder, tmp_path, top_layers=1))
    np.testing.assert_array_equal(policy.probe_logprobs(), policy.probe_logprobs())


def test_learner_with_a_probe_of_text_alone_is_refused_by_an_engine_that_sees_the_image(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model")
    engine = make_engine(folder)
    try:
        text = engine._core.probe(np.array(probe_tokens(1100), dtype=np.int32))
        assert np.abs(text[-len(engine.probe()) :] - engine.probe()).mean() > PROBE_TOLERANCE["float32"]
        with pytest.raises(WeightError, match="probe log-probs differ"):
            engine.load(1, {}, expected_probe=text)
    finally:
        engine.close()


def test_probe_holds_the_image_token_for_its_image_alone(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model")
    processor = load_processor(folder)
    for vocabulary, image_token in ((1100, IMAGE), (1100, 253), (1100, 57), (40, 39)):
        processor.image_token = image_token
        probe = make_image_probe(processor, vocabulary=vocabulary)
        tokens = np.concatenate([probe.prompt_tokens, probe.scored_tokens])
        assert (tokens == image_token).sum() == probe.processed.layout.num_pieces
        assert len(tokens) == num_probe_tokens(processor) and tokens.min() >= 0 and tokens.max() < vocabulary


def test_pixels_of_the_probe_differ_from_place_to_place() -> None:
    pixels = np.asarray(probe_image())
    assert pixels.shape == (84, 112, 3)
    patches = {pixels[y : y + 14, x : x + 14].tobytes() for y in range(0, 84, 14) for x in range(0, 112, 14)}
    assert len(patches) == 6 * 8
