"""Regular expressions of the model, matched without being able to hang the guest: see `matcher`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .process import DocumentError

_MATCHER = Path(__file__).with_name("matcher.py")
_WALL_LIMIT_S = 6.0
"""Above the matcher's own limit of processor time, for a machine that has little of it to give; below a step's deadline."""


class Match(NamedTuple):
    """One match in a text."""

    start: int
    end: int
    new: str
    """What the replacement gives; without one the matched text."""


def find_matches(pattern: str, texts: Sequence[str], replacement: str | None = None) -> list[list[Match]]:
    """All matches that are not empty, for each text. Raises `DocumentError` for a bad, or too slow, pattern."""
    if not pattern:
        raise DocumentError("the pattern is empty")
    request = json.dumps({"pattern": pattern, "replacement": replacement, "texts": list(texts)})
    command = [sys.executable, "-I", "-S", str(_MATCHER)]
    try:
        done = subprocess.run(command, input=request.encode(), capture_output=True, timeout=_WALL_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise DocumentError(_too_slow(pattern)) from error
    if done.returncode != 0:
        # Killed at its limit by SIGXCPU or SIGKILL; anything else is a mistake of ours and must not look like the agent's.
        if done.returncode > 0:
            raise RuntimeError(f"the matcher failed: {done.stderr.decode(errors='replace')[-500:]}")
        raise DocumentError(_too_slow(pattern))
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise DocumentError(f"{pattern!r:.200} is no pattern that can be used: {answer['error']}")
    return [[Match(*match) for match in matches] for matches in answer["matches"]]


def _too_slow(pattern: str) -> str:
    return f"{pattern!r:.200} takes too long on this text: write a simpler pattern"
