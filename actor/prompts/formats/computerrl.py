"""ComputerRL's two formats (arXiv 2508.14040, released evaluation code), its idea in our own words.

Text: the accessibility tree as rows of tag, text, centre and size; vision: a screenshot, and coordinates from 0 to 1000 on a
screen of any size. The answer is a thought and one fenced Python block with one call:

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
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from computerrl.actor.prompts.formats.base import ChatMessage, PastAction, shown_screens
from computerrl.actor.prompts.formats.completions import after_thoughts, first_block
from computerrl.actor.prompts.formats.coordinates import VISION_SCALE, Grid
from computerrl.actor.prompts.formats.published_calls import BY_HAND, CALLS, CLASSES, from_action, to_action
from computerrl.common.actions import (
    ACTIONS,
    FINAL_ACTIONS,
    MAX_ACTION_CHARS,
    ActionSyntaxError,
    bind_call,
    calls_application,
    parse_action,
    render_call,
)
from computerrl.common.actions.screen_text import SHOWN_STATES, cut, one_line
from computerrl.common.actions.spec import ActionSpec, Param
from computerrl.common.actions.targets import find_target
from computerrl.common.config import Actions, PromptConfig
from computerrl.common.messages import Action, Element, Observation

MAX_BLOCK_CHARS = 2 * MAX_ACTION_CHARS
"""Twice, since a call written with our names may come out longer with the published ones."""

MAX_PAST_CHARS = 2000
"""Maximum number of characters of an earlier completion, and of its result, in a prompt."""
MAX_THOUGHT_CHARS = 160

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
_VISION_SCREEN = (
    "a picture of the screen. Coordinates are relative: x goes from 0 at the left edge to 1000 at the right one, y from 0 at the "
    "top to 1000 at the bottom."
)
_CALL_BEGINS = re.compile(r"\s*[A-Za-z]\w*(\.\w+)?\s*\(")
_FENCE = "```"
_EXAMPLE = f"{_FENCE}python\nAgent.click([412, 230])\n{_FENCE}"


class _ComputerRL:
    """What both formats share; see `actor.prompts.formats.base.PromptFormat`."""

    plain_cue: str | None = None
    shows_images: bool = False
    apps: tuple[str, ...] = tuple(_APP_AREAS)
    _scale: ClassVar[int | None] = None
    _words: ClassVar[Mapping[str, str]] = {}
    """Words of `_HEAD` about the screen and about the completion."""

    def __init__(self, config: PromptConfig, *, actions: Actions = "api_gui") -> None:
        self._config = config
        self._actions = actions
        self._systems = {app: self._system(app) for app in self.apps}

    def rows(self, instruction: str, observation: Observation) -> list[str]:
        return []

    def messages(
        self, instruction: str, observation: Observation, rows: Sequence[str], past: Sequence[PastAction], *, num_images: int = 0
    ) -> list[ChatMessage]:
        """System, then a user and an assistant turn for each past action, then the screen of now.

        Earlier turns show their screenshots while there are fewer than ``num_images`` newer ones."""
        system = self._systems.get(observation.app) or self._system(observation.app)
        before = [f"Task: {one_line(instruction)}"]
        turns = [ChatMessage("system", system)]
        for num_newer, action in zip(range(len(past), 0, -1), past, strict=True):
            image = action.screenshot if num_newer < num_images else None
            left_out = [] if image is not None else ["(The screen of that turn is left out.)"]
            turns.append(ChatMessage("user", "\n".join([*before, *left_out]), image))
            turns.append(ChatMessage("assistant", cut(action.text, MAX_PAST_CHARS)))
            before = [_outcome(action)]
        shown = observation.screenshot if num_images else None
        turns.append(ChatMessage("user", "\n".join([*before, *self._screen(observation, rows)]), shown))
        return turns

    def _system(self, app: str) -> str:
        example = f"<think>\nWhy this action is the next one.\n</think>\n{self._wrapped(_EXAMPLE)}"
        head = _HEAD.format(**self._words, example=example, advice=_ADVICE if self._actions == "api_gui" else "")
        return head + "\n".join(call_lines(app, actions=self._actions))

    def _screen(self, observation: Observation, rows: Sequence[str]) -> list[str]:
        title = f", window: {one_line(observation.window_title, 80)}" if self._config.window_title else ""
        return [f"Application in front: {one_line(observation.app, 32) or 'none'}{title}"]

    def parse(self, completion: str, observation: Observation) -> Action:
        try:
            return self._action(completion, self._grid(observation))
        except ActionSyntaxError as error:
            raise ActionSyntaxError(f"Invalid action: {error}") from error

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

    def render(self, action_text: str, observation: Observation) -> str:
        action = parse_action(action_text)
        call = from_action(action, self._grid(observation), observation.elements)
        block = f"{_FENCE}python\n{render_call(CALLS[call.name], call.args)}\n{_FENCE}"
        return f"<think>\n{_thought(action, observation.elements)}\n</think>\n{self._wrapped(block)}"

    def _wrapped(self, block: str) -> str:
        return block

    def _grid(self, observation: Observation) -> Grid:
        return Grid(observation.screen_width, observation.screen_height, self._scale)


class ComputerRLText(_ComputerRL):
    """`computerrl_text`: the tree as rows, coordinates in pixels."""

    _words: ClassVar = {"screen": _TEXT_SCREEN, "where": ""}

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
    """`computerrl_vision`: a screenshot, coordinates from 0 to 1000, the block inside `answer` tags."""

    shows_images: bool = True
    _scale = VISION_SCALE
    _words: ClassVar = {"screen": _VISION_SCREEN, "where": "inside <answer> and </answer> "}

    def messages(
        self, instruction: str, observation: Observation, rows: Sequence[str], past: Sequence[PastAction], *, num_images: int = 1
    ) -> list[ChatMessage]:
        shown_screens(observation, past, num_images=num_images)
        return super().messages(instruction, observation, rows, past, num_images=num_images)

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


def _outcome(action: PastAction) -> str:
    if action.error:
        return f"The last action was not done: {one_line(action.error, MAX_PAST_CHARS)}"
    result = one_line(action.result, MAX_PAST_CHARS)
    return f"Result of the last action: {result}" if result else "The last action was done."


# --- completion ------------------------------------------------------------------------------------------------------


def _read(block: str, grid: Grid) -> Action:
    """The action that the first statement of ``block`` is."""
    if len(block) > MAX_BLOCK_CHARS:
        raise ActionSyntaxError(f"the Python block is longer than {MAX_BLOCK_CHARS} characters")
    statement = _first_statement(block)
    if not isinstance(statement, ast.Expr):
        raise ActionSyntaxError("the Python block does not begin with a call")
    if isinstance(statement.value, ast.Name) and statement.value.id in WORDS:
        return Action(name=WORDS[statement.value.id], args={})
    return to_action(bind_call(statement.value, CALLS), grid)


def _first_statement(block: str) -> ast.stmt:
    # Prose after the call makes the block no Python; the call is its first line then.
    lines = [line for line in block.split("\n") if line.strip() and not line.lstrip().startswith("#")]
    reason = ""
    for source in (block, *lines[:1]):
        try:
            body = ast.parse(source.strip()).body
        except SyntaxError as error:
            reason = error.msg
        except (ValueError, RecursionError, MemoryError):
            reason = "no valid source"
        else:
            if body:
                return body[0]
    if lines and _CALL_BEGINS.match(lines[0]):
        raise ActionSyntaxError(f"the call is not valid Python ({reason}): write it like Agent.click([412, 230])")
    raise ActionSyntaxError("the Python block does not begin with a call")


def _thought(action: Action, elements: Sequence[Element]) -> str:
    """What a demonstrator, who says nothing, may have thought: what the action does, and to which element by name."""
    spec = ACTIONS[action.name]
    target = action.args.get("target")
    if calls_application(action.name) or action.name in FINAL_ACTIONS:
        text = spec.help
    elif target is not None and action.args.get("y") is None:
        element = find_target(elements, target)
        named = f' "{element.text}"' if element.text else ""
        text = f"{action.name.replace('_', ' ')} the {element.role}{named}"
    else:
        values = [action.args[param.name] for param in spec.params if param.default is ...]
        quoted = "".join(f' "{value}"' for value in values if isinstance(value, str))
        text = action.name.replace("_", " ") + quoted
    text = text[:1].upper() + text[1:]
    # Neither a fence nor a tag of the screen's may end the thought.
    return one_line(text.replace("`", "'").replace("<", "("), MAX_THOUGHT_CHARS).rstrip(".") + "."
