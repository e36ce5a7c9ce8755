"""What the tables of actions are made of: an action, its parameters, one line of help."""

from __future__ import annotations

from dataclasses import dataclass


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
    items: tuple[type, ...] = ()
    """Accepted types of a list's items; only for lists."""


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """One action: its name, parameters and one line of help that the prompt may show."""

    name: str
    params: tuple[Param, ...]
    help: str


def text(name: str, default: object = ..., *, choices: tuple[object, ...] = ()) -> Param:
    """A text parameter."""
    return Param(name, (str,), default, choices)


def whole(name: str, default: object = ...) -> Param:
    """A whole number."""
    return Param(name, (int,), default)


def number(name: str, default: object = ...) -> Param:
    """A number, whole or not."""
    return Param(name, (int, float), default)


def flag(name: str, default: object = ...) -> Param:
    """True or False."""
    return Param(name, (bool,), default)


def many(name: str, items: tuple[type, ...], default: object = ...) -> Param:
    """A list."""
    return Param(name, (list,), default, items=items)


def table(area: str, *rows: tuple[str, tuple[Param, ...], str]) -> tuple[ActionSpec, ...]:
    """The actions of one application: (method, parameters, help) become ``area.method``."""
    return tuple(ActionSpec(f"{area}.{method}", params, help_line) for method, params, help_line in rows)
