"""The vLLM engine with images: log-probs of learner and transformers, and nothing of another image, tower or output matrix.

It serves what a learner trained and exported. vLLM changes torch for the whole process it lives in, so that the last test starts
this file again in a process of its own. On a CPU vLLM loads Idefics3 alone of the families, and wants heads of 32 numbers.
vllm-async is the same with the scheduling that vLLM has on GPUs, and reads most prompts over several steps, parts of images each.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from computerrl.actor.engines.base import Completion, GenerationRequest, RequestImage
from computerrl.common.errors import EngineFailed, WeightError
from computerrl.common.messages import ScreenshotRef, Step
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.learner.checkpoints.checkpoint import CheckpointStore
from computerrl.learner.checkpoints.export import export_model
from computerrl.learner.model.policy import load_policy
from computerrl.learner.supervised.pool import pack_run
from computerrl.learner.training.trainer import Trainer
from tests.contracts.test_engine_contract import schedule_asynchronously
from tests.support.data.image_prompts import VLLM_TEXT, make_folder
from tests.support.data.vision_data import TALL, WIDE, Screens, make_batch, make_config, own_logprobs, own_model

VARIABLE = "COMPUTERRL_TEST_ENGINE"
DEADLINE_S = 300

EMBEDDING = "model.text_model.embed_tokens.weight"
"""It is the output matrix too."""

Asked = tuple[Step, GenerationRequest]


def export_trained(tmp_path: Path) -> tuple[Path, Any, Screens]:
    """A folder that a learner trained and exported, the learner's policy, and the screens of its run."""
    base = make_folder(tmp_path / "base", "idefics3", text=VLLM_TEXT, tied=True)
    config = make_config(base, tmp_path, top_layers=None, vision="trained")
    run = RunFolder(config.folder)
    run.create(config)
    trainer, screens = Trainer(config, load_policy(config)), Screens(base, config)
    trainer.update(make_batch(trainer, screens, own_model(base)))
    store = CheckpointStore(run.checkpoints, num_kept=1)
    sections, tree = pack_run({"policy_version": 1, "phase": "rl-1", "update": 1}, trainer.state_dict(), {})
    store.save(sections, tree, cursor=1)
    store.close()
    return export_model(run.folder, tmp_path / "exported"), trainer.policy, screens


class Subject:
    """The engine, the learner's policy that trained its folder, and transformers' own model."""

    def __init__(self, name: str, tmp_path: Path) -> None:
        folder, self.policy, self.screens = export_trained(tmp_path)
        self.model = own_model(folder)
        from computerrl.actor.engines.vllm_engine import make_vllm_engine

        if name == "vllm-async":
            schedule_asynchronously()
        self.engine = make_vllm_engine(
            folder,
            decode=lambda _: "",
            dtype="float32",
            num_live=3,
            max_tokens=256,
            seed=0,
            num_threads=1,
            max_num_batched_tokens=32 if name == "vllm-async" else None,
        )
        self.version = 0
        self.engine.load(0, {}, expected_probe=self.policy.probe_logprobs())
        self.first = {name: tensor.detach().clone() for name, tensor in self.policy.vision.model.named_parameters()}

    def ask(
        self,
        *refs: ScreenshotRef,
        before: tuple[int, ...] = (5, 6),
        after: tuple[int, ...] = (7,),
        temperature: float = 1.0,
        most: int = 6,
    ) -> Asked:
        """A step without action, for `check`, and its request."""
        step = self.screens.step(*refs, action=[1], before=before, after=after)
        images = tuple(RequestImage(ref.content_hash, self.screens.processed(ref)) for ref in refs)
        return step, GenerationRequest(step.prompt_tokens, temperature, most, frozenset(), images=images)

    def answers(self, *asked: Asked) -> list[Completion]:
        return [future.result(DEADLINE_S) for future in [self.engine.submit(request) for _, request in asked]]

    def check(self, *asked: Asked) -> list[Step]:
        """Sample all at once, and compare the log-probs of every token with transformers' and the learner's. Returns the steps
        with their actions."""
        done = self.answers(*asked)
        steps = [replace(step, action_tokens=answer.tokens) for (step, _), answer in zip(asked, done, strict=True)]
        for step, answer, learners in zip(steps, done, self.learners(steps), strict=True):
            np.testing.assert_allclose(answer.logprobs, learners, atol=1e-4)
            # transformers would look for another image behind a sampled image token.
            if self.screens.image_token not in answer.tokens:
                np.testing.assert_allclose(answer.logprobs, self.own(step), atol=1e-4)
        return steps

    def own(self, step: Step) -> np.ndarray:
        return own_logprobs(self.model, self.screens, step).detach().numpy()

    def learners(self, steps: list[Step]) -> list[np.ndarray]:
        found: dict[int, np.ndarray] = {}
        with torch.no_grad():
            for pack in self.policy.packs(steps, max_tokens=4096):
                logprobs_M = self.policy.forward(pack, temperature=1.0).logprobs_U[torch.from_numpy(pack.token_pair_M)]
                parts = logprobs_M.split([len(steps[i].action_tokens) for i in pack.samples_S])
                found |= {int(i): part.numpy() for i, part in zip(pack.samples_S, parts, strict=True)}
        return [found[i] for i in range(len(steps))]

    @torch.no_grad()
    def change(self, part: str, *, factor: float = 1.5) -> dict[str, torch.Tensor]:
        """New values of ``part`` (tower, head, text or all) in learner and transformers' model; returns all tensors of it."""
        changed = {}
        own = dict(self.model.named_parameters())
        for name, parameter in self.policy.vision.model.named_parameters():
            of_tower, of_head = name in self.policy.tower_names, name == EMBEDDING
            if part == "all" or (of_tower if part == "tower" else of_head if part == "head" else not of_tower):
                # More than the scale, which norms take away again.
                noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name)))
                parameter.mul_(factor).add_(0.02 * noise)
                own[name].copy_(parameter)
                changed[name] = parameter.detach().clone()
        assert changed
        return changed

    @torch.no_grad()
    def restore(self) -> None:
        """The weights of the beginning: those that were changed often turn rounding into noise of their own."""
        for model in (self.policy.vision.model, self.model):
            for name, parameter in model.named_parameters():
                parameter.copy_(self.first[name])
        self.load(self.first)

    def load(self, tensors: dict[str, torch.Tensor]) -> None:
        self.version += 1
        self.engine.load(self.version, tensors, expected_probe=self.policy.probe_logprobs())


ENGINES = [os.environ[VARIABLE]] if VARIABLE in os.environ else []


@pytest.fixture(scope="module", params=ENGINES)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    made = Subject(request.param, tmp_path_factory.mktemp("run"))
    yield made
    made.engine.close()


if VARIABLE in os.environ:

    @pytest.fixture(autouse=True)
    def weights_of_the_beginning(subject: Subject) -> Iterator[None]:
        yield
        subject.restore()

    def test_logprobs_are_those_of_learner_and_transformers(subject: Subject) -> None:
        first, second, third = (subject.screens.take(seed, size) for seed, size in ((1, WIDE), (2, WIDE), (3, TALL)))
        subject.check(subject.ask(first), subject.ask(second), subject.ask(third), subject.ask())
        # Beginnings of the first ones are stored by now: with prefixes that end before, in and after an image.
        subject.check(
            subject.ask(first),
            subject.ask(first, after=(7, 8)),
            subject.ask(first, second, after=(9,)),
            subject.ask(first, third, after=(9,)),
            subject.ask(second, third),
            subject.ask(first, first),
            subject.ask(first, before=(5, 6, 7, 8)),
            subject.ask(before=tuple(range(5, 45)), after=(3,)),
        )

    def test_same_tokens_after_another_image_are_another_context(subject: Subject) -> None:
        one, two = subject.ask(subject.screens.take(11, WIDE)), subject.ask(subject.screens.take(12, WIDE))
        np.testing.assert_array_equal(one[1].prompt_tokens, two[1].prompt_tokens)
        # Nothing is stored, the other one is stored, both are stored.
        for asked in ((one,), (two,), (two, one)):
            for step in subject.check(*asked):
                other = two[0] if step.images == one[0].images else one[0]
                assert np.abs(subject.own(step) - subject.own(replace(step, images=other.images))).max() > 1e-3

    def test_new_tower_serves_no_old_features_of_the_same_image(subject: Subject) -> None:
        asked = subject.ask(subject.screens.take(21, WIDE))
        (before,) = subject.check(asked)
        old = subject.own(before)
        subject.load(subject.change("tower"))
        assert np.abs(subject.own(before) - old).max() > 1e-3
        subject.check(asked, subject.ask(subject.screens.take(22, TALL)))
        subject.check(asked)

    def test_update_of_the_language_model_alone_keeps_images_right(subject: Subject) -> None:
        asked = subject.ask(subject.screens.take(31, WIDE))
        subject.check(asked)
        for part in ("text", "head"):
            subject.load(subject.change(part, factor=1.2))
            subject.check(asked, subject.ask(subject.screens.take(32, TALL)))

    def test_output_matrix_is_packed_again_after_a_load(subject: Subject) -> None:
        asked = subject.ask(subject.screens.take(41, WIDE))
        (before,) = subject.check(asked)
        old = subject.own(before)
        subject.load(subject.change("head", factor=1.5))
        assert np.abs(subject.own(before) - old).max() > 1e-2
        subject.check(asked)

    def test_engine_with_an_older_tower_than_the_learners_is_refused(subject: Subject) -> None:
        tensors = subject.first | subject.change("tower")
        text = {name: tensor for name, tensor in tensors.items() if name not in subject.policy.tower_names}
        with pytest.raises(WeightError, match="probe log-probs differ"):
            subject.load(text)
        with pytest.raises(EngineFailed):
            subject.answers(subject.ask())
        subject.load(tensors)
        subject.check(subject.ask(subject.screens.take(51, WIDE)))

    @torch.no_grad()
    def test_sampled_image_token_is_text_to_engine_and_learner(subject: Subject) -> None:
        asked = subject.ask(subject.screens.take(61, WIDE), temperature=0.0)
        image_token = subject.screens.image_token
        seen: list[torch.Tensor] = []
        head = subject.model.lm_head
        hook = head.register_forward_hook(lambda _, given, out: seen.append(given[0][0, -2]))
        subject.own(asked[0])
        hook.remove()
        # The image token becomes the likeliest after this prompt, and elsewhere one of several: log-probs of 0 prove nothing.
        weight = head.weight.clone()
        weight[image_token] = 1.5 * seen[0] / seen[0].norm() * weight.norm(dim=1).max()
        for parameter in (head.weight, dict(subject.policy.vision.model.named_parameters())[EMBEDDING]):
            parameter.copy_(weight)
        subject.load({EMBEDDING: weight})
        (step,) = subject.check(asked)
        assert step.action_tokens[0] == image_token
        # As the prompt of a request that was interrupted, and with an image in the cache.
        rest = np.concatenate([asked[1].prompt_tokens, step.action_tokens[:2]])
        again = GenerationRequest(rest, 0.0, 4, frozenset(), images=asked[1].images)
        answer = subject.engine.submit(again).result(DEADLINE_S)
        whole = replace(step, action_tokens=np.concatenate([step.action_tokens[:2], answer.tokens]))
        np.testing.assert_allclose(answer.logprobs, subject.learners([whole])[0][2:], atol=1e-4)

    def test_loading_while_prompts_are_read_gives_answers_of_the_new_version_its_logprobs_alone(subject: Subject) -> None:
        refs = [subject.screens.take(70 + number, WIDE) for number in range(3)]
        asked = [subject.ask(ref, refs[0]) for ref in refs]
        futures = [subject.engine.submit(request) for _, request in asked]
        subject.load(subject.change("all", factor=1.1))
        answers = [future.result(DEADLINE_S) for future in futures]
        steps = [replace(step, action_tokens=answer.tokens) for (step, _), answer in zip(asked, answers, strict=True)]
        for answer, learners in zip(answers, subject.learners(steps), strict=True):
            if answer.policy_versions[0] == subject.version:
                np.testing.assert_allclose(answer.logprobs, learners, atol=1e-4)

    def test_resuming_after_a_load_reads_the_image_with_the_new_tower(subject: Subject) -> None:
        subject.engine._resumes = True
        try:
            asked = subject.ask(subject.screens.take(81, WIDE), most=120)
            future = subject.engine.submit(asked[1])
            subject.answers(subject.ask(most=2))
            subject.load(subject.change("tower", factor=1.3))
            answer = future.result(DEADLINE_S)
        finally:
            subject.engine._resumes = False
        new = answer.policy_versions == subject.version
        assert new.any() and not new.all()
        (learners,) = subject.learners([replace(asked[0], action_tokens=answer.tokens)])
        np.testing.assert_allclose(answer.logprobs[new], learners[new], atol=1e-4)

    def test_prompt_without_its_image_is_refused_and_the_engine_serves_on(subject: Subject) -> None:
        step, request = subject.ask(subject.screens.take(91, WIDE))
        tokens = step.prompt_tokens[step.prompt_tokens != subject.screens.image_token]
        future = subject.engine.submit(GenerationRequest(tokens, 1.0, 1, frozenset(), images=request.images))
        with pytest.raises(EngineFailed, match="0 image tokens for images that take 20"):
            future.result(DEADLINE_S)
        subject.check((step, request))

else:

    @pytest.mark.release
    @pytest.mark.timeout(2000)
    @pytest.mark.parametrize("engine", ["vllm", "vllm-async"])
    def test_vllm_engine_with_images_in_its_own_process(engine: str) -> None:
        inner = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__]
        env = {**os.environ, VARIABLE: engine, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(inner, env=env, capture_output=True, text=True, timeout=1900)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
