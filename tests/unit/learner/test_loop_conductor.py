"""The conductor through a whole recipe, with fakes around it; and killed anywhere."""

import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from computerrl.common.metrics import read_json_lines
from computerrl.common.run_files import requests
from computerrl.learner.algorithms.arpo import ARPO
from computerrl.learner.checkpoints.checkpoint import read_checkpoint, trainer_state
from computerrl.learner.recipe import limits
from computerrl.learner.recipe.lineage import Lineage
from computerrl.learner.recipe.state import LoopState
from computerrl.learner.supervised.pool import EpisodePool
from computerrl.learner.supervised.sft import make_round
from tests.support.loop_fakes import FAMILIES, Bench, FakeTrainer, FakeWeights, make_config


def events(bench: Bench, kind: str) -> list[dict]:
    return [line for line in read_json_lines(bench.folder.metrics_path) if line["event"] == kind]


def ledger(bench: Bench) -> list[dict]:
    return read_json_lines(bench.folder.folder / "ledger.jsonl")


def test_recipe_whole_run_walks_phases_and_writes_records(tmp_path: Path) -> None:
    bench = Bench(tmp_path, make_config(entropulse={"force_after_fraction": 0.5, "max_phases": 1}))
    loop = bench.run(bench.start())
    names = [event["phase"] for event in events(bench, "phase")]
    assert names == ["demonstrations", "eval-before", "bc", "eval-after-bc", "rl-1", "sft-1", "rl-2", "eval-after-rl", "done"]
    updates = events(bench, "update")
    assert [update["update"] for update in updates] == [1, 2, 3, 4, 5, 6]
    assert [update["phase"] for update in updates] == ["rl-1"] * 3 + ["rl-2"] * 3
    assert {event["phase"] for event in events(bench, "evaluation")} == {"eval-before", "eval-after-bc", "eval-after-rl"}
    assert {event["phase"] for event in events(bench, "sft")} == {"bc", "sft-1"}
    summary = events(bench, "summary")[-1]
    assert summary["num_updates"] == 6 and summary["num_entropulse_phases"] == 1
    assert summary["num_trajectories_lost"] == 0
    assert summary["max_policy_age_trained"] <= bench.config.learner.max_age
    assert set(summary["evaluations"]["eval-after-rl"]["families"]) == set(FAMILIES)
    episodes = read_json_lines(bench.folder.episodes_path)
    assert len(episodes) == len(ledger(bench)) == loop.state.episodes
    assert bench.broker.closed == {"rl-1", "rl-2"}
    assert loop.metrics()["learner/update"] == 6.0


def test_note_says_how_far_each_phase_is(tmp_path: Path) -> None:
    bench = Bench(tmp_path, make_config(recipe={"max_updates": 1}))
    loop = bench.start()
    notes = {loop.note: None}
    while not loop.finished:
        bench.clock.advance(1.0)
        loop.tick()
        notes[loop.note] = None
    loop.close()
    demonstrations = [f"demonstrations: {done} of 4 episodes, success {min(done, 1)}.000; " for done in range(5)]
    # Of evaluation's, those of the first family succeed and those of the other fail.
    evaluation = [f": {done} of 6 episodes, success {share}" for done, share in enumerate(["0.000", "1.000", *["0.500"] * 5])]
    steps = len([event for event in events(bench, "sft") if event["phase"] == "bc"])
    assert list(notes) == [
        *(f"{one}eval-before{evaluation[0]}" for one in demonstrations),
        *(f"{demonstrations[-1]}eval-before{one}" for one in evaluation[1:]),
        "bc",
        *(f"bc: step {done} of {steps}" for done in range(1, steps + 1)),
        *(f"eval-after-bc{one}" for one in evaluation),
        "rl-1",
        *(f"eval-after-rl{one}" for one in evaluation),
        "done",
    ]


def test_recipe_several_entropulse_rounds_in_one_run(tmp_path: Path) -> None:
    bench = Bench(tmp_path, make_config(entropulse={"force_after_fraction": 0.6, "max_phases": 3}, recipe={"max_updates": 12}))
    bench.run(bench.start())
    names = [event["phase"] for event in events(bench, "phase")]
    assert names[4:] == ["rl-1", "sft-1", "rl-2", "sft-2", "rl-3", "sft-3", "rl-4", "eval-after-rl", "done"]
    rounds = [event for event in events(bench, "sft") if event["phase"] != "bc"]
    digests = {event["phase"]: event["pool_digest"] for event in rounds}
    assert set(digests) == {"sft-1", "sft-2", "sft-3"} and len(set(digests.values())) == 3, "the pool grows from round to round"
    assert {line["phase"] for line in ledger(bench) if line["outcome"] == "trained"} == {"rl-1", "rl-2", "rl-3", "rl-4"}
    assert events(bench, "summary")[-1]["num_entropulse_phases"] == 3


def test_recipe_supervised_rounds_move_the_reference_and_change_the_learning_rate(tmp_path: Path) -> None:
    config = make_config(entropulse={"force_after_fraction": 0.5, "lr": 3e-5})
    bench = Bench(tmp_path, config)
    bench.run(bench.start())
    learner = config.learner
    assert bench.trainer.lrs == [learner.recipe.bc_lr, learner.optimizer.lr, 3e-5, learner.optimizer.lr]
    assert bench.trainer.reference > 100  # Of after the SFT round, not of the base model.


def test_rl_every_version_published_once_and_announced(tmp_path: Path) -> None:
    bench = Bench(tmp_path, make_config())
    loop = bench.run(bench.start())
    assert sorted(bench.weights.published) == list(range(loop.state.policy_version + 1))
    assert bench.weights.published[0] is None  # The untouched model needs no transfer.
    assert bench.broker.version == loop.state.policy_version


def test_rl_versions_published_every_third_update_and_when_a_phase_ends(tmp_path: Path) -> None:
    """Version 1 is of cloning; updates make 2 to 9, of which the third and the sixth are handed out, and the last."""
    bench = Bench(tmp_path, make_config(publish_every_updates=3, recipe={"max_updates": 8}, entropulse={"enabled": False}))
    bench.run(bench.start())
    assert sorted(bench.weights.published) == [0, 1, 4, 7, 9]
    assert bench.broker.announced == list(range(10))


def test_rl_steps_budget_ends_phase_with_the_update_that_reaches_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, make_config(recipe={"max_updates": 1000, "max_rl_env_steps": 60}))
    bench.run(bench.start())
    updates = events(bench, "update")
    steps = [update["rl_env_steps"] for update in updates]
    assert steps[-2] < 60 <= steps[-1]
    assert steps[-1] == sum(update["num_steps"] for update in updates) < updates[-1]["env_steps"]


def test_recipe_round_of_no_epochs_moves_the_reference_and_trains_nothing(tmp_path: Path) -> None:
    config = make_config(entropulse={"force_after_fraction": 0.5, "epochs": 0, "lr": 3e-5})
    bench = Bench(tmp_path, config)
    bench.run(bench.start())
    assert {event["phase"] for event in events(bench, "sft")} == {"bc"}
    assert "sft-1" in [event["phase"] for event in events(bench, "phase")]
    learner = config.learner
    assert bench.trainer.lrs == [learner.recipe.bc_lr, learner.optimizer.lr, 3e-5, learner.optimizer.lr]


def test_rl_batch_without_signal_advances_version_without_training(tmp_path: Path) -> None:
    bench = Bench(tmp_path, make_config())
    bench.broker.success = lambda order, group, index: True
    loop = bench.run(bench.start())
    updates = events(bench, "update")
    assert len(updates) == 6 and not any(update["trained"] for update in updates)
    assert {line["outcome"] for line in ledger(bench) if line["update"]} <= {"no_signal", "phase_closed", "evaluated"}
    versions = [update["policy_version"] for update in updates]
    assert versions == list(range(versions[0], versions[0] + 6))
    assert loop.state.success_ema == 1.0


def test_rl_target_success_reached_ends_early(tmp_path: Path) -> None:
    bench = Bench(tmp_path, make_config(recipe={"target_success": 0.9}))
    bench.broker.success = lambda order, group, index: True
    bench.run(bench.start())
    assert len(events(bench, "update")) == 1


def test_rl_time_budget_ends_phase(tmp_path: Path) -> None:
    bench = Bench(tmp_path, make_config(recipe={"max_updates": 1000, "max_rl_s": 20}))
    bench.run(bench.start())
    assert 0 < len(events(bench, "update")) < 12


def test_rl_steps_older_than_bound_masked_and_recorded(tmp_path: Path) -> None:
    bench = Bench(tmp_path, make_config(max_age=1, recipe={"max_updates": 6}))
    bench.broker.sampled_version = lambda: max(0, bench.broker.version - 3)
    bench.run(bench.start())
    summary = events(bench, "summary")[-1]
    assert summary["max_policy_age_trained"] <= 1
    assert summary["drops"]["too_old"] > 0 and summary["num_steps_masked"] > 0
    for update in events(bench, "update"):
        ages = {int(age): count for age, count in update["num_steps_by_age"].items()}
        assert sum(ages.values()) == update["num_steps_trained"] and max(ages, default=0) <= 1


def test_rl_dapo_batches_grow_until_enough_groups_teach(tmp_path: Path) -> None:
    config = make_config(recipe={"max_updates": 8}, algorithm={"name": "dapo"})
    bench = Bench(tmp_path, config)
    bench.broker.success = lambda order, group, index: order.kind != "training" or bool(group % 3 and index == 0)
    bench.run(bench.start())
    sizes = [(update["num_groups"], update["num_groups_without_signal"]) for update in events(bench, "update")]
    wanted, most = config.learner.groups_per_batch, (config.broker.eta + 1) * config.learner.groups_per_batch
    assert all(groups - silent == wanted or groups == most for groups, silent in sizes)
    assert any(silent for _, silent in sizes), "some groups must teach nothing"
    lines = read_json_lines(bench.folder.folder / "ledger.jsonl")
    assert len(lines) == len({line["trajectory_id"] for line in lines})
    assert {line["phase"] for line in lines if line["outcome"] == "trained"} == {"rl-1"}


@pytest.mark.parametrize(("request_", "expected"), [("sft", "sft-1"), ("finish", "eval-after-rl")])
def test_rl_person_asks_for_phase_switches_at_next_unit(tmp_path: Path, request_: str, expected: str) -> None:
    bench = Bench(tmp_path, make_config(recipe={"max_updates": 50}))
    loop = bench.start()
    while loop.state.update < 2:
        loop.tick()
    requests.ask(bench.folder.folder, "phase", request_)
    loop.tick()
    assert loop.state.phase == expected


def test_recipe_everything_configured_away_finishes_at_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, make_config(recipe={"demos_per_family": 0, "eval_episodes_per_family": 0, "max_updates": 0}))
    loop = bench.start()
    assert loop.finished
    assert events(bench, "summary")


def check_exactly_once(bench: Bench) -> None:
    """Every trajectory the broker ever delivered has exactly one line in each file."""
    delivered = sorted(t.trajectory_id for group in bench.broker.groups for t in group.trajectories)
    assert sorted(line["trajectory_id"] for line in ledger(bench)) == delivered
    assert sorted(line["trajectory_id"] for line in read_json_lines(bench.folder.episodes_path)) == delivered
    sequence = [line["group_seq"] for line in ledger(bench)]
    assert sequence == sorted(sequence)
    updates = [line["update"] for line in events(bench, "update")]
    assert updates == list(range(1, len(updates) + 1))
    assert events(bench, "summary")[-1]["num_trajectories_lost"] == 0


@pytest.mark.parametrize("seed", range(8))
def test_loop_killed_at_random_points_trains_every_trajectory_exactly_once(tmp_path: Path, seed: int) -> None:
    bench = Bench(tmp_path, make_config(entropulse={"force_after_fraction": 0.5}))
    bench.kill_often(random.Random(seed), most_ticks=30)
    bench.run(bench.start())
    check_exactly_once(bench)


def test_loop_resumed_after_lost_updates_same_curve_and_ages_within_bound(tmp_path: Path) -> None:
    bench = Bench(tmp_path, make_config(checkpoint_every_updates=5, recipe={"max_updates": 12}))
    loop = bench.start()
    while loop.state.update < 9:
        loop.tick()
    bench.checkpoints.wait()
    weight_before = {update["update"]: update["policy_version"] for update in events(bench, "update")}
    loop = bench.start()
    assert loop.state.update == 5
    bench.run(loop)
    updates = events(bench, "update")
    assert [update["update"] for update in updates] == list(range(1, 13))
    # Updates 6 to 9 happened twice, under new numbers, on the same groups, none of them masked as too old.
    assert updates[5]["policy_version"] > weight_before[9]
    assert all(update["trained"] for update in updates)
    check_exactly_once(bench)


class Killed(Exception):
    """In place of SIGKILL."""


class DeadlyWeights(FakeWeights):
    """The process is gone as soon as these weights went out."""

    dies_at = 3

    def publish(self, policy_version: int, tensors: Any, *, probe_logprobs: Any) -> None:
        super().publish(policy_version, tensors, probe_logprobs=probe_logprobs)
        if policy_version == self.dies_at:
            raise Killed


def test_loop_killed_while_weights_go_out_never_gives_their_version_to_others(tmp_path: Path) -> None:
    bench = Bench(tmp_path, make_config())
    bench.weights = DeadlyWeights()
    with pytest.raises(Killed):
        bench.run(bench.start())
    bench.run(bench.start())  # Its sink asserts that no version is published twice.
    assert DeadlyWeights.dies_at in bench.weights.published


def test_loop_killed_again_before_its_next_checkpoint_knows_how_old_the_version_in_between_is(tmp_path: Path) -> None:
    bench = Bench(tmp_path, make_config(checkpoint_every_updates=5, recipe={"max_updates": 12}))
    loop = bench.start()
    while loop.state.update < 9:
        loop.tick()
    bench.checkpoints.wait()
    between = bench.start().state.policy_version
    loop = bench.start()
    assert loop.state.policy_version == between + 1
    # Both have the weights of the same checkpoint.
    lineage = Lineage.load(bench.folder.lineage)
    assert lineage.position(between) == lineage.position(loop.state.policy_version)


def test_loop_newest_checkpoint_damaged_goes_on_from_the_one_before(tmp_path: Path) -> None:
    bench = Bench(tmp_path, make_config(checkpoint_every_updates=2, recipe={"max_updates": 12}))
    loop = bench.start()
    while loop.state.update < 9:
        loop.tick()
    bench.checkpoints.wait()
    loop.tick()
    newest = (bench.folder.checkpoints / "latest").resolve()
    (newest / "trainer.safetensors").write_bytes(b"rubbish")
    loop = bench.start()
    assert loop.state.update == 6
    bench.run(loop)
    check_exactly_once(bench)


def test_loop_phases_that_train_nothing_write_no_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, written = Bench(tmp_path, make_config(checkpoint_every_updates=4)), []
    whole = FakeTrainer.state_dict
    monkeypatch.setattr(FakeTrainer, "state_dict", lambda trainer: written.append(1) or whole(trainer))
    bench.run(bench.start())
    # The start; after cloning; update 4; after the sixth. Evaluations and the end take over what was written before them.
    assert len(written) == 4
    found = read_checkpoint((bench.folder.checkpoints / "latest").resolve())
    assert found.state["loop"]["phase"] == "done" and float(trainer_state(found)["weight"]) == float(bench.trainer.weight)


def fall_back_over_the_end_of_rl(bench: Bench) -> int:
    """Run until the last evaluation is under way, lose the newest checkpoint; the update that is left to go on from."""
    loop = bench.start()
    while loop.state.phase != "eval-after-rl":
        loop.tick()
    for _ in range(3):
        loop.tick()
    bench.checkpoints.wait()
    newest = (bench.folder.checkpoints / "latest").resolve()
    (newest / "trainer.safetensors").write_bytes(b"rubbish")
    return bench.start().state.update


def test_loop_older_checkpoint_of_a_closed_rl_order_trains_on_under_a_successor(tmp_path: Path) -> None:
    bench = Bench(tmp_path, make_config(checkpoint_every_updates=4))
    assert fall_back_over_the_end_of_rl(bench) == 4
    bench.config = make_config(checkpoint_every_updates=4, recipe={"max_updates": 10})
    bench.start().tick()  # Killed again: the same successor is found.
    bench.run(bench.start())
    assert {"rl-1", "rl-1.2"} <= bench.broker.closed and "rl-1.3" not in bench.broker.orders
    assert len(events(bench, "update")) == 10
    trained = {line["trajectory_id"].partition("/")[0] for line in ledger(bench) if line["outcome"] == "trained"}
    assert trained == {"rl-1", "rl-1.2"}
    check_exactly_once(bench)


def test_loop_older_checkpoint_plays_the_evaluation_again_for_the_weights_it_has(tmp_path: Path) -> None:
    bench = Bench(tmp_path, make_config(checkpoint_every_updates=4))
    fall_back_over_the_end_of_rl(bench)
    bench.broker.success = lambda order, group, index: True
    bench.run(bench.start())
    assert bench.broker.orders["eval-after-rl.2"].min_policy_version > bench.broker.orders["eval-after-rl"].min_policy_version
    summary = events(bench, "summary")[-1]
    evaluation = summary["evaluations"]["eval-after-rl"]
    assert summary["success_after_rl"] == 1.0
    assert sum(family["episodes"] for family in evaluation["families"].values()) == 3 * len(FAMILIES)
    outcomes = {line["outcome"] for line in ledger(bench) if line["trajectory_id"].startswith("eval-after-rl/")}
    assert outcomes == {"phase_closed"}
    check_exactly_once(bench)


def test_loop_killed_before_first_checkpoint_starts_over(tmp_path: Path) -> None:
    bench = Bench(tmp_path, make_config())
    bench.folder.metrics_path.write_text('{"event":"phase","time":0,"phase":"left over"}\n')
    bench.run(bench.start())
    assert events(bench, "phase")[0]["phase"] == "demonstrations"


def test_loop_goes_on_without_episodes_that_could_not_be_played(tmp_path: Path) -> None:
    bench = Bench(tmp_path, make_config())
    bench.broker.can_play = lambda task, index: task.seed % 3 > 0 and (task.family == "click" or index > 0)
    loop = bench.run(bench.start())
    assert loop.finished
    check_exactly_once(bench)
    for evaluation in events(bench, "evaluation"):
        assert evaluation["num_given_up"] > 0
    assert all(update["success"] >= 0.0 for update in events(bench, "update"))


def memory_of(bench: Bench) -> list[str]:
    algorithm = bench.trainer.algorithm
    assert isinstance(algorithm, ARPO)
    return [one.trajectory_id for family in FAMILIES for one in algorithm.memory.of(family)]


def test_loop_resumed_with_a_memory_replays_the_same_trajectories_as_undisturbed(tmp_path: Path) -> None:
    found = []
    for name, dies in (("whole", False), ("killed", True)):
        algorithm = {"name": "arpo", "options": {"memory_size": 3}}
        bench = Bench(tmp_path / name, make_config(recipe={"max_updates": 12}, algorithm=algorithm))
        # Families take turns: every third pair of groups fails altogether.
        bench.broker.success = lambda order, group, index: order.kind != "training" or (group // 2 % 3 < 2 and index == 0)
        loop = bench.start()
        if dies:
            while loop.state.update < 7:
                loop.tick()
            bench.checkpoints.wait()
            loop = bench.start()
            assert loop.state.update == 6 and len(memory_of(bench)) == 6
        bench.run(loop)
        check_exactly_once(bench)
        updates = events(bench, "update")
        found.append((memory_of(bench), [update["num_steps_replayed"] for update in updates]))
        outcomes = Counter(line["outcome"] for line in ledger(bench))
        assert outcomes["not_chosen"] == sum(found[-1][1]) / 2, "a rollout gives way for each success of two steps"
        assert updates[-1]["drops"]["not_chosen"] == outcomes["not_chosen"] > 0
        assert events(bench, "summary")[-1]["max_policy_age_trained"] <= bench.config.learner.max_age
    assert found[0] == found[1]


@pytest.mark.parametrize("harms", [False, True])
@pytest.mark.parametrize("max_run_s", [None, 10_000.0])
def test_round_that_harms_is_taken_back_and_another_is_kept(tmp_path: Path, harms: bool, max_run_s: float | None) -> None:
    rounds = {"force_after_fraction": 0.5, "max_phases": 1, "check_episodes_per_family": 2}
    config = make_config(entropulse=rounds, recipe={"max_run_s": max_run_s})
    bench = Bench(tmp_path, config)
    bench.broker.success = lambda order, group, index: not (harms and order.order_id.endswith("-after"))
    loop = bench.start()
    weights: dict[str, float] = {}
    while not loop.finished:
        weights.setdefault(loop.state.phase, float(bench.trainer.weight))
        bench.clock.advance(1.0)
        loop.tick()
    loop.close()
    names = [event["phase"] for event in events(bench, "phase")]
    assert names[4:] == ["rl-1", "check-1-before", "sft-1", "check-1-after", "rl-2", "eval-after-rl", "done"]
    (checked,) = events(bench, "round")
    assert checked["taken_back"] is harms
    assert weights["check-1-after"] > weights["check-1-before"] + 50, "the round trained"
    assert weights["rl-2"] == (weights["check-1-before"] if harms else weights["check-1-after"])
    # Other weights never get the number of those that were taken back.
    assert sorted(bench.weights.published) == list(range(loop.state.policy_version + 1))


def test_harmful_round_whose_checkpoint_is_gone_is_kept_and_said(tmp_path: Path) -> None:
    rounds = {"force_after_fraction": 0.5, "max_phases": 1, "check_episodes_per_family": 2}
    bench = Bench(tmp_path, make_config(entropulse=rounds))
    bench.broker.success = lambda order, group, index: not order.order_id.endswith("-after")
    loop = bench.start()
    weights: dict[str, float] = {}
    while not loop.finished:
        weights.setdefault(loop.state.phase, float(bench.trainer.weight))
        if loop.state.phase == "check-1-after" and loop.state.before_round is not None:
            shutil.rmtree(bench.folder.checkpoints / f"checkpoint-{loop.state.before_round:06d}", ignore_errors=True)
        bench.clock.advance(1.0)
        loop.tick()
    loop.close()
    (checked,) = events(bench, "round")
    assert checked["after"] < checked["before"] and checked["taken_back"] is False
    assert weights["rl-2"] == weights["check-1-after"]


def test_round_has_a_tenth_of_the_time_of_rl_and_a_learning_rate_that_rises_and_fits_the_success(tmp_path: Path) -> None:
    config = make_config(entropulse={"force_after_fraction": 0.5, "max_phases": 1, "lr": 1e-4, "warmup_steps": 2}).learner
    state = LoopState(rl_s=220.0, round_s=20.0, sft_sample_s=0.5)
    assert limits.samples_of_round(state, config) == 40
    assert limits.samples_of_round(LoopState(), config) is None
    for success, expected in ((0.0, 1e-4), (0.5, 1e-4), (0.75, 5e-5), (1.0, 0.0)):
        pool = EpisodePool(seed=0, max_per_family=8)
        whole = make_config(entropulse=config.entropulse.model_dump())
        made = make_round("sft-1", whole, demonstrations=pool, successes=pool, success=success)
        rates = []
        for done in range(1, 5):
            made.num_done = done
            rates.append(made.lr)
        assert rates == pytest.approx([expected / 2, expected, expected, expected])
