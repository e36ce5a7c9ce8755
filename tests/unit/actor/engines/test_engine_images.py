"""The transformers engine with images: log-probs of transformers itself, and nothing cached of another image or tower."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from computerrl.actor.engines.base import GenerationRequest, RequestImage
from computerrl.actor.engines.transformers_engine import TransformersCore, load_model
from computerrl.common.errors import EngineFailed
from computerrl.common.vision.processor import load_processor
from tests.support.data.vision_data import FAMILIES, IMAGE, TALL, WIDE, Screens, make_config, own_logprobs, own_model, save_model

NUM_NEW = 6


class Engine:
    """A core, the screens that it is shown, and transformers' own model beside it."""

    def __init__(self, tmp_path: Path, family: str, *, memo_bytes: int = 0) -> None:
        self.folder = save_model(tmp_path / "model", model_type=family)
        self.screens = Screens(self.folder, make_config(self.folder, tmp_path, top_layers=None))
        self.model = own_model(self.folder)
        self.core = TransformersCore(
            load_model(self.folder, dtype="float32", device="cpu"),
            num_live=4,
            max_tokens=256,
            seed=0,
            max_draft_tokens=2,
            memo_bytes=memo_bytes,
            processor=load_processor(self.folder),
        )
        self._key = 0

    def request(self, *refs: Any, before: tuple[int, ...] = (5, 6), after: tuple[int, ...] = (7,)) -> Any:
        """A step without action, for `check`, and its request."""
        step = self.screens.step(*refs, action=[1], before=before, after=after)
        images = tuple(RequestImage(ref.content_hash, self.screens.processed(ref)) for ref in refs)
        return step, GenerationRequest(step.prompt_tokens, 1.0, NUM_NEW, frozenset(), images=images)

    def check(self, *asked: Any) -> list[np.ndarray]:
        """Sample all at once and compare the log-probs of every token with transformers'; returns them."""
        keys = {}
        found: dict[int, Any] = {}
        waiting = list(asked)
        while len(found) < len(asked):
            while waiting and self.core.add(self._key, waiting[0][1]):
                keys[self._key] = waiting.pop(0)[0]
                self._key += 1
            found |= {sampled.key: sampled for sampled in self.core.step()}
        logprobs = []
        for key, step in keys.items():
            tokens = np.array(found[key].tokens, dtype=np.int32)
            # transformers would look for another image behind a sampled image token.
            until = int(np.flatnonzero(tokens == IMAGE)[0]) + 1 if (tokens == IMAGE).any() else len(tokens)
            whole = replace(step, action_tokens=tokens[:until])
            expected = own_logprobs(self.model, self.screens, whole).detach().numpy()
            np.testing.assert_allclose(found[key].logprobs[:until], expected, atol=1e-4)
            logprobs.append(expected)
        return logprobs

    def first(self, asked: Any) -> np.ndarray:
        """Distribution of the first token after the prompt."""
        assert self.core.add(self._key, asked[1])
        self._key += 1
        seen: list[torch.Tensor] = []
        forward = self.core._decoder.forward

        def kept(batch: Any) -> torch.Tensor:
            seen.append(forward(batch))
            return seen[-1]

        self.core._decoder.forward = kept  # type: ignore[method-assign]
        while not self.core.step():
            pass
        self.core._decoder.forward = forward  # type: ignore[method-assign]
        return seen[0][0].numpy()


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_of_every_family_are_transformers_own(tmp_path: Path, family: str) -> None:
    engine = Engine(tmp_path, family)
    first, second, third = (engine.screens.take(seed, size) for seed, size in ((1, WIDE), (2, WIDE), (3, TALL)))
    engine.check(engine.request(first), engine.request(second), engine.request(third), engine.request())
    # Beginnings of the first ones are stored by now.
    engine.check(
        engine.request(first, after=(7, 8)),
        engine.request(second, third),
        engine.request(first, third, after=(9,)),
        engine.request(first, first),
        engine.request(before=(5, 6, 7, 8, 9, 10, 11, 12, 13)),
    )


@pytest.mark.parametrize("family", ["qwen3_vl", "idefics3"])
def test_same_tokens_after_another_image_are_another_context(tmp_path: Path, family: str) -> None:
    engine = Engine(tmp_path, family, memo_bytes=2**20)
    first, second = engine.request(engine.screens.take(1, WIDE)), engine.request(engine.screens.take(2, WIDE))
    np.testing.assert_array_equal(first[1].prompt_tokens, second[1].prompt_tokens)
    one, two = engine.first(first), engine.first(second)
    assert np.abs(one - two).max() > 1e-3
    engine.check(second, first)


@pytest.mark.parametrize("family", FAMILIES)
def test_new_weights_of_the_tower_serve_no_old_features(tmp_path: Path, family: str) -> None:
    engine = Engine(tmp_path, family, memo_bytes=2**20)
    asked = engine.request(engine.screens.take(1, WIDE))
    before = engine.first(asked)
    with torch.no_grad():
        for name, parameter in engine.model.named_parameters():
            if "visual" in name or "vision_model" in name or "connector" in name:
                parameter.mul_(1.5)
    changed = {name: p.detach().clone() for name, p in engine.model.named_parameters()}
    # Admitted before the load and not computed yet: it gets the new tower as well.
    assert engine.core.add(-1, asked[1])
    engine.core.load(2, changed)
    engine.core.abort()
    assert np.abs(engine.first(asked) - before).max() > 1e-3
    engine.check(asked)


def test_request_admitted_before_a_load_is_computed_with_the_new_tower(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "qwen2_5_vl")
    step, request = engine.request(engine.screens.take(1, WIDE))
    assert engine.core.add(0, request)
    with torch.no_grad():
        for parameter in engine.model.model.visual.parameters():
            parameter.mul_(1.5)
    engine.core.load(1, {name: p.detach().clone() for name, p in engine.model.named_parameters()})
    (sampled,) = [one for _ in range(NUM_NEW) for one in engine.core.step()]
    tokens = np.array(sampled.tokens[:1], dtype=np.int32)
    whole = replace(step, action_tokens=tokens)
    expected = own_logprobs(engine.model, engine.screens, whole).detach().numpy()
    np.testing.assert_allclose(sampled.logprobs[:1], expected, atol=1e-4)


def test_prompt_without_its_image_is_refused(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "qwen2_vl")
    ref = engine.screens.take(1, WIDE)
    step, request = engine.request(ref)
    for tokens in (step.prompt_tokens[step.prompt_tokens != IMAGE], np.insert(step.prompt_tokens, 6, 9)):
        with pytest.raises(EngineFailed, match="image"):
            engine.core.add(0, GenerationRequest(tokens, 1.0, 1, frozenset(), images=request.images))
