"""Models that an engine's library cannot load, as a problem of the configuration."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from common.errors import ConfigError, Problem


@contextlib.contextmanager
def refusing_model(engine: str, folder: Path) -> Iterator[None]:
    """Around the library's call that loads ``folder``. Raises `ConfigError` for what it refuses; ImportError, RuntimeError and
    MemoryError, which are no fault of the model (memory that runs out), pass."""
    try:
        yield
    except (ImportError, RuntimeError, MemoryError):
        raise
    except Exception as error:  # Libraries refuse a model with errors of many classes, their own among them.
        reason = f"engine {engine!r} cannot load {str(folder)!r}: {type(error).__name__}: {error}"
        step = "look whether this version of the library knows the architecture, or try the other actor.engine"
        raise ConfigError([Problem("model.name", reason, step)]) from error
