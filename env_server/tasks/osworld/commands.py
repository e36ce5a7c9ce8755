"""Commands of task files: placeholders, and GUI automation turned into input events. Nothing is ever evaluated.

Task files press keys by ``python -c "import pyautogui; ..."`` and by ``xdotool``. Neither program is in the container; the calls
are read from the syntax tree and become `InputEvent`s. A script that does more than a fixed list of such calls is refused by
name.
"""

from __future__ import annotations

import ast
import os.path
import re
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import PurePosixPath
from typing import Any

from computerrl.env_server.tasks.osworld.desktop import Command, InputEvent, OsworldDesktop

FORMAT_SCREEN = (1920, 1080)
"""The screen that literal pixels in task files were taken on; they are scaled to the desktop's."""


class Untranslatable(ValueError):
    """Automation that is not a plain list of key strokes and clicks; the text says which call."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait between two events."""

    seconds: float


Script = Sequence[InputEvent | Pause]

_KEY_NAMES = {
    "return": "enter", "escape": "esc", "control": "ctrl", "ctrlleft": "ctrl", "ctrlright": "ctrl", "control_l": "ctrl",
    "altleft": "alt", "alt_l": "alt", "shiftleft": "shift", "shift_l": "shift", "winleft": "super", "win": "super",
    "super_l": "super",
    "pgup": "pageup", "pgdn": "pagedown", "page_up": "pageup", "page_down": "pagedown", "prior": "pageup", "next": "pagedown",
    "del": "delete", "ins": "insert", "backspace": "backspace", "\n": "enter", "\t": "tab", " ": "space",
}  # fmt: skip
_BUTTONS = {name: name for name in ("left", "middle", "right")}
_BUTTONS |= {"primary": "left", "secondary": "right", "1": "left", "2": "middle", "3": "right"}
_MOST_TIMES = 100
"""Clicks or presses of one call."""
_MAX_PAUSE_S = 600.0
_PLACEHOLDER = re.compile(r"\{(SCREEN_WIDTH_HALF|SCREEN_HEIGHT_HALF|SCREEN_WIDTH|SCREEN_HEIGHT|CLIENT_PASSWORD)\}")
_PASSWORD = "password"
"""That of the user of OSWorld's machines, which the `sudo` of the image `osworld` asks for."""
_PYTHON = re.compile(r"python3?(\.\d+)?")
_PYTHON_COMMAND = re.compile(r"(^|[;&|(`\n]\s*)python(?=\s)")
"""Python as the first word of a command of a shell script."""
_OFFICE_PROGRAMS = frozenset({"libreoffice", "soffice", "localc", "lowriter", "loimpress"})
_INTERPRETED = re.compile(r"\bpyautogui\b")


def fill_placeholders(command: Command, size: tuple[int, int]) -> Command:
    """``command`` with the screen's size and the user's password put in."""
    width, height = size
    sizes = {"SCREEN_WIDTH": width, "SCREEN_HEIGHT": height, "SCREEN_WIDTH_HALF": width // 2, "SCREEN_HEIGHT_HALF": height // 2}
    values = {"CLIENT_PASSWORD": _PASSWORD} | {name: str(size) for name, size in sizes.items()}

    def fill(text: str) -> str:
        return _PLACEHOLDER.sub(lambda match: values[match.group(1)], text)

    return fill(command) if isinstance(command, str) else [fill(part) for part in command]


def normalise(command: Command, *, shell: bool) -> Command:
    """A list where no shell is asked for, text where one is; ``python``, which Debian has not, becomes ``python3``."""
    if shell:
        return _PYTHON_COMMAND.sub(r"\1python3", command if isinstance(command, str) else " ".join(command))
    try:
        argv = shlex.split(command) if isinstance(command, str) else list(command)
    except ValueError as error:
        raise Untranslatable(f"command {command!r:.80} cannot be split: {error}") from error
    if argv and _PYTHON.fullmatch(argv[0]):
        argv[0] = "python3"
    if len(argv) == 3 and os.path.basename(argv[0]) in ("bash", "sh") and argv[1] == "-c":
        argv[2] = _PYTHON_COMMAND.sub(r"\1python3", argv[2])
    if argv[:1] == ["pkill"]:
        # The browser's processes are called after Debian's package.
        argv = [re.sub(r"^(google-)?chrome$", "chromium", part) for part in argv]
    return argv


def converted_files(command: Command) -> list[str]:
    """Paths of the files that ``command`` (normalised) has LibreOffice make; none for any other command."""
    words = list(command) if not isinstance(command, str) else _simple_words(command) or []
    if not words or os.path.basename(words[0]) not in _OFFICE_PROGRAMS or "--convert-to" not in words[:-1]:
        return []
    given = {name: words[words.index(name) + 1] for name in ("--convert-to", "--outdir") if name in words[:-1]}
    files = [word for word in words[1:] if not word.startswith("-") and word not in given.values()]
    ending = given["--convert-to"].partition(":")[0]
    return [os.path.join(given.get("--outdir", "."), f"{PurePosixPath(file).stem}.{ending}") for file in files]


def input_script(command: Command, size: tuple[int, int] | None) -> Script | None:
    """The events that ``command`` (normalised, placeholders still in it) stands for; None: an ordinary command.

    ``size``: that of the desktop's screen, to which pixels of task files are scaled; None: they are this screen's already.
    Raises `Untranslatable` for automation that is more than a list of events.
    """
    text = command if isinstance(command, str) else " ".join(command)
    argv = list(command) if not isinstance(command, str) else _simple_words(command)
    if _INTERPRETED.search(text):
        if argv is None or len(argv) < 3 or not _PYTHON.fullmatch(os.path.basename(argv[0])) or argv[1] != "-c":
            raise Untranslatable("pyautogui inside a shell script or a file")
        code = argv[2]
        literal = code if size is None else fill_placeholders(code, size)
        assert isinstance(literal, str)
        # Only pixels that were written as numbers belong to the other screen.
        return _python_events(literal, size if literal == code else None)
    if argv and os.path.basename(argv[0]) == "xdotool":
        return _xdotool_events(argv[1:], size)
    if re.search(r"\bxdotool\b|\bydotool\b|\bxte\b", text):
        raise Untranslatable("xdotool inside a shell script")
    return None


def seconds_of(script: Script) -> float:
    """How long all pauses of ``script`` take."""
    return sum(event.seconds for event in script if isinstance(event, Pause))


def carry_out(script: Script, desktop: OsworldDesktop, *, sleep: Callable[[float], object] = time.sleep) -> None:
    """Do all that ``script`` lists."""
    for is_pause, part in groupby(script, lambda event: isinstance(event, Pause)):
        if is_pause:
            sleep(seconds_of(list(part)))
        else:
            desktop.input([event for event in part if isinstance(event, InputEvent)])


def _simple_words(command: str) -> list[str] | None:
    """The words of a command line without any shell meaning; None when it has one."""
    try:
        lexer = shlex.shlex(command, posix=True, punctuation_chars=";&|<>()")
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError:
        return None
    return None if any(set(word) <= set(";&|<>()") for word in words if word) else words


# --- pyautogui -------------------------------------------------------------------------------------------------------


def _python_events(code: str, size: tuple[int, int] | None) -> Script:
    try:
        return _events_of_module(ast.parse(code), size)
    except SyntaxError as error:
        raise Untranslatable(f"python code that does not parse: {error.msg}") from error
    except (RecursionError, MemoryError) as error:
        raise Untranslatable("python code that is nested too deeply") from error


def _events_of_module(module: ast.Module, size: tuple[int, int] | None) -> Script:
    script: list[InputEvent | Pause] = []
    for statement in module.body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)) or sets_up_automation(statement):
            continue
        if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
            raise Untranslatable(f"python statement {ast.unparse(statement)!r:.60}")
        script += _python_call(statement.value)
    return [_placed(event, size) if isinstance(event, InputEvent) else event for event in script]


def sets_up_automation(statement: ast.stmt) -> bool:
    """Does it only prepare pyautogui, as the controllers' first words do?"""
    if isinstance(statement, ast.Import):
        return all(name.name == "pyautogui" for name in statement.names)
    return isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) in ("pyautogui.FAILSAFE", "pyautogui.PAUSE")


def _placed(event: InputEvent, size: tuple[int, int] | None) -> InputEvent:
    if size is None or event.x is None or event.y is None:
        return event
    return replace(event, x=event.x * size[0] // FORMAT_SCREEN[0], y=event.y * size[1] // FORMAT_SCREEN[1])


def _python_call(call: ast.Call) -> Script:
    name = ast.unparse(call.func)
    try:
        args = [_value_of(arg) for arg in call.args]
        named = {keyword.arg or "": _value_of(keyword.value) for keyword in call.keywords}
    except ValueError as error:
        raise Untranslatable(f"{ast.unparse(call)!r:.60}: its arguments are no literals") from error
    name = name.removeprefix("pyautogui.").removeprefix("time.")
    try:
        return _events_of(name, args, named)
    except (TypeError, ValueError, LookupError, OverflowError) as error:
        raise Untranslatable(f"{ast.unparse(call)!r:.60}: {error}") from error


def _value_of(node: ast.expr) -> object:
    """A literal; the way in which a pointer is to move (`pyautogui.easeInQuad`) is none, and does not matter."""
    if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("pyautogui.ease"):
        return None
    return ast.literal_eval(node)


def _events_of(name: str, args: list[Any], named: dict[str, Any]) -> Script:
    if name == "sleep":
        return [Pause(_seconds(args[0] if args else named["seconds"]))]
    if name in ("hotkey", "press", "keyDown", "keyUp"):
        return _keys(name, args, named)
    if name in ("write", "typewrite"):
        typed = args[0] if args else named.get("message", "")
        return _keys("press", [typed], {}) if isinstance(typed, list) else [InputEvent("type", text=str(typed))]
    if name in ("click", "leftClick", "doubleClick", "tripleClick", "rightClick", "middleClick", "moveTo"):
        return [_mouse(name, args, named)]
    if name == "dragTo":
        if _button(named.get("button", "left")) != "left":
            raise Untranslatable("a drag with another button than the left one")
        x, y = _pixel(args, named)
        return [InputEvent("drag", x=x, y=y)]
    if name in ("mouseDown", "mouseUp"):
        x, y = _pixel(args, named)
        button = _button(named.get("button", args[2] if len(args) > 2 else "left"))
        moved = [] if x is None else [InputEvent("move", x=x, y=y)]
        return [*moved, InputEvent("button_down" if name == "mouseDown" else "button_up", text=button)]
    if name in ("scroll", "vscroll", "hscroll"):
        count = int(args[0] if args else named["clicks"])
        x, y = _pixel(args[1:], named)
        return [InputEvent("scroll", text="sideways" if name == "hscroll" else "", x=x, y=y, count=count)]
    raise Untranslatable(f"pyautogui call {name}")


def _button(name: object) -> str:
    button = _BUTTONS.get(str(name))
    if button is None:
        raise ValueError(f"no mouse button {name!r}")
    return button


def _times(number: object) -> int:
    times = int(str(number))
    if not 1 <= times <= _MOST_TIMES:
        raise ValueError(f"something can be done 1 to {_MOST_TIMES} times")
    return times


def _seconds(value: object) -> float:
    seconds = float(str(value))
    if not 0.0 <= seconds <= _MAX_PAUSE_S:
        raise ValueError(f"a pause is from 0 to {_MAX_PAUSE_S:g} s")
    return seconds


def _pixel(args: list[Any], named: dict[str, Any]) -> tuple[int | None, int | None]:
    """The place that a call names by its first two arguments, a pair, or by name."""
    first = args[0] if args else named.get("x")
    if isinstance(first, (list, tuple)) and len(first) == 2:
        x, y = first
    else:
        x, y = first, args[1] if len(args) > 1 else named.get("y")
    return (int(x), int(y)) if isinstance(x, (int, float)) and isinstance(y, (int, float)) else (None, None)


def _keys(name: str, args: list[Any], named: dict[str, Any]) -> Script:
    names = args[0] if len(args) == 1 and isinstance(args[0], list) else args
    assert isinstance(names, list)
    keys = [key_name(str(entry)) for entry in names]
    if not keys:
        raise Untranslatable(f"pyautogui.{name} without a key")
    if name == "hotkey":
        return [InputEvent("key", text="+".join(keys))]
    kind: dict[str, InputEvent] = {"keyDown": InputEvent("key_down", keys[0]), "keyUp": InputEvent("key_up", keys[0])}
    if name in kind:
        return [kind[name]]
    return [InputEvent("key", text=key) for _ in range(_times(named.get("presses", 1))) for key in keys]


def _mouse(name: str, args: list[Any], named: dict[str, Any]) -> InputEvent:
    x, y = _pixel(args, named)
    if name == "moveTo":
        return InputEvent("move", x=x, y=y)
    count = {"doubleClick": 2, "tripleClick": 3}.get(name) or named.get("clicks", args[2] if len(args) > 2 else 1)
    button = {"rightClick": "right", "middleClick": "middle"}.get(name) or named.get("button", "left")
    return InputEvent("click", text=_button(button), x=x, y=y, count=_times(count))


def key_name(name: str) -> str:
    """The action space's name of a key."""
    lowered = name.lower() if len(name) > 1 else name
    return _KEY_NAMES.get(lowered, lowered)


# --- xdotool ---------------------------------------------------------------------------------------------------------


def _xdotool_events(words: list[str], size: tuple[int, int] | None) -> Script:
    script: list[InputEvent | Pause] = []
    rest = [word for word in words if word != "--clearmodifiers"]
    buttons = {"1": "left", "2": "middle", "3": "right"}
    while rest:
        name = rest.pop(0)
        if name == "key" and rest:
            script += [InputEvent("key", text="+".join(key_name(part) for part in word.split("+"))) for word in rest]
            rest = []
        elif name in ("keydown", "keyup") and rest:
            script.append(InputEvent("key_down" if name == "keydown" else "key_up", text=key_name(rest.pop(0))))
        elif name == "type" and rest:
            script.append(InputEvent("type", text=" ".join(rest)))
            rest = []
        elif name == "sleep" and rest:
            script.append(Pause(float(rest.pop(0))))
        elif name == "mousemove" and len(rest) > 1 and rest[0].isdigit() and rest[1].isdigit():
            script.append(_placed(InputEvent("move", x=int(rest.pop(0)), y=int(rest.pop(0))), size))
        elif name == "click" and rest and rest[0] in buttons:
            script.append(InputEvent("click", text=buttons[rest.pop(0)]))
        else:
            raise Untranslatable(f"xdotool command {name!r}")
    return script
