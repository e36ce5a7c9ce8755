"""Answers of a guest. A guest runs the agent's programs, so every part of an answer is checked before it is used.

A frame is bounded before it is read (`Wire.receive_frame`), its types and numbers while it is decoded, its texts and its tree
here. Any fault in it is `DesktopBroken`: the fault of this desktop, and of no other.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from computerrl.common.errors import DesktopBroken
from computerrl.common.log import on_one_line
from computerrl.common.messages import SettledBy
from computerrl.env_server.drivers.containment import Findings
from computerrl.env_server.drivers.observation import TreeNode
from computerrl.env_server.guest.wire import (
    MAX_DEPTH,
    MAX_MESSAGE_CHARS,
    MAX_NODES,
    MAX_RESULT_CHARS,
    MAX_TITLE_CHARS,
    bytes_from_json,
)

_MAX_PARTS = 1_000_000
"""Of a value: each part takes some 70 bytes, and while it is decoded no other desktop's thread runs. A frame of 64 MiB holds 20
million: 1.5 GiB and 5 s."""

_Pixels = Annotated[int, Meta(ge=-(2**31), le=2**31)]
_Count = Annotated[int, Meta(ge=0, le=2**62)]
_Seconds = Annotated[float, Meta(ge=0.0, le=1e6)]
_Row = tuple[
    str, Annotated[int, Meta(ge=-1, lt=MAX_NODES)], str, str, str | None, _Pixels, _Pixels, _Pixels, _Pixels, tuple[str, ...]
]
"""key, parent, role, name, text, x, y, width, height, states."""


class GuestAnswer(msgspec.Struct, forbid_unknown_fields=True):
    """Any answer; the request decides which fields count. Texts are cut to a useful length."""

    ready: bool = False
    """Whether the desktop can be used; in the first answer only."""
    start_s: _Seconds = 0.0
    found: msgspec.Raw = msgspec.Raw()
    """Surroundings of the guest (`guest.confinement.findings`); in the first answer only."""
    error: Literal["", "task", "broken"] = ""
    message: str = ""
    site: str = ""
    """Address of a web site of which the guest wants the copy, in the middle of a request; empty: this is the answer."""
    value: msgspec.Raw = msgspec.Raw()
    echo: _Count = 0
    """The request's own; 0: it had none."""

    app: str = ""
    title: str = ""
    tree: _Count = 0
    nodes: Annotated[list[_Row], Meta(max_length=MAX_NODES)] | None = None
    picture: _Count | None = None
    """Number of changes on screen; every observation has it."""
    settled_by: SettledBy = "none"
    settle_s: _Seconds = 0.0
    finished: bool = False
    action_error: str = ""
    result: str = ""

    def __post_init__(self) -> None:
        self.message = on_one_line(self.message[:MAX_MESSAGE_CHARS])  # terminals show it
        self.action_error = self.action_error[:MAX_MESSAGE_CHARS]
        self.app, self.title = self.app[:MAX_TITLE_CHARS], self.title[:MAX_TITLE_CHARS]
        self.result = self.result[:MAX_RESULT_CHARS]


_DECODER = msgspec.json.Decoder(GuestAnswer)
_FINDINGS_DECODER = msgspec.json.Decoder(Findings)


def decode(frame: bytes, *, index: int) -> GuestAnswer:
    """The answer of desktop ``index``. Raises `DesktopBroken`."""
    try:
        return _DECODER.decode(frame)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DesktopBroken(f"desktop {index} sent no answer: {str(error)[:200]}") from error


def value_of(raw: msgspec.Raw, *, index: int) -> Any:
    """Value of a part of an answer that may be of any type. Raises `DesktopBroken`."""
    data = bytes(raw)
    if _has_many_parts(data):
        raise DesktopBroken(f"desktop {index} sent no value: more than {_MAX_PARTS} parts")
    try:
        return json.loads(data, object_hook=bytes_from_json)
    except (ValueError, TypeError, RecursionError) as error:
        raise DesktopBroken(f"desktop {index} sent no value: {str(error)[:200]}") from error


def _has_many_parts(data: bytes) -> bool:
    """Whether JSON holds more lists, objects, texts and numbers than any fact has; texts may be of any length."""
    pieces = data.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"', 2 * _MAX_PARTS)
    if len(pieces) > 2 * _MAX_PARTS:
        return True
    return sum(piece.count(mark) for piece in pieces[::2] for mark in (b",", b"[", b"{")) > _MAX_PARTS


def findings_of(raw: msgspec.Raw, *, index: int) -> Findings:
    """Surroundings of the guest. Raises `DesktopBroken`."""
    try:
        return _FINDINGS_DECODER.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DesktopBroken(f"desktop {index} does not say what it found around itself: {str(error)[:200]}") from error


def tree_of(rows: list[_Row], *, index: int) -> list[TreeNode]:
    """The tree's objects. Parents come before their children. Raises `DesktopBroken`."""
    depths: list[int] = []
    for place, row in enumerate(rows):
        parent = row[1]
        depth = 0 if parent < 0 else depths[parent] + 1 if parent < place else MAX_DEPTH
        if depth >= MAX_DEPTH:
            raise DesktopBroken(f"desktop {index} sent no tree: object {place} is below {parent}")
        depths.append(depth)
    return [TreeNode(*row) for row in rows]
