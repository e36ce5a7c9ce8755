"""Vision-language policies: packs with pictures against transformers' own forward pass, gradients, what is frozen and refused."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from computerrl.common.config import LoraConfig, OptimizerConfig, RunConfig
from computerrl.common.errors import ConfigError, PictureError
from computerrl.common.messages import ScreenshotRef, Step
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.common.vision.layout import PieceGrid, rope_positions
from computerrl.common.vision.processor import load_processor
from computerrl.common.vision.tower import tower_parameters
from computerrl.learner.checkpoints.checkpoint import (
    Checkpoint,
    CheckpointStore,
    newest_checkpoint,
    read_checkpoint,
    trainer_state,
)
from computerrl.learner.checkpoints.export import export_model
from computerrl.learner.model.batching import Pack, make_packs
from computerrl.learner.model.lora import Adapter, adapters_among
from computerrl.learner.model.policy import load_policy
from computerrl.learner.poison import poison_of
from computerrl.learner.supervised.pool import EpisodePool, pack_run
from computerrl.learner.training.trainer import Trainer
from tests.support.data.trainer_data import make_group, make_step
from tests.support.data.vision_data import (
    FAMILIES,
    IMAGE,
    TALL,
    WIDE,
    Screens,
    all_tokens,
    image_inputs,
    make_batch,
    make_config,
    own_logprobs,
    own_model,
    packed_logprobs,
    save_model,
)
from tests.support.tiers import one_in

GRID_FAMILIES = [family for family in FAMILIES if family not in ("idefics3", "smolvlm")]

# Layers of towers have linear layers of the same names.
LORA = LoraConfig(rank=2, targets=("q_proj", "down_proj"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("vision") / "model")


def mixed_steps(screens: Screens) -> list[Step]:
    """Two pictures of one size, one of another, shared and not, and text alone."""
    first, second, third = screens.take(1, WIDE), screens.take(2, WIDE), screens.take(3, TALL)
    return [
        screens.step(first, action=[11, 12, 13]),
        screens.step(first, action=[11, 14]),
        screens.step(second, action=[11, 12, 13]),
        screens.step(third, action=[11, 12, 13], after=(7, 8, 9)),
        screens.step(first, action=[12, 13], before=(5, 6, 9, 9)),
        # Sampled as text: an engine embeds it as such.
        screens.step(third, action=[11, IMAGE, 13]),
        replace(make_step([5, 6, 21, 22], [23, 24]), screenshot=first),
    ]


@torch.no_grad()
def give_adapters_weight(trainer: Trainer, model: Any, adapters: Sequence[Adapter]) -> None:
    """Adapters begin as zero, which gives one half of each no gradient. ``model`` gets the weights that they then make."""
    generator = torch.Generator().manual_seed(5)
    for adapter in adapters:
        up = trainer.policy.weights.compute[adapter.up]
        up.copy_(0.1 * torch.randn(up.shape, generator=generator))
        model.get_parameter(adapter.weight).copy_(trainer.trainable_tensors()[adapter.weight])


def check_gradients(config: RunConfig, model: Any, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Compare an update's gradients with those of the plain policy gradient by transformers; gives the trained names."""
    trainer, screens = Trainer(config, load_policy(config)), Screens(Path(config.model.name), config)
    adapters = adapters_among(trainer.policy.weights.compute, config.learner.lora)
    give_adapters_weight(trainer, model, adapters)
    batch = make_batch(trainer, screens, model)
    gradients: dict[str, torch.Tensor | None] = {}

    def keep(lr: float, seen: Any, **_: Any) -> float:
        gradients.update({name: grad.clone() for name, grad in trainer.policy.weights.gradients().items()})
        return 1.0

    monkeypatch.setattr(trainer.optimizer, "step", keep)
    trainer.update(batch)
    loss = torch.zeros(())
    for step, advantage, weight in zip(batch.samples, batch.advantage_S, batch.token_weight_S, strict=True):
        loss = loss - float(weight) * float(advantage) * own_logprobs(model, screens, step).sum()
    loss.backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters() if name in gradients}
    for adapter in adapters:
        # Of weight = base + scaling * up @ down.
        gradient = adapter.scaling * model.get_parameter(adapter.weight).grad
        down, up = (trainer.policy.weights.compute[name].detach() for name in (adapter.down, adapter.up))
        expected |= {adapter.up: gradient @ down.T, adapter.down: up.T @ gradient}
    assert expected.keys() == gradients.keys() == trainer.policy.weights.compute.keys()
    for name, gradient in expected.items():
        found = gradients[name]
        assert gradient is not None and found is not None, name
        # Key biases shift all scores of a query alike: their gradient is rounding on both sides.
        scale = max(float(gradient.norm()), 1e-3)
        assert float((found - gradient).norm()) <= 1e-4 * scale, name
    return set(gradients)


# --- positions ---------------------------------------------------------------------------------------------------------


def test_rope_positions_of_a_sequence_are_transformers(folder: Path) -> None:
    model = own_model(folder)
    grids = [PieceGrid(4, 5), PieceGrid(4, 2), PieceGrid(1, 1)]
    tokens, types, first = [5, 6, 7], [0, 0, 0], {}
    for grid in grids:
        first[len(tokens)] = grid
        tokens += [IMAGE] * grid.num_pieces + [8, 9]
        types += [1] * grid.num_pieces + [0, 0]
    expected, _ = model.model.get_rope_index(
        torch.tensor([tokens]),
        mm_token_type_ids=torch.tensor([types]),
        image_grid_thw=torch.tensor([[1, 2 * grid.height, 2 * grid.width] for grid in grids]),
    )
    found = rope_positions(np.arange(len(tokens)), np.full(len(tokens), len(tokens)), first)
    np.testing.assert_array_equal(found, expected[:, 0].numpy())


def path_of(pack: Pack, place: int) -> np.ndarray:
    """Nodes of the sample at ``place`` of ``pack``, from the root on; each of its action tokens but the last is one."""
    node_M = pack.logit_nodes_Q[pack.pair_node_U[pack.token_pair_M]]
    nodes = np.arange(pack.num_nodes)
    return np.flatnonzero((nodes <= node_M[place]) & (pack.end_N > node_M[place]))


@pytest.mark.parametrize("model_type", GRID_FAMILIES)
def test_rope_positions_on_a_trie_are_transformers(tmp_path: Path, model_type: str) -> None:
    folder = save_model(tmp_path / "model", model_type=model_type)
    config = make_config(folder, tmp_path, top_layers=1)
    policy, screens, model = load_policy(config), Screens(folder, config), own_model(folder)
    first, second, third = screens.take(1, WIDE), screens.take(2, WIDE), screens.take(3, TALL)
    steps = [
        screens.step(first, second, third, action=[11, 12]),
        screens.step(first, second, third, action=[11, IMAGE, 13], after=(7, 8)),
        # They leave the others behind the second image, behind the first one, and before any.
        screens.step(first, second, first, action=[11, 12]),
        screens.step(first, second, action=[12, 13], after=(8, 9)),
        screens.step(first, third, second, action=[11]),
        screens.step(second, first, action=[11, 12]),
        screens.step(third, action=[11], before=(6,)),
        make_step([5, 6, 21, 22], [23, 24]),
    ]
    (pack,) = policy.packs(steps, max_tokens=4096)
    # first: second: (third, first); third: second; second: first; third.
    assert pack.images is not None and len(pack.images.nodes_V) == 20 + 20 + (8 + 20) + (8 + 20) + (20 + 20) + 8
    found_3N = policy.tensors(pack).rope_positions(has_grid=True)[:, 0].numpy()
    lengths = [len(steps[sample].action_tokens) for sample in pack.samples_S]
    for sample, end in zip(pack.samples_S, np.cumsum(lengths), strict=True):
        step, path = steps[sample], path_of(pack, end - 1)
        tokens, inputs = all_tokens(step), image_inputs(screens, step)
        np.testing.assert_array_equal(pack.tokens_N[path], tokens[0, :-1])
        types = inputs.get("mm_token_type_ids", torch.zeros_like(tokens, dtype=torch.int32))
        grids = inputs.get("image_grid_thw")
        expected, _ = model.model.get_rope_index(tokens, mm_token_type_ids=types, image_grid_thw=grids)
        np.testing.assert_array_equal(found_3N[:, path], expected[:, 0, :-1])


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
    for step, logprobs in zip(steps, packed_logprobs(policy, steps, max_tokens=max_tokens), strict=True):
        torch.testing.assert_close(logprobs, own_logprobs(model, screens, step).detach(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_packed_logprobs_of_every_family_are_transformers_own(tmp_path: Path, model_type: str) -> None:
    folder = save_model(tmp_path / "model", model_type=model_type)
    for top_layers in (1, None):
        config = make_config(folder, tmp_path / str(top_layers), top_layers=top_layers)
        screens, model = Screens(folder, config), own_model(folder)
        first, second, third = screens.take(1, WIDE), screens.take(2, WIDE), screens.take(3, TALL)
        steps = [
            *mixed_steps(screens),
            screens.step(first, second, third, action=[11, 12]),
            screens.step(first, second, action=[11, 12], after=(8,)),
            # The same first image, and another behind it.
            screens.step(first, third, action=[11, 12], after=(8,)),
            screens.step(first, first, action=[11, 12], after=(8,)),
        ]
        policy, expected = load_policy(config), [own_logprobs(model, screens, step).detach() for step in steps]
        # All in one pack, and each in a pack of its own.
        for max_tokens in (4096, 1):
            assert len(policy.packs(steps, max_tokens=max_tokens)) == (len(steps) if max_tokens == 1 else 1)
            for found, own in zip(packed_logprobs(policy, steps, max_tokens=max_tokens), expected, strict=True):
                torch.testing.assert_close(found, own, atol=1e-4, rtol=0)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_update_of_every_family_gives_transformers_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_type: str
) -> None:
    folder = save_model(tmp_path / "model", model_type=model_type)
    of_tower = tower_parameters(own_model(folder))
    cases: list[tuple[int | None, str, Any, LoraConfig | None]] = [
        (None, "full", "trained", None),
        (3, "none", "frozen", None),
        (1, "none", "trained", None),
        (None, "none", "frozen", LORA),
    ]
    for number, (top_layers, recompute, vision, lora) in enumerate(cases):
        run = tmp_path / str(number)
        config = make_config(folder, run, top_layers=top_layers, vision=vision, activation_checkpointing=recompute, lora=lora)
        trained = check_gradients(config, own_model(folder), monkeypatch)
        assert trained & of_tower == (of_tower if vision == "trained" else set())
        # No layer of the tower has an adapter.
        assert lora is None or all(".layers." in name and ".lora_" in name for name in trained - of_tower)


def test_packs_share_a_prefix_while_tokens_and_pictures_are_the_same(folder: Path, tmp_path: Path) -> None:
    config = make_config(folder, tmp_path, top_layers=1)
    policy, screens = load_policy(config), Screens(folder, config)
    first, second = screens.take(1, WIDE), screens.take(2, WIDE)
    alone = screens.step(first, action=[11, 12])
    other = screens.step(second, action=[11, 12])
    np.testing.assert_array_equal(alone.prompt_tokens, other.prompt_tokens)
    num_before, num_all = 3, len(alone.prompt_tokens) + 1
    (same,) = policy.packs([alone, screens.step(first, action=[13])], max_tokens=4096)
    assert same.num_nodes == num_all
    (apart,) = policy.packs([alone, other], max_tokens=4096)
    assert apart.num_nodes == 2 * num_all - num_before
    assert apart.images is not None and len(apart.images.refs) == 2
    np.testing.assert_array_equal(np.unique(apart.images.rows_V), np.arange(40))
    # Merged as if their pictures were one, both would get the log-probs of one of them.
    one, two = packed_logprobs(policy, [alone, other])
    assert (one - two).abs().max() > 1e-2


def test_packs_of_text_alone_are_those_of_a_text_model(folder: Path, tmp_path: Path) -> None:
    policy = load_policy(make_config(folder, tmp_path, top_layers=1))
    steps = [make_step([5, 6, i], [7, 8]) for i in range(4)]
    for found, expected in zip(policy.packs(steps, max_tokens=9), make_packs(steps, max_tokens=9), strict=True):
        assert found.images is None
        np.testing.assert_array_equal(found.tokens_N, expected.tokens_N)


@pytest.mark.parametrize(("vision", "cache_mb", "num_again"), [("trained", 256, 3), ("frozen", 256, 0), ("frozen", 0, 3)])
def test_shared_picture_is_encoded_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vision: Any, cache_mb: int, num_again: int
) -> None:
    config = make_config(folder, tmp_path, top_layers=None, vision=vision, image_cache_mb=cache_mb)
    policy, screens = load_policy(config), Screens(folder, config)
    assert policy.vision is not None
    steps = mixed_steps(screens)
    encoded: list[ScreenshotRef] = []
    processed = policy.vision.images.screens.processed

    def counted(ref: ScreenshotRef) -> Any:
        encoded.append(ref)
        return processed(ref)

    monkeypatch.setattr(policy.vision.images.screens, "processed", counted)
    packed_logprobs(policy, steps)
    assert len(encoded) == 3
    packed_logprobs(policy, steps)
    # A frozen tower's results are still there, where there is room for them.
    assert len(encoded) == 3 + num_again
    uses = {"image_cache_hits": 3 - num_again, "image_cache_misses": 3 + num_again}
    assert policy.vision.cache_counts() == ({} if vision == "trained" else uses)
    assert not any(policy.vision.cache_counts().values())


# --- training ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recompute", one_in(2, ["full", "none"]))
@pytest.mark.parametrize("top_layers", [1, None])
def test_update_gradient_is_plain_grpo_of_transformers(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, top_layers: int | None, recompute: str
) -> None:
    vision: Any = "trained" if top_layers is None else "frozen"
    config = make_config(folder, tmp_path, top_layers=top_layers, vision=vision, activation_checkpointing=recompute)
    names = check_gradients(config, own_model(folder), monkeypatch)
    assert any(name.startswith("model.visual.") for name in names) == (top_layers is None)


@pytest.mark.parametrize("vision", ["frozen", "trained"])
@pytest.mark.parametrize(
    ("top_layers", "lora", "trained"),
    [
        (1, None, r"model\.language_model\.(layers\.2|norm)\..*"),
        (None, None, r"model\.language_model\..*|lm_head\.weight"),
        (None, LORA, r"model\.language_model\.layers\..*\.lora_.*"),
    ],
)
def test_tower_changes_only_where_it_is_trained(
    folder: Path, tmp_path: Path, top_layers: int | None, lora: LoraConfig | None, trained: str, vision: Any
) -> None:
    """In the model, in what is broadcast, in the checkpoint and in the export, bit by bit."""
    config = make_config(folder, tmp_path, top_layers=top_layers, lora=lora, vision=vision)
    RunFolder(config.folder).create(config)
    trainer, screens = Trainer(config, load_policy(config)), Screens(folder, config)
    before = {name: p.detach().clone() for name, p in trainer.policy._model.named_parameters()}
    batch = make_batch(trainer, screens, own_model(folder))
    # The first update gives one half of an adapter no gradient, since the other half begins as zero.
    assert all(trainer.update(batch)["grad_norm"] > 0 for _ in range(2))
    changed = {name for name, p in trainer.policy._model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == set(trainer.policy.weights.compute)
    of_tower = {name for name in before if name.startswith("model.visual.")}
    assert of_tower and changed & of_tower == (of_tower if vision == "trained" else set())
    of_text = changed - of_tower
    assert of_text == {name for name in before if re.fullmatch(trained, name)}
    # What receivers of weights and the checkpoint get.
    sent = trainer.trainable_tensors()
    assert len(sent) == len(changed & of_tower) + len(of_text) // (1 if lora is None else 2)
    assert changed & of_tower == of_tower & set(sent)
    masters = {name.removeprefix("master/") for name in trainer.state_dict() if name.startswith("master/")}
    assert changed == masters
    exported = own_model(export_of(config, trainer, tmp_path / "out"))
    base, own = own_model(folder).get_parameter, trainer.policy._model.get_parameter
    for name in of_tower:
        assert torch.equal(exported.get_parameter(name), own(name)), name
        assert torch.equal(exported.get_parameter(name), base(name)) == (vision == "frozen"), name
    for name, tensor in sent.items():
        assert torch.equal(exported.get_parameter(name), tensor), name


def test_tower_has_a_learning_rate_of_its_own(folder: Path, tmp_path: Path) -> None:
    moved: dict[float, dict[bool, float]] = {}
    for factor in (1.0, 0.1):
        optimizer = OptimizerConfig(lr=1e-2, vision_lr_factor=factor)
        config = make_config(folder, tmp_path / str(factor), top_layers=None, vision="trained", optimizer=optimizer)
        trainer, screens = Trainer(config, load_policy(config)), Screens(folder, config)
        trainer.update(make_batch(trainer, screens, own_model(folder)))
        base = own_model(folder)
        found: dict[bool, float] = {True: 0.0, False: 0.0}
        for name, tensor in trainer.trainable_tensors().items():
            is_tower = name.startswith("model.visual.")
            found[is_tower] = max(found[is_tower], float((tensor - base.get_parameter(name)).abs().max()))
        moved[factor] = found
    assert moved[0.1][False] == pytest.approx(moved[1.0][False])
    assert moved[0.1][True] == pytest.approx(0.1 * moved[1.0][True], rel=1e-3)


def test_tower_to_train_where_there_is_none_is_refused(tmp_path: Path) -> None:
    config = make_config(Path("tiny-random"), tmp_path, top_layers=1, vision="trained")
    with pytest.raises(ConfigError, match=r"(?s)model\.vision.*has no vision tower"):
        load_policy(config)


def test_sft_step_on_pictures_lowers_the_loss(folder: Path, tmp_path: Path) -> None:
    config = make_config(folder, tmp_path, top_layers=None, vision="trained")
    trainer, screens = Trainer(config, load_policy(config)), Screens(folder, config)
    # Only the pictures tell the two apart.
    steps = [screens.step(screens.take(1, WIDE), action=[11]), screens.step(screens.take(2, WIDE), action=[12])]
    losses = [trainer.sft_step(steps, 1e-2)["loss"] for _ in range(25)]
    assert losses[-1] < np.log(2) / 2 < losses[0]


def checkpoint_of(config: RunConfig, trainer: Trainer) -> Checkpoint:
    """The state of ``trainer`` in the run's folder, read back."""
    store = CheckpointStore(RunFolder(config.folder).checkpoints, num_kept=1)
    sections, tree = pack_run({"policy_version": 1, "phase": "rl-1", "update": 1}, trainer.state_dict(), {})
    store.save(sections, tree, cursor=1)
    store.close()
    return read_checkpoint(newest_checkpoint(RunFolder(config.folder).checkpoints))


def export_of(config: RunConfig, trainer: Trainer, out: Path) -> Path:
    """The run's folder exists."""
    checkpoint_of(config, trainer)
    return export_model(config.folder, out)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_exported_folder_computes_what_the_learner_does(tmp_path: Path, model_type: str) -> None:
    folder = save_model(tmp_path / "model", model_type=model_type)
    config = make_config(folder, tmp_path, top_layers=None, vision="trained")
    RunFolder(config.folder).create(config)
    trainer, screens = Trainer(config, load_policy(config)), Screens(folder, config)
    trainer.update(make_batch(trainer, screens, own_model(folder)))
    exported = own_model(export_of(config, trainer, tmp_path / "out"))
    for file in folder.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            assert (tmp_path / "out" / file.name).read_bytes() == file.read_bytes(), file.name
    steps = mixed_steps(screens)[:4]
    for step, logprobs in zip(steps, packed_logprobs(trainer.policy, steps), strict=True):
        torch.testing.assert_close(logprobs, own_logprobs(exported, screens, step).detach(), atol=1e-4, rtol=0)
    load_policy(config.model_copy(update={"model": config.model.model_copy(update={"name": str(tmp_path / "out")})}))


@pytest.mark.parametrize("tied", [True, False])
def test_export_names_tied_embeddings_where_transformers_and_vllm_look(tmp_path: Path, tied: bool) -> None:
    """vLLM reads the flag of the language model, transformers that of the whole. Folders exist in which they differ."""
    folder = save_model(tmp_path / "model", model_type="idefics3")
    tree = json.loads((folder / "config.json").read_text())
    tree["tie_word_embeddings"], tree["text_config"]["tie_word_embeddings"] = tied, not tied
    (folder / "config.json").write_text(json.dumps(tree))
    config = make_config(folder, tmp_path, top_layers=None)
    RunFolder(config.folder).create(config)
    export_of(config, Trainer(config, load_policy(config)), tmp_path / "out")
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["tie_word_embeddings"] == written["text_config"]["tie_word_embeddings"] == tied


def test_training_resumed_with_a_trained_tower_is_as_if_never_stopped(folder: Path, tmp_path: Path) -> None:
    config = make_config(folder, tmp_path, top_layers=1, vision="trained")
    RunFolder(config.folder).create(config)
    trainer, screens, model = Trainer(config, load_policy(config)), Screens(folder, config), own_model(folder)
    batch = make_batch(trainer, screens, model)
    trainer.update(batch)
    resumed = Trainer(config, load_policy(config))
    state = trainer_state(checkpoint_of(config, trainer))
    resumed.load_state_dict(state)
    for one in (trainer, resumed):
        one.update(batch)
    for name, tensor in trainer.trainable_tensors().items():
        assert torch.equal(tensor, resumed.trainable_tensors()[name]), name
    # A checkpoint with a tower is none of a run without one.
    frozen = config.model_copy(update={"model": config.model.model_copy(update={"vision": "frozen"})})
    other = Trainer(frozen, load_policy(frozen))
    with pytest.raises(ValueError, match=r"model\.vision"):
        other.load_state_dict(state)


# --- what is refused ---------------------------------------------------------------------------------------------------


def test_bad_pictures_are_poison_at_the_intake_and_errors_in_training(folder: Path, tmp_path: Path) -> None:
    config = make_config(folder, tmp_path, top_layers=1)
    trainer, screens = Trainer(config, load_policy(config)), Screens(folder, config)
    good = screens.step(screens.take(1, WIDE), action=[11, 12])
    ref = good.screenshot
    assert ref is not None
    data = (screens.images / ref.content_hash).read_bytes()
    cut, half, other, gone = (character * 32 for character in "abcd")
    for name, held in ((cut, data[:200]), (half, data[:200]), (other, data[:-1] + b"0")):
        (screens.images / name).write_bytes(held)
    twice = np.concatenate([good.prompt_tokens, good.prompt_tokens])
    cases = {
        "picture_missing": [
            replace(good, images=()),
            replace(good, images=(replace(ref, content_hash=gone),)),
            replace(good, images=(replace(ref, content_hash=cut),)),
            replace(good, images=(replace(ref, content_hash=half, num_bytes=200),)),
            replace(good, images=(replace(ref, content_hash=other),)),
            replace(good, images=(replace(ref, num_bytes=-1),)),
            replace(good, images=(replace(ref, content_hash="../config.yaml"),)),
        ],
        "picture_mismatch": [
            replace(good, images=(screens.take(2, TALL),)),
            replace(good, images=(replace(ref, width=152),)),
            replace(good, prompt_tokens=twice),
            replace(good, images=(ref, ref)),
            replace(good, prompt_tokens=good.prompt_tokens[good.prompt_tokens != IMAGE]),
            # Another token inside an image.
            replace(good, prompt_tokens=np.insert(good.prompt_tokens, 10, 9)),
            replace(good, images=(replace(ref, width=100_000, height=1, content_hash="thin"),)),
            replace(good, images=(replace(ref, width=1_000_000, height=1_000_000, content_hash="huge"),)),
            replace(good, images=(replace(ref, width=0, content_hash="empty"),)),
            replace(good, images=(replace(ref, width=-ref.width, height=-ref.height, content_hash="negative"),)),
            replace(good, images=(replace(ref, num_bytes=2**40, content_hash="long"),)),
        ],
    }
    for poison, steps in cases.items():
        for step in steps:
            (trajectory,) = make_group([(True, [good, step])]).trajectories
            found = poison_of(trajectory, policy_version=0, vocabulary_size=1100, check_screenshot=trainer.check_screenshot)
            assert found == poison, step.images
            with pytest.raises(PictureError):
                trainer.sft_step([good, step], 1e-3)
    (fine,) = make_group([(True, [good, make_step([5], [6])])]).trajectories
    assert poison_of(fine, policy_version=0, vocabulary_size=1100, check_screenshot=trainer.check_screenshot) is None


def test_pool_keeps_where_the_images_of_a_step_lie() -> None:
    ref = ScreenshotRef("hash", "segment-a-0.bin", 7, 8, 150, 100)
    shown = replace(make_step([5], [6]), images=(ref, replace(ref, offset=9)))
    (trajectory,) = make_group([(True, [make_step([5], [7]), shown])]).trajectories
    pool = EpisodePool(seed=0, max_per_family=4)
    pool.add(trajectory)
    other = EpisodePool(seed=0, max_per_family=4)
    other.restore(*pool.state())
    (episode,) = other.draw(per_task=1, max_steps=None, salt="")
    assert [step.images for step in episode.steps] == [(), shown.images]


def test_model_without_image_processor_is_refused(folder: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in folder.iterdir():
        if file.name != "preprocessor_config.json":
            (bare / file.name).symlink_to(file)
    with pytest.raises(ConfigError, match="no image processor"):
        load_policy(make_config(bare, tmp_path, top_layers=1))


def test_model_of_another_family_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for file in folder.iterdir():
        (other / file.name).symlink_to(file)
    (other / "config.json").unlink()
    tree = json.loads((folder / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(tree | {"model_type": "llava_next"}))
    with pytest.raises(ConfigError, match=r"(?s)'llava_next'.*layer by layer.*use a model of type qwen2_vl"):
        load_processor(other)


def test_model_whose_tower_does_not_fit_its_language_model_is_refused(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", model_type="qwen3_vl", tower={"out_hidden_size": 64})
    with pytest.raises(ConfigError, match=r"(?s)transformers cannot run .*model.*copy config\.json and all weight files"):
        load_policy(make_config(folder, tmp_path, top_layers=1))


@pytest.mark.parametrize("model_type", FAMILIES)
def test_sharp_model_in_bfloat16_is_run_as_it_runs_itself(tmp_path: Path, model_type: str) -> None:
    """Two ways to compute a tower's attention round differently, and a model that is sure of itself makes much of it."""
    folder = save_model(tmp_path / "model", model_type=model_type)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] *= 10
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = make_config(folder, tmp_path, top_layers=1)
    load_policy(config.model_copy(update={"model": config.model.model_copy(update={"dtype": "bfloat16"})}))
