"""Parts of other packages that a configuration names as `module:Name`."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from computerrl.common.errors import ConfigError, Problem


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
