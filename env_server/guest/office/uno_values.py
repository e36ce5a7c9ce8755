"""UNO's ways of passing values: named properties, commands, colours. Only inside the office's calls."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .process import DocumentError, Office

_COLOURS = {
    "black": 0x000000,
    "white": 0xFFFFFF,
    "red": 0xFF0000,
    "green": 0x00FF00,
    "blue": 0x0000FF,
    "yellow": 0xFFFF00,
    "orange": 0xFFA500,
    "purple": 0x800080,
    "gray": 0x808080,
    "grey": 0x808080,
    "pink": 0xFFC0CB,
    "brown": 0xA52A2A,
    "cyan": 0x00FFFF,
    "magenta": 0xFF00FF,
}


def uno_class(name: str) -> Any:
    """An exception or interface below com.sun.star.

    Not by importing it from there: an import by python3-uno leaves a cycle of references behind that keeps its caller's frames,
    and the office's objects in them, until garbage is collected (`main_thread` has why that matters).
    """
    import uno

    return uno.getClass(f"com.sun.star.{name}")


def struct(name: str, *values: Any, **named: Any) -> Any:
    """A structure below com.sun.star."""
    return uno_class(name)(*values, **named)


def properties(**values: Any) -> tuple[Any, ...]:
    """``values`` as UNO's named properties."""
    return tuple(struct("beans.PropertyValue", Name=name, Value=value) for name, value in values.items())


def values(properties: Sequence[Any]) -> dict[str, Any]:
    """UNO's named properties by name."""
    return {one.Name: one.Value for one in properties}


def set_where_other(thing: Any, wanted: Mapping[str, Any]) -> None:
    """Set those properties of one of the office's objects that have another value."""
    for name, value in wanted.items():
        if getattr(thing, name) != value:
            setattr(thing, name, value)


def dispatch(office: Office, document: Any, command: str, **values: Any) -> None:
    """Carry out a command of the menus on ``document``, such as ``.uno:Sidebar``."""
    helper = office.create("com.sun.star.frame.DispatchHelper")
    helper.executeDispatch(document.CurrentController.Frame, command, "", 0, properties(**values))


def colour(text: str) -> int:
    """0xRRGGBB of ``#FF0000``, ``FF0000`` or ``red``. Raises `DocumentError`."""
    name = text.strip().lower()
    if name in _COLOURS:
        return _COLOURS[name]
    if re.fullmatch(r"#?[0-9a-f]{6}", name):
        return int(name.removeprefix("#"), 16)
    raise DocumentError(f'{text!r} is no colour: write it like "#FF0000", or one of {", ".join(sorted(_COLOURS))}')


def url(path: Path) -> str:
    """The file's URL as the office wants it."""
    return path.as_uri()


class refusing:
    """Turn UNO's checked exceptions (a bad argument, an unreadable file) into `DocumentError`; runtime ones go on.

    A class: contextlib's generators set attributes on the exceptions that pass through them, and UNO's cannot have any.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, uno_class("uno.Exception")) and not isinstance(error, uno_class("uno.RuntimeException")):
            raise DocumentError(f"the office refused: {error.Message or type(error).__name__}") from error
