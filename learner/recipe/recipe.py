"""The recipe as data: which phases a run goes through and which rollouts each needs. Pure; the loop carries it out.

    eval-before + demonstrations ─► bc ─► eval-after-bc ─► rl-1 ─► [round ─► rl-2 ─► ...] ─► eval-after-rl ─► done
    a round: sft-1, or, where it is checked: check-1-before ─► sft-1 ─► check-1-after
    (at the same time: desktops record demonstrations while the untouched model is evaluated)

``recorded`` is everywhere what `common.run_files.recordings.recorded_seeds` found when the run began: instances that people
demonstrated. A phase whose work is configured to nothing is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from computerrl.common.config import RunConfig
from computerrl.common.messages import CurriculumPlan, OrderKind, RolloutOrder, ShownImages, Split, TaskRef

EVAL_BEFORE = "eval-before"
DEMONSTRATIONS = "demonstrations"
_AID = "aid"
CLONING = "bc"
EVAL_AFTER_CLONING = "eval-after-bc"
EVAL_AFTER_RL = "eval-after-rl"
_CHECK = "check-"
CONTROLS = "eval-controls"
_CONTROLS: dict[str, ShownImages] = {"eval-blank-images": "blank", "eval-foreign-images": "foreign"}
"""Order of the phase `CONTROLS` -> what the policy is shown."""
EVALUATIONS = (EVAL_BEFORE, EVAL_AFTER_CLONING, EVAL_AFTER_RL)
DONE = "done"

PhaseKind = Literal["rollouts", "sft", "rl", "done"]

Recorded = Mapping[str, Sequence[int]]
"""Family -> seeds."""
_NONE: Recorded = {}


@dataclass(frozen=True, slots=True)
class OrderPlan:
    """An order a phase places; `to_message` adds what is known only then."""

    order_id: str
    kind: OrderKind
    num_per_family: int | None
    group_size: int
    first_seed: int
    temperature: float
    families: tuple[str, ...] | None = None
    """Families to play; None: all of the run's."""
    split: Split | None = None
    """Split that the seeds are from; None: that of the order's kind."""
    shown_images: ShownImages = "own"
    """See `RolloutOrder.shown_images`."""

    def to_message(
        self,
        config: RunConfig,
        families: Sequence[str],
        *,
        policy_version: int,
        update: int = 0,
        num_patches: int | None = None,
        with_targets: bool = False,
        with_facts: bool = False,
    ) -> RolloutOrder:
        """The order, for actors with at least ``policy_version``; placed after ``update`` RL updates. ``num_patches``: where the
        algorithm wants training episodes played beside the demonstrator. ``with_targets``: where it wants to know the elements at
        which the demonstrator would point. ``with_facts``: where a reward wants to know which of the task's facts hold."""
        return RolloutOrder(
            order_id=self.order_id,
            kind=self.kind,
            families=tuple(families) if self.families is None else self.families,
            num_per_family=self.num_per_family,
            group_size=self.group_size,
            first_seed=self.first_seed,
            temperature=self.temperature,
            max_steps=config.tasks.max_steps,
            min_policy_version=-1 if self.kind == "demonstration" else policy_version,
            num_patches=num_patches if self.kind == "training" else None,
            with_targets=with_targets and self.kind == "training",
            with_facts=with_facts and self.kind == "training",
            curriculum=_curriculum(config, update) if self.kind == "training" else CurriculumPlan(),
            split=self.split,
            shown_images=self.shown_images,
            calls_per_action=config.actor.calls_per_action,
        )


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase: `rollouts` waits for its orders, `sft` trains on a pool, `rl` trains while its order is played."""

    name: str
    kind: PhaseKind
    orders: tuple[OrderPlan, ...] = ()


NO_PHASE = Phase("", "done")
"""Stands before the first phase of a run."""


def first_phase(config: RunConfig, *, temperature: float, recorded: Recorded = _NONE) -> Phase:
    """The first phase of a fresh run."""
    orders = _demonstrations(config, recorded)
    name = DEMONSTRATIONS
    if _num_evaluated(config, EVAL_BEFORE):
        orders.append(_evaluation(config, EVAL_BEFORE))
        name = EVAL_BEFORE
    if orders:
        return Phase(name, "rollouts", tuple(orders))
    return _after_start(config, temperature, recorded)


def phase_after(
    phase: Phase,
    config: RunConfig,
    *,
    temperature: float,
    sft_round: bool = False,
    next_seed: int = 0,
    recorded: Recorded = _NONE,
) -> Phase:
    """The phase that follows ``phase``.

    ``sft_round``: an RL phase ended because Entropulse asked for it. ``next_seed``: first training seed not played yet.
    ``temperature``: of training rollouts, the algorithm's.
    """
    if is_check_before(phase.name):
        return Phase(f"sft-{_number(phase.name)}", "sft")
    if is_check_after(phase.name):
        return rl_phase(config, _number(phase.name) + 1, first_seed=next_seed, temperature=temperature)
    if phase.kind == "rollouts":
        if phase.name == EVAL_AFTER_CLONING:
            return _first_rl(config, temperature)
        if phase.name == EVAL_AFTER_RL and config.learner.recipe.eval_control_episodes_per_family:
            return _controls(config)
        is_last = phase.name in (EVAL_AFTER_RL, CONTROLS)
        return Phase(DONE, "done") if is_last else _after_start(config, temperature, recorded)
    if phase.kind == "sft":
        if phase.name == CLONING:
            if _num_evaluated(config, EVAL_AFTER_CLONING):
                return Phase(EVAL_AFTER_CLONING, "rollouts", (_evaluation(config, EVAL_AFTER_CLONING),))
            return _first_rl(config, temperature)
        number = _number(phase.name)
        if _is_checked(config):
            return _check(config, f"{_CHECK}{number}-after")
        return rl_phase(config, number + 1, first_seed=next_seed, temperature=temperature)
    if phase.kind == "rl" and sft_round:
        number = _number(phase.name)
        return _check(config, f"{_CHECK}{number}-before") if _is_checked(config) else Phase(f"sft-{number}", "sft")
    if phase.kind == "rl" and _num_evaluated(config, EVAL_AFTER_RL):
        return Phase(EVAL_AFTER_RL, "rollouts", (_evaluation(config, EVAL_AFTER_RL),))
    return Phase(DONE, "done")


def max_demonstrations(config: RunConfig, recorded: Recorded) -> int:
    """At most so many demonstrations of one family are cloned, at least 1."""
    return config.learner.recipe.max_demos + max((len(seeds) for seeds in recorded.values()), default=0)


def aid(task: TaskRef) -> OrderPlan:
    """A demonstration of one training instance, on which the policy fails."""
    plan = _demonstration(f"{_AID}-{task.family}-{task.seed}", (task.family,), first_seed=task.seed, number=1)
    return replace(plan, split=task.split)


def is_sft(name: str) -> bool:
    """Is that phase one supervised round, which is begun anew when it was broken off?"""
    return name == CLONING or name.startswith("sft-")


def is_check(name: str) -> bool:
    """Does that phase belong to the check of an Entropulse round?"""
    return name.startswith(_CHECK)


def is_check_before(name: str) -> bool:
    """Does that phase play what the check after an Entropulse round is compared with?"""
    return is_check(name) and name.endswith("-before")


def is_check_after(name: str) -> bool:
    """Does that phase decide whether an Entropulse round is kept?"""
    return is_check(name) and name.endswith("-after")


def check_before(name: str) -> str:
    """The check that ``name``, one after a round, is compared with."""
    return f"{_CHECK}{_number(name)}-before"


def phase_named(name: str, config: RunConfig, *, first_seed: int, temperature: float, recorded: Recorded = _NONE) -> Phase:
    """The phase of that name, for a run that is resumed in the middle of it."""
    if name in (EVAL_BEFORE, DEMONSTRATIONS):
        return first_phase(config, temperature=temperature, recorded=recorded)
    if name in EVALUATIONS:
        return Phase(name, "rollouts", (_evaluation(config, name),))
    if name == CONTROLS:
        return _controls(config)
    if name == DONE:
        return Phase(DONE, "done")
    if is_check(name):
        return _check(config, name)
    if is_sft(name):
        return Phase(name, "sft")
    return rl_phase(config, _number(name), first_seed=first_seed, temperature=temperature)


def rl_phase(config: RunConfig, number: int, *, first_seed: int, temperature: float) -> Phase:
    """`rl-<number>`, playing seeds from ``first_seed`` on."""
    order = OrderPlan(
        order_id=f"rl-{number}",
        kind="training",
        num_per_family=None,
        group_size=config.learner.group_size,
        first_seed=first_seed,
        temperature=temperature,
    )
    return Phase(order.order_id, "rl", (order,))


def _after_start(config: RunConfig, temperature: float, recorded: Recorded) -> Phase:
    recipe = config.learner.recipe
    clones = bool(_demonstrations(config, recorded) or recipe.specialists or recipe.imported)
    return Phase(CLONING, "sft") if clones else _first_rl(config, temperature)


def _first_rl(config: RunConfig, temperature: float) -> Phase:
    if config.learner.recipe.max_updates == 0:
        return Phase(DONE, "done")
    return rl_phase(config, 1, first_seed=config.first_seed("training"), temperature=temperature)


def _demonstrations(config: RunConfig, recorded: Recorded) -> list[OrderPlan]:
    """One order, or one for each number where families need different numbers; and those for what else people recorded."""
    recipe = config.learner.recipe
    families_of: dict[int, tuple[str, ...] | None] = {recipe.demos_per_family: None}
    if recipe.demos_of_family:
        numbers = {family: recipe.num_demos(family) for family in config.tasks.families}
        families_of = {number: tuple(f for f in numbers if numbers[f] == number) for number in sorted(set(numbers.values()))}
    first, plans = config.first_seed("demonstration"), []
    for number, families in families_of.items():
        if number > 0:
            end = "" if families is None else f"-{number}"
            plans.append(_demonstration(f"{DEMONSTRATIONS}{end}", families, first_seed=first, number=number))
    return plans + _recorded_demonstrations(config, recorded)


def _recorded_demonstrations(config: RunConfig, recorded: Recorded) -> list[OrderPlan]:
    """Orders for recorded seeds above those played anyway, one for each stretch of seeds that the same families have."""
    recipe, first = config.learner.recipe, config.first_seed("demonstration")
    families_at: dict[int, tuple[str, ...]] = {}
    for family in sorted(recorded):
        played = first + recipe.num_demos(family)
        for seed in recorded[family]:
            if seed >= played:
                families_at[seed] = (*families_at.get(seed, ()), family)
    stretches: list[list[int]] = []
    for seed in sorted(families_at):
        if stretches and stretches[-1][-1] == seed - 1 and families_at[seed - 1] == families_at[seed]:
            stretches[-1].append(seed)
        else:
            stretches.append([seed])
    return [
        _demonstration(f"{DEMONSTRATIONS}-recorded-{seeds[0]}", families_at[seeds[0]], first_seed=seeds[0], number=len(seeds))
        for seeds in stretches
    ]


def _demonstration(order_id: str, families: tuple[str, ...] | None, *, first_seed: int, number: int) -> OrderPlan:
    return OrderPlan(
        order_id=order_id,
        kind="demonstration",
        num_per_family=number,
        group_size=1,
        first_seed=first_seed,
        temperature=0.0,
        families=families,
    )


def _evaluation(config: RunConfig, name: str) -> OrderPlan:
    # Evaluations play the same held-out instances, or the first of them: differences between them are the policy's.
    return OrderPlan(
        order_id=name,
        kind="evaluation",
        num_per_family=_num_evaluated(config, name),
        group_size=config.learner.recipe.eval_rollouts_per_task,
        first_seed=config.first_seed(config.learner.recipe.eval_split),
        temperature=config.learner.recipe.eval_temperature,
        split=config.learner.recipe.eval_split,
    )


def _controls(config: RunConfig) -> Phase:
    """The last evaluation's first instances, without the images that belong to them."""
    number = config.learner.recipe.eval_control_episodes_per_family
    own = replace(_evaluation(config, EVAL_AFTER_RL), num_per_family=number)
    orders = (replace(own, order_id=name, shown_images=shown) for name, shown in _CONTROLS.items())
    return Phase(CONTROLS, "rollouts", tuple(orders))


def _is_checked(config: RunConfig) -> bool:
    return config.learner.entropulse.check_episodes_per_family > 0


def _check(config: RunConfig, name: str) -> Phase:
    order = OrderPlan(
        order_id=name,
        kind="evaluation",
        num_per_family=config.learner.entropulse.check_episodes_per_family,
        group_size=1,
        first_seed=config.first_seed("tuning"),
        temperature=0.0,
        split="tuning",
    )
    return Phase(name, "rollouts", (order,))


def _num_evaluated(config: RunConfig, name: str) -> int:
    """Episodes of each family in the evaluation ``name``."""
    recipe = config.learner.recipe
    wanted = {EVAL_BEFORE: recipe.eval_before_episodes_per_family, EVAL_AFTER_CLONING: recipe.eval_cloned_episodes_per_family}
    number = wanted.get(name)
    return recipe.eval_episodes_per_family if number is None else number


def _curriculum(config: RunConfig, update: int) -> CurriculumPlan:
    tasks = config.tasks
    low, high = tasks.curriculum.band
    # The broker counts groups of its order, an update takes `groups_per_batch` of them.
    horizon = [(max(0, first - update) * config.learner.groups_per_batch, steps) for first, steps in tasks.horizon]
    return CurriculumPlan(
        name=tasks.curriculum.name,
        family_weights=tasks.family_weights,
        band_low=low,
        band_high=high,
        floor=tasks.curriculum.floor,
        num_recent=tasks.curriculum.num_recent,
        min_results=tasks.curriculum.min_results,
        min_group_size=tasks.rollouts.min,
        max_group_size=tasks.rollouts.max,
        horizon=tuple(dict(horizon).items()),
        length_cap=tasks.length_cap,
    )


def _number(name: str) -> int:
    return int(name.split("-")[1])
