"""ComputerRL's two formats (arXiv 2508.14040, released evaluation code), its idea in our own words.

Text: the accessibility tree as rows of tag, text, centre and size; vision: a screenshot, and coordinates of its model's family.
The answer is a thought and one fenced Python block with one call:

    <think>
    The button Submit ends the form.
    </think>
    ```python
    Agent.click([412, 230])
    ```

vision's inside `<answer>` tags. WAIT, DONE and FAIL are accepted as a block or as the last line. Only the first statement of the
first block counts, and it is read from its syntax tree, never evaluated. Against the published format, rows show states as
well, a call's text may hold any character, and earlier turns are shown as turns of the conversation (their screens left out).
"""

from __future__ import annotations

import ast
import functools
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from computerrl.actor.prompts.formats.completions import after_thoughts, first_block, first_statement
from computerrl.actor.prompts.formats.conversation import (
    Conversation,
    as_thought,
    coordinates_in_words,
    demonstrated_thought,
)
from computerrl.actor.prompts.formats.coordinates import Extents, Grid, at_centre, thousand
from computerrl.actor.prompts.formats.points import make_aim
from computerrl.actor.prompts.formats.published_calls import BY_HAND, CALLS, CLASSES, from_action, to_action
from computerrl.common.actions import MAX_ACTION_CHARS, ActionSyntaxError, bind_call, parse_action, render_call
from computerrl.common.actions.screen_text import SHOWN_STATES, one_line
from computerrl.common.actions.spec import ActionSpec, Param
from computerrl.common.config import Actions, PromptConfig
from computerrl.common.messages import Action, Element, Observation

MAX_BLOCK_CHARS = 2 * MAX_ACTION_CHARS
"""Twice, since a call written with our names may come out longer with the published ones."""

WORDS: Mapping[str, str] = {"WAIT": "wait", "DONE": "done", "FAIL": "fail"}
"""Accepted in place of a call."""

_APP_AREAS: Mapping[str, tuple[str, ...]] = {
    "": ("files",),
    "files": ("files",),
    "editor": ("editor", "files"),
    "calc": ("calc",),
    "writer": ("writer",),
    "impress": ("impress",),
    "browser": ("chrome",),
    "vlc": ("vlc",),
    "code": ("code",),
    "gimp": ("gimp",),
}
"""Application in front -> whose calls the prompt lists beside `Agent`'s. The locked browser of the web tasks has none."""

_HEAD = """\
You operate a Linux desktop for a person. At every turn you see the desktop and answer with one action towards the task.

What you see: {screen}

How you answer: think first, inside <think> and </think>. Then write {where}one Python block of one line: one of the calls \
below, with literal arguments. Like this:
{example}
Only the first call is done. In its place the block may hold DONE (the task is finished), FAIL (it cannot be done) or WAIT (do \
nothing for one turn).

{advice}When the task is done, say so.

Calls:
"""
_ADVICE = "Where one of the application's own calls does the work, prefer it to many clicks. "
_TEXT_SCREEN = (
    "one row for each element, with tabs between tag, text, centre (x, y), size (w, h) and states. Coordinates are pixels from "
    "the top left corner of the screen."
)
_FENCE = "```"
_EXAMPLE = f"{_FENCE}python\nAgent.click([412, 230])\n{_FENCE}"


class _ComputerRL(Conversation):
    """What both formats share; see `actor.prompts.formats.base.PromptFormat`."""

    apps: tuple[str, ...] = tuple(_APP_AREAS)
    _where: ClassVar[str] = ""
    """Words of `_HEAD` about the place of the block."""

    def __init__(self, config: PromptConfig, *, actions: Actions = "api_gui", extents: Extents | None = None) -> None:
        super().__init__(config, extents=extents)
        self._actions = actions
        self._system = functools.lru_cache(64)(self._make_system)

    def _system_text(self, observation: Observation) -> str:
        # The list of an application's calls tells which one is in front.
        return self._system("" if self.hides_names else observation.app, self._grid(observation))

    def _make_system(self, app: str, grid: Grid) -> str:
        example = f"<think>\nWhy this action is the next one.\n</think>\n{self._wrapped(_EXAMPLE)}"
        advice = _ADVICE if self._actions == "api_gui" else ""
        head = _HEAD.format(screen=self._screen_words(grid), where=self._where, example=example, advice=advice)
        return head + "\n".join(call_lines(app, actions=self._actions))

    @abstractmethod
    def _screen_words(self, grid: Grid) -> str:
        """Words of `_HEAD` about the screen."""

    def _action(self, completion: str, grid: Grid) -> Action:
        spoken = after_thoughts(completion)
        block = first_block(self._said(spoken))
        if block is not None:
            return _read(block, grid)
        last = spoken.replace("</answer>", "").strip().rpartition("\n")[2].strip()
        if last in WORDS:
            return Action(name=WORDS[last], args={})
        raise ActionSyntaxError("the answer holds no fenced Python block")

    def _said(self, spoken: str) -> str:
        """Part of a completion after its thoughts that holds the block."""
        return spoken

    def render(self, action_text: str, observation: Observation, *, seed: str = "", thought: str = "") -> str:
        action, grid, elements = parse_action(action_text), self._grid(observation), observation.elements
        aim = make_aim(elements, grid, seed=seed) if self.shows_images else at_centre
        call = from_action(action, grid, elements, aim=aim)
        block = f"{_FENCE}python\n{render_call(CALLS[call.name], call.args)}\n{_FENCE}"
        said = as_thought(thought) or demonstrated_thought(action, elements, names_screen=not self.hides_names)
        return f"<think>\n{said}\n</think>\n{self._wrapped(block)}"

    def _wrapped(self, block: str) -> str:
        return block


class ComputerRLText(_ComputerRL):
    """`computerrl_text`: the tree as rows, coordinates in pixels."""

    shows_images: bool = False

    def _screen_words(self, grid: Grid) -> str:
        return _TEXT_SCREEN

    def rows(self, instruction: str, observation: Observation) -> list[str]:
        content = [element for element in observation.elements if element.in_content]
        others = [element for element in observation.elements if not element.in_content]
        shown = [*content, *others[: self._config.max_toolbar_elements]][: self._config.max_elements]
        return [_row(element, self._config.max_element_chars) for element in shown]

    def _screen(self, observation: Observation, rows: Sequence[str]) -> list[str]:
        size = f"Screen: {observation.screen_width} x {observation.screen_height} pixels"
        cut = ["..."] if len(rows) < len(observation.elements) else []
        return [*super()._screen(observation, rows), size, "tag\ttext\tcentre\tsize\tstates", *rows, *cut]


class ComputerRLVision(_ComputerRL):
    """`computerrl_vision`: a screenshot, coordinates of the image, the block inside `answer` tags."""

    _where = "inside <answer> and </answer> "

    def __init__(self, config: PromptConfig, *, actions: Actions = "api_gui", extents: Extents = thousand) -> None:
        super().__init__(config, actions=actions, extents=extents)

    def _screen_words(self, grid: Grid) -> str:
        return f"a picture of the screen. {coordinates_in_words(grid)}"

    def _said(self, spoken: str) -> str:
        # The last closing tag: a string in the call may hold one as well.
        inside, closed, _ = spoken.partition("<answer>")[2].rpartition("</answer>")
        if not closed:
            if spoken.strip() in WORDS:
                return spoken
            raise ActionSyntaxError("the answer holds no <answer> ... </answer>")
        return inside

    def _wrapped(self, block: str) -> str:
        return f"<answer>\n{block}\n</answer>"


# --- prompt ----------------------------------------------------------------------------------------------------------


def call_lines(app: str, *, actions: Actions = "api_gui") -> list[str]:
    """One line per call that is of use with ``app`` in front: `Agent`'s, then the application's; with gui only those that use
    mouse and keyboard."""
    classes = ["Agent", *(CLASSES[area] for area in _APP_AREAS.get(app, ()))]
    calls = [spec for name in classes for spec in CALLS.values() if spec.name.startswith(f"{name}.")]
    return [_signature(spec) for spec in calls if actions == "api_gui" or spec.name in BY_HAND]


def _signature(spec: ActionSpec) -> str:
    params = [p.name if p.default is ... else f"{p.name}={_default(p)}" for p in spec.params]
    return f"{spec.name}({', '.join(params)})  # {'; '.join([spec.help, *filter(None, map(_choices, spec.params))])}"


def _default(param: Param) -> str:
    return f'"{param.default}"' if isinstance(param.default, str) else repr(param.default)


def _choices(param: Param) -> str:
    choices = [str(choice) for choice in param.choices if choice != ""]
    if not choices:
        return ""
    return f"{param.name}: {', '.join(choices) if len(choices) <= 12 else f'{choices[0]} to {choices[-1]}'}"


def _row(element: Element, max_chars: int) -> str:
    cells = [
        one_line(element.role, max_chars),
        one_line(element.text, max_chars),
        f"({element.x}, {element.y})",
        f"({element.width}, {element.height})",
    ]
    states = " ".join(state for state in SHOWN_STATES if state in element.states)
    return "\t".join([*cells, states] if states else cells)


# --- completion ------------------------------------------------------------------------------------------------------


def _read(block: str, grid: Grid) -> Action:
    """The action that the first statement of ``block`` is."""
    if len(block) > MAX_BLOCK_CHARS:
        raise ActionSyntaxError(f"the Python block is longer than {MAX_BLOCK_CHARS} characters")
    statement = first_statement(block, where="the Python block", example="Agent.click([412, 230])")
    if isinstance(statement.value, ast.Name) and statement.value.id in WORDS:
        return Action(name=WORDS[statement.value.id], args={})
    return to_action(bind_call(statement.value, CALLS), grid)
