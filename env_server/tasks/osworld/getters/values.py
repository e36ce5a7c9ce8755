"""Getters of values: rules of the task file, outputs of commands, the screen, folders."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Any

from computerrl.common.errors import TaskFailed
from computerrl.env_server.tasks.osworld.commands import Untranslatable, fill_placeholders, normalise
from computerrl.env_server.tasks.osworld.desktop import RunResult
from computerrl.env_server.tasks.osworld.getters.context import Context, GetterSpec
from computerrl.env_server.tasks.osworld.metrics.matching import rule_of
from computerrl.env_server.tasks.reading.limits import LimitPassed

COMMAND_LIMIT_S = 60.0


def _rule(context: Context, args: Mapping[str, Any]) -> Any:
    """What the task file says itself."""
    return rule_of(args["rules"])


# --- dates relative to today -----------------------------------------------------------------------------------------

_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def _rule_relative_time(context: Context, args: Mapping[str, Any]) -> Any:
    """Rules in whose texts ``{DoW}``, ``{Month}``, ``{DayD}`` ... stand for a date relative to today.

    ``relativeTime``: ``from`` and optionally ``to``, each such as *tomorrow*, *5th next month*, *next Monday*; the same marks
    with a 2 at the end stand for ``to``.
    """
    rules = dict(args["rules"])
    relative = rules.pop("relativeTime", {})
    today = datetime.date.today()
    marks = _marks(parse_date(str(relative["from"]), today), "") if "from" in relative else {}
    if "to" in relative:
        marks |= _marks(parse_date(str(relative["to"]), today), "2")
    return rule_of(_filled(rules, marks))


_NUMBERS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8}
_MONTHS_LATER = re.compile(
    r"(?:(?P<day>\d+)(?:st|nd|rd|th)?|first (?P<weekday>\w+)) (?:(?P<which>this|next) month|(?P<months>\w+) months? later)"
)


def parse_date(text: str, today: datetime.date) -> datetime.date:
    """The day that ``text`` means: *tomorrow*, *this Saturday*, *next week Friday*, *5th next month*, *first Monday four months
    later*.

    Raises `TaskFailed` for anything else.
    """
    said = text.strip().lower().removesuffix(" split")
    if said in ("today", "tomorrow", "this month"):
        return today + datetime.timedelta(days=said == "tomorrow")
    match = re.fullmatch(r"(this|next|next week) (\w+)", said)
    if match and match[2] in _WEEKDAYS:
        monday = today - datetime.timedelta(days=today.weekday())
        weekday = _WEEKDAYS.index(match[2])
        if match[1] == "next":
            return today + datetime.timedelta(days=(weekday - today.weekday() - 1) % 7 + 1)
        return monday + datetime.timedelta(days=weekday + 7 * (match[1] == "next week"))
    match = _MONTHS_LATER.fullmatch(said)
    if match is None:
        raise TaskFailed(f"rule_relativeTime: unknown date {text!r}")
    later = match["months"] or ("1" if match["which"] == "next" else "0")
    if not later.isdigit() and later not in _NUMBERS:
        raise TaskFailed(f"rule_relativeTime: unknown date {text!r}")
    year, month = divmod(today.year * 12 + today.month - 1 + (int(later) if later.isdigit() else _NUMBERS[later]), 12)
    first = datetime.date(year, month + 1, 1)
    if match["weekday"] in _WEEKDAYS:
        return first + datetime.timedelta(days=(_WEEKDAYS.index(match["weekday"]) - first.weekday()) % 7)
    try:
        return first.replace(day=int(match["day"]))
    except (TypeError, ValueError) as error:
        raise TaskFailed(f"rule_relativeTime: {text!r} is no day of that month") from error


def _marks(date: datetime.date, suffix: str) -> dict[str, str]:
    facts = {
        "DoW": f"{date:%a}",
        "Month": f"{date:%b}",
        "month": f"{date:%b}".lower(),
        "MonthFull": f"{date:%B}",
        "DayD": str(date.day),
        "Day0D": f"{date:%d}",
        "MonthD": str(date.month),
        "Month0D": f"{date:%m}",
        "Year": f"{date:%Y}",
    }
    return {f"{{{name}{suffix}}}": text for name, text in facts.items()}


def _filled(value: Any, marks: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for mark, text in marks.items():
            value = value.replace(mark, text)
        return value
    if isinstance(value, list):
        return [_filled(entry, marks) for entry in value]
    return {key: _filled(entry, marks) for key, entry in value.items()} if isinstance(value, dict) else value


# --- commands --------------------------------------------------------------------------------------------------------


def is_shell(args: Mapping[str, Any]) -> bool:
    """Is a shell asked for? Some files write the switch as text."""
    return str(args.get("shell", False)).lower() == "true"


def _run(context: Context, args: Mapping[str, Any]) -> RunResult:
    try:
        command = normalise(args["command"], shell=is_shell(args))
    except Untranslatable as error:
        raise TaskFailed(str(error)) from error
    return context.desktop.run(fill_placeholders(command, context.desktop.screen_size()), timeout_s=COMMAND_LIMIT_S)


def _vm_command_line(context: Context, args: Mapping[str, Any]) -> str:
    """What a command prints."""
    return _run(context, args).stdout


def _vm_command_error(context: Context, args: Mapping[str, Any]) -> str:
    """What a command prints as errors."""
    return _run(context, args).stderr


_VIDEOS = ("mp4", "x-matroska", "webm", "x-msvideo", "quicktime", "mpeg")


def _default_video_player(context: Context, args: Mapping[str, Any]) -> str:
    """The application that opens films, for several kinds of them."""
    answers = [context.desktop.run(["xdg-mime", "query", "default", f"video/{kind}"]).stdout for kind in _VIDEOS]
    return "".join(dict.fromkeys(answers))


# --- the screen ------------------------------------------------------------------------------------------------------


def _accessibility_tree(context: Context, args: Mapping[str, Any]) -> str:
    """The whole tree as XML."""
    return context.desktop.tree()


def _vm_terminal_output(context: Context, args: Mapping[str, Any]) -> str | None:
    """What the terminal in front shows."""
    from computerrl.env_server.tasks.osworld.metrics.files import xml_of

    try:
        nodes = list(xml_of(context.desktop.tree().encode()).iter("terminal"))
    except LimitPassed:
        raise
    except ValueError as error:
        raise TaskFailed(f"the accessibility tree is no XML: {error}") from error
    texts = [node.text for node in nodes if node.text]
    return texts[-1].rstrip() if texts else None


def _vm_screen_size(context: Context, args: Mapping[str, Any]) -> dict[str, int]:
    """Width and height of the screen."""
    width, height = context.desktop.screen_size()
    return {"width": width, "height": height}


_TITLE_BAR_PIXELS = 37


def _vm_window_size(context: Context, args: Mapping[str, Any]) -> dict[str, int] | None:
    """Width and height of the first window of a class. One that only lies over the whole screen has a title bar elsewhere."""
    wanted = str(args["app_class_name"]).lower()
    for window in context.desktop.windows():
        if wanted in window.window_class.lower():
            return {"width": window.width, "height": window.height - (0 if window.is_fullscreen else _TITLE_BAR_PIXELS)}
    return None


def _list_directory(context: Context, args: Mapping[str, Any]) -> dict[str, Any] | None:
    """A folder as a tree of names."""
    answer = context.desktop.run(["find", str(args["path"]), "-mindepth", "1", "-printf", r"%y\t%P\0"])
    if answer.returncode != 0:
        return None
    root: dict[str, Any] = {"type": "directory", "name": str(args["path"]).rstrip("/").rsplit("/", 1)[-1], "children": []}
    places = {"": root}
    # Output that is too long is cut: what stands behind the last end of an entry is none.
    for line in sorted(answer.stdout.split("\0")[:-1], key=lambda line: line.split("\t", 1)[1].split("/")):
        kind, _, path = line.partition("\t")
        parent, _, name = path.rpartition("/")
        node: dict[str, Any] = {"type": "directory" if kind == "d" else "file", "name": name}
        if kind == "d":
            node["children"] = []
            places[path] = node
        places[parent]["children"].append(node)
    return root


GETTERS = (
    GetterSpec("rule", _rule, ("rules",)),
    GetterSpec("rule_relativeTime", _rule_relative_time, ("rules",)),
    GetterSpec("vm_command_line", _vm_command_line, ("command",)),
    GetterSpec("vm_command_error", _vm_command_error, ("command",)),
    GetterSpec("default_video_player", _default_video_player),
    GetterSpec("accessibility_tree", _accessibility_tree),
    GetterSpec("vm_terminal_output", _vm_terminal_output, (), "terminal"),
    GetterSpec("vm_screen_size", _vm_screen_size),
    GetterSpec("vm_window_size", _vm_window_size, ("app_class_name",)),
    GetterSpec("list_directory", _list_directory, ("path",)),
)
