"""Families `web-<page>` for every task that the installed MiniWoB++ package registers (Liu et al. 2018, Shi et al. 2017).

The pages say what to do, score at once and are played with real mouse and keys. Instances are the page's own, unfiltered: a seed
of the family is a seed of the page. Some pages have no demonstrator: they can be played and evaluated, but not demonstrated.
Pages that already are a hand-made family (`env_server.tasks.web`) stay that family.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from computerrl.common.errors import TaskFailed
from computerrl.common.messages import Action, Evaluation, Observation
from computerrl.env_server.driver import Getter, SetupStep, TaskInstance
from computerrl.env_server.tasks.family import REAL_DRIVERS, WAIT, Family
from computerrl.env_server.tasks.miniwob import buttons, choices, dragging, feeds, mail, menus, shapes, sliders, text
from computerrl.env_server.tasks.miniwob.registry import RegisteredPage, registered_pages
from computerrl.env_server.tasks.miniwob.scene import Demonstrator, NotShown, Scene

DEMONSTRATORS: dict[str, Demonstrator] = {
    **buttons.DEMONSTRATORS,
    **choices.DEMONSTRATORS,
    **dragging.DEMONSTRATORS,
    **feeds.DEMONSTRATORS,
    **mail.DEMONSTRATORS,
    **menus.DEMONSTRATORS,
    **shapes.DEMONSTRATORS,
    **sliders.DEMONSTRATORS,
    **text.DEMONSTRATORS,
}
"""By page."""

UNREPEATABLE: dict[str, str] = {
    "stock-market": "the price moves in real time",
    "click-pie": "the slices fly in: the picture before the first click is always the same, where they are after it is not",
    "drag-cube": "how far the cube turns depends on the mouse's speed in real time",
}
"""Pages whose instances of one seed can differ from play to play, and why; all others show and score the same every time."""

GRADED_SUCCESS = 0.9
"""Least raw reward that counts as success on pages that grade how close an answer is: 3 pixels of 30, 9 degrees of 90, a tenth
of a colour's levels. On all others only the full reward counts."""

_SEEDS = 2**31
_PATIENCE = 3
"""Steps that a demonstrator waits for what it does not find on the page."""
_SITE_REASON = "it is a copied web site of many files that wants an HTTP server and another window size, not a page"

_Demonstrate = Callable[[str, Observation, Sequence[Action], Getter], Action]


def _evaluate(get: Getter, *, least: float) -> Evaluation:
    state = get("web_page")
    done, raw_reward, episode = bool(state["done"]), float(state["raw_reward"]), int(state["episode_id"])
    success = done and raw_reward >= least and episode == 1
    detail = f"page scored {raw_reward:g}" if done else "page not finished"
    if episode > 1:
        detail += f"; it was played {episode} times"
    return Evaluation(reward=1.0 if success else 0.0, success=success, detail=detail)


def _demonstrate_with(demonstrator: Demonstrator) -> _Demonstrate:
    def demonstrate(instruction: str, observation: Observation, actions: Sequence[Action], get: Getter) -> Action:
        done = [action for action in actions if action != WAIT]
        try:
            return demonstrator(Scene(instruction, observation, done, get))
        except NotShown:
            # A page of a busy machine can answer a click later than the observation that follows it.
            if list(actions[-_PATIENCE:]) == [WAIT] * _PATIENCE:
                raise
            return WAIT

    return demonstrate


def _drawn_size(action: Action, observation: Observation, get: Getter) -> tuple[int, int]:
    """See `TaskInstance.drawn_size`: of the smallest shape around the pixel."""
    x, y = action.args.get("target"), action.args.get("y")
    if not isinstance(x, int) or not isinstance(y, int):
        return 0, 0
    # Numbers of the guest's: what does not fit onto the screen has no size.
    sizes = [
        (round(one.width), round(one.height))
        for one in Scene("", observation, (), get).shapes
        if abs(one.x - x) <= 1 and abs(one.y - y) <= 1
        if 0 < one.width <= observation.screen_width and 0 < one.height <= observation.screen_height
    ]
    return min(sizes, key=lambda size: size[0] * size[1], default=(0, 0))


def _refuse(instruction: str, observation: Observation, actions: Sequence[Action], get: Getter, *, family: str) -> Action:
    raise TaskFailed(f"the task family {family} has no demonstrator: it can be played and evaluated, but not demonstrated")


def _family(page: RegisteredPage) -> Family:
    name = f"web-{page.name}"
    demonstrator = DEMONSTRATORS.get(page.name)
    demonstrate = _demonstrate_with(demonstrator) if demonstrator else partial(_refuse, family=name)
    evaluate = partial(_evaluate, least=GRADED_SUCCESS if page.is_graded else 1.0)

    def build(rng: random.Random) -> TaskInstance:
        step = SetupStep("web_page", {"page": page.name, "seed": rng.randrange(_SEEDS)})
        return TaskInstance(instruction=None, setup=(step,), evaluate=evaluate, demonstrate=demonstrate, drawn_size=_drawn_size)

    note = f" (not repeatable: {UNREPEATABLE[page.name]})" if page.name in UNREPEATABLE else ""
    return Family(
        name,
        "chromium",
        page.description + note,
        build,
        REAL_DRIVERS,
        has_demonstrator=demonstrator is not None,
        is_default=False,
    )


_REGISTERED = registered_pages()

FAMILIES = tuple(_family(page) for page in _REGISTERED if not page.is_site)

REFUSED = {f"web-{page.name}": _SITE_REASON for page in _REGISTERED if page.is_site}
"""Registered tasks that are no family, and why."""
