"""The pool of successful episodes."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from computerrl.common.config import ModelConfig, RunConfig
from computerrl.common.messages import Trajectory
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.launch.plan.machine import inspect_machine
from computerrl.launch.run.preflight import check_specialists
from computerrl.learner.checkpoints.checkpoint import CheckpointStore
from computerrl.learner.recipe.recipe import first_phase, phase_after, rl_phase
from computerrl.learner.supervised.pool import EpisodePool, KeptEpisode, digest, make_batches, pack_run
from computerrl.learner.supervised.sft import make_round
from tests.support.loop_fakes import FakeBroker, make_config, make_step


def trajectories(num_groups: int) -> list[Trajectory]:
    broker, config = FakeBroker(), make_config()
    order = rl_phase(config, 1, first_seed=0, temperature=1.0).orders[0]
    broker.place_order(order.to_message(config, ("a", "b"), policy_version=0))
    return [t for seq in range(num_groups) for t in broker.fetch_group(seq).trajectories]


def filled(num_groups: int, *, max_per_family: int = 1000) -> EpisodePool:
    pool = EpisodePool(seed=1, max_per_family=max_per_family)
    for trajectory in trajectories(num_groups):
        pool.add(trajectory)
    return pool


def assert_in_turn(episodes: Sequence[KeptEpisode]) -> None:
    families = [episode.family for episode in episodes]
    assert {*families[:2]} == {"a", "b"} and families == families[:2] * (len(families) // 2)


def test_pool_more_than_it_holds_keeps_a_sample_of_all(tmp_path: object) -> None:
    pool = filled(100, max_per_family=20)
    assert pool.num_episodes == 40
    seeds = [int(episode.task_id.split(":")[1]) for episode in pool.draw(per_task=9, max_steps=None, salt="")]
    assert min(seeds) < 25 < max(seeds)  # Old and new alike.


def test_pool_draw_takes_a_few_per_task_and_families_in_turn() -> None:
    episodes = filled(10).draw(per_task=2, max_steps=None, salt="x")
    assert len(episodes) == 20
    assert_in_turn(episodes)


def test_pool_draw_of_few_steps_leaves_no_family_out_for_its_name() -> None:
    pool = filled(10)
    firsts = [pool.draw(per_task=2, max_steps=2, salt=f"update-{number}") for number in range(30)]
    assert {len(episodes) for episodes in firsts} == {1}
    assert min(Counter(episodes[0].family for episodes in firsts).values()) > 5
    for values, first in (({"a": 0.1, "b": 0.2}, "a"), ({"a": 0.2, "b": 0.1}, "b"), ({"b": 0.5}, "b")):
        drawn = [pool.draw(per_task=2, max_steps=2, salt=str(number), families=values) for number in range(10)]
        assert {episode.family for episodes in drawn for episode in episodes} == {first}
    equal = [pool.draw(per_task=2, max_steps=2, salt=str(number), families={"a": 0.0, "b": 0.0})[0] for number in range(30)]
    assert {episode.family for episode in equal} == {"a", "b"}


def test_pool_draw_stops_at_number_of_steps() -> None:
    assert sum(len(episode.steps) for episode in filled(10).draw(per_task=4, max_steps=7, salt="x")) == 6


def test_pool_draw_fills_the_share_of_families_that_have_little_from_another_pool() -> None:
    successes, demonstrations = (EpisodePool(seed=1, max_per_family=50) for _ in range(2))
    for number, trajectory in enumerate(trajectories(12)):
        if trajectory.task.family == "a":
            successes.add(trajectory)
        elif number < 6:
            demonstrations.add(replace(trajectory, trajectory_id=f"demo-{number}"))
    episodes = successes.draw(per_task=9, max_steps=None, salt="x", fill_from=demonstrations)
    of_family = {family: [one.trajectory_id for one in episodes if one.family == family] for family in "ab"}
    assert len(of_family["a"]) == len(set(of_family["a"])) == len(of_family["b"]) == successes.num_episodes
    assert set(of_family["b"]) == {"demo-4", "demo-5"}
    assert_in_turn(episodes)
    assert successes.draw(per_task=9, max_steps=None, salt="x") == [one for one in episodes if one.family == "a"]


def test_pool_badly_formed_and_impossible_steps_left_out() -> None:
    pool = EpisodePool(seed=1, max_per_family=5)
    good = trajectories(1)[0]
    impossible = replace(make_step(version=1), action_error="no element 99")
    pool.add(replace(good, steps=(make_step(version=1), make_step(version=1, format_ok=False), impossible)))
    pool.add(replace(good, steps=(make_step(version=1, format_ok=False),)))
    assert (pool.num_episodes, pool.num_steps) == (1, 1)


def test_pool_restored_draws_the_same() -> None:
    pool = filled(10)
    arrays, rest = pool.state()
    again = EpisodePool(seed=1, max_per_family=1000)
    again.restore(arrays, json.loads(json.dumps(rest)))
    first, second = (p.draw(per_task=1, max_steps=9, salt="y") for p in (pool, again))
    assert digest(first) == digest(second)
    assert np.array_equal(first[0].steps[0].prompt_tokens, second[0].steps[0].prompt_tokens)


def test_batches_hold_whole_tasks_families_spread_evenly_and_every_step_once_per_epoch() -> None:
    episodes = filled(48).draw(per_task=9, max_steps=None, salt="")
    place = {id(step): (epis.family, epis.task_id) for epis in episodes for step in epis.steps}
    assert len({task for _, task in place.values()}) >= 40
    batches = make_batches(episodes, batch_size=40, epochs=2, seed="s")
    for epoch in (batches[: len(batches) // 2], batches[len(batches) // 2 :]):
        assert sorted(id(step) for batch in epoch for step in batch) == sorted(place)
        tasks = [{place[id(step)] for step in batch} for batch in epoch]
        assert len(set.union(*tasks)) == sum(map(len, tasks)), "a task is in two batches"
        assert len(epoch) == round(len(place) / 40) and all(32 <= len(batch) <= 48 for batch in epoch)
        shares = [sum(family == "a" for family, _ in batch) / len(batch) for batch in tasks]
        assert all(0.2 <= share <= 0.8 for share in shares)
    order = [id(step) for batch in batches for step in batch]
    assert order[: len(place)] != order[len(place) :]


def run_with_successes(folder: Path, *, num_groups: int, model: str = "tiny-random") -> Path:
    """A run folder with one checkpoint."""
    config = RunConfig(name=folder.name, run_dir=str(folder.parent), model=ModelConfig(name=model))
    run = RunFolder(config.folder)
    run.create(config)
    sections, tree = pack_run({}, {}, {"successes": filled(num_groups)})
    store = CheckpointStore(run.checkpoints, num_kept=1)
    store.save(sections, tree, cursor=0)
    store.close()
    return run.folder


def test_cloning_takes_what_specialists_did_well(tmp_path: Path) -> None:
    runs = [run_with_successes(tmp_path / name, num_groups=number) for name, number in (("calc", 10), ("web", 3))]
    recipe = {"demos_per_family": 0, "specialists": [str(run) for run in runs], "specialist_episodes": 4, "bc_epochs": 1}
    config = make_config(recipe=recipe)
    assert first_phase(config, temperature=1.0).name == "eval-before"
    assert phase_after(first_phase(config, temperature=1.0), config, temperature=1.0).name == "bc"
    nothing = EpisodePool(seed=0, max_per_family=1)
    made = make_round("bc", config, demonstrations=nothing, successes=nothing)
    # Four of each of two families of the first run, and of the second run one for each of its three instances.
    assert sum(map(len, made.batches)) == 2 * (8 + 3)
    before = sorted(path.name for path in runs[0].rglob("*"))
    again = make_round("bc", config, demonstrations=nothing, successes=nothing)
    assert [[step.prompt_tokens.tolist() for step in batch] for batch in again.batches] == [
        [step.prompt_tokens.tolist() for step in batch] for batch in made.batches
    ]
    assert sorted(path.name for path in runs[0].rglob("*")) == before


def test_specialists_of_another_model_or_without_a_checkpoint_are_found_before_the_run(tmp_path: Path) -> None:
    run = run_with_successes(tmp_path / "calc", num_groups=2)
    empty = tmp_path / "none"
    config = RunConfig.model_validate({"learner": {"recipe": {"specialists": [str(run), str(empty)]}}})
    found = [str(finding.problem) for finding in check_specialists(config, inspect_machine())]
    assert len(found) == 2 and "tiny-random" in found[0] and str(empty) in found[1]
    same = RunConfig.model_validate({"model": {"name": "tiny-random"}, "learner": {"recipe": {"specialists": [str(run)]}}})
    assert not check_specialists(same, inspect_machine())
