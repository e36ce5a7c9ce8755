"""The transformers engine with images: log-probs of learner and transformers, and nothing cached of another image or tower."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from computerrl.actor.engines.base import GenerationRequest, RequestImage
from computerrl.actor.engines.decoders import HFDecoder
from computerrl.actor.engines.llama import LlamaDecoder
from computerrl.actor.engines.transformers_engine import TransformersCore, TransformersEngine, load_model
from computerrl.common.errors import EngineFailed
from computerrl.common.messages import ScreenshotRef, Step
from computerrl.common.vision.processor import load_processor
from computerrl.learner.model.policy import load_policy
from tests.support.data.vision_data import (
    FAMILIES,
    IMAGE,
    TALL,
    WIDE,
    Screens,
    make_config,
    own_logprobs,
    own_model,
    packed_logprobs,
    save_model,
)

NUM_NEW = 6
TILED = ("idefics3", "smolvlm")
"""Families whose language model is a Llama: both decoders run it."""
DECODERS = [*((family, True) for family in FAMILIES), *((family, False) for family in TILED)]
"""Family, and whether the fused decoder is allowed."""

Asked = tuple[Step, GenerationRequest]


class Engine:
    """A core, the screens that it is shown, and beside it transformers' own model and a learner's policy."""

    def __init__(
        self,
        tmp_path: Path,
        family: str,
        *,
        memo_bytes: int = 0,
        dtype: str = "float32",
        fused: bool = True,
    ) -> None:
        self.folder = save_model(tmp_path / "model", model_type=family)
        config = make_config(self.folder, tmp_path, top_layers=None, vision="trained")
        config = config.model_copy(update={"model": config.model.model_copy(update={"dtype": dtype})})
        self.screens = Screens(self.folder, config)
        self.model = own_model(self.folder)
        self.policy = load_policy(config)
        self.core = TransformersCore(
            load_model(self.folder, dtype=dtype, device="cpu"),
            num_live=4,
            max_tokens=256,
            seed=0,
            max_draft_tokens=2,
            memo_bytes=memo_bytes,
            fused=fused,
            processor=load_processor(self.folder),
        )
        assert type(self.core._decoder) is (LlamaDecoder if fused and family in TILED else HFDecoder)
        self._key = 0

    def request(
        self,
        *refs: ScreenshotRef,
        before: tuple[int, ...] = (5, 6),
        after: tuple[int, ...] = (7,),
        temperature: float = 1.0,
        most: int = NUM_NEW,
    ) -> Asked:
        """A step without action, for `check`, and its request."""
        return self.request_of(self.screens.step(*refs, action=[1], before=before, after=after), temperature, most)

    def request_of(self, step: Step, temperature: float = 1.0, most: int = NUM_NEW) -> Asked:
        images = tuple(RequestImage(ref.content_hash, self.screens.processed(ref)) for ref in step.images)
        return step, GenerationRequest(step.prompt_tokens, temperature, most, frozenset(), images=images)

    def sample(self, *asked: Asked) -> list[tuple[Step, np.ndarray]]:
        """Sample all at once; gives the steps with their actions, and log-probs of these."""
        keys = {}
        found: dict[int, Any] = {}
        waiting = list(asked)
        while len(found) < len(asked):
            while waiting and self.core.add(self._key, waiting[0][1]):
                keys[self._key] = waiting.pop(0)[0]
                self._key += 1
            found |= {sampled.key: sampled for sampled in self.core.step()}
        actions = {key: np.array(found[key].tokens, dtype=np.int32) for key in keys}
        return [(replace(step, action_tokens=actions[key]), np.array(found[key].logprobs)) for key, step in keys.items()]

    def check(self, *asked: Asked) -> list[Step]:
        """Sample all at once, and compare the log-probs of every token with transformers' and the learner's. Gives the steps with
        their actions."""
        steps, found = zip(*self.sample(*asked), strict=True)
        for step, logprobs, learners in zip(steps, found, packed_logprobs(self.policy, steps), strict=True):
            np.testing.assert_allclose(logprobs, own_logprobs(self.model, self.screens, step).detach(), atol=1e-4)
            np.testing.assert_allclose(logprobs, learners, atol=1e-4)
        return list(steps)

    def first(self, asked: Asked) -> np.ndarray:
        """[V] log-probs of the first token after the prompt."""
        return self.first_and_reused(asked)[0]

    def first_and_reused(self, asked: Asked) -> tuple[np.ndarray, int]:
        """[V] log-probs of the first token after the prompt, and how many of the prompt's tokens came from a stored row."""
        assert self.core.add(self._key, asked[1])
        self._key += 1
        (running,) = self.core._running.values()
        num_reused = running.num_cached
        seen: list[torch.Tensor] = []
        forward = self.core._decoder.forward

        def kept(batch: Any) -> torch.Tensor:
            seen.append(forward(batch))
            return seen[-1]

        self.core._decoder.forward = kept  # type: ignore[method-assign]
        while not self.core.step():
            pass
        self.core._decoder.forward = forward  # type: ignore[method-assign]
        return seen[0][0].log_softmax(-1).numpy(), num_reused

    @torch.no_grad()
    def change_tower(self) -> dict[str, torch.Tensor]:
        """Another tower in the learner's policy and transformers' model; gives all tensors, for the core."""
        assert self.policy.vision is not None
        for model in (self.model, self.policy.vision.model):
            for name in self.policy.tower_names:
                model.get_parameter(name).mul_(1.5)
        return {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}

    @torch.no_grad()
    def change_head(self, weight: torch.Tensor) -> None:
        """Another output matrix everywhere."""
        assert self.policy.vision is not None
        for model in (self.model, self.policy.vision.model):
            model.lm_head.weight.copy_(weight)
        self.core.load(1, {"lm_head.weight": weight})


@pytest.mark.parametrize(("family", "fused"), DECODERS)
def test_logprobs_of_every_family_are_transformers_own_and_the_learners(tmp_path: Path, family: str, fused: bool) -> None:
    engine = Engine(tmp_path, family, fused=fused)
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


@pytest.mark.parametrize(("family", "fused"), DECODERS)
def test_logprobs_in_bfloat16_are_near_the_learners(tmp_path: Path, family: str, fused: bool) -> None:
    engine = Engine(tmp_path, family, fused=fused, dtype="bfloat16")
    first, second, third = (engine.screens.take(seed, size) for seed, size in ((1, WIDE), (2, WIDE), (3, TALL)))
    asked = [engine.request(*refs, most=20) for refs in ((first,), (second,), (first, third), (second, first, third))]
    steps, found = zip(*engine.sample(*asked), strict=True)
    gaps = np.abs(np.concatenate(found) - np.concatenate(packed_logprobs(engine.policy, steps)))
    assert gaps.mean() <= 2e-2 and gaps.max() <= 0.3


@pytest.mark.parametrize(("family", "fused"), DECODERS)
@torch.no_grad()
def test_sampled_image_token_is_text_to_engine_and_learner(tmp_path: Path, family: str, fused: bool) -> None:
    engine = Engine(tmp_path, family, fused=fused)
    asked = engine.request(engine.screens.take(1, WIDE), engine.screens.take(3, TALL), temperature=0.0)
    seen: list[torch.Tensor] = []
    head = engine.model.lm_head
    with head.register_forward_hook(lambda _, given, out: seen.append(given[0][0, -2])):
        own_logprobs(engine.model, engine.screens, asked[0])
    # The image token becomes the likeliest after this prompt, and elsewhere one of several: log-probs of 0 prove nothing.
    weight = head.weight.clone()
    weight[IMAGE] = 1.5 * seen[0] / seen[0].norm() * weight.norm(dim=1).max()
    engine.change_head(weight)
    (step,) = engine.check(asked)
    assert step.action_tokens[0] == IMAGE
    assert own_logprobs(engine.model, engine.screens, step)[1:].max() < -0.5
    # As the prompt of a request that was interrupted: its beginning is stored, and then it is not.
    said = replace(step, prompt_tokens=np.concatenate([step.prompt_tokens, step.action_tokens[:2]]))
    for _ in range(2):
        ((rest, logprobs),) = engine.sample(engine.request_of(said, temperature=0.0, most=4))
        whole = replace(step, action_tokens=np.concatenate([step.action_tokens[:2], rest.action_tokens]))
        (learners,) = packed_logprobs(engine.policy, [whole])
        np.testing.assert_allclose(logprobs, learners[2:], atol=1e-4)
        np.testing.assert_allclose(logprobs, own_logprobs(engine.model, engine.screens, whole)[2:], atol=1e-4)
        engine.core._cache.forget_stored()


@pytest.mark.parametrize(("family", "fused"), DECODERS)
def test_prompt_that_goes_on_from_a_stored_one_gives_what_it_gives_alone(tmp_path: Path, family: str, fused: bool) -> None:
    engine = Engine(tmp_path, family, fused=fused)
    first, second, third = (engine.screens.take(seed, size) for seed, size in ((1, WIDE), (2, WIDE), (3, TALL)))
    stored, request = engine.request(first, second)
    tokens = stored.prompt_tokens
    at = np.flatnonzero(tokens == IMAGE)
    num_first = engine.screens.processed(first).layout.num_pieces
    if family in TILED:
        # Another marker before the last run of the second image's pieces.
        inside = int(at[np.flatnonzero(np.diff(at) > 1)[-1] + 1]) - 1
        inside_second = np.where(np.arange(len(tokens)) == inside, 1099, tokens)
    else:
        # The prompt ends with the last piece of the second image; the last token is always computed.
        inside = int(at[-1])
        inside_second = tokens[: inside + 1]
    assert at[num_first] < inside <= at[-1]
    behind_first = int(at[num_first - 1]) + 1
    # Number of tokens that are stored -> the step that goes on from there.
    steps = {
        inside: replace(stored, prompt_tokens=inside_second),
        behind_first: replace(stored, prompt_tokens=np.insert(tokens, behind_first, 9)),
        int(at[num_first]): engine.request(first, third)[0],
        len(tokens) - 1: engine.request(first, second, after=(8, 9))[0],
    }
    for num_stored, step in steps.items():
        asked = engine.request_of(step)
        engine.core._cache.forget_stored()
        alone, num_reused = engine.first_and_reused(asked)
        assert num_reused == 0
        # The second time the stored row holds something else: it is in fact read.
        for spoil in (False, True):
            engine.core._cache.forget_stored()
            assert engine.first_and_reused((stored, request))[1] == 0
            if spoil:
                engine.core._cache._stored_LKSHTD.mul_(-1.0)
            found, num_reused = engine.first_and_reused(asked)
            assert num_reused == num_stored
            assert (np.abs(found - alone).max() > 1e-2) if spoil else (np.abs(found - alone).max() <= 1e-5)


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
    changed = engine.change_tower()
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
    engine.core.load(1, engine.change_tower())
    (sampled,) = [one for _ in range(NUM_NEW) for one in engine.core.step()]
    tokens = np.array(sampled.tokens[:1], dtype=np.int32)
    whole = replace(step, action_tokens=tokens)
    expected = own_logprobs(engine.model, engine.screens, whole).detach().numpy()
    np.testing.assert_allclose(sampled.logprobs[:1], expected, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_resuming_after_a_load_reads_the_images_with_the_new_tower(tmp_path: Path, family: str) -> None:
    engine, reached, num_before, num_all = Engine(tmp_path, family), threading.Event(), 4, 12
    step, request = engine.request(engine.screens.take(1, WIDE), engine.screens.take(3, TALL), most=num_all)
    old = own_model(engine.folder)
    served = TransformersEngine(
        engine.core, decode=lambda _: "", dtype="float32", resumes=True, processor=load_processor(engine.folder)
    )
    go_on, passes = engine.core.step, iter(range(num_all))

    def waiting_for_the_load() -> Any:
        if next(passes) == num_before:
            reached.set()
            while not served._commands:
                time.sleep(0.001)
        return go_on()

    try:
        served.load(0, {}, expected_probe=engine.policy.probe_logprobs())
        engine.core.step = waiting_for_the_load
        future = served.submit(request)
        assert reached.wait(60)
        served.load(1, engine.change_tower(), expected_probe=engine.policy.probe_logprobs())
        answer = future.result(60)
    finally:
        served.close()
    is_new = answer.policy_versions == 1
    assert len(is_new) == num_all and is_new.sum() >= 2 and not is_new[:num_before].any()
    whole = replace(step, action_tokens=answer.tokens)
    before, after = (own_logprobs(model, engine.screens, whole).detach().numpy() for model in (old, engine.model))
    assert np.abs(before - after)[is_new].max() > 1e-3
    np.testing.assert_allclose(answer.logprobs, np.where(is_new, after, before), atol=1e-4)
    (learners,) = packed_logprobs(engine.policy, [whole])
    np.testing.assert_allclose(answer.logprobs[is_new], learners[is_new], atol=1e-4)


def test_prompt_without_its_image_is_refused(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "qwen2_vl")
    ref = engine.screens.take(1, WIDE)
    step, request = engine.request(ref)
    for tokens in (step.prompt_tokens[step.prompt_tokens != IMAGE], np.insert(step.prompt_tokens, 6, 9)):
        with pytest.raises(EngineFailed, match="image"):
            engine.core.add(0, GenerationRequest(tokens, 1.0, 1, frozenset(), images=request.images))
