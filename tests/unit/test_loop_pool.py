"""The pool of successful episodes."""

import json

import numpy as np
from loop_fakes import FakeBroker, make_config, make_step
from msgspec.structs import replace

from common.messages import Trajectory
from learner.pool import EpisodePool, digest, make_batches
from learner.recipe import rl_phase


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


def test_pool_more_than_it_holds_keeps_a_sample_of_all(tmp_path: object) -> None:
    pool = filled(100, max_per_family=20)
    assert pool.num_episodes == 40
    seeds = [int(episode.task_id.split(":")[1]) for episode in pool.draw(per_task=9, max_steps=None, salt="")]
    assert min(seeds) < 25 < max(seeds)  # Old and new alike.


def test_pool_draw_takes_a_few_per_task_and_families_in_turn() -> None:
    episodes = filled(10).draw(per_task=2, max_steps=None, salt="x")
    assert len(episodes) == 20
    assert [episode.family for episode in episodes[:4]] == ["a", "b", "a", "b"]


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
    assert [episode.family for episode in episodes[:4]] == ["a", "b", "a", "b"]
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


def test_batches_families_spread_evenly_and_every_step_once_per_epoch() -> None:
    pool = EpisodePool(seed=1, max_per_family=1000)
    all_of = trajectories(12)
    for trajectory in all_of:
        if trajectory.task.family == "a" or trajectory.task.seed == 0:
            family_token = 1 if trajectory.task.family == "a" else 2
            pool.add(replace(trajectory, steps=(make_step(version=1, prompt=[family_token]),) * 2))
    episodes = pool.draw(per_task=9, max_steps=None, salt="")
    batches = make_batches(episodes, batch_size=14, epochs=2, seed="s")
    assert sum(len(batch) for batch in batches) == 2 * pool.num_steps
    assert all(any(step.prompt_tokens[0] == 2 for step in batch) for batch in batches)
