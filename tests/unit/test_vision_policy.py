"""Vision-language policies: packs with pictures against transformers' own forward pass, gradients, what is frozen and refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from msgspec.structs import replace

from common.config import LearnerConfig, ModelConfig, OptimizerConfig, RunConfig
from common.errors import ConfigError, PictureError
from common.messages import ScreenshotRef, Step
from common.run_folder import RunFolder
from env_server.client import read_screenshot
from env_server.screenshots import ScreenshotStore
from learner.batching import make_packs
from learner.poison import poison_of
from learner.policy import Policy, load_policy
from learner.pool import EpisodePool
from learner.rope_positions import Grid, rope_positions
from learner.trainer import Trainer
from tests.unit.trainer_data import make_group, make_step

IMAGE, VISION_START, VISION_END = 1050, 1052, 1053
WIDE, TALL = (150, 100), (60, 120)
"""Width and height in pixels; as grids 5 x 4 and 2 x 4 pieces of 28 x 28."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2.5-VL of 3 layers and a tower of 2, with image processor; its tokenizer is never asked."""
    path = tmp_path_factory.mktemp("vision") / "model"
    config = transformers.Qwen2_5_VLConfig(
        text_config={
            "vocab_size": 1100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
            "num_key_value_heads": 2, "max_position_embeddings": 2048, "initializer_range": 0.2, "bos_token_id": 1,
            "eos_token_id": 2, "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 100.0},
        },
        vision_config={
            "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 32, "window_size": 56,
            "fullatt_block_indexes": [1], "initializer_range": 0.2,
        },
        image_token_id=IMAGE, video_token_id=1051, vision_start_token_id=VISION_START, vision_end_token_id=VISION_END,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(7)
        transformers.Qwen2_5_VLForConditionalGeneration(config).save_pretrained(path)
    transformers.Qwen2VLImageProcessor(min_pixels=56 * 56, max_pixels=28 * 28 * 64).save_pretrained(path)
    (path / "tokenizer.json").write_text("{}")
    return path


def make_config(folder: Path, tmp_path: Path, *, top_layers: int | None, **learner: Any) -> RunConfig:
    # The log-probs of these batches are made up.
    learner = {"max_logprob_gap": None, "device": "cpu", "optimizer": OptimizerConfig(lr=1e-2), **learner}
    return RunConfig(
        run_dir=str(tmp_path),
        model=ModelConfig(name=str(folder), dtype="float32", trainable_top_layers=top_layers),
        learner=LearnerConfig(**learner),
    )


class Screens:
    """Screenshots as the env_server stores them, and as the model's own processor sees them."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self.trajectories = RunFolder(config.folder).trajectories
        self._store = ScreenshotStore(self.trajectories, picture_format="png", incarnation="test")
        self._pixels: dict[str, np.ndarray] = {}
        self._processor = transformers.AutoImageProcessor.from_pretrained(folder)

    def take(self, seed: int, size: tuple[int, int]) -> ScreenshotRef:
        pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        ref = self._store.put(pixels)
        self._pixels[ref.content_hash] = pixels
        return ref

    def inputs(self, ref: ScreenshotRef) -> dict[str, torch.Tensor]:
        """pixel_values and image_grid_thw."""
        return dict(self._processor(images=[self._pixels[ref.content_hash]], return_tensors="pt"))

    def step(
        self, ref: ScreenshotRef, action: Sequence[int], *, before: Sequence[int] = (5, 6), after: Sequence[int] = (7,)
    ) -> Step:
        """Its prompt shows ``ref`` between two texts."""
        num_tokens = int(self.inputs(ref)["image_grid_thw"].prod()) // 4
        prompt = [*before, VISION_START, *[IMAGE] * num_tokens, VISION_END, *after]
        return replace(make_step(prompt, action), screenshot=ref)


def all_tokens(step: Step) -> torch.Tensor:
    return torch.tensor([[*step.prompt_tokens.tolist(), *step.action_tokens.tolist()]])


def own_logprobs(model: Any, screens: Screens, step: Step) -> torch.Tensor:
    """[A] by transformers' own forward pass over one step."""
    tokens = all_tokens(step)
    pictures: dict[str, Any] = {}
    if (step.prompt_tokens == IMAGE).any():
        assert step.screenshot is not None
        pictures = screens.inputs(step.screenshot) | {"mm_token_type_ids": _picture_mask(step)}
    logits = model(input_ids=tokens, **pictures).logits[0, :-1]
    logprobs = torch.log_softmax(logits, dim=-1).gather(1, tokens[0, 1:, None])[:, 0]
    return logprobs[len(step.prompt_tokens) - 1 :]


def _picture_mask(step: Step) -> torch.Tensor:
    mask = np.concatenate([step.prompt_tokens == IMAGE, np.zeros(len(step.action_tokens), np.bool_)])
    return torch.from_numpy(mask.astype(np.int32))[None]


def own_model(folder: Path) -> Any:
    return transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()


def packed_logprobs(policy: Policy, steps: Sequence[Step], *, max_tokens: int = 4096) -> list[torch.Tensor]:
    found: dict[int, torch.Tensor] = {}
    for pack in policy.packs(steps, max_tokens=max_tokens):
        logprobs_M = policy.forward(pack, temperature=1.0).logprobs_U[torch.from_numpy(pack.token_pair_M)]
        lengths = [len(steps[i].action_tokens) for i in pack.samples_S]
        found |= dict(zip(pack.samples_S.tolist(), logprobs_M.detach().split(lengths), strict=True))
    return [found[i] for i in range(len(steps))]


def mixed_steps(screens: Screens) -> list[Step]:
    """Two pictures of one size, one of another, shared and not, and text alone."""
    first, second, third = screens.take(1, WIDE), screens.take(2, WIDE), screens.take(3, TALL)
    return [
        screens.step(first, [11, 12, 13]),
        screens.step(first, [11, 14]),
        screens.step(second, [11, 12, 13]),
        screens.step(third, [11, 12, 13], after=(7, 8, 9)),
        screens.step(first, [12, 13], before=(5, 6, 9, 9)),
        # Sampled as text: an engine embeds it as such.
        screens.step(third, [11, IMAGE, 13]),
        replace(make_step([5, 6, 21, 22], [23, 24]), screenshot=first),
    ]


# --- positions ---------------------------------------------------------------------------------------------------------


def test_rope_positions_of_a_sequence_are_transformers(folder: Path) -> None:
    model = own_model(folder)
    grids = [Grid(4, 5), Grid(4, 2), Grid(1, 1)]
    tokens, types, first = [5, 6, 7], [0, 0, 0], {}
    for grid in grids:
        first[len(tokens)] = grid
        tokens += [IMAGE] * grid.num_tokens + [8, 9]
        types += [1] * grid.num_tokens + [0, 0]
    expected, _ = model.model.get_rope_index(
        torch.tensor([tokens]),
        mm_token_type_ids=torch.tensor([types]),
        image_grid_thw=torch.tensor([[1, 2 * grid.height, 2 * grid.width] for grid in grids]),
    )
    found = rope_positions(np.arange(len(tokens)), np.full(len(tokens), len(tokens)), first)
    np.testing.assert_array_equal(found, expected[:, 0].numpy())


def test_rope_positions_of_text_alone_are_depths() -> None:
    depth = np.array([0, 1, 2, 1, 2])
    np.testing.assert_array_equal(rope_positions(depth, np.array([5, 3, 3, 5, 5]), {}), np.stack([depth] * 3))


# --- packs and log-probs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_tokens", [4096, 40])
@pytest.mark.parametrize("top_layers", [1, None])
def test_packed_logprobs_are_transformers_own(folder: Path, tmp_path: Path, top_layers: int | None, max_tokens: int) -> None:
    config = make_config(folder, tmp_path, top_layers=top_layers)
    policy, screens, model = load_policy(config), Screens(folder, config), own_model(folder)
    steps = mixed_steps(screens)
    found = packed_logprobs(policy, steps, max_tokens=max_tokens)
    for step, logprobs in zip(steps[:-2], found, strict=False):
        torch.testing.assert_close(logprobs, own_logprobs(model, screens, step).detach(), atol=1e-4, rtol=0)
    torch.testing.assert_close(found[-1], own_logprobs(model, screens, steps[-1]).detach(), atol=1e-4, rtol=0)
    # transformers would look for a second picture behind the sampled image token; up to there it agrees.
    cut = replace(steps[-2], action_tokens=steps[-2].action_tokens[:1])
    torch.testing.assert_close(found[-2][:1], own_logprobs(model, screens, cut).detach(), atol=1e-4, rtol=0)


def test_packs_share_a_prefix_while_tokens_and_pictures_are_the_same(folder: Path, tmp_path: Path) -> None:
    config = make_config(folder, tmp_path, top_layers=1)
    policy, screens = load_policy(config), Screens(folder, config)
    first, second = screens.take(1, WIDE), screens.take(2, WIDE)
    alone = screens.step(first, [11, 12])
    other = screens.step(second, [11, 12])
    np.testing.assert_array_equal(alone.prompt_tokens, other.prompt_tokens)
    num_before, num_all = 3, len(alone.prompt_tokens) + 1
    (same,) = policy.packs([alone, screens.step(first, [13])], max_tokens=4096)
    assert same.num_nodes == num_all
    (apart,) = policy.packs([alone, other], max_tokens=4096)
    assert apart.num_nodes == 2 * num_all - num_before
    assert apart.pictures is not None and len(apart.pictures.refs) == 2
    np.testing.assert_array_equal(np.unique(apart.pictures.rows_V), np.arange(40))
    # Merged as if their pictures were one, both would get the log-probs of one of them.
    one, two = packed_logprobs(policy, [alone, other])
    assert (one - two).abs().max() > 1e-2


def test_packs_of_text_alone_are_those_of_a_text_model(folder: Path, tmp_path: Path) -> None:
    policy = load_policy(make_config(folder, tmp_path, top_layers=1))
    steps = [make_step([5, 6, i], [7, 8]) for i in range(4)]
    for found, expected in zip(policy.packs(steps, max_tokens=9), make_packs(steps, max_tokens=9), strict=True):
        assert found.pictures is None
        np.testing.assert_array_equal(found.tokens_N, expected.tokens_N)


@pytest.mark.parametrize(("top_layers", "num_again"), [(None, 3), (1, 0)])
def test_shared_picture_is_encoded_once(folder: Path, tmp_path: Path, top_layers: int | None, num_again: int) -> None:
    config = make_config(folder, tmp_path, top_layers=top_layers)
    policy, screens = load_policy(config), Screens(folder, config)
    assert policy.vision is not None
    steps = mixed_steps(screens)
    before = policy.vision.num_encoded
    packed_logprobs(policy, steps)
    assert policy.vision.num_encoded - before == 3
    packed_logprobs(policy, steps)
    # A frozen tower's results are still there.
    assert policy.vision.num_encoded - before == 3 + num_again


# --- training ----------------------------------------------------------------------------------------------------------


def make_batch(trainer: Trainer, screens: Screens, model: Any) -> Any:
    """Two groups on policy: the screens of one differ, those of the other are the same."""
    first, second, third = screens.take(1, WIDE), screens.take(2, WIDE), screens.take(3, TALL)
    shown = [[(first, [11, 12, 13]), (second, [11, 12, 13]), (first, [14, 15])], [(third, [11, 12]), (third, [12, 13, 14])]]
    groups = []
    for number, group in enumerate(shown):
        steps = [screens.step(ref, action, after=(7, number)) for ref, action in group]
        exact = [replace(step, behavior_logprobs=own_logprobs(model, screens, step).detach().numpy()) for step in steps]
        groups.append(make_group([(i == 0, [step]) for i, step in enumerate(exact)], group_seq=number))
    return trainer.algorithm.prepare(groups, version=0)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("top_layers", [1, None])
def test_update_gradient_is_plain_grpo_of_transformers(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, top_layers: int | None, recompute: bool
) -> None:
    config = make_config(folder, tmp_path, top_layers=top_layers, activation_checkpointing=recompute)
    trainer, screens, model = Trainer(config, load_policy(config)), Screens(folder, config), own_model(folder)
    batch = make_batch(trainer, screens, model)
    gradients: dict[str, torch.Tensor | None] = {}

    def keep(lr: float, seen: Any) -> float:
        gradients.update({name: None if grad is None else grad.clone() for name, grad in trainer.policy.gradients().items()})
        return 1.0

    monkeypatch.setattr(trainer, "_step", keep)
    trainer.update(batch)
    loss = torch.zeros(())
    for step, advantage, weight in zip(batch.samples, batch.advantage_S, batch.token_weight_S, strict=True):
        loss = loss - float(weight) * float(advantage) * own_logprobs(model, screens, step).sum()
    loss.backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters() if name in gradients}
    assert expected.keys() == gradients.keys() == trainer.policy.trained.keys()
    assert any(name.startswith("model.visual.") for name in gradients) == (top_layers is None)
    for name, gradient in expected.items():
        found = gradients[name]
        assert gradient is not None and found is not None, name
        # Key biases shift all scores of a query alike: their gradient is rounding on both sides.
        scale = max(float(gradient.norm()), 1e-3)
        assert float((found - gradient).norm()) <= 1e-4 * scale, name


@pytest.mark.parametrize("top_layers", [1, None])
def test_update_trains_the_tower_only_with_everything(folder: Path, tmp_path: Path, top_layers: int | None) -> None:
    config = make_config(folder, tmp_path, top_layers=top_layers)
    trainer, screens = Trainer(config, load_policy(config)), Screens(folder, config)
    before = {name: p.detach().clone() for name, p in trainer.policy._model.named_parameters()}
    metrics = trainer.update(make_batch(trainer, screens, own_model(folder)))
    assert metrics["grad_norm"] > 0
    changed = {name for name, p in trainer.policy._model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == set(trainer.policy.trained)
    if top_layers is None:
        assert changed == set(before)
    else:
        assert all(name.startswith(("model.language_model.layers.2.", "model.language_model.norm.")) for name in changed)


def test_sft_step_on_pictures_lowers_the_loss(folder: Path, tmp_path: Path) -> None:
    config = make_config(folder, tmp_path, top_layers=None)
    trainer, screens = Trainer(config, load_policy(config)), Screens(folder, config)
    # Only the pictures tell the two apart.
    steps = [screens.step(screens.take(1, WIDE), [11]), screens.step(screens.take(2, WIDE), [12])]
    losses = [trainer.sft_step(steps, 1e-2)["loss"] for _ in range(25)]
    assert losses[-1] < np.log(2) / 2 < losses[0]


# --- what is refused ---------------------------------------------------------------------------------------------------


def test_bad_pictures_are_poison_at_the_intake_and_errors_in_training(folder: Path, tmp_path: Path) -> None:
    config = make_config(folder, tmp_path, top_layers=1)
    trainer, screens = Trainer(config, load_policy(config)), Screens(folder, config)
    good = screens.step(screens.take(1, WIDE), [11, 12])
    ref = good.screenshot
    assert ref is not None
    (screens.trajectories / "broken.bin").write_bytes(read_screenshot(screens.trajectories, ref)[:200])
    twice = np.concatenate([good.prompt_tokens, good.prompt_tokens])
    cases = {
        "picture_missing": [
            replace(good, screenshot=None),
            replace(good, screenshot=replace(ref, segment="segment-gone.bin", content_hash="gone")),
            replace(good, screenshot=replace(ref, segment="broken.bin", offset=0, content_hash="cut")),
            replace(good, screenshot=replace(ref, segment="broken.bin", offset=0, num_bytes=200, content_hash="half")),
        ],
        "picture_mismatch": [
            replace(good, screenshot=screens.take(2, TALL)),
            replace(good, screenshot=replace(ref, width=152, content_hash="other")),
            replace(good, prompt_tokens=twice),
            replace(good, screenshot=replace(ref, width=100_000, height=1, content_hash="thin")),
        ],
    }  # fmt: skip
    for poison, steps in cases.items():
        for step in steps:
            (trajectory,) = make_group([(True, [good, step])]).trajectories
            found = poison_of(trajectory, policy_version=0, vocabulary_size=1100, check_picture=trainer.check_picture)
            assert found == poison, step.screenshot
            with pytest.raises(PictureError):
                trainer.sft_step([good, step], 1e-3)
    (fine,) = make_group([(True, [good, make_step([5], [6])])]).trajectories
    assert poison_of(fine, policy_version=0, vocabulary_size=1100, check_picture=trainer.check_picture) is None


def test_pool_keeps_where_screenshots_lie_for_a_model_that_takes_pictures() -> None:
    ref = ScreenshotRef("hash", "segment-a-0.bin", 7, 8, 150, 100)
    (trajectory,) = make_group([(True, [replace(make_step([5], [6]), screenshot=ref), make_step([5], [7])])]).trajectories
    pool = EpisodePool(seed=0, max_per_family=4, with_pictures=True)
    pool.add(trajectory)
    other = EpisodePool(seed=0, max_per_family=4, with_pictures=True)
    other.restore(*pool.state())
    (episode,) = other.draw(per_task=1, max_steps=None, salt="")
    assert [step.screenshot for step in episode.steps] == [ref, None]


def test_model_without_image_processor_is_refused(folder: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in folder.iterdir():
        if file.name != "preprocessor_config.json":
            (bare / file.name).symlink_to(file)
    with pytest.raises(ConfigError, match="no image processor"):
        load_policy(make_config(bare, tmp_path, top_layers=1))
