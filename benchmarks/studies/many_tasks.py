"""Many tasks: one policy over all of OfficeForge and 24 pages of MiniWoB++, 94 families in six applications.

The policy clones four scripted demonstrations of each family and learns by RL, groups of all families in turn. What is asked is
not whether a model of 135M parameters masters office work, it does not, but whether one run carries so many families: which of
them cloning teaches, which RL improves, and which stay at nothing.
"""

from __future__ import annotations

from computerrl.benchmarks.studies._policies import Generalist
from computerrl.benchmarks.studies._published import MINIWOB, MINIWOB_NOTE
from computerrl.env_server.tasks import FAMILIES as ALL

PAGES = tuple(
    f"web-{page}"
    for page in (
        "click-button", "click-option", "click-checkboxes", "enter-text", "click-link", "click-tab", "click-tab-2-easy",
        "click-dialog", "click-dialog-2", "click-test", "click-test-2", "click-widget", "click-color", "click-collapsible",
        "click-button-sequence", "choose-list", "focus-text", "focus-text-2", "enter-password", "enter-text-dynamic",
        "login-user", "read-table", "navigate-tree", "simple-arithmetic",
    )
)  # fmt: skip
FORGE = tuple(name for name in ALL if name.startswith("forge-"))
STUDY = Generalist(
    name="many_tasks",
    title="Many tasks",
    question=__doc__ or "",
    families=(*FORGE, *PAGES),
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
run = STUDY.run
