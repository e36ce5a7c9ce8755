"""Files as bytes that depend on nothing but their content: zip packages without time stamps, pictures, archives."""

from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping

_FIRST_DAY = (1980, 1, 1, 0, 0, 0)
"""The earliest moment a zip archive can hold."""
_TIMES = re.compile(rb"(<dcterms:(created|modified)[^>]*>)[^<]*(</dcterms:)")
_LEFT_OUT = ("docProps/thumbnail.jpeg",)


def repack(package: bytes, *, replaced: Mapping[str, bytes] | None = None) -> bytes:
    """An office file with fixed times and some parts replaced.

    Stored, not deflated: compressed bytes differ between builds of zlib.
    """
    parts = {}
    with zipfile.ZipFile(io.BytesIO(package)) as old:
        for name in old.namelist():
            data = (replaced or {}).get(name, old.read(name))
            parts[name] = _TIMES.sub(rb"\g<1>2020-01-01T00:00:00Z\g<3>", data) if name == "docProps/core.xml" else data
    for name in _LEFT_OUT:
        if parts.pop(name, None) is not None:
            target = f'Target="{name}"'.encode()
            parts["_rels/.rels"] = re.sub(rb"<Relationship [^>]*" + target + rb"[^>]*/>", b"", parts["_rels/.rels"])
    return zipped(parts)


def zipped(files: Mapping[str, bytes]) -> bytes:
    """A .zip of these files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, _FIRST_DAY), data)
    return buffer.getvalue()


def picture(color: str, *, width: int = 64, height: int = 48) -> bytes:
    """A PNG of one colour (`RRGGBB`)."""
    row = b"\0" + bytes.fromhex(color) * width
    # Level 0: stored blocks, the same from every build of zlib.
    data = zlib.compress(row * height, 0)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(kind, body) for kind, body in ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    )


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
