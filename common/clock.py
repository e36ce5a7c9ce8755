"""Time, in one place, so that what decides can be given a time instead of asking for it.

Durations and deadlines follow monotonic clocks. Records hold dates, and reports make durations of their differences. All records
of an attempt therefore take `unix_now`, which looks at the wall clock once: setting that clock changes neither the durations nor
the order of the records.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

Clock = Callable[[], float]
"""Seconds; only differences mean something."""


def monotonic_s() -> float:
    """For durations and deadlines."""
    return time.monotonic()


_ANCHOR_VARIABLE = "COMPUTERRL_CLOCK"
"""Environment variable in which the processes of an attempt inherit their anchor."""


def unix_now(anchor: str = "") -> float:
    """Seconds since 1970, for records: the date at which the attempt began, plus the time since then.

    ``anchor``: `anchor_clock` of the attempt whose records this is compared with; empty: that of this process's attempt. One of
    another boot or machine means nothing here, and the process's own start takes its place.
    """
    return _offset(anchor or os.environ.get(_ANCHOR_VARIABLE, "")) + time.clock_gettime(time.CLOCK_BOOTTIME)


def utc_now() -> str:
    """The date of `unix_now` in UTC, to the second, as ISO 8601 writes it."""
    return datetime.fromtimestamp(unix_now(), UTC).isoformat(timespec="seconds")


def anchor_clock() -> str:
    """Look at the wall clock for an attempt that begins now: this process and those that it starts count from here."""
    anchor = f"{boot_id()} {_wall_offset()!r}"
    os.environ[_ANCHOR_VARIABLE] = anchor
    return anchor


@functools.cache
def _offset(anchor: str) -> float:
    """Date of the boot, by ``anchor`` or else by the wall clock when it was first asked for."""
    boot, _, offset = anchor.partition(" ")
    return float(offset) if boot == boot_id() else _wall_offset()


def _wall_offset() -> float:
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


@functools.cache
def boot_id() -> str:
    """Name of the boot that `time.CLOCK_BOOTTIME` counts from."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
