"""How a role tells its supervisor the typed error it ends with, and what the supervisor shows when there is none."""

from __future__ import annotations

import json
import os
from pathlib import Path

from computerrl.common.errors import ComputerRLError
from computerrl.common.log import parse_line

ERROR_FILE_VARIABLE = "COMPUTERRL_ERROR_FILE"
"""Environment variable: where a role writes its error."""
LOG_TAIL_LINES = 15


def leave_error(error: ComputerRLError) -> None:
    """Write ``error`` where the supervisor asked for it; nothing when there is none."""
    path = os.environ.get(ERROR_FILE_VARIABLE)
    if path:
        Path(path).write_text(json.dumps({"exit_code": error.exit_code, "code": error.code, "message": str(error)}))


def left_exit_code(error_path: Path) -> int | None:
    """The exit code of the typed error a role left, None when it left none. What started it (torchrun) may end with another."""
    try:
        return int(json.loads(error_path.read_text())["exit_code"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def last_words(name: str, *, exit_code: int, error_path: Path, log_path: Path) -> str:
    """The typed error process ``name`` left, else the end of its log."""
    try:
        error = json.loads(error_path.read_text())
        if error["exit_code"] == exit_code:
            return f"{name}: {error['message']}"
    except (OSError, ValueError, KeyError, TypeError):
        pass  # it died before it could write one
    try:
        lines = [_said(line) for line in log_path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]]
    except OSError:
        lines = []
    return "\n".join([f"the end of {log_path}:", *(f"    {line}" for line in lines)])


def _said(line: str) -> str:
    """A line of a log, for people."""
    return parse_line(line, process="", before=0.0).text
