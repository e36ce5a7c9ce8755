"""Studies that are data alone: comparisons of arms, and studies of one policy. A study with code of its own is a file beside.

This module imports nothing heavy, so that `computerrl study` lists the studies at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from computerrl.benchmarks.studies._designs import QUICK, WIDER, Arm, Bars, Comparison, Curves, Generalist
from computerrl.benchmarks.studies._published import MINIWOB, MINIWOB_NOTE
from computerrl.benchmarks.studies._statistics import Record, against, greatest, mean_of, means, success_at_equal_time

SUCCESS_OVER_STEPS = Curves("rl_env_steps", "success")

# --- comparisons of arms -------------------------------------------------------------------------------------------------

ASYNCHRONY = Comparison(
    name="asynchrony",
    title="Asynchronous against synchronous",
    question="""
Asynchronous against synchronous training: the same desktops, cores and updates; throughput, success, ages, idle time.

Synchronous: `broker.eta` 0, no rollout of the next batch begins before the update is done and its weights are out. Asynchronous:
eta 1 (the default: one batch ahead) and eta 4. Everything else is the same: the cloned policy that all begin with, tasks,
batches, number of updates. Equal updates: success on held-out instances at the end. Equal wall time: the training success that
each arm had reached when the fastest arm of its seed was done.

AReaL (arXiv 2505.24298) reports 2.77 times the speed of a synchronous system at equal success, on GPUs of their own for
generation and training. Here both share two threads of one core, so that each can use the time that the other leaves: the gain
is the time in which neither of the two could run, and no more.
""",
    arms=(
        Arm("synchronous", {"broker.eta": 0}),
        Arm("asynchronous, eta 1", {"broker.eta": 1}),
        Arm("asynchronous, eta 4", {"broker.eta": 4, "learner.max_age": 8}),
    ),
    num_seeds=3,
    settings={"learner.recipe.max_updates": 24, "learner.recipe.max_rl_env_steps": None},
    columns={
        "env steps/s": means(lambda cell: cell["rl_env_steps"] / cell["rl_s"], ".2f"),
        "seconds of RL": means("rl_s", ".0f"),
        "held-out success, equal updates": means("success"),
        "training success, equal time": success_at_equal_time,
        "mean age trained": means(lambda cell: mean_of(cell, "policy_age_mean"), ".2f"),
        "greatest": greatest("max_policy_age_trained"),
        "learner waits": means("learner_waiting", ".0%"),
        "episode slots wait": means("slots_waiting", ".0%"),
        "generate": means("slots_generating", ".0%"),
        "on the desktop": means("slots_on_desktop", ".0%"),
    },
    note="Mean and standard error over seeds. Shares are of RL's time.",
    panels=(
        Curves("rl_s", "success"),
        Curves("update", "success"),
        Bars(("learner_training", "slots_generating", "slots_on_desktop", "slots_waiting"), "share of RL's time"),
    ),
    limits=(
        "Generation, training and desktops on hardware of their own, where a synchronous system leaves whole GPUs idle.",
        "Long episodes: here they have at most four actions, so that a batch has hardly any stragglers.",
        "Whether eta 4 costs success in long runs: ages stay near 1, since one batch is hardly ever ready before the one before "
        "it is trained.",
    ),
    quick_arms=("synchronous", "asynchronous, eta 1"),
)

_ROUND: Mapping[str, Any] = {
    "learner.entropulse.enabled": True,
    "learner.entropulse.force_after_fraction": 0.5,
    "learner.entropulse.max_phases": 1,
    "learner.entropulse.max_samples": 192,
    "learner.entropulse.lr": 1e-4,
    "learner.entropulse.min_updates": 1_000_000,
}
_PART = 500
"""Desktop steps before the Entropulse round, after it, and at the end, over which the entropy is averaged."""


def _round_at(cell: Record) -> float:
    """Desktop steps after which the round came; half of all where there was none."""
    before = [update["rl_env_steps"] for update in cell["updates"] if update["phase"] == cell["updates"][0]["phase"]]
    return before[-1] if len(before) < len(cell["updates"]) else cell["rl_env_steps"] / 2


def _entropy(cell: Record, low: float, high: float) -> float | None:
    """Mean entropy of the updates between ``low`` and ``high`` desktop steps."""
    inside = [update["entropy"] for update in cell["updates"] if low < update["rl_env_steps"] <= high]
    found = [entropy for entropy in inside if entropy is not None]
    return sum(found) / len(found) if found else None


ENTROPULSE = Comparison(
    name="entropulse",
    title="Entropulse, continued RL, and the control",
    question="""
Entropulse against continued RL, and against a reset of the reference alone, at equal desktop steps and at equal time.

ComputerRL (section 3.4) lets RL pause when entropy has collapsed, trains one round on successes of all its updates, and goes on
from there. Such a round does two things: it trains, and it makes the present policy the new reference of the KL term (and starts
the optimizer anew). The paper has no control that does the second alone; this study adds one. All arms begin with the same cloned
policy and have the same KL term (k3, beta 0.01, ours: with the published 3e-4 a reset would hardly be felt). The round comes at
half of the steps and nowhere else (our own trigger is off), so that all seeds have it at the same place; a round's own training
costs no desktop steps, but time.

Published (14B, OSWorld): first RL phase 42.0, Entropulse 41.5, second RL phase 45.8.
""",
    arms=(
        Arm("continued RL"),
        Arm("Entropulse", _ROUND),
        Arm("reset alone", {**_ROUND, "learner.entropulse.epochs": 0}),
    ),
    num_seeds=5,
    settings={"learner.algorithm.options.kl_beta": 0.01, "learner.recipe.max_rl_env_steps": 3000},
    columns={
        "held-out success, equal steps": means("success"),
        "difference to continued RL, seed by seed": against(
            "continued RL", lambda cell, other: cell["success"] - other["success"], "+.3f"
        ),
        "training success, equal time": success_at_equal_time,
        "entropy before the round": means(lambda cell: _entropy(cell, _round_at(cell) - _PART, _round_at(cell))),
        "after it": means(lambda cell: _entropy(cell, _round_at(cell), _round_at(cell) + _PART)),
        "at the end": means(lambda cell: _entropy(cell, cell["rl_env_steps"] - _PART, cell["rl_env_steps"])),
        "different solutions per success": means("distinct_solutions"),
        "seconds": means("rl_s", ".0f"),
    },
    note=f"Mean and standard error over seeds. Entropy: nats per action token, over {_PART} desktop steps each; continued RL's "
    "are around its middle. Different solutions: share of differing scripts among a group's successes in the last quarter.",
    panels=(SUCCESS_OVER_STEPS, Curves("rl_env_steps", "entropy"), Curves("rl_s", "success")),
    limits=(
        "Collapse as in runs of days: 3,000 steps lower the entropy, but a policy of four families explores little anyway.",
        "What the trigger of our own (entropy and success flat) would do: the round is placed at half of the steps.",
        "Other sizes of the KL term, of the round, or of its learning rate.",
    ),
    quick_arms=("continued RL", "reset alone"),
)

API_GUI = Comparison(
    name="api_gui",
    title="API-GUI against mouse and keyboard alone",
    question="""
API-GUI against mouse and keyboard alone, on spreadsheets and texts: steps per success, and success.

ComputerRL's first claim is its action space: an agent that may call applications besides using mouse and keyboard needs a
third of the steps. Here the same families, instances and checkers are played both ways (`tasks.actions`). Each arm clones
demonstrations of its own kind, as many of both, and then learns by RL for equal desktop steps; episodes may have 20 actions.
""",
    arms=(Arm("API-GUI", {"tasks.actions": "api_gui"}), Arm("GUI only", {"tasks.actions": "gui"})),
    num_seeds=2,
    # Two groups an update: episodes of mouse and keyboard are long, and there would be few updates.
    settings={
        **WIDER,
        "tasks.families": (
            "calc-set-cell",
            "forge-calc-column-total",
            "forge-calc-compute-column",
            "forge-writer-replace-name",
            "forge-writer-align",
            "forge-writer-capitals",
        ),
        "tasks.max_steps": 20,
        "learner.recipe.demos_per_family": 16,
        "learner.groups_per_batch": 2,
        "learner.recipe.max_rl_env_steps": 2000,
        "learner.recipe.eval_episodes_per_family": 15,
        "actor.max_new_tokens": 40,
    },
    has_own_cloning=True,
    columns={
        "steps of a demonstration": means("demonstration_steps", ".2f"),
        "steps per success, at the end of RL": means("steps_per_success", ".2f"),
        "success cloned": means("success_cloned"),
        "after RL": means("success"),
        "seconds of RL": means("rl_s", ".0f"),
    },
    has_families=True,
    note="Mean and standard error over seeds; held-out instances.",
    panels=(SUCCESS_OVER_STEPS, Bars(("demonstration_steps", "steps_per_success"), "actions")),
    limits=(
        "An agent that finds its own way: both arms begin with scripted demonstrations, and keep their manner.",
        "Work for which there is no call, or no keyboard way: the families are those that have both.",
        "Large models: one of 135M parameters copies what it was shown, and counts badly.",
    ),
)

_PIXELS: Mapping[str, Any] = {
    "model.name": "tiny-vision",
    "model.trainable_top_layers": 19,
    "desktop.screen_width": 320,  # a page fills it, and the model knows pages of this size
    "desktop.screen_height": 420,
    "desktop.screenshot_format": "png",
    "actor.require_done": False,
    "actor.prompt.format": "compact_vision",
    "actor.prompt.images": 1,
    "actor.prompt.max_prompt_tokens": 256,
    "tasks.actions": "gui",
    "tasks.max_steps": 1,
    "learner.algorithm.name": "grounding",
    "learner.algorithm.options.temperature": 1.0,
}


def _paid(name: str, reward: str) -> Arm:
    return Arm(name, {"learner.algorithm.options.reward": reward})


GROUNDING = Comparison(
    name="grounding",
    title="Grounding rewards",
    question="""
Grounding rewards beside the outcome: success of policies whose clicks are paid for where they point.

Policies that see a screenshot alone have to hit what they mean. The outcome tells a hit from a miss, and of a group that misses
as a whole it tells nothing. Grounding rewards tell near misses from far ones, or pay the hit itself: GUI-R1 and UI-R1 (point in
box), GUI-G1 (hit, overlap and edges of boxes), GUI-G2 (Gaussian), SE-GUI (hit and distance). Here the algorithm `grounding` adds
the advantage of each to the outcome's. The element is the one at which the family's demonstrator would point. All arms of a seed
begin with one cloned policy and learn for equal desktop steps; the first arm is paid for the outcome alone.

The published gains are those of models of 3B and 7B parameters on annotated screenshots, without any outcome.
""",
    arms=(
        Arm("outcome", {"learner.algorithm.options.grounding_weight": 0.0}),
        _paid("point in box", "point_in_box"),
        _paid("box overlap", "box_overlap"),
        _paid("Gaussian", "gaussian"),
        _paid("distance", "distance"),
        _paid("hit and distance", "continuous"),
    ),
    num_seeds=3,
    settings={
        **_PIXELS,
        "tasks.families": (
            "web-click-button",
            "web-click-test-2",
            "web-click-dialog",
            "web-click-link",
            "web-click-tab",
            "web-click-widget",
        ),
        "learner.recipe.demos_per_family": 8,
        "learner.recipe.bc_epochs": 1,
        "learner.recipe.eval_cloned_episodes_per_family": 25,
        "learner.recipe.max_rl_env_steps": 1000,
    },
    quick={**QUICK, **_PIXELS, "tasks.families": ["web-click-button", "web-click-test-2"]},
    columns={
        "held-out success": means("success"),
        "difference to outcome, seed by seed": against("outcome", lambda cell, other: cell["success"] - other["success"], "+.3f"),
        "cloned": means("success_cloned"),
        "training success, mean of the way": means(lambda cell: mean_of(cell, "success")),
        "steps with a target": means(lambda cell: mean_of(cell, "target_known"), ".0%"),
        "entropy at the end": means(lambda cell: cell["updates"][-1]["entropy"], ".2f"),
        "seconds of RL": means("rl_s", ".0f"),
    },
    has_families=True,
    note="Mean and standard error over seeds; held-out instances.",
    panels=(SUCCESS_OVER_STEPS, Curves("rl_env_steps", "entropy")),
    limits=(
        "What a larger model would gain: `--model FOLDER` tries the same with another vision-language model.",
        "Rewards without an outcome, as published: the option `outcome_weight` of `grounding`.",
        "Points between things, and recordings by mouse: no box is known where a demonstration names a pixel of nothing drawn.",
    ),
    quick_arms=("outcome", "Gaussian"),
)

# --- one policy on many families -----------------------------------------------------------------------------------------

LANGUAGE_MODEL = Generalist(
    name="language_model",
    title="A longer run of the language model",
    question="""
A longer run of the language model: SmolLM2-135M, sampled by vLLM on the CPU, on fourteen families for an hour and a half.

One policy clones a few scripted demonstrations of each family and learns by asynchronous RL on real desktops, with Entropulse
rounds. It is evaluated untouched, after cloning and after RL: on held-out instances of the families it learned, and on seven
families that it never saw, which tells whether anything carries over.
""",
    families=(
        "web-click-button",
        "web-click-option",
        "web-click-link",
        "web-click-tab",
        "web-click-dialog-2",
        "web-enter-text",
        "web-focus-text-2",
        "web-choose-list",
        "web-login-user",
        "calc-set-cell",
        "calc-type-cell",
        "editor-type-save",
        "files-move",
        "files-rename",
    ),
    unseen=(
        "web-click-test-2",
        "web-click-widget",
        "web-enter-password",
        "web-click-checkboxes",
        "web-click-collapsible",
        "web-enter-text-2",
        "forge-calc-correct-value",
    ),
    num_episodes=25,
    settings={
        "actor.engine": "vllm",
        "tasks.max_steps": 5,
        "learner.groups_per_batch": 7,
        "learner.recipe.max_rl_env_steps": None,
        "learner.recipe.max_rl_s": 4500,
        "learner.entropulse.enabled": True,
        "learner.entropulse.max_phases": 3,
        "learner.entropulse.force_after_fraction": 0.66,
        "learner.entropulse.max_samples": 256,
        "learner.entropulse.lr": 1e-4,
        "learner.entropulse.fill_with_demonstrations": True,
        "learner.checkpoint_every_updates": 10,
    },
    published=MINIWOB,
    published_note=MINIWOB_NOTE,
    limits=(
        "Other seeds: one run; the intervals are of its episodes, not of runs.",
        "What a model that can read would do: 135M parameters match words more than they follow instructions.",
        "Speed: vLLM on two shared cores is slower than the engine of the quickstart (`computerrl bench engines`).",
    ),
)

_PAGES = (
    "click-button", "click-option", "click-checkboxes", "enter-text", "click-link", "click-tab", "click-tab-2-easy",
    "click-dialog", "click-dialog-2", "click-test", "click-test-2", "click-widget", "click-color", "click-collapsible",
    "click-button-sequence", "choose-list", "focus-text", "focus-text-2", "enter-password", "enter-text-dynamic",
    "login-user", "read-table", "navigate-tree", "simple-arithmetic",
)  # fmt: skip

MANY_TASKS = Generalist(
    name="many_tasks",
    title="Many tasks",
    question="""
Many tasks: one policy over all of OfficeForge and 24 pages of MiniWoB++, 94 families in six applications.

The policy clones four scripted demonstrations of each family and learns by RL, groups of all families in turn. The question is
not whether a model of 135M parameters masters office work, it does not, but whether one run carries so many families: which of
them cloning teaches, which RL improves, and which stay at nothing.
""",
    families=("forge-*", *(f"web-{page}" for page in _PAGES)),
    num_episodes=6,
    settings={
        "desktop.image": "full",
        "tasks.max_steps": 14,
        "actor.max_new_tokens": 48,
        "actor.prompt.max_prompt_tokens": 320,
        "learner.groups_per_batch": 8,
        "learner.recipe.max_rl_env_steps": None,
        "learner.recipe.max_rl_s": 3600,
        "learner.checkpoint_every_updates": 10,
    },
    published=MINIWOB,
    published_note=MINIWOB_NOTE,
    limits=(
        "Other seeds: one run.",
        "Which agent is better: figures of others stand beside ours for the scale of things, measured otherwise.",
        "What more demonstrations or a larger model would give.",
    ),
)

GENERALISATION = Generalist(
    name="generalisation",
    title="Other words, other screens, other families",
    question="""
Generalisation: whether a policy reads its instruction and its screen, or recalls what it was trained with.

One policy clones demonstrations of families whose names, tables and pages are drawn anew for each instance and whose instructions
are said in many ways, and learns by RL. Cloned and trained, it is evaluated on held-out instances: in the words of training, in
words and sentences that were kept for this, on a screen of another size, and on families that it never saw.
""",
    families=(
        *(f"web-{page}" for page in _PAGES[:12]),
        *(f"forge-calc-{kind}" for kind in ("hide-rows", "merge-title", "freeze", "chart", "summary-sheet", "sort-list")),
        *(f"forge-impress-{kind}" for kind in ("move-box", "copy-slide", "orientation", "save-copy")),
        *(f"forge-writer-{kind}" for kind in ("color-words", "replace-name", "line-spacing")),
        *(f"forge-files-{kind}" for kind in ("unpack", "pack", "find-copy")),
    ),
    unseen=(
        *(
            f"web-{page}"
            for page in ("click-test-transfer", "click-button-sequence", "enter-text-2", "multi-layouts", "focus-text")
        ),
        *(f"forge-calc-{kind}" for kind in ("transpose", "allowed-values")),
        *(f"forge-impress-{kind}" for kind in ("box-fill", "slide-background")),
        *(f"forge-writer-{kind}" for kind in ("strike-words", "font")),
        "forge-files-clean-up",
    ),
    num_episodes=8,
    shifts={
        "unseen words": {"tasks.wordings": "unseen"},
        "another screen": {"desktop.screen_width": 1024, "desktop.screen_height": 768},
    },
    settings={
        "model.trainable_top_layers": 30,
        "desktop.image": "full",
        "tasks.wordings": "seen",
        "tasks.max_steps": 8,
        "actor.max_new_tokens": 48,
        "actor.prompt.max_elements": 60,
        "actor.prompt.max_element_chars": 80,
        "actor.prompt.max_prompt_tokens": 512,
        "learner.groups_per_batch": 8,
        "learner.recipe.demos_per_family": 16,
        "learner.recipe.max_rl_env_steps": None,
        "learner.recipe.max_rl_s": 1800,
        "learner.checkpoint_every_updates": 10,
    },
    limits=(
        "Other models: at 135M parameters, what fails may be the size and not the training.",
        "Themes and languages of the desktop: there is one of each.",
    ),
)

DESIGNS: dict[str, Comparison | Generalist] = {
    design.name: design for design in (ASYNCHRONY, ENTROPULSE, API_GUI, GENERALISATION, GROUNDING, LANGUAGE_MODEL, MANY_TASKS)
}
"""Name on the command line -> study."""


def run(design: Comparison | Generalist, folder: Path, *, quick: bool, num_seeds: int | None) -> None:
    """Run a study of this catalogue, or one like them, into ``folder``."""
    from computerrl.benchmarks.studies import _arms, _policies

    if isinstance(design, Comparison):
        _arms.run(design, folder, quick=quick, num_seeds=num_seeds)
    else:
        _policies.run(design, folder, quick=quick, num_seeds=num_seeds)


def table_of(data: Mapping[str, Any]) -> str:
    """The tables of a study in Markdown, from the contents of a data.json that it wrote; nothing is run."""
    from computerrl.benchmarks.studies import _arms, _policies, algorithms, faults, scale, staleness, staleness_desktops

    name = data["study"]
    if name in ("scale", "staleness"):
        return (scale if name == "scale" else staleness).table_of(data)
    with_code = {module.STUDY.name: module.STUDY for module in (algorithms, faults, staleness_desktops)}
    design = DESIGNS.get(name) or with_code[name]
    return _policies.table_of(design, data) if isinstance(design, Generalist) else _arms.table(design, data["cells"])
