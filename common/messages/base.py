"""Base class of all messages, the bounds of their fields, and the checks that their constructors share.

Array shape legend: P prompt tokens of a step, A action tokens of a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta
from msgspec.structs import force_setattr

SCHEMA_VERSION = 22
"""Version of all messages together. It is raised whenever a field changes; a peer of another version is refused by name."""

INT32, FLOAT32, UINT8 = np.dtype("<i4"), np.dtype("<f4"), np.dtype("u1")
"""Types of array elements, little-endian on every host."""

_MAX_LINE, _MAX_TEXT = 1024, 8192


class Wire(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Base class of a message and of a part of one. No instance can be in a cycle, so the garbage collector does not track it."""


IntArray = Annotated[np.ndarray, "int32"]
"""One-dimensional array of 32-bit integers, sent as raw bytes."""
FloatArray = Annotated[np.ndarray, "float32"]
"""One-dimensional array of 32-bit floats, sent as raw bytes."""
ByteArray = Annotated[np.ndarray, "uint8"]
"""One-dimensional array of bytes, sent as they are."""
Number = Annotated[int, Meta(ge=-(2**53), le=2**53)]
"""Integer from -2^53 to 2^53: a sum of a few of them still fits the wire."""
MAX_PLACES = 16
Places = Annotated[tuple[Number, ...], Meta(max_length=2 * MAX_PLACES)]
"""Pixels of a screen: x, y of at most 16 places."""
Share = Annotated[float, Meta(ge=0, le=1)]
"""Number from 0 to 1."""
Seed = Annotated[int, Meta(ge=0, le=2**48)]
"""First seed of an order, at most 2^48; the seeds of its task instances count up from it."""
Version = Annotated[int, Meta(ge=-1, lt=2**31)]
"""Policy version, -1 for none; fits the arrays that hold one version per token."""
Index = Annotated[int, Meta(ge=0, lt=4096)]
"""Index of a process among those of its role, below 4,096."""
DesktopChoice = Annotated[int, Meta(ge=-1, lt=4096)]
"""Index of a desktop of a host, -1 for none."""
NewTokens = Annotated[int, Meta(ge=1, le=65536)]
"""Maximum number of tokens of a completion, 1 to 65,536."""
Temperature = Annotated[float, Meta(ge=0, le=100)]
"""Sampling temperature, 0 to 100; 0 is greedy."""
Incarnation = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}\Z")]
"""Identifier of one start of a process: 1 to 64 letters, digits, `.`, `_` or `-`."""
ContentHash = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
"""Hash of 128 bits as 32 hexadecimal digits."""
Name = Annotated[str, Meta(max_length=128)]
"""Text of at most 128 characters."""
Id = Annotated[str, Meta(max_length=256)]
"""Text of at most 256 characters, such as several names in one."""
Line = Annotated[str, Meta(max_length=_MAX_LINE)]
"""Text for people of at most 1,024 characters; the constructor cuts longer texts."""
Text = Annotated[str, Meta(max_length=_MAX_TEXT)]
"""Text for people of at most 8,192 characters; the constructor cuts longer texts."""
Metrics = Annotated[dict[Name, float], Meta(max_length=128)]
"""At most 128 names with a number each."""
Endpoints = Annotated[dict[Name, Id], Meta(max_length=4)]
"""At most 4 names with an address each."""
Arguments = Annotated[dict[Name, Any], Meta(max_length=32)]
"""At most 32 names with a number, a text, or lists and maps of them nested at most 5 deep."""
Horizon = Annotated[tuple[tuple[Number, Number], ...], Meta(max_length=64)]
"""At most 64 pairs of integers."""

Role = Literal["broker", "learner", "actor", "engine", "env_server", "supervisor"]
OrderKind = Literal["demonstration", "evaluation", "training"]
ShownImages = Literal["own", "blank", "foreign"]
Split = Literal["demonstration", "training", "evaluation", "tuning"]
FinalAction = Literal["", "done", "fail"]
SettledBy = Literal["quiet", "deadline", "none"]
EndReason = Literal[
    "task_finished",
    "done_action",
    "fail_action",
    "step_limit",
    "time_limit",
    "invalid_limit",
    "off_demonstration",
    "agent_failed",
]


def take_arrays(message: Wire, fields: Mapping[str, np.dtype[Any]]) -> None:
    """Convert ``fields`` of ``message`` to contiguous one-dimensional arrays of the given types. Raises `ValueError` for others.

    The arrays of a decoded message have these properties already and are left alone.
    """
    for name, dtype in fields.items():
        value = getattr(message, name)
        if type(value) is np.ndarray and value.dtype is dtype and value.ndim == 1 and value.flags.c_contiguous:
            continue
        array = np.asarray(value)
        if array.ndim != 1:
            raise ValueError(f"{name}: expected one dimension, got shape {array.shape}")
        if array.size and array.dtype.kind not in "iuf":
            raise ValueError(f"{name}: expected numbers, got dtype {array.dtype}")
        if array.dtype.kind == "f" and dtype.kind == "i":
            raise ValueError(f"{name}: expected integers, got dtype {array.dtype}")
        if (dtype is UINT8) != (array.dtype is UINT8):
            raise ValueError(f"{name}: expected {dtype}, got dtype {array.dtype}")
        force_setattr(message, name, np.ascontiguousarray(array, dtype=dtype))


def cut_lines(message: Wire, *names: str) -> None:
    """Cut fields of type `Line` to their maximum length."""
    for name in names:
        _cut(message, name, _MAX_LINE)


def cut_texts(message: Wire, *names: str) -> None:
    """Cut fields of type `Text` to their maximum length."""
    for name in names:
        _cut(message, name, _MAX_TEXT)


def _cut(message: Wire, name: str, length: int) -> None:
    text = getattr(message, name)
    if len(text) > length:
        force_setattr(message, name, f"{text[: length - 1]}…")


def require_plain(value: Any, levels: int = 6) -> None:
    """Raise `ValueError` unless ``value`` consists of numbers, texts, lists and maps, nested at most ``levels`` deep."""
    if value is None or isinstance(value, str | int | float):
        return
    if levels == 0 or not isinstance(value, list | tuple | dict):
        raise ValueError("expected numbers, texts, lists and maps, at most 6 deep")
    if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
        raise ValueError("expected names as the keys of maps")
    for item in value.values() if isinstance(value, dict) else value:
        require_plain(item, levels - 1)
