"""The generated part of docs/reference/protocol.md: sizes, types and fields of all messages, from `common/messages/`."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

from computerrl.common import messages
from computerrl.common.messages import DEFAULT_SIZE_LIMIT, MAX_PEERS, SIZE_LIMITS, ReplyMessage, RequestMessage
from computerrl.common.wire import codec, transport

BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"
_NOT_ON_THE_WIRE = {"SizeLimit", "Wire"}
_FILES = ("base", "presence", "work", "trajectories", "images", "desktops", "weights", "engines")
"""Files of `common/messages/`, in the order in which the document names their types."""


def section() -> str:
    """What stands between `BEGIN` and `END`."""
    folder = Path(messages.__file__).parent
    nodes = [node for name in _FILES for node in ast.parse((folder / f"{name}.py").read_text(encoding="utf-8")).body]
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef) and node.name not in _NOT_ON_THE_WIRE}
    requests, replies = ([cls.__name__ for cls in get_args(union)] for union in (RequestMessage, ReplyMessage))
    parts = [name for name in classes if name not in {*requests, *replies}]
    lines = ["## Limits", "", *_limits(), "## Types", "", *_types(nodes)]
    for title, names in (("Requests", requests), ("Replies", replies), ("Parts of messages", parts)):
        lines += [f"## {title}", ""]
        for name in names:
            lines += [*_message(classes[name], is_message=title != "Parts of messages"), ""]
    return "\n".join(lines)


def _limits() -> Iterator[str]:
    yield f"Schema version {messages.SCHEMA_VERSION}. A frame has at most {_bytes(transport.MAX_FRAME_BYTES)}, a message at most"
    yield f"{codec.MAX_FRAMES:,} frames and {codec.MAX_ARRAYS:,} arrays, and a broker or learner remembers {MAX_PEERS:,}"
    yield "processes at a time. By kind:"
    yield ""
    yield from _table(
        ("kind", "header", "all frames"),
        [
            *((f"`{kind}`", _bytes(limit.header_bytes), _bytes(limit.total_bytes)) for kind, limit in SIZE_LIMITS.items()),
            ("all others", _bytes(DEFAULT_SIZE_LIMIT.header_bytes), _bytes(DEFAULT_SIZE_LIMIT.total_bytes)),
        ],
    )
    yield ""


def _types(nodes: Sequence[ast.stmt]) -> Iterator[str]:
    rows = []
    for node, after in itertools.pairwise(nodes):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript(value=ast.Name(id="Annotated"))):
                rows.append((f"`{name}`", _text(after)))
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript(value=ast.Name(id="Literal"), slice=choices)):
                rows.append((f"`{name}`", f"one of `{ast.unparse(choices).strip('()')}`"))
    yield from _table(("type", "values"), rows)
    yield ""


def _message(node: ast.ClassDef, *, is_message: bool) -> Iterator[str]:
    yield f"### {node.name}"
    yield ""
    yield _markdown(ast.get_docstring(node) or "")
    rows = []
    for field, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            default = f" = {ast.unparse(field.value)}" if field.value is not None else ""
            rows.append((f"`{field.target.id}`", f"`{ast.unparse(field.annotation)}{default}`", _text(after)))
    if rows:
        yield ""
        yield from _table(("field", "type", "meaning"), rows)
    elif is_message:
        yield ""
        yield "No fields."


def _text(node: ast.stmt | None) -> str:
    """The string that stands alone as a statement, empty for anything else."""
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return " ".join(_markdown(text).split())
        case _:
            return ""


def _markdown(text: str) -> str:
    return re.sub(r"``(.+?)``", r"`\1`", inspect.cleandoc(text))


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"| {' | '.join('---' for _ in heads)} |"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def _bytes(number: int) -> str:
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if number >= 1 << shift and number % (1 << shift) == 0:
            return f"{number >> shift} {unit}"
    return f"{number} bytes"
