"""Families on MiniWoB++ pages in Chromium (Liu et al. 2018, Shi et al. 2017), played with real mouse and keys.

The page says what to do and scores at once; only the raw reward counts (the time-proportional one would reward fast machines).
Instances that a guess solves more often than one time in four are left out, see `env_server.tasks.pages`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

from computerrl.common.errors import TaskFailed
from computerrl.common.messages import Action, Element, Evaluation, Observation
from computerrl.env_server.driver import Getter, SetupStep, TaskInstance
from computerrl.env_server.tasks.elements import ANY, BUTTON, CHECK, ENTRY, RADIO, find, select
from computerrl.env_server.tasks.family import Family, click, type_text
from computerrl.env_server.tasks.pages import Page, page

Demonstrator = Callable[[str, Observation, Sequence[Action], Getter], Action]
_SEEDS = 2**31


def _evaluate(get: Getter) -> Evaluation:
    state = get("web_page")
    done, raw_reward = bool(state["done"]), float(state["raw_reward"])
    success = done and raw_reward >= 1.0
    detail = f"page {'scored ' + format(raw_reward, 'g') if done else 'not finished'}"
    return Evaluation(reward=1.0 if success else 0.0, success=success, detail=detail)


def _instance(name: str, seed: int, demonstrate: Demonstrator) -> TaskInstance:
    step = SetupStep("web_page", {"page": name, "seed": seed})
    return TaskInstance(instruction=None, setup=(step,), evaluate=_evaluate, demonstrate=demonstrate)


def _draw_seed(rng: random.Random, name: str, fits: Callable[[Page], bool]) -> int:
    while True:
        seed = rng.randrange(_SEEDS)
        if fits(page(name, seed)):
            return seed


def _quoted(pattern: str, instruction: str) -> str:
    match = re.fullmatch(pattern, instruction.strip())
    if match is None:
        raise TaskFailed(f"the page says {instruction!r}, which does not read like {pattern!r}")
    return match.group(1)


# --- click the named button ------------------------------------------------------------------------------------------


def _demonstrate_button(instruction: str, observation: Observation, actions: Sequence[Action], get: Getter) -> Action:
    return click(observation, find(observation, BUTTON, _quoted(r'Click on the "(.+)" button\.', instruction)))


def _build_button(rng: random.Random) -> TaskInstance:
    def fits(shown: Page) -> bool:
        buttons = shown.texts("button")
        return len(buttons) >= 4 and buttons.count(shown.solution[0]) == 1

    return _instance("click-button", _draw_seed(rng, "click-button", fits), _demonstrate_button)


# --- select one option -----------------------------------------------------------------------------------------------


def _demonstrate_option(instruction: str, observation: Observation, actions: Sequence[Action], get: Getter) -> Action:
    if actions:
        return click(observation, find(observation, BUTTON, "Submit"))
    return click(observation, find(observation, RADIO, _quoted(r"Select (.+) and click Submit\.", instruction)))


def _build_option(rng: random.Random) -> TaskInstance:
    def fits(shown: Page) -> bool:
        options = shown.texts("radio-button")
        return len(options) >= 4 and len(set(options)) == len(options)

    return _instance("click-option", _draw_seed(rng, "click-option", fits), _demonstrate_option)


# --- check all named boxes -------------------------------------------------------------------------------------------


def _demonstrate_checkboxes(instruction: str, observation: Observation, actions: Sequence[Action], get: Getter) -> Action:
    wanted = _quoted(r"Select (.+) and click Submit\.", instruction).split(", ")
    if len(actions) < len(wanted):
        return click(observation, find(observation, CHECK, wanted[len(actions)]))
    return click(observation, find(observation, BUTTON, "Submit"))


def _build_checkboxes(rng: random.Random) -> TaskInstance:
    def fits(shown: Page) -> bool:
        boxes = shown.texts("check-box")
        return 1 <= len(shown.solution) <= 3 and len(boxes) >= 3 and len(set(boxes)) == len(boxes)

    return _instance("click-checkboxes", _draw_seed(rng, "click-checkboxes", fits), _demonstrate_checkboxes)


# --- enter a text ----------------------------------------------------------------------------------------------------


def _demonstrate_entry(text: str, observation: Observation, actions: Sequence[Action]) -> Action:
    if not actions:
        return click(observation, find(observation, ENTRY))
    if len(actions) == 1:
        return type_text(text)
    return click(observation, find(observation, BUTTON, "Submit"))


def _demonstrate_text(instruction: str, observation: Observation, actions: Sequence[Action], get: Getter) -> Action:
    text = _quoted(r'Enter "(.+)" into the text field and press Submit\.', instruction)
    return _demonstrate_entry(text, observation, actions)


def _build_text(rng: random.Random) -> TaskInstance:
    # The plain page knows only fifty names; half of the instances are strings nobody has seen before.
    name = rng.choice(("enter-text", "enter-text-dynamic"))
    return _instance(name, _draw_seed(rng, name, lambda shown: len(shown.solution[0]) >= 3), _demonstrate_text)


# --- copy a value out of a table -------------------------------------------------------------------------------------


def _right_of(observation: Observation, key: Element) -> Element:
    row = [
        element
        for element in select(observation, ANY)
        if element.text.strip()
        and element.x > key.x
        and abs(element.y - key.y) < max(4, key.height // 2)
        and element.text.strip() != key.text.strip()
    ]
    if not row:
        raise TaskFailed(f"the demonstrator sees nothing to the right of {key.text!r}")
    return min(row, key=lambda element: element.x)


def _demonstrate_table(instruction: str, observation: Observation, actions: Sequence[Action], get: Getter) -> Action:
    key = _quoted(r"Enter the value of (.+) into the text field and press Submit\.", instruction)
    if len(actions) != 1:
        return _demonstrate_entry("", observation, actions)
    find(observation, ANY, key)
    # The page's instruction above the table names the key too.
    lowest = max(select(observation, ANY, key), key=lambda element: element.y)
    return _demonstrate_entry(_right_of(observation, lowest).text.strip(), observation, actions)


def _build_table(rng: random.Random) -> TaskInstance:
    return _instance("read-table", rng.randrange(_SEEDS), _demonstrate_table)


FAMILIES = (
    Family("web-click-button", "chromium", "click the button with the given text", _build_button),
    Family("web-click-option", "chromium", "select the given radio button and submit", _build_option),
    Family("web-click-checkboxes", "chromium", "check one to three given boxes and submit", _build_checkboxes),
    Family("web-enter-text", "chromium", "enter the given text into a field and submit", _build_text),
    Family("web-read-table", "chromium", "copy a value out of a table into a field and submit", _build_table),
)
