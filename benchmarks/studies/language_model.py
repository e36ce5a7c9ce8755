"""A longer run of the language model: SmolLM2-135M, sampled by vLLM on the CPU, on fourteen families for an hour and a half.

One policy clones a few scripted demonstrations of each family and learns by asynchronous RL on real desktops, with Entropulse
rounds. It is evaluated untouched, after cloning and after RL: on held-out instances of what it learned, and on seven families
that it never saw, which tells whether anything carries over.
"""

from __future__ import annotations

from computerrl.benchmarks.studies._policies import Generalist
from computerrl.benchmarks.studies._published import MINIWOB, MINIWOB_NOTE

FAMILIES = (
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
)
UNSEEN = (
    "web-click-test-2",
    "web-click-widget",
    "web-enter-password",
    "web-click-checkboxes",
    "web-click-collapsible",
    "web-enter-text-2",
    "forge-calc-correct-value",
)
STUDY = Generalist(
    name="language_model",
    title="A longer run of the language model",
    question=__doc__ or "",
    families=FAMILIES,
    unseen=UNSEEN,
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
run = STUDY.run
