"""The order of phases, and what each asks for."""

import itertools
import json
from typing import Any

import pytest
from msgspec.structs import replace

from computerrl.common.config import CurriculumConfig, RolloutsConfig, RunConfig, TasksConfig
from computerrl.common.messages import CurriculumPlan
from computerrl.learner.recipe import orders, recipe
from computerrl.learner.recipe.state import LoopState
from tests.support.data.broker_data import order
from tests.support.loop_fakes import FakeBroker, make_config


def walk(config: RunConfig, *, pulses: int = 0) -> list[str]:
    phase = recipe.first_phase(config, temperature=1.0)
    names = []
    while phase.kind != "done":
        names.append(phase.name)
        pulse = phase.kind == "rl" and pulses > 0
        pulses -= pulse
        phase = recipe.phase_after(phase, config, temperature=1.0, sft_round=pulse, next_seed=7)
    return names


def walk_with(**values: Any) -> list[str]:
    return walk(make_config(recipe=values))


def test_phases_whole_recipe_in_order() -> None:
    assert walk(make_config(), pulses=1) == ["eval-before", "bc", "eval-after-bc", "rl-1", "sft-1", "rl-2", "eval-after-rl"]


def test_phases_configured_to_nothing_left_out() -> None:
    assert walk_with(demos_per_family=0) == ["eval-before", "rl-1", "eval-after-rl"]
    assert walk_with(eval_episodes_per_family=0) == ["demonstrations", "bc", "rl-1"]
    assert walk_with(eval_before_episodes_per_family=0) == ["demonstrations", "bc", "eval-after-bc", "rl-1", "eval-after-rl"]
    assert walk_with(eval_cloned_episodes_per_family=0) == ["eval-before", "bc", "rl-1", "eval-after-rl"]
    assert walk_with(max_updates=0) == ["eval-before", "bc", "eval-after-bc"]
    assert walk_with(demos_per_family=0, max_updates=0, eval_episodes_per_family=0) == []


def test_controls_play_the_last_evaluations_first_instances_with_other_images() -> None:
    config = make_config(recipe={"eval_control_episodes_per_family": 2})
    assert walk(config)[-2:] == ["eval-after-rl", recipe.CONTROLS]
    phases = [recipe.phase_named(name, config, first_seed=0, temperature=1.0) for name in (recipe.EVAL_AFTER_RL, recipe.CONTROLS)]
    (own,), controls = (phase.orders for phase in phases)
    messages = [order.to_message(config, ["a"], policy_version=3) for order in (own, *controls)]
    assert [one.shown_images for one in messages] == ["own", "blank", "foreign"]
    assert [one.num_per_family for one in messages[1:]] == [2, 2]
    assert len({(one.first_seed, one.temperature, one.split, one.max_steps) for one in messages}) == 1
    assert len({one.order_id for one in messages}) == 3


def test_evaluations_have_their_own_number_of_episodes_and_begin_with_the_same() -> None:
    config = make_config(
        recipe={"eval_episodes_per_family": 20, "eval_before_episodes_per_family": 2, "eval_cloned_episodes_per_family": None}
    )
    phases = [recipe.phase_named(name, config, first_seed=0, temperature=1.0) for name in recipe.EVALUATIONS]
    evaluations = [order for phase in phases for order in phase.orders if order.kind == "evaluation"]
    assert [order.num_per_family for order in evaluations] == [2, 20, 20]
    assert {order.first_seed for order in evaluations} == {config.tasks.evaluation_seeds[0]}


@pytest.mark.parametrize("split", ["demonstration", "training"])
def test_each_seed_has_demonstrations_and_training_tasks_of_its_own(split: str) -> None:
    config = make_config()
    configs = [config.model_copy(update={"seed": seed}) for seed in range(100)]
    first, past_last = config.tasks.seeds_of(split)
    begins = sorted(one.first_seed(split) for one in configs)
    assert begins[0] == first == config.first_seed(split)
    gaps = {high - low for low, high in itertools.pairwise([*begins, past_last])}
    assert len(gaps) == 1 and gaps.pop() >= 1000
    assert len({one.first_seed("evaluation") for one in configs} | {one.first_seed("tuning") for one in configs}) == 2


def test_seed_decides_where_the_orders_of_a_run_begin() -> None:
    firsts = []
    for seed in (0, 1):
        config = make_config().model_copy(update={"seed": seed})
        orders = {order.kind: order for order in recipe.first_phase(config, temperature=1.0).orders}
        training = recipe.phase_named("rl-1", config, first_seed=config.first_seed("training"), temperature=1.0).orders[0]
        firsts.append((orders["demonstration"].first_seed, training.first_seed, orders["evaluation"].first_seed))
    assert firsts[0][0] != firsts[1][0] and firsts[0][1] != firsts[1][1] and firsts[0][2] == firsts[1][2]


def test_first_phase_demonstrations_and_evaluation_at_the_same_time() -> None:
    phase = recipe.first_phase(make_config(), temperature=1.0)
    assert [order.kind for order in phase.orders] == ["demonstration", "evaluation"]


def test_demonstrations_one_order_for_each_number() -> None:
    config = make_config(recipe={"demos_of_family": {"b": 5, "c": 0, "d": 5}})
    config = config.model_copy(update={"tasks": TasksConfig(families=("a", "b", "c", "d"))})
    orders = recipe.first_phase(config, temperature=1.0).orders[:-1]
    messages = [order.to_message(config, ["a", "b", "c", "d"], policy_version=0) for order in orders]
    assert {(m.order_id, m.num_per_family, m.families) for m in messages} == {
        ("demonstrations-2", 2, ("a",)),
        ("demonstrations-5", 5, ("b", "d")),
    }
    assert config.learner.recipe.max_demos == 5


def test_phases_resumed_by_name_are_the_same() -> None:
    config = make_config()
    phase = recipe.first_phase(config, temperature=0.8)
    while phase.kind != "done":
        assert recipe.phase_named(phase.name, config, first_seed=config.tasks.training_seeds[0], temperature=0.8) == phase
        phase = recipe.phase_after(phase, config, temperature=0.8)


def test_orders_second_rl_phase_plays_seeds_the_first_did_not() -> None:
    config = make_config()
    after = recipe.phase_after(recipe.Phase("sft-1", "sft"), config, temperature=1.0, next_seed=123_456)
    assert (after.name, after.orders[0].first_seed) == ("rl-2", 123_456)


def test_orders_seeds_come_from_their_own_ranges() -> None:
    config = make_config()
    orders = {order.order_id: order for order in recipe.first_phase(config, temperature=1.0).orders}
    assert orders["demonstrations"].first_seed == config.tasks.demonstration_seeds[0]
    assert orders["eval-before"].first_seed == config.tasks.evaluation_seeds[0]
    message = orders["demonstrations"].to_message(config, ["a"], policy_version=5)
    assert message.min_policy_version == -1
    assert orders["eval-before"].to_message(config, ["a"], policy_version=5).min_policy_version == 5


def test_orders_training_alone_has_the_curriculum_of_the_configuration() -> None:
    config = make_config()
    tasks = TasksConfig(
        families=("a", "b"),
        family_weights={"a": 2.0},
        curriculum=CurriculumConfig(name="success_band", band=(0.2, 0.7), floor=0.5, num_recent=32, min_results=4),
        rollouts=RolloutsConfig(min=2, max=6),
    )
    config = config.model_copy(update={"tasks": tasks})
    (rl,) = recipe.rl_phase(config, 1, first_seed=0, temperature=1.0).orders
    message = rl.to_message(config, ["a", "b"], policy_version=0)
    assert message.curriculum == CurriculumPlan("success_band", {"a": 2.0}, 0.2, 0.7, 0.5, 32, 4, 2, 6)
    others = recipe.first_phase(config, temperature=1.0).orders
    assert len(others) == 2
    assert all(plan.to_message(config, ["a"], policy_version=0).curriculum == CurriculumPlan() for plan in others)


def test_orders_training_alone_asks_where_demonstrators_would_point() -> None:
    config = make_config()
    (rl,) = recipe.rl_phase(config, 1, first_seed=0, temperature=1.0).orders
    plans = (rl, *recipe.first_phase(config, temperature=1.0).orders)
    messages = [plan.to_message(config, ["a"], policy_version=0, with_targets=True) for plan in plans]
    assert [message.kind for message in messages if message.with_targets] == ["training"]
    assert not rl.to_message(config, ["a"], policy_version=0).with_targets


def test_order_kept_in_a_checkpoint_and_its_successor_have_the_same_curriculum() -> None:
    plan = CurriculumPlan("weighted", {"a": 2.0}, min_group_size=2)
    state = LoopState(next_seed=9)
    placed = replace(order("rl-1", families=("a", "b"), group_size=4), curriculum=plan)
    orders.enter(state, [placed], close_present=False)
    kept = LoopState.from_json(json.loads(json.dumps(state.to_json())))
    assert kept.order_messages() == [placed]
    broker = FakeBroker()
    broker.place_order(order("rl-1"))  # As a later checkpoint would have it.
    orders.open_all(kept, broker)
    assert broker.orders["rl-1.2"].curriculum == plan


def test_is_sft_names_the_rounds_that_are_begun_anew() -> None:
    names = ("eval-before", "bc", "eval-after-bc", "rl-1", "sft-1", "rl-2", "done")
    assert [name for name in names if recipe.is_sft(name)] == ["bc", "sft-1"]


def test_horizon_counts_groups_from_the_update_at_which_the_order_is_placed() -> None:
    config = make_config()
    tasks = TasksConfig(families=("a",), max_steps=9, horizon=((0, 2), (10, 4), (20, 9)), length_cap=True)
    config = config.model_copy(update={"tasks": tasks})
    num = config.learner.groups_per_batch
    plan = recipe.rl_phase(config, 1, first_seed=100_000, temperature=1.0).orders[0]
    for update, expected in ((0, ((0, 2), (10 * num, 4), (20 * num, 9))), (12, ((0, 4), (8 * num, 9))), (30, ((0, 9),))):
        message = plan.to_message(config, ["a"], policy_version=0, update=update)
        assert message.curriculum.horizon == expected and message.curriculum.length_cap
