"""Files with one extreme each, as an agent could leave them, and a child process with limits to judge them in."""

from __future__ import annotations

import io
import multiprocessing
import resource
import signal
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

MEMORY = 1 << 30
"""Address space of a judgement above that of the test's process: twice what a real one has."""
CPU_S = 120
"""Processor time of a judgement, for slow machines; an unbounded one would take hours."""


def outcome(judge: Callable[[], Any]) -> str:
    """What ``judge`` returns, or the type and text of its error, from a child with limits on memory and processor time."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_run, args=(judge, theirs))
    child.start()
    theirs.close()
    try:
        said = ours.recv()
    except EOFError:
        said = ""
    child.join()
    return str(said) or f"ended by {signal.Signals(-child.exitcode).name if (child.exitcode or 0) < 0 else child.exitcode}"


def _run(judge: Callable[[], Any], answers: Any) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    memory = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    try:
        said = repr(judge())
    except Exception as error:  # noqa: BLE001 - the test compares it
        said = f"{type(error).__name__}: {error}"
    answers.send(said[:500])


# --- archives --------------------------------------------------------------------------------------------------------


def packed(parts: Mapping[str, bytes | Iterable[bytes]], *, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip archive; a part may be given in pieces."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method, compresslevel=1) as archive:
        for name, data in parts.items():
            with archive.open(name, "w", force_zip64=True) as part:
                for piece in [data] if isinstance(data, bytes) else data:
                    part.write(piece)
    return buffer.getvalue()


def lying(name: str, content: bytes, *, claimed: int) -> bytes:
    """A zip archive whose headers claim fewer bytes than the member unpacks to, with the right checksum of those."""
    body = zlib.compressobj(1, zlib.DEFLATED, -15)
    data = body.compress(content) + body.flush()
    crc = zlib.crc32(content[:claimed])
    encoded = name.encode()
    local = struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 8, 0, 33, crc, len(data), claimed, len(encoded), 0) + encoded + data
    entry = struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 8, 0, 33, crc, len(data), claimed, len(encoded), 0, 0, 0, 0, 0, 0)
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(entry) + len(encoded), len(local), 0)
    return local + entry + encoded + end


def tarred(name: str, size: int, *, mode: str, sparse: bool = False) -> bytes:
    """A tar archive with one file of zeros; ``sparse``: only its header says so."""
    buffer = io.BytesIO()
    level = {"xz": {"preset": 0}, "gz": {"compresslevel": 1}, "bz2": {"compresslevel": 1}}.get(mode, {})
    with tarfile.open(fileobj=buffer, mode=f"w:{mode}", **level) as archive:  # type: ignore[call-overload]
        info = tarfile.TarInfo(name)
        info.size = size
        if sparse:
            info.size = 0
            info.pax_headers = {
                "GNU.sparse.major": "0",
                "GNU.sparse.minor": "1",
                "GNU.sparse.size": str(size),
                "GNU.sparse.map": f"{size},0",
                "GNU.sparse.numblocks": "1",
            }
            archive.addfile(info)
        else:
            archive.addfile(info, _Zeros(size))
    return buffer.getvalue()


class _Zeros(io.RawIOBase):
    """A stream of zeros."""

    def __init__(self, size: int) -> None:
        self._left = size

    def read(self, size: int = -1) -> bytes:
        size = self._left if size < 0 else min(size, self._left)
        self._left -= size
        return b"\0" * size


def replaced(package: bytes, **parts: bytes | Iterable[bytes]) -> bytes:
    """An office file with other content in the parts named by the last word of their names, as ``sheet1`` or ``document``."""
    with zipfile.ZipFile(io.BytesIO(package)) as archive:
        contents: dict[str, bytes | Iterable[bytes]] = {name: archive.read(name) for name in archive.namelist()}
    for stem, data in parts.items():
        name = next(name for name in contents if name.endswith(f"/{stem}.xml"))
        contents[name] = data
    return packed(contents)


# --- office files ----------------------------------------------------------------------------------------------------

_SHEET = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
_WORD = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'


def plain_book() -> bytes:
    import openpyxl

    buffer = io.BytesIO()
    openpyxl.Workbook().save(buffer)
    return buffer.getvalue()


def plain_document() -> bytes:
    import docx

    buffer = io.BytesIO()
    docx.Document().save(buffer)
    return buffer.getvalue()


def plain_deck() -> bytes:
    import pptx

    deck = pptx.Presentation()
    deck.slides.add_slide(deck.slide_layouts[6])
    buffer = io.BytesIO()
    deck.save(buffer)
    return buffer.getvalue()


def book(*, rows: str = '<row r="1"><c r="A1"><v>1</v></c></row>', before: str = "", after: str = "") -> bytes:
    """A workbook whose sheet has these rows and these elements before and after its data."""
    sheet = f"<worksheet {_SHEET}>{before}<sheetData>{rows}</sheetData>{after}</worksheet>"
    return replaced(plain_book(), sheet1=sheet.encode())


def document(body: str | Iterable[bytes], **parts: str) -> bytes:
    """A text document with this body, and other parts such as ``styles``."""
    head, tail = f"<w:document {_WORD}><w:body>".encode(), b"</w:body></w:document>"
    pieces = [head, body.encode() if isinstance(body, str) else b"".join(body), tail]
    styled = {name: f"<w:{name} {_WORD}>{text}</w:{name}>".encode() for name, text in parts.items()}
    return replaced(plain_document(), document=pieces, **styled)


def deck(shapes: str = "", *, entries: str = "") -> bytes:
    """A presentation whose slide has these shapes; ``entries``: more entries in the list of slides."""
    with zipfile.ZipFile(io.BytesIO(plain_deck())) as archive:
        slide, presentation = archive.read("ppt/slides/slide1.xml"), archive.read("ppt/presentation.xml")
    return replaced(
        plain_deck(),
        slide1=slide.replace(b"</p:spTree>", shapes.encode() + b"</p:spTree>"),
        presentation=presentation.replace(b"</p:sldIdLst>", entries.encode() + b"</p:sldIdLst>"),
    )


def odt(body: str, styles: str = "") -> bytes:
    names = " ".join(f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"' for name in ("office", "text", "style"))
    text = f"<office:body><office:text>{body}</office:text></office:body>"
    content = f"<office:document-content {names}><office:automatic-styles/>{text}</office:document-content>"
    style = f"<office:document-styles {names}><office:styles>{styles}</office:styles></office:document-styles>"
    return packed({"content.xml": content.encode(), "styles.xml": style.encode()})


def png(width: int, height: int) -> bytes:
    """A black picture."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(1)
    data = b"".join(packer.compress(b"\0" * (1 + width // 8)) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
