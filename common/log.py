"""Structured logs: text for people or JSON lines on stderr, or JSON lines into a file.

Events are constants `noun.verb` with fields: ``log.get_logger().info("group.completed", group_id=...)``. Role, index and
incarnation are bound once per process. Does not collect or rotate anything. `parse_line` reads a line back.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import structlog

from computerrl.common.clock import unix_now

LEVELS = ("debug", "info", "warning", "error")
_HIDDEN = frozenset({"event", "level", "timestamp", "role", "index", "incarnation", "exception"})
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(*, json_file: Path | None = None, as_json: bool = False, level: str = "info") -> None:
    """Send logs to ``json_file`` (appended, one JSON object a line), or to stderr when None: as text, or ``as_json``."""
    processors: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        _stamp,
        structlog.processors.StackInfoRenderer(),
    ]
    if json_file is None and not as_json:
        # The plain formatter: rich tracebacks with all local variables would show keys.
        plain = structlog.dev.plain_traceback
        processors.append(structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain))
        factory: Any = structlog.PrintLoggerFactory(_as_file(sys.stderr))
    else:
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
        file = sys.stderr
        if json_file is not None:
            json_file.parent.mkdir(parents=True, exist_ok=True)
            file = json_file.open("a", encoding="utf-8", buffering=1)
        factory = structlog.PrintLoggerFactory(_as_file(file))
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=factory,
        cache_logger_on_first_use=False,
    )


def on_one_line(text: str) -> str:
    """What a server or a desktop says, for a message to people: without line breaks, and without what a terminal would obey."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in " ".join(text.split()))


def _stamp(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """Add the date by the clock of all records: a trace lays lines of logs beside them."""
    event["timestamp"] = datetime.fromtimestamp(unix_now(), UTC).isoformat().replace("+00:00", "Z")
    return event


class _LossyFile:
    """A file for logs: what a full disk refuses is lost, and the process that wanted to say so goes on."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._file.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._file.flush()


def _as_file(file: TextIO) -> Any:
    return _LossyFile(file)


def bind(*, role: str, index: int, incarnation: str) -> None:
    """Add these fields to every line of this process, whichever thread logs it."""
    context = {"role": role, "index": index, "incarnation": incarnation}

    def add(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
        return {**context, **event}

    processors = [item for item in structlog.get_config()["processors"] if not getattr(item, "is_process_context", False)]
    add.is_process_context = True  # type: ignore[attr-defined]
    structlog.configure(processors=[add, *processors])


def get_logger() -> Any:
    """The process's logger, bound to what `bind` said."""
    return structlog.get_logger()


# --- reading lines back ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """One line of one process."""

    at: float
    """Unix seconds; a line that does not say when is as old as the one before it."""
    process: str
    level: str
    """One of `LEVELS`; what is not ours (a library's line, a traceback) is `info`."""
    text: str


def parse_line(text: str, *, process: str, before: float) -> Line:
    """``text`` as it stands in the log of ``process``; ``before``: when the line before it was written."""
    try:
        record = json.loads(text)
        at = datetime.fromisoformat(record["timestamp"]).timestamp()
    except (ValueError, TypeError, KeyError):
        return Line(before, process, "info", text.rstrip())
    return Line(at, process, str(record.get("level", "info")), say(record))


def say(record: dict[str, Any]) -> str:
    """Event and fields of a JSON line, for people."""
    fields = " ".join(f"{name}={_short(value)}" for name, value in record.items() if name not in _HIDDEN)
    exception = record.get("exception")
    return f"{record.get('event', '')} {fields}".rstrip() + (f"\n{exception}" if exception else "")


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return repr(text) if re.search(r"\s", text) else text
