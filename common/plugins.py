"""Parts of other packages that a configuration names as `module:Name`."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from computerrl.common.errors import ConfigError, Problem


def registered(name: str, *, group: str) -> Any | None:
    """The object that another package has registered as ``name`` in the entry point ``group``; None: none has."""
    for entry in importlib.metadata.entry_points(group=group):
        if entry.name == name:
            return entry.load()
    return None


def load_named(name: str, *, field: str, what: str) -> Any:
    """The object ``name`` (`module:Name`) of an installed package or of the current folder. ``what``: its kind, for errors.

    Raises `ConfigError`, which names ``field``, when it cannot be imported."""
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # An installed command has its own folder there in place of the current one.
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        step = f"install the package that holds it, or correct module:{what}"
        raise ConfigError([Problem(field, f"{name!r} cannot be imported: {error}", step)]) from error


def option_problems(error: ValidationError, *, field: str, valid: Iterable[str] = ()) -> list[Problem]:
    """The problems of options that a plug-in's model has refused, each with its path below ``field``. ``valid``: the names of all
    options."""
    problems = []
    for item in error.errors():
        path = ".".join([field, *map(str, item["loc"])])
        if item["type"] == "extra_forbidden":
            known = ", ".join(sorted(valid))
            problems.append(Problem(path, "unknown option", f"valid: {known}" if known else "leave it out"))
        else:
            reason = item["msg"].removeprefix("Value error, ")
            problems.append(Problem(path, f"{reason} (got {item['input']!r:.80})", "correct the value"))
    return problems
