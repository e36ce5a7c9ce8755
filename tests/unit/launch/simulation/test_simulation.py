"""The simulated loop: closed forms, conservation, Little's law, and that one seed gives one run."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from computerrl.common.config import RunConfig, load_config
from computerrl.common.errors import ConfigError
from computerrl.common.messages import RolloutOrder, VersionAnnouncement
from computerrl.launch import progress
from computerrl.launch.commands.simulate import WHAT_IF_HOURS, simulate
from computerrl.launch.plan.config_files import find_config
from computerrl.launch.simulation.actors import Fleet
from computerrl.launch.simulation.calibrate import calibrate
from computerrl.launch.simulation.cluster import Cluster, Failures
from computerrl.launch.simulation.engine import Engine
from computerrl.launch.simulation.figures import figures_of
from computerrl.launch.simulation.learner import Batch
from computerrl.launch.simulation.loop import Simulation
from computerrl.launch.simulation.records import Play
from computerrl.launch.simulation.replays import REPLAYS
from computerrl.launch.simulation.trajectories import versions_of
from computerrl.launch.simulation.what_if import Setting, desktops_per_gpu, variations
from computerrl.launch.simulation.workload import AssumedWorkload, ParetoWorkload
from computerrl.launch.simulation.world import World
from tests.support.tiers import one_in

CONSTANT = AssumedWorkload(
    mean_steps=10, spread_steps=0.0, desktop_step_s=2.0, spread_desktop=0.0, generate_step_s=1.0, reset_s=5.0, evaluate_s=3.0
)
NO_LEARNER = {"train_fixed_s": 0.0, "train_step_s": 0.0, "overhead_s": 0.0, "weight_s": 0.0, "load_stall_s": 0.0}


def config(**broker: Any) -> RunConfig:
    learner = {"group_size": 4, "groups_per_batch": 4, "max_age": 8}
    return RunConfig.model_validate({"broker": {"eta": 2, **broker}, "learner": learner})


def test_one_desktop_with_constant_times_takes_exactly_their_sum() -> None:
    cluster = Cluster(num_desktops=1, num_actors=1, **NO_LEARNER)
    run = Simulation(config(eta=100), cluster, CONSTANT).play(38.0 * 20 + 1.0)
    assert run.counts.episodes == 20
    assert run.counts.episode_s == pytest.approx([38.0] * 20)


def test_engine_slows_all_who_share_it_by_its_crowding() -> None:
    engine = Engine(crowding=0.5)
    for number in range(3):
        engine.start(number, desktop_s=0.0, generate_s=10.0, now=0.0)
    assert engine.num_generating == pytest.approx(3.0)
    assert engine.next_end() == pytest.approx(10.0 * (1 + 0.5 * 2))


def test_engine_without_crowding_lets_each_take_its_own_time() -> None:
    engine = Engine(crowding=0.0)
    engine.start("a", desktop_s=5.0, generate_s=5.0, now=0.0)
    engine.start("b", desktop_s=1.0, generate_s=2.0, now=0.0)
    assert engine.next_end() == pytest.approx(3.0)


def test_engine_that_is_paused_twice_goes_on_after_both_pauses() -> None:
    engine = Engine(crowding=0.0)
    engine.start("a", desktop_s=0.0, generate_s=10.0, now=0.0)
    engine.pause(4.0)
    engine.pause(5.0)
    engine.resume(6.0)
    assert engine.next_end() is None
    engine.resume(10.0)
    assert engine.next_end() == pytest.approx(6.0)


def test_world_handles_events_in_order_of_time_and_those_of_one_time_as_scheduled_timeouts_last() -> None:
    world = World(config(), Cluster(), seed=0, keep_spans_s=0.0)
    handled: list[tuple[str, float]] = []
    world.later(1.0, lambda: handled.append(("timeout", world.now)), is_timeout=True)
    for name, delay_s in (("late", 2.0), ("first", 1.0), ("second", 1.0), ("never", 9.0)):
        world.later(delay_s, lambda name: handled.append((name, world.now)), name)
    while world.run_next(until_s=5.0):
        pass
    assert handled == [("first", 1.0), ("second", 1.0), ("timeout", 1.0), ("late", 2.0)] and world.now == 5.0


def test_actor_that_fails_returns_its_episodes_once_and_comes_back_with_all_its_slots() -> None:
    world = World(config(), Cluster(num_desktops=4, num_actors=2), seed=0, keep_spans_s=0.0)
    world.ask(VersionAnnouncement(0, 0))
    world.ask(RolloutOrder("rl-1", "training", CONSTANT.families, None, 4, 0, 1.0, 1000, 0))
    fleet = Fleet(world, CONSTANT, on_submitted=lambda: None)

    def num_plays() -> list[int]:
        return [len(actor.plays) for actor in fleet.actors]

    fleet.assign()
    assert num_plays() == [2, 2]
    for _ in range(2):
        fleet.take_down(fleet.actors[0], repair_s=60.0)
    assert (num_plays(), world.counts.episodes_lost, world.counts.actors_down_s) == ([0, 2], 2, 60.0)
    while world.run_next(until_s=59.0):
        pass
    assert (num_plays(), world.broker_counters["received"]) == ([0, 0], 2)
    while world.run_next(until_s=60.0):
        pass
    assert num_plays() == [2, 2]


def test_pareto_workload_draws_lengths_with_its_least_its_cut_and_its_tail() -> None:
    workload, chance = ParetoWorkload({"short": 1, "long": 3}, tail=1.3, max_steps=40, step_s=4.0), random.Random(0)
    drawn = [workload.draw("long", chance) for _ in range(20_000)]
    lengths = [episode.num_steps for episode in drawn]
    assert workload.families == ("short", "long") and min(lengths) == 3 and max(lengths) == 40
    assert all(episode.desktop_s == 4.0 * episode.num_steps and episode.generate_s == episode.reset_s == 0 for episode in drawn)
    # Twelve steps are four times the least.
    assert sum(length >= 12 for length in lengths) / len(lengths) == pytest.approx(4**-1.3, rel=0.05)


def test_steps_of_equal_times_are_stamped_with_the_version_of_their_beginning_or_of_their_middle() -> None:
    """Nine steps of four seconds; version 1 is loaded at 8 s, where a step begins, version 2 at 18 s, in the middle of one."""
    times = ParetoWorkload({"f": 9}, tail=100.0).draw("f", random.Random(0))
    play = Play(1, None, times, 0, 0, 0.0, began_s=0.0, ended_s=36.0)  # type: ignore[arg-type]
    assert versions_of(play, [0.0, 8.0, 18.0]) == {0: 2, 1: 3, 2: 4}
    play.times = times._replace(sampled_at=0.5)
    assert versions_of(play, [0.0, 8.0, 18.0]) == {0: 2, 1: 2, 2: 5}


@pytest.mark.parametrize("mode", ["admit", "mask", "pace"])
def test_batches_are_cut_as_the_staleness_mode_has_it(mode: str) -> None:
    """Heavy tails: `pace` waits for steps in flight and takes larger batches, the others never do."""
    learner = {"group_size": 4, "groups_per_batch": 4, "max_age": 2, "staleness": {"mode": mode, "stall_budget_s": 60.0}}
    heavy = RunConfig.model_validate({"broker": {"eta": 2}, "learner": learner})
    no_times = {**NO_LEARNER, "train_fixed_s": 12.0}
    batches: list[Batch] = []
    run = Simulation(heavy, Cluster(num_desktops=24, num_actors=1, **no_times), ParetoWorkload({"f": 2}), on_batch=batches.append)
    run.play(1e9, is_done=lambda: len(batches) >= 150)
    assert len(batches) == 150 and run.now < 1e9
    assert [batch.version for batch in batches] == list(range(150))
    sizes, stalls = {len(batch.groups) for batch in batches}, {batch.cut.stall_end for batch in batches}
    if mode == "pace":
        assert max(sizes) > 4 and "arrived" in stalls
    else:
        assert sizes == {4} and stalls == {"none"}


@pytest.mark.parametrize("eta", one_in(3, [1, 0, 3]))
def test_mean_age_agrees_with_littles_law(eta: int) -> None:
    cluster = Cluster(num_desktops=48, num_actors=4, weight_s=0.0, load_stall_s=0.0, train_fixed_s=20.0)
    figures = figures_of(Simulation(config(eta=eta), cluster, AssumedWorkload()).play(24 * 3600.0))
    assert figures.updates_per_h > 10
    assert figures.mean_age == pytest.approx(figures.little_age, rel=0.01, abs=0.002)
    assert figures.mean_age <= eta + 1


def test_nothing_is_lost_or_counted_twice_without_failures() -> None:
    run = Simulation(config(), Cluster(num_desktops=32, num_actors=4), AssumedWorkload()).play(6 * 3600.0)
    assert run.broker_counters["received"] == run.counts.episodes
    assert sum(run.counts.ages.values()) == run.counts.steps_trained + run.counts.steps_too_old
    waiting = run.counts.steps - sum(run.counts.ages.values())
    assert 0 <= waiting < 12 * 16 * 50, "what is held is at most what admission lets in"


def test_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    def play(seed: int) -> dict[str, Any]:
        failures = Failures(desktop_mtbf_s=3600.0, actor_mtbf_s=7200.0, learner_mtbf_s=7200.0)
        cluster = Cluster(num_desktops=16, num_actors=4, failures=failures)
        return figures_of(Simulation(config(), cluster, AssumedWorkload(), seed=seed).play(7200.0)).as_dict()

    assert play(1) == play(1)
    assert play(1) != play(2)


@pytest.mark.release
def test_failures_cost_work_and_restarting_the_whole_job_costs_more() -> None:
    failures = Failures(desktop_mtbf_s=3600.0, actor_mtbf_s=3 * 3600.0, learner_mtbf_s=3 * 3600.0)
    cluster = Cluster(num_desktops=32, num_actors=4, train_fixed_s=60.0)

    def play(one: Failures) -> Any:
        return figures_of(Simulation(config(), replace(cluster, failures=one), AssumedWorkload()).play(24 * 3600.0))

    never, roles, whole = play(Failures()), play(failures), play(replace(failures, job_restarts=True))
    assert never.lost_share == 0.0 and never.effective_share == 1.0
    assert 0.0 < roles.lost_share < whole.lost_share < 0.5
    assert whole.effective_share < roles.effective_share < 1.0
    assert whole.updates_per_h < roles.updates_per_h < never.updates_per_h


def test_learner_that_is_always_busy_is_named_the_bottleneck() -> None:
    cluster = Cluster(num_desktops=64, num_actors=8, train_fixed_s=600.0)
    figures = figures_of(Simulation(config(), cluster, AssumedWorkload()).play(8 * 3600.0))
    assert figures.bottleneck.startswith("the learner")
    assert figures.learner_use > 0.95
    assert figures.updates_per_h <= 3600 / 600


def test_engines_that_drain_for_weights_play_no_step_of_two_versions() -> None:
    cluster = Cluster(num_desktops=16, num_actors=2, drains_for_weights=True, train_fixed_s=30.0)
    seen: list[Counter[int]] = []
    run = Simulation(config(), cluster, AssumedWorkload(), on_batch=lambda batch: seen.extend(batch.steps_by_version.values()))
    run.play(2 * 3600.0)
    assert len(seen) > 50
    assert all(len(versions) == 1 for versions in seen)


@pytest.mark.release
def test_desktops_per_gpu_falls_with_crowding() -> None:
    base = Setting("x", config(), Cluster(), CONSTANT)
    light, _ = desktops_per_gpu(replace(base, cluster=Cluster(crowding=0.0)), 3600.0, seed=0)
    heavy, _ = desktops_per_gpu(replace(base, cluster=Cluster(crowding=1.0)), 3600.0, seed=0)
    assert heavy <= 4 < 64 <= light


def test_what_if_changes_one_thing_at_a_time() -> None:
    base = Setting("x", config(), Cluster(), CONSTANT)
    for setting in list(variations(base))[1:]:
        changed = [setting.config != base.config, setting.cluster != base.cluster, setting.workload != base.workload]
        assert sum(changed) == 1, setting.name


def test_what_first_steps_tells_of_a_simulated_cluster_is_so() -> None:
    page = (Path(__file__).parents[4] / "docs/get-started/first-steps.md").read_text()
    assert "simulate quickstart --desktops 64 --actors 8 --what-if" in page
    assert "the bottleneck is the staleness bound, and `broker.eta=4` would bring more than twice" in page
    quickstart = load_config(find_config("quickstart"))
    base = Setting("as asked", quickstart, Cluster(num_desktops=64, num_actors=8), AssumedWorkload())
    wide = {setting.name: setting for setting in variations(base)}["eta 4"]
    asked, found = (setting.run(WHAT_IF_HOURS * 3600.0, seed=0) for setting in (base, wide))
    assert asked.bottleneck.startswith("the staleness bound")
    assert found.env_steps_per_s > 2 * asked.env_steps_per_s


def test_every_replay_says_what_it_assumes() -> None:
    for name, make in REPLAYS.items():
        replay = make()
        assert replay.name == name and len(replay.settings) >= 2
        assert any(text.startswith("assumed") for text in replay.assumptions)


# --- a recorded run --------------------------------------------------------------------------------------------------


def record(folder: Path, *, num_updates: int = 12) -> Path:
    """A run of one actor with two slots: episodes of 10 s back to back, an update each 20 s."""
    (folder / "trajectories").mkdir(parents=True)
    tree = {"actor": {"num_episodes": 2}, "learner": {"group_size": 2, "groups_per_batch": 2}, "broker": {"eta": 4}}
    (folder / "config.yaml").write_text(json.dumps(tree))
    step = {"timing": {"desktop_s": 2.0, "generate_s": 2.0}}
    episodes = [
        {
            "kind": "training",
            "family": "f",
            "started_at": 10.0 * (number // 2),
            "duration_s": 10.0,
            "reset_s": 1.0,
            "wait_s": 0.0,
            "steps": [step, step],
        }
        for number in range(4 * num_updates)
    ]
    (folder / "trajectories" / "episodes.jsonl").write_text("\n".join(map(json.dumps, episodes)))
    updates = [
        {
            "event": "update",
            "time": 20.0 * number,
            "run_s": 20.0 * number,
            "phase": "rl-1",
            "update": number,
            "wait_s": 14.0,
            "train_s": 5.0,
            "num_steps": 8.0,
            "policy_age_mean": 0.5,
        }
        for number in range(1, num_updates + 1)
    ]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, updates)))
    return folder


def test_calibrated_model_gives_back_the_run_it_was_made_from(tmp_path: Path) -> None:
    found = calibrate(record(tmp_path / "run"), crowding=0.0)
    assert found.measured.update_s == pytest.approx(20.0)
    figures = Setting("run", found.config, found.cluster, found.workload).run(4000.0, seed=0)
    assert 3600 / figures.updates_per_h == pytest.approx(found.measured.update_s, rel=0.02)
    assert figures.env_steps_per_s == pytest.approx(found.measured.env_steps_per_s, rel=0.02)


def test_calibrated_answers_alone_are_faster_than_they_were_among_others(tmp_path: Path) -> None:
    found = calibrate(record(tmp_path / "run"), crowding=1.0)
    (episode, *_) = found.workload.episodes["f"]
    # Two slots, four of ten seconds in answers: 0.8 of them under way in the mean, never more than one at a time.
    assert episode.generate_s == pytest.approx(4.0)


def test_run_that_has_not_trained_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least 3"):
        calibrate(record(tmp_path / "run", num_updates=1), crowding=0.0)
    (tmp_path / "run" / "metrics.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"metrics\.jsonl is missing"):
        calibrate(tmp_path / "run", crowding=0.0)


# --- the command -----------------------------------------------------------------------------------------------------


def test_command_prints_answers_and_writes_them(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    arguments = ["configs/quickstart.yaml", "--desktops", "16", "--actors", "2", "--hours", "1", "--json", str(out)]
    done = CliRunner().invoke(simulate, [*arguments, "--out", str(tmp_path / "pictures")], catch_exceptions=False)
    assert done.exit_code == 0
    for word in ("model, not measurement", "bottleneck", "an engine alone can use", "Little's law"):
        assert word in done.output
    assert json.loads(out.read_text())["figures"]["duration_s"] == 3600.0
    assert (tmp_path / "pictures" / "stages.png").stat().st_size > 10_000


def test_command_shows_how_far_it_is_and_figures_apart_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "FIRST_S", 0.0)
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    monkeypatch.setattr(progress, "SILENCE_S", 0.0)
    words = ["quickstart", "--desktops", "4", "--actors", "1", "--hours", "0.5"]
    done = CliRunner().invoke(simulate, words, catch_exceptions=False)
    assert "simulating as asked: 5" in done.stderr and "simulating 2 desktops an engine" in done.stderr
    assert "simulating" not in done.stdout and "bottleneck" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--desktops", "4", "--actors", "9"], "9 actors, but only 4 desktops"),
        (["--desktops", "0", "--actors", "1"], "at least 1 is needed"),
        (["--crowding", "3"], "from 0 to 1"),
        (["--replay", "nobody"], "there is no comparison 'nobody'"),
    ],
)
def test_command_refuses_what_cannot_be(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CliRunner().invoke(simulate, ["configs/quickstart.yaml", *arguments], catch_exceptions=False)


NUMBERS = [param.opts[0] for param in simulate.params if isinstance(param.type, click.FloatRange)]


@pytest.mark.parametrize("option", NUMBERS)
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e308", "x"])
def test_command_refuses_numbers_that_are_none(option: str, value: str) -> None:
    done = CliRunner().invoke(simulate, ["configs/quickstart.yaml", "--desktops", "4", "--actors", "1", option, value])
    assert option in done.output if done.exit_code == 2 else isinstance(done.exception, ConfigError)


def test_setting_in_which_nothing_is_played_has_a_table() -> None:
    words = ["configs/quickstart.yaml", "--desktops", "4", "--actors", "1", "--hours", "0.05", "--desktop-step-s", "600"]
    assert "an engine alone can use" in CliRunner().invoke(simulate, words, catch_exceptions=False).output
