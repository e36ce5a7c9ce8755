"""The action space: what an agent can do on a desktop, as data.

One action is one function call, GUI or API (ComputerRL's API-GUI paradigm, arXiv 2508.14040 section 3.1). This table is the
only definition: the actor's prompt lists it, its parser checks against it, the guest implements it by name. Model text
is never evaluated; `parse_action` walks a syntax tree and accepts one call with literal arguments.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from common.messages import Action

MAX_ACTION_CHARS = 2000
"""Longer action text is refused before parsing: nothing legitimate is longer, and parsing cost stays bounded."""


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of an action."""

    name: str
    kinds: tuple[type, ...]
    """Accepted literal types."""
    default: object = ...
    """`...` means required."""
    choices: tuple[object, ...] = ()
    """Accepted values; empty: any of the kinds."""


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """One action: its name, parameters and one line of help that the prompt may show."""

    name: str
    params: tuple[Param, ...]
    help: str


class ActionSyntaxError(ValueError):
    """The text is no action; the message is written for the agent."""


_TARGET = Param("target", (int, str))
_Y = Param("y", (int,), None)
_BUTTON = Param("button", (str,), "left", ("left", "middle", "right"))
_HOLD = Param("hold", (str,), "", ("", "ctrl", "shift", "ctrl+shift"))
MAX_WHEEL_CLICKS = 30
MAX_KEY_TIMES = 50
"""Presses of one `key` action at most: each is a round trip through the application in front."""

_SPECS = (
    # GUI. A target is an element's number, its text where no other element has it, or x followed by y as two numbers.
    ActionSpec("click", (_TARGET, _Y, _BUTTON, _HOLD), 'click element n or "its text", or pixel x, y; hold: keys held meanwhile'),
    ActionSpec("double_click", (_TARGET, _Y), "double click element n, or pixel x, y"),
    ActionSpec("hover", (_TARGET, _Y), "move the pointer there"),
    ActionSpec("type", (Param("text", (str,)), Param("enter", (bool,), False)), "type text where the focus is"),
    ActionSpec(
        "key",
        (Param("keys", (str,)), Param("times", (int,), 1, tuple(range(1, MAX_KEY_TIMES + 1)))),
        'press keys together, like "ctrl+s", so many times',
    ),
    ActionSpec(
        "scroll",
        (
            _TARGET,
            _Y,
            Param("direction", (str,), "down", ("up", "down", "left", "right")),
            Param("clicks", (int,), 5, tuple(range(1, MAX_WHEEL_CLICKS + 1))),
        ),
        "turn the wheel over element n, or pixel x, y",
    ),
    ActionSpec(
        "drag",
        (Param("source", (int, str)), _TARGET, Param("to_x", (int,), None), Param("to_y", (int,), None)),
        "drag element source onto element target, or pixel source, target to pixel to_x, to_y",
    ),
    # A drag along any path: hover moves while the button is down.
    ActionSpec("mouse_down", (_TARGET, _Y), "press the left button there and keep it down"),
    ActionSpec("mouse_up", (_TARGET, _Y), "let the left button go there"),
    ActionSpec("wait", (), "do nothing for one step"),
    ActionSpec("done", (), "the task is finished"),
    ActionSpec("fail", (), "the task cannot be done"),
    # API: one class per application, spoken to by a long-lived worker inside the guest.
    ActionSpec("calc.set_cell", (Param("cell", (str,)), Param("value", (str, int, float))), "set a cell of the sheet"),
    ActionSpec("calc.get_cell", (Param("cell", (str,)),), "read a cell of the sheet"),
    ActionSpec("calc.save", (), "save the sheet"),
    ActionSpec("files.list", (Param("folder", (str,), "."),), "list a folder"),
    ActionSpec("files.rename", (Param("path", (str,)), Param("new_name", (str,))), "rename a file"),
    ActionSpec("files.move", (Param("path", (str,)), Param("folder", (str,))), "move a file into a folder"),
    ActionSpec("files.copy", (Param("path", (str,)), Param("target", (str,))), "copy a file"),
    ActionSpec("files.delete", (Param("path", (str,)),), "delete a file"),
    ActionSpec("files.make_folder", (Param("path", (str,)),), "make a folder"),
    ActionSpec("files.read", (Param("path", (str,)),), "read a text file"),
    ActionSpec("files.write", (Param("path", (str,)), Param("text", (str,))), "write a text file"),
    ActionSpec("editor.save", (), "save the document in the editor"),
    ActionSpec("apps.switch", (Param("app", (str,)),), "bring an application's window to the front"),
)

ACTIONS: Mapping[str, ActionSpec] = {spec.name: spec for spec in _SPECS}

FINAL_ACTIONS = frozenset({"done", "fail"})
"""Actions that end the episode and never reach the guest."""


def parse_action(text: str) -> Action:
    """The action written in ``text``: one call such as ``click(3)`` or ``calc.set_cell("B2", "=SUM(A1:A3)")``.

    Raises `ActionSyntaxError` with a message for the agent. Nothing in ``text`` is ever evaluated.
    """
    text = text.strip()
    if len(text) > MAX_ACTION_CHARS:
        raise ActionSyntaxError(f"action longer than {MAX_ACTION_CHARS} characters")
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ActionSyntaxError("not one function call") from error
    if not isinstance(tree, ast.Call):
        raise ActionSyntaxError("not a function call")
    spec = ACTIONS.get(_call_name(tree.func))
    if spec is None:
        raise ActionSyntaxError(f"unknown action {_call_name(tree.func)!r}")
    return Action(name=spec.name, args=_bind(spec, tree))


def render_action(action: Action) -> str:
    """The shortest text that `parse_action` reads back as ``action``."""
    spec = ACTIONS[action.name]
    parts: list[str] = []
    positional = True
    for param in spec.params:
        value = action.args.get(param.name, param.default)
        if value == param.default:
            positional = False
            continue
        literal = _literal(value)
        parts.append(literal if positional else f"{param.name}={literal}")
    return f"{spec.name}({', '.join(parts)})"


_ESCAPES = {"\\": "\\\\", '"': '\\"'}


def _literal(value: object) -> str:
    if not isinstance(value, str):
        return repr(value)
    # Double quotes always (repr would switch), and whatever cannot stand in source text as an escape.
    return '"' + "".join(_ESCAPES.get(c) or (c if c.isprintable() else ascii(c)[1:-1]) for c in value) + '"'


def _call_name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return "?"


def _bind(spec: ActionSpec, call: ast.Call) -> dict[str, object]:
    if len(call.args) > len(spec.params):
        raise ActionSyntaxError(f"{spec.name} takes at most {len(spec.params)} arguments")
    given: dict[str, object] = {}
    for param, node in zip(spec.params, call.args, strict=False):
        given[param.name] = _value(spec, param, node)
    by_name = {param.name: param for param in spec.params}
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg not in by_name:
            raise ActionSyntaxError(f"{spec.name} has no argument {keyword.arg!r}")
        if keyword.arg in given:
            raise ActionSyntaxError(f"{spec.name} got {keyword.arg!r} twice")
        given[keyword.arg] = _value(spec, by_name[keyword.arg], keyword.value)
    for param in spec.params:
        if param.name not in given:
            if param.default is ...:
                raise ActionSyntaxError(f"{spec.name} needs {param.name!r}")
            given[param.name] = param.default
    return given


def _value(spec: ActionSpec, param: Param, node: ast.expr) -> object:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise ActionSyntaxError(f"{spec.name}: {param.name!r} is not a literal") from error
    # bool is an int in Python, but True is no element number.
    if type(value) not in param.kinds:
        names = " or ".join(kind.__name__ for kind in param.kinds)
        raise ActionSyntaxError(f"{spec.name}: {param.name!r} must be {names}")
    if param.choices and value not in param.choices:
        known = [str(choice) for choice in param.choices]
        shown = ", ".join(repr(choice) for choice in known) if len(known) < 10 else f"{known[0]} to {known[-1]}"
        raise ActionSyntaxError(f"{spec.name}: {param.name!r} must be one of {shown}")
    return value
