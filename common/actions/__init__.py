"""The action space: what an agent can do on a desktop, as data.

One action is one function call, GUI or API (ComputerRL's API-GUI paradigm, arXiv 2508.14040 section 3.1). This table is the
only definition: the actor's prompt lists it, its parser checks against it, the guest implements it by name. Model text
is never evaluated; `parse_action` walks a syntax tree and accepts one call with literal arguments.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping

from computerrl.common.actions.spec import ActionSpec, Param
from computerrl.common.actions.tables import TABLES
from computerrl.common.messages import Action

MAX_ACTION_CHARS = 2000
"""Longer action text is refused before parsing: nothing legitimate is longer, and parsing cost stays bounded."""

MAX_WHOLE_NUMBER = 2**63 - 1
"""A message holds no larger one."""


def calls_application(name: str) -> bool:
    """Is it a call of an application (`calc.set_cell`), beyond mouse and keyboard?"""
    return "." in name


class ActionSyntaxError(ValueError):
    """The text is no action; the message is written for the agent."""


ACTIONS: Mapping[str, ActionSpec] = {spec.name: spec for table in TABLES for spec in table}

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
        reason = error.msg if isinstance(error, SyntaxError) else "no valid source"
        raise ActionSyntaxError(f"not one function call: {reason}") from error
    return bind_call(tree, ACTIONS)


def bind_call(node: ast.expr, specs: Mapping[str, ActionSpec]) -> Action:
    """The call that ``node`` is, with its literal arguments bound to the parameters of the one of ``specs`` that it names.

    Raises `ActionSyntaxError` for everything else: no call, a call of anything not in ``specs``, arguments that do not fit.
    """
    if not isinstance(node, ast.Call):
        raise ActionSyntaxError("not a function call")
    spec = specs.get(_call_name(node.func))
    if spec is None:
        raise ActionSyntaxError(f"unknown action {_call_name(node.func)!r:.80}")
    return Action(name=spec.name, args=_bind(spec, node))


def bind_values(spec: ActionSpec, values: Mapping[str, object]) -> Action:
    """The call of ``spec`` with ``values`` as arguments. Raises `ActionSyntaxError` for values that do not fit."""
    by_name = {param.name: param for param in spec.params}
    for name in values:
        if name not in by_name:
            raise _unknown_argument(spec, name)
    return Action(spec.name, _with_defaults(spec, {name: _checked(spec, by_name[name], value) for name, value in values.items()}))


def complete(name: str, **args: object) -> Action:
    """Action ``name`` with ``args``, and defaults for its other parameters."""
    return Action(name=name, args={param.name: args.get(param.name, param.default) for param in ACTIONS[name].params})


def is_with(action: Action, name: str, **args: object) -> bool:
    """Whether ``action`` is ``name`` with ``args``, and defaults for its other parameters, wherever it acts."""
    expected = {param.name: args.get(param.name, param.default) for param in ACTIONS[name].params if param.name not in _PLACE}
    return action.name == name and all(action.args.get(key, value) == value for key, value in expected.items())


_PLACE = ("target", "y")


def render_action(action: Action) -> str:
    """The shortest text that `parse_action` reads back as ``action``."""
    return render_call(ACTIONS[action.name], action.args)


def render_call(spec: ActionSpec, args: Mapping[str, object]) -> str:
    """The shortest call that `bind_call` binds to ``args``, on one line."""
    parts: list[str] = []
    positional = True
    for param in spec.params:
        value = args.get(param.name, param.default)
        if value == param.default:
            positional = False
            continue
        literal = _literal(value)
        parts.append(literal if positional else f"{param.name}={literal}")
    return f"{spec.name}({', '.join(parts)})"


_ESCAPES = {"\\": "\\\\", '"': '\\"'}


def _literal(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
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
            raise _unknown_argument(spec, keyword.arg or "**")
        if keyword.arg in given:
            raise ActionSyntaxError(f"{spec.name} got {keyword.arg!r} twice")
        given[keyword.arg] = _value(spec, by_name[keyword.arg], keyword.value)
    return _with_defaults(spec, given)


def _unknown_argument(spec: ActionSpec, name: str) -> ActionSyntaxError:
    taken = ", ".join(param.name for param in spec.params) or "none"
    return ActionSyntaxError(f"{spec.name} has no argument {name!r:.80}: it takes {taken}")


def _with_defaults(spec: ActionSpec, given: Mapping[str, object]) -> dict[str, object]:
    args = dict(given)
    for param in spec.params:
        if param.name not in args:
            if param.default is ...:
                raise ActionSyntaxError(f"{spec.name} needs {param.name!r}")
            args[param.name] = param.default
    return args


def _value(spec: ActionSpec, param: Param, node: ast.expr) -> object:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise ActionSyntaxError(f"{spec.name}: {param.name!r} is not a literal") from error
    return _checked(spec, param, value)


def _checked(spec: ActionSpec, param: Param, value: object) -> object:
    """``value`` where it fits ``param``."""
    if value is None and param.default is None:
        return None
    # bool is an int in Python, but True is no element number.
    if type(value) not in param.kinds:
        raise ActionSyntaxError(f"{spec.name}: {param.name!r} must be {_wanted(param)}")
    _check_can_travel(spec, param, value)
    if isinstance(value, list | tuple) and not all(type(item) in param.items for item in value):
        raise ActionSyntaxError(f"{spec.name}: {param.name!r} must be {_wanted(param)}")
    if param.choices and value not in param.choices:
        known = [str(choice) for choice in param.choices]
        shown = ", ".join(known) if len(known) < 10 else f"{known[0]} to {known[-1]}"
        raise ActionSyntaxError(f"{spec.name}: {param.name!r} must be one of {shown}")
    return value


def _wanted(param: Param) -> str:
    """The kinds of ``param`` in words."""
    items = " or ".join(kind.__name__ for kind in param.items)
    kinds = [f"a list of {items}" if kind is list else kind.__name__ for kind in param.kinds if kind is not tuple]
    return " or ".join(kinds)


def _check_can_travel(spec: ActionSpec, param: Param, value: object) -> None:
    """Raise `ActionSyntaxError` for a literal that no message can hold: a policy's odd value must not break the sender."""
    for item in value if isinstance(value, list | tuple) else (value,):
        if (isinstance(item, int) and abs(item) > MAX_WHOLE_NUMBER) or (isinstance(item, float) and not math.isfinite(item)):
            raise ActionSyntaxError(f"{spec.name}: {param.name!r} is too large a number")
        if isinstance(item, str) and any("\ud800" <= char <= "\udfff" for char in item):
            raise ActionSyntaxError(f"{spec.name}: {param.name!r} holds half a surrogate pair, which is no character")
