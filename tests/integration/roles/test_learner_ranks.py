"""The trainer on two ranks, as real processes over gloo: what one process computes, two compute.

Rank 0 is this process, the follower is started as in production. A group cannot be mended: nothing but `pair` is shared.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from computerrl.common.config import AlgorithmConfig, LearnerConfig, LoraConfig, ModelConfig, OptimizerConfig, RunConfig
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.learner.algorithms import PolicyAges, TrainBatch
from computerrl.learner.checkpoints.checkpoint import CheckpointStore, newest_checkpoint, read_checkpoint, trainer_state
from computerrl.learner.supervised.pool import pack_run
from computerrl.learner.training import rank_processes, ranked_trainer
from computerrl.learner.training.ranked_trainer import RankedTrainer
from tests.support.data import vision_data
from tests.support.data.trainer_data import NEEDED_OPTIONS, make_step, random_groups
from tests.unit.learner.training.test_trainer_updates import on_policy_batch, plain_model

TIMINGS = {"train_s", "trained_tokens_per_s"}
NOISE = 1e-7
"""Root mean square of gradients so small that rounding of sums in another order is some percent of them."""
NOISE_ATOL = 5e-5
"""Such a weight may differ by so much, a twentieth of a step (learning rate 1e-3): Adam makes whole steps of it all the same."""


def make_config(
    tmp_path: Path, *, num_ranks: int, top_layers: int | None = 2, dtype: str = "float32", **learner: Any
) -> RunConfig:
    name = learner.pop("algorithm", "grpo")
    offload = learner.pop("offload", False)
    options = learner.pop("options", NEEDED_OPTIONS.get(name, {"kl_beta": 0.01}))
    config = RunConfig(
        name=f"ranks-{num_ranks}",
        run_dir=str(tmp_path),
        model=ModelConfig(name="tiny-random", dtype=dtype, trainable_top_layers=top_layers),
        learner=LearnerConfig(
            device="cpu",
            num_threads=num_ranks,
            num_ranks=num_ranks,
            rank_timeout_s=60.0,
            max_pack_tokens=64,
            # The batches here say of made-up log-probs that the present weights sampled them.
            max_logprob_gap=None,
            algorithm=AlgorithmConfig(name=name, options=options),
            optimizer=OptimizerConfig(lr=1e-3, max_grad_norm=0.5, offload=offload),
            **learner,
        ),
    )
    RunFolder(config.folder).create(config)
    return config


@contextmanager
def trainer_of(config: RunConfig) -> Iterator[Any]:
    with rank_processes.open_trainer(config, config_path=RunFolder(config.folder).resolved_config) as (trainer, _):
        yield trainer


def make_batches(trainer: Any, count: int) -> list[TrainBatch]:
    return [trainer.algorithm.prepare(random_groups(num_groups=3, seed=seed), ages=PolicyAges(0)) for seed in range(count)]


def demonstrations() -> list[Any]:
    return [make_step([5, 6, 7, i], [8, 9, i + 20], logprobs=[], version=[]) for i in range(3, 9)]


def play(trainer: Any) -> dict[str, Any]:
    """Supervised steps, a reference, updates; everything the conductor could see of it."""
    trainer.change_objective(1e-3)
    metrics = [trainer.sft_step(demonstrations(), 1e-3)]
    trainer.set_reference()
    trainer.change_objective(1e-3)
    metrics += [trainer.update(trainer.refine(batch)) for batch in make_batches(trainer, 3)]
    return seen_of(trainer) | {"metrics": metrics}


def seen_of(trainer: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        state = read(save(trainer, Path(folder)))
        return {
            "weights": {name: tensor.float().clone() for name, tensor in trainer.trainable_tensors().items()},
            "probe": trainer.probe_logprobs(),
            "state": {name: state[name].clone() for name in state},
        }


def save(trainer: Any, folder: Path) -> Path:
    """A checkpoint with nothing but the trainer in it."""
    store = CheckpointStore(folder, num_kept=2)
    store.load()
    sections, tree = pack_run({}, trainer.state_dict(), {})
    store.save(sections, tree, cursor=0)
    store.close()
    return newest_checkpoint(folder)


def read(checkpoint: Path) -> Any:
    return trainer_state(read_checkpoint(checkpoint))


def assert_close(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor], *, atol: float) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        torch.testing.assert_close(tensor, right[name], atol=atol, rtol=0, msg=lambda text, name=name: f"{name}: {text}")


def assert_trained_alike(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor], state: dict[str, torch.Tensor]) -> None:
    """Within 1e-5, and within `NOISE_ATOL` where a gradient is not 0 but smaller than `NOISE`."""
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        squares = state.get(f"optimizer/exp_avg_sq/{name.removeprefix('master/')}", torch.zeros(()))
        is_noise = (squares > 0) & (squares < NOISE**2)
        limits = torch.where(is_noise, NOISE_ATOL, 1e-5)
        differences = (tensor.double() - right[name].double()).abs()
        assert (differences <= limits).all(), f"{name}: differs by up to {differences.max():.3g}"


@contextmanager
def no_pickle() -> Iterator[None]:
    """Whatever torch.distributed sends as an object, or DCP writes as one, goes through these."""

    def refuse(*arguments: Any, **keywords: Any) -> None:
        raise AssertionError("pickle")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
            patch.setattr(pickle, name, refuse)
        patch.setattr(torch.distributed.distributed_c10d, "_object_to_tensor", refuse)
        patch.setattr(torch.distributed.distributed_c10d, "_tensor_to_object", refuse)
        yield


@dataclass(frozen=True)
class Pair:
    """What two ranks came to."""

    seen: dict[str, Any]
    """After `play`."""
    checkpoint: Path
    """Of that."""
    later: tuple[list[dict[str, float]], dict[str, Any]]
    """Metrics of two more updates, and what is seen then."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("pair")
    with no_pickle(), trainer_of(make_config(folder, num_ranks=2, num_minibatches=2)) as trainer:
        assert isinstance(trainer, RankedTrainer)
        seen = play(trainer)
        return Pair(seen, save(trainer, folder / "checkpoints"), go_on(trainer))


def go_on(trainer: Any) -> tuple[list[dict[str, float]], dict[str, Any]]:
    return [trainer.update(batch) for batch in make_batches(trainer, 2)], seen_of(trainer)


def assert_same_training(two: dict[str, Any], one: dict[str, Any]) -> None:
    """Losses, figures, gradients' norms, weights, moments and reference."""
    for left, right in zip(one["metrics"], two["metrics"], strict=True):
        assert left.keys() == right.keys()
        for name in left.keys() - TIMINGS:
            assert right[name] == pytest.approx(left[name], abs=1e-5, rel=1e-5), name
    assert any(metrics["num_packs"] % 2 for metrics in one["metrics"])  # So somebody was idle.
    assert_trained_alike(two["weights"], one["weights"], one["state"])
    assert_trained_alike(two["state"], one["state"], one["state"])
    np.testing.assert_allclose(two["probe"], one["probe"], atol=1e-5)


def test_two_ranks_train_to_the_same_weights_as_one(tmp_path: Path, pair: Pair) -> None:
    with trainer_of(make_config(tmp_path, num_ranks=1, num_minibatches=2)) as trainer:
        assert_same_training(pair.seen, play(trainer))


@pytest.mark.release
@pytest.mark.parametrize(
    ("top_layers", "algorithm"), [(None, "grpo"), (2, "ppo"), (2, "vcpo"), (2, "distillation"), (2, "grpo with masks")]
)
def test_two_ranks_train_to_the_same_weights_as_one_in_other_ways(tmp_path: Path, top_layers: int | None, algorithm: str) -> None:
    """With ppo a value head and a first look besides, with vcpo norms of gradients, with distillation a teacher on each rank,
    with masks advantages and penalties of tokens."""
    found = {}
    name, _, has_masks = algorithm.partition(" with ")
    options = {"options": {"masks": {"top_entropy": 0.5}, "kl_cov": 0.1}} if has_masks else {}
    for num_ranks in (1, 2):
        config = make_config(tmp_path, num_ranks=num_ranks, top_layers=top_layers, num_minibatches=2, algorithm=name, **options)
        with no_pickle(), trainer_of(config) as trainer:
            found[num_ranks] = play(trainer)
    assert_same_training(found[2], found[1])


@pytest.mark.parametrize(
    ("num_ranks", "num_sharing", "top_layers", "algorithm"),
    [
        (2, 2, 2, "grpo"),
        *(
            pytest.param(*case, marks=pytest.mark.release)
            for case in (
                (4, 2, None, "grpo"),
                (4, 4, 1, "ppo"),
                (2, 2, 2, "vcpo"),
                (4, 2, 2, "distillation"),
                (2, 2, 2, "grpo with masks"),
                (2, 2, 2, "grpo with lora"),
            )
        ),
    ],
)
def test_ranks_that_share_packs_train_to_the_same_weights_as_one(
    tmp_path: Path, num_ranks: int, num_sharing: int, top_layers: int | None, algorithm: str
) -> None:
    """Two groups of two ranks have different packs. Figures of a pack count once."""
    name, _, extra = algorithm.partition(" with ")
    settings: dict[str, Any] = {"options": {"masks": {"top_entropy": 0.5}, "kl_cov": 0.1}} if extra == "masks" else {}
    settings |= {"lora": LoraConfig(rank=2)} if extra == "lora" else {}
    found = {}
    for count, sharing in ((1, 1), (num_ranks, num_sharing)):
        config = make_config(
            tmp_path,
            num_ranks=count,
            top_layers=top_layers,
            num_minibatches=2,
            algorithm=name,
            context_parallel_size=sharing,
            **settings,
        )
        with no_pickle(), trainer_of(config) as trainer:
            found[count] = play(trainer)
    assert_same_training(found[num_ranks], found[1])


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.release)])
def test_two_ranks_with_offloaded_masters_train_to_the_same_bits(tmp_path: Path, dtype: str) -> None:
    """In bfloat16 the masters of one rank are rounded into slices. A checkpoint of either continues in the other."""
    config = make_config(tmp_path, num_ranks=2, num_minibatches=2, dtype=dtype)
    with trainer_of(config) as trainer:
        expected, checkpoint = play(trainer), save(trainer, tmp_path / "plain")
        later = go_on(trainer)
    offloaded = make_config(tmp_path, num_ranks=2, num_minibatches=2, dtype=dtype, offload=True)
    with trainer_of(offloaded) as trainer:
        found, of_offloaded = play(trainer), save(trainer, tmp_path / "offloaded")
        assert_same_bits(found, expected)
        trainer.load_state_dict(read(checkpoint))
        assert_same_bits({"metrics": later[0], **later[1]}, dict(zip(("metrics", "rest"), go_on(trainer), strict=True)))
    with trainer_of(config) as trainer:
        trainer.load_state_dict(read(of_offloaded))
        assert_same_bits({"metrics": later[0], **later[1]}, dict(zip(("metrics", "rest"), go_on(trainer), strict=True)))


def assert_same_bits(left: dict[str, Any], right: dict[str, Any]) -> None:
    """Metrics but times, weights, probe and state."""
    right = {**right, **right.pop("rest", {})}
    for one, other in zip(left["metrics"], right["metrics"], strict=True):
        assert {name: one[name] for name in one.keys() - TIMINGS} == {name: other[name] for name in other.keys() - TIMINGS}
    for part in ("weights", "state"):
        assert_close(left[part], right[part], atol=0.0)
    np.testing.assert_array_equal(left["probe"], right["probe"])


@pytest.mark.release
def test_two_ranks_train_adapters_to_the_same_merged_weights_as_one(tmp_path: Path) -> None:
    found = {}
    for num_ranks in (1, 2):
        # One row over two ranks: the second has nothing of half of the tensors.
        with trainer_of(make_config(tmp_path, num_ranks=num_ranks, lora=LoraConfig(rank=1))) as trainer:
            found[num_ranks] = play(trainer)
    assert_close(found[2]["weights"], found[1]["weights"], atol=1e-5)
    assert_close(found[2]["state"], found[1]["state"], atol=1e-5)


@pytest.mark.release
@pytest.mark.parametrize(("vision", "top_layers"), [("trained", None), ("trained", 1), ("frozen", None), ("frozen", 1)])
def test_two_ranks_train_pictures_to_the_same_weights_as_one(tmp_path: Path, vision: str, top_layers: int | None) -> None:
    """A group of one rank shows pictures that the other never sees; then one rank has two pictures and the other text alone; then
    one has two and the other one."""
    folder = vision_data.save_model(tmp_path / "model")
    found = {}
    for num_ranks in (1, 2):
        config = make_config(tmp_path, num_ranks=num_ranks, top_layers=top_layers, options={})
        of_model = {"name": str(folder), "vision": vision}
        config = config.model_copy(update={"model": config.model.model_copy(update=of_model)})
        RunFolder(config.folder).create(config)
        with trainer_of(config) as trainer:
            screens = vision_data.Screens(folder, config)
            batch = vision_data.make_batch(trainer, screens, vision_data.own_model(folder))
            norms = [trainer.update(batch)["grad_norm"]]
            first, second, third = (screens.take(seed, vision_data.WIDE) for seed in (1, 2, 3))
            two = screens.step(first, second, action=[11, 12])
            text = make_step([5, 6, *range(20, 60)], [7, 8])
            one = screens.step(third, action=[13, 14, 15], before=(9,))
            policy = trainer._trainer.policy if num_ranks == 2 else trainer.policy
            for steps, num_images in (([two, text], [0, 2]), ([two, one], [1, 2])):
                packs = policy.packs(steps, max_tokens=config.max_pack_tokens)
                assert sorted(0 if pack.images is None else len(pack.images.refs) for pack in packs) == num_images
                norms.append(trainer.sft_step(steps, 1e-3)["grad_norm"])
            found[num_ranks] = norms, {name: tensor.float().clone() for name, tensor in trainer.trainable_tensors().items()}
    assert found[2][0] == pytest.approx(found[1][0], rel=1e-3)
    assert any(name.startswith("model.visual.") for name in found[1][1]) == (vision == "trained")
    for name, tensor in found[1][1].items():
        # The first AdamW step is lr * sign(gradient): only entries whose gradient is all rounding may differ.
        assert ((tensor - found[2][1][name]).abs() > 1e-5).float().mean() < 0.02, name


@pytest.mark.release
def test_two_ranks_packed_step_is_that_of_padded_transformers(tmp_path: Path) -> None:
    """One update on policy against a padded batch through the model's own forward pass, clipped and stepped by plain AdamW."""
    model = plain_model()
    with trainer_of(make_config(tmp_path, num_ranks=2, options={})) as trainer:
        batch = on_policy_batch(trainer, num_groups=3)
        metrics = trainer.update(batch)
        found = {name: tensor.clone() for name, tensor in trainer.trainable_tensors().items()}
    trained = {name: parameter for name, parameter in model.named_parameters() if name in found}
    loss = -(padded_logprobs(model, batch.samples) * padded_weights(batch)).sum()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(trained.values(), 0.5)
    torch.optim.AdamW(trained.values(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0).step()
    assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    assert_close(found, {name: parameter.detach() for name, parameter in trained.items()}, atol=1e-5)


def padded_logprobs(model: Any, steps: Any) -> torch.Tensor:
    """[S, T - 1] of every token after the first, one padded batch."""
    tokens_ST = padded(steps, lambda step: [*step.prompt_tokens.tolist(), *step.action_tokens.tolist()])
    mask_ST = padded(steps, lambda step: [1] * (len(step.prompt_tokens) + len(step.action_tokens)))
    logits = model(input_ids=tokens_ST, attention_mask=mask_ST).logits[:, :-1]
    return torch.log_softmax(logits, dim=-1).gather(2, tokens_ST[:, 1:, None])[:, :, 0]


def padded_weights(batch: TrainBatch) -> torch.Tensor:
    """[S, T - 1] weight * advantage where the token is an action's."""
    values = dict(zip(map(id, batch.samples), batch.token_weight_S * batch.advantage_S, strict=True))

    def row(step: Any) -> list[float]:
        return [0.0] * (len(step.prompt_tokens) - 1) + [float(values[id(step)])] * len(step.action_tokens)

    return padded(batch.samples, row)


def padded(steps: Any, row: Any) -> torch.Tensor:
    rows = [torch.tensor(row(step)) for step in steps]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


# --- state -------------------------------------------------------------------------------------------------------------


def test_state_of_two_ranks_continues_on_two_exactly_and_on_one_closely(tmp_path: Path, pair: Pair) -> None:
    assert {file.name for file in pair.checkpoint.glob("*.safetensors")} == {
        "trainer-00000-of-00002.safetensors",
        "trainer-00001-of-00002.safetensors",
    }
    for num_ranks, atol in ((2, 0.0), (1, 1e-6)):
        with trainer_of(make_config(tmp_path, num_ranks=num_ranks, num_minibatches=2)) as trainer:
            trainer.load_state_dict(read(pair.checkpoint))
            found = go_on(trainer)
        for left, right in zip(found[0], pair.later[0], strict=True):
            for name in left.keys() - TIMINGS:
                assert left[name] == pytest.approx(right[name], abs=atol, rel=10 * atol), name
        assert_close(found[1]["weights"], pair.later[1]["weights"], atol=atol)
        assert_close(found[1]["state"], pair.later[1]["state"], atol=atol)


@pytest.mark.release
def test_state_of_one_process_continues_on_two_ranks_in_bfloat16(tmp_path: Path) -> None:
    """Compute type bfloat16, masters float32: what receivers get is the masters, rounded."""
    with trainer_of(make_config(tmp_path, num_ranks=1, dtype="bfloat16")) as trainer:
        trainer.update(make_batches(trainer, 1)[0])
        checkpoint, before = save(trainer, tmp_path / "checkpoints"), seen_of(trainer)
        expected = trainer.update(make_batches(trainer, 2)[1])
    with trainer_of(make_config(tmp_path, num_ranks=2, dtype="bfloat16", activation_checkpointing="full")) as trainer:
        trainer.load_state_dict(read(checkpoint))
        after = seen_of(trainer)
        assert_close(after["weights"], before["weights"], atol=0.0)
        assert_close(after["state"], before["state"], atol=0.0)
        np.testing.assert_array_equal(after["probe"], before["probe"])
        assert {tensor.dtype for tensor in trainer.trainable_tensors().values()} == {torch.bfloat16}
        found = trainer.update(make_batches(trainer, 2)[1])
        assert found["loss"] == pytest.approx(expected["loss"], abs=1e-5)
        assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-2)
        masters = seen_of(trainer)["state"]
        for name, tensor in trainer.trainable_tensors().items():
            assert torch.equal(masters[f"master/{name}"].to(torch.bfloat16), tensor)


@pytest.mark.release
def test_save_that_a_follower_cannot_write_fails_with_its_name_and_the_one_before_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with trainer_of(make_config(tmp_path, num_ranks=2)) as trainer:
        before = save(trainer, tmp_path / "checkpoints")
        with monkeypatch.context() as patch:
            # What a follower sees after another learner has taken the folder over: it is not under that name any more.
            patch.setattr(ranked_trainer.os.path, "realpath", lambda path: str(tmp_path / "taken"))
            with pytest.raises(OSError, match="rank 1"):
                save(trainer, tmp_path / "checkpoints")
        assert newest_checkpoint(tmp_path / "checkpoints") == before
        assert [path.name for path in (tmp_path / "checkpoints").iterdir() if path.suffix == ".incomplete"] == []
        trainer.load_state_dict(read(before))
        newest = save(trainer, tmp_path / "checkpoints")
    assert newest != before
    followers = newest / "trainer-00001-of-00002.safetensors"
    followers.write_bytes(followers.read_bytes()[:-1] + b"x")
    found = CheckpointStore(tmp_path / "checkpoints", num_kept=2).load()
    assert found is not None and f"checkpoint-{found.number:06d}" == before.name
