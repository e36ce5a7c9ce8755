"""ComputerRL's published calls and our actions, translated both ways by one table.

The names and signatures are those of the public evaluation code (arXiv 2508.14040): class `Agent` for mouse and keyboard, one
class per application for its API. Actions of ours that it lacks (hover, held keys, a drag along a path, the file tools) are
offered in the same style, and so are parameters of ours that a published call lacks. Pure: `common.actions.bind_call` checks
calls against `CALLS`, nothing is ever evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from computerrl.actor.prompts.formats.coordinates import Aim, Grid, at_centre, drag_path, pixel_of, pixels_of_path
from computerrl.actor.prompts.formats.keys import joined_keys, split_keys
from computerrl.common.actions import ACTIONS, ActionSyntaxError, calls_application, complete
from computerrl.common.actions.spec import ActionSpec, Param, flag, table, text
from computerrl.common.messages import Action, Element

CLASSES: Mapping[str, str] = {
    "calc": "CalcTools",
    "writer": "WriterTools",
    "impress": "ImpressTools",
    "chrome": "BrowserTools",
    "vlc": "VLCTools",
    "code": "CodeTools",
    "gimp": "GimpTools",
    "files": "FileTools",
    "editor": "EditorTools",
    "apps": "Agent",
}
"""Area of our action tables -> class. GimpTools, FileTools and EditorTools are our own."""

_METHODS = {"calc.set_cell": "set_cell_value", "apps.list": "list_windows"}
"""Where the method is called otherwise than in our tables."""


def _place(name: str, default: object = ...) -> Param:
    return Param(name, (list, tuple), default, items=(int, float))


_KEYS = Param("keys", (list, str), items=(str,))
_BUTTONS = ("left", "middle", "right")

_PUBLISHED = table(
    "Agent",
    (
        "click",
        (_place("coordinates"), Param("num_clicks", (int,), 1, (1, 2, 3)), text("button_type", "left", choices=_BUTTONS)),
        "click at [x, y]",
    ),
    (
        "type",
        (_place("coordinates", None), text("text"), flag("overwrite", False), flag("enter", False)),
        "type text; coordinates: click there first; overwrite: replace what is there; enter: press Enter after it",
    ),
    ("drag_and_drop", (_place("drag_from_coordinates"), _place("drop_on_coordinates")), "drag from one place to another"),
    ("scroll", (_place("coordinates"), text("direction", choices=("up", "down", "left", "right"))), "turn the wheel there"),
    ("open_app", (text("app_name"),), "open an application"),
    ("switch_window", (text("window_id"),), "bring the window of an application to the front, by the application's name"),
    ("hotkey", (_KEYS,), 'press keys together, like ["ctrl", "s"]'),
    ("quote", (text("content"),), "note something down; it comes back as the result"),
    ("wait", (), "do nothing for one turn"),
    ("exit", (flag("success"),), "end: the task is finished (True) or cannot be done (False)"),
)


@dataclass(frozen=True, slots=True)
class _Row:
    """A published call and the action it means."""

    call: str
    action: str
    names: Mapping[str, str] = field(default_factory=dict)
    """Parameter of the call -> of the action, where both mean the same. ``coordinates`` become target and y by themselves."""
    fixed: Mapping[str, object] = field(default_factory=dict)
    """Values of the call's parameters that choose this action."""


_ROWS = (
    _Row("Agent.click", "click", {"button_type": "button"}, {"num_clicks": 1}),
    _Row("Agent.click", "double_click", {}, {"num_clicks": 2}),
    _Row("Agent.click", "triple_click", {}, {"num_clicks": 3}),
    _Row("Agent.type", "type", {"text": "text", "overwrite": "overwrite", "enter": "enter"}),
    _Row("Agent.drag_and_drop", "drag_pixels"),
    _Row("Agent.scroll", "scroll", {"direction": "direction"}),
    _Row("Agent.open_app", "apps.open", {"app_name": "app"}),
    _Row("Agent.switch_window", "apps.switch", {"window_id": "app"}),
    _Row("Agent.hotkey", "key", {"keys": "keys"}),
    _Row("Agent.quote", "quote", {"content": "content"}),
    _Row("Agent.wait", "wait"),
    _Row("Agent.exit", "done", {}, {"success": True}),
    _Row("Agent.exit", "fail", {}, {"success": False}),
)


def _own_row(spec: ActionSpec) -> _Row:
    """An action that has no published call keeps its name, in the class of its application."""
    area, _, method = spec.name.rpartition(".")
    call = f"{CLASSES[area] if area else 'Agent'}.{_METHODS.get(spec.name, method)}"
    by_coordinates = () if area else ("target", "y")
    return _Row(call, spec.name, {param.name: param.name for param in spec.params if param.name not in by_coordinates})


def _published_with_ours(spec: ActionSpec) -> tuple[ActionSpec, list[_Row]]:
    """A published call with the parameters that only our action has, and its rows."""
    rows = [row for row in _ROWS if row.call == spec.name]
    known = {param.name for param in spec.params}
    params, complete = list(spec.params), []
    for row in rows:
        taken = {"target", "y", "path", *row.names.values()}
        extra = [param for param in ACTIONS[row.action].params if param.name not in taken]
        params.extend(param for param in extra if param.name not in known)
        known.update(param.name for param in extra)
        complete.append(_Row(row.call, row.action, {**row.names, **{param.name: param.name for param in extra}}, row.fixed))
    return ActionSpec(spec.name, tuple(params), spec.help), complete


def _own_call(spec: ActionSpec, row: _Row) -> ActionSpec:
    if calls_application(spec.name):
        return ActionSpec(row.call, spec.params, spec.help)
    params = [
        _place("coordinates") if param.name == "target" else _KEYS if param.name == "keys" else param
        for param in spec.params
        if param.name != "y"
    ]
    return ActionSpec(row.call, tuple(params), spec.help.replace(" element n, or pixel x, y", " there").replace("pixel", "place"))


def _make() -> tuple[dict[str, ActionSpec], list[_Row]]:
    calls, rows = {}, []
    for spec in _PUBLISHED:
        calls[spec.name], complete = _published_with_ours(spec)
        rows.extend(complete)
    # Elements can be dragged by their places; a drag with more than two places has no published call.
    covered = {row.action for row in rows} - {"drag_pixels"} | {"drag"}
    for spec in ACTIONS.values():
        if spec.name not in covered:
            row = _own_row(spec)
            calls[row.call] = _own_call(spec, row)
            rows.append(row)
    return calls, rows


CALLS, _ALL_ROWS = _make()
"""Every call a policy may write, by its full name; the order is that of our tables, `Agent` first."""
BY_HAND = frozenset(row.call for row in _ALL_ROWS if not calls_application(row.action))
"""Those that use mouse and keyboard, or end the episode: what is left of them where `tasks.actions` is gui."""


# --- call -> action --------------------------------------------------------------------------------------------------


def to_action(call: Action, grid: Grid) -> Action:
    """What ``call`` (bound to one of `CALLS`) means. Raises `ActionSyntaxError` where its arguments do not go together."""
    rows = [row for row in _ALL_ROWS if row.call == call.name]
    row = next(row for row in rows if all(call.args[name] == value for name, value in row.fixed.items()))
    args: dict[str, object] = {}
    for param in CALLS[call.name].params:
        value = call.args[param.name]
        if param.name == "coordinates":
            args.update(_target(value, grid))
        elif param.name in row.names:
            args[row.names[param.name]] = _ours(param.name, value, grid)
        elif call.name == "Agent.drag_and_drop":
            args["path"] = [*args.get("path", ()), *grid.pixel(value)]  # type: ignore[misc]
        elif param.name not in row.fixed and value != param.default:
            wanted = ", ".join(f"{name}={value!r}" for name, value in row.fixed.items())
            raise ActionSyntaxError(f"{call.name}: {param.name!r} does not go with {wanted}")
    return complete(row.action, **args)


def _target(value: Any, grid: Grid) -> dict[str, object]:
    if value is None:
        return {"target": None, "y": None}
    x, y = grid.pixel(value)
    return {"target": x, "y": y}


def _ours(name: str, value: Any, grid: Grid) -> object:
    if name == "keys" and isinstance(value, list):
        return joined_keys(value)
    if name == "path" and isinstance(value, list):  # places; a file's path is text
        return pixels_of_path(value, grid)
    return value


# --- action -> call --------------------------------------------------------------------------------------------------


def from_action(action: Action, grid: Grid, elements: Sequence[Element], *, aim: Aim = at_centre) -> Action:
    """The call that means ``action``; elements of the screen become the places that ``aim`` chooses in them.

    Raises `LookupError` when a target is not on the screen.
    """
    if action.name == "drag" or (action.name == "drag_pixels" and len(action.args["path"]) == 4):
        ends = [grid.place(*end) for end in drag_path(action, elements, aim=aim)]
        return Action(name="Agent.drag_and_drop", args={"drag_from_coordinates": ends[0], "drop_on_coordinates": ends[1]})
    row = [row for row in _ALL_ROWS if row.action == action.name][-1]
    given = {param.name: action.args.get(param.name, param.default) for param in ACTIONS[action.name].params}
    args: dict[str, object] = dict(row.fixed)
    for param in CALLS[row.call].params:
        if param.name == "coordinates":
            target = given["target"]
            args["coordinates"] = None if target is None else grid.place(*pixel_of(target, given["y"], elements, aim=aim))
        elif param.name in row.names:
            args[param.name] = _theirs(param.name, given[row.names[param.name]], grid)
    return Action(name=row.call, args=args)


def _theirs(name: str, value: Any, grid: Grid) -> object:
    if name == "keys":
        return split_keys(value)
    if name == "path" and isinstance(value, list):
        return [number for i in range(0, len(value) - 1, 2) for number in grid.place(value[i], value[i + 1])]
    return value
