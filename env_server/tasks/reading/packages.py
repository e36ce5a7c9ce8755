"""Archives, office files and XML, unpacked once and counted while they are unpacked.

A library never gets the agent's own archive. It gets a plain copy of what was read: stored, no name twice, no size that lies, no
entities, no more tags than the limits allow.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from typing import IO, Any

from computerrl.env_server.tasks.reading import limits
from computerrl.env_server.tasks.reading.limits import Budget, Counted, LimitPassed, within

_CHUNK = 65_536
_SMALL_CHUNK = 4096
"""A chunk of bzip2 may grow twenty thousand times, a chunk of deflate a thousand times."""
_COPIES = 4
"""How often a library may read each part of a package, on average: openpyxl reads relations twice."""


def unpacked(archive: bytes) -> dict[str, bytes]:
    """The files of a .zip or a .tar, plain or packed with gzip, bzip2 or xz, without folders. Raises `ValueError`."""
    try:
        return _unzipped(archive) if archive[:2] == b"PK" else _untarred(archive)
    except (ValueError, MemoryError):
        raise
    except Exception as error:
        raise ValueError(f"not an archive: {type(error).__name__}: {error}") from error


def _unzipped(archive: bytes) -> dict[str, bytes]:
    # Each entry of the directory begins with this mark, whatever number of entries the archive claims.
    within("files in the archive", archive.count(b"PK\1\2"), limits.MAX_MEMBERS)
    budget = Budget("bytes of the unpacked archive", limits.MAX_UNPACKED_BYTES)
    found = {}
    with zipfile.ZipFile(io.BytesIO(archive)) as packed:
        for info in packed.infolist():
            if info.is_dir():
                continue
            plain = info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
            with packed.open(info) as member:
                found[info.filename] = _drained(member, budget, _CHUNK if plain else _SMALL_CHUNK)
    return found


_COMPRESSIONS: tuple[tuple[bytes, Any], ...] = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.BZ2File), (b"\xfd7zXZ", lzma.LZMAFile))


def _untarred(archive: bytes) -> dict[str, bytes]:
    packed_by = next((opener for mark, opener in _COMPRESSIONS if archive.startswith(mark)), lambda stream: stream)
    stream = Counted(packed_by(io.BytesIO(archive)), Budget("bytes of the unpacked archive", limits.MAX_UNPACKED_BYTES))
    # A sparse file has more bytes than the stream.
    budget = Budget("bytes of the unpacked archive", limits.MAX_UNPACKED_BYTES)
    count = Budget("files in the archive", limits.MAX_MEMBERS)
    found = {}
    with tarfile.open(fileobj=stream, mode="r|") as packed:  # type: ignore[call-overload]
        for member in packed:
            count.spend()
            content = packed.extractfile(member) if member.isfile() else None
            if content is not None:
                found[member.name.removeprefix("./")] = _drained(content, budget, _CHUNK)
    return found


def _drained(stream: IO[bytes], budget: Budget, chunk: int) -> bytes:
    pieces = []
    while piece := stream.read(chunk):
        budget.spend(len(piece))
        pieces.append(piece)
    return b"".join(pieces)


# --- XML -------------------------------------------------------------------------------------------------------------

_DECLARED = re.compile(rb"<\?xml[^>]{0,200}?encoding\s{0,9}=\s{0,9}[\"']([A-Za-z0-9._-]{1,40})")
_ENCODINGS = frozenset({"utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "latin-1", "latin1", "iso-8859-15", "windows-1252"})


class _XmlBudget:
    """The limits of all XML of one file. Tags and attributes are counted by the letters that each of them needs."""

    def __init__(self) -> None:
        self._bytes = Budget("bytes of XML", limits.MAX_XML_BYTES)
        self._tags = Budget("tags of XML", limits.MAX_TAGS)
        self._attributes = Budget("attributes of XML", limits.MAX_ATTRIBUTES)

    def spend(self, data: bytes) -> None:
        self._bytes.spend(len(data))
        self._tags.spend(data.count(b"<"))
        self._attributes.spend(data.count(b"="))
        if b"<!ENTITY" in data:
            raise ValueError("the XML declares entities")
        declared = _DECLARED.match(data[:400].lstrip(b"\xef\xbb\xbf"))
        if b"\0" in data[:4] or (declared and declared[1].decode("ascii").lower() not in _ENCODINGS):
            # In other encodings the letters counted above have other codes.
            raise ValueError("the XML is in an encoding that is not read")


def xml_of(data: bytes) -> Any:
    """Parsed XML. Raises `ValueError` when it is none. No entities are expanded and nothing is fetched."""
    _XmlBudget().spend(data)
    return _parsed(data)


def _parsed(data: bytes) -> Any:
    from lxml import etree

    try:
        return etree.fromstring(data, etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=False))
    except etree.XMLSyntaxError as error:
        if error.code == etree.ErrorTypes.ERR_NO_MEMORY:
            raise MemoryError(str(error)) from error
        if error.code == etree.ErrorTypes.ERR_RESOURCE_LIMIT:
            raise LimitPassed(f"XML: {error}") from error
        raise ValueError(str(error)) from error


def num_below(node: Any, tag: str) -> int:
    """Number of elements called ``tag`` below ``node``."""
    return sum(1 for _ in node.iter(tag))


def outermost(node: Any, tag: str) -> Iterator[Any]:
    """The nodes called ``tag`` below ``node`` that lie in no other one: elements that nest cost no more than their letters."""
    path = [iter(node)]
    while path:
        child = next(path[-1], None)
        if child is None:
            path.pop()
        elif child.tag == tag:
            yield child
        else:
            path.append(iter(child))


def html_of(text: str) -> Any:
    """A parsed page. Raises `ValueError` when it is empty."""
    from lxml import html

    data = text.encode()
    _XmlBudget().spend(data)
    if not text.strip():
        raise ValueError("empty")
    return html.document_fromstring(data, parser=html.HTMLParser(encoding="utf-8", no_network=True, huge_tree=False))


class Package:
    """An office file, unpacked within the limits."""

    def __init__(self, data: bytes) -> None:
        if data[:2] != b"PK":
            raise ValueError("not an office file")
        self.parts: Mapping[str, bytes] = unpacked(data)
        budget = _XmlBudget()
        for part in self.parts.values():
            # By content, not by name: which part is XML is decided by the library that reads the package.
            if part.lstrip(b" \t\r\n\0\xff\xfe\xef\xbb\xbf").startswith(b"<"):
                budget.spend(part)

    def xml(self, name: str) -> Any:
        """A part, parsed. Raises `KeyError` when there is none."""
        return _parsed(self.parts[name])

    def file(self) -> IO[bytes]:
        """The package for a library that reads office files; it gives each part some times only."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
            for name, data in self.parts.items():
                archive.writestr(zipfile.ZipInfo(name), data)
        return _Metered(buffer.getvalue())


class _Metered(io.BytesIO):
    """A file that may name a part many times is still read some times only."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._budget = Budget("bytes read of the file's parts", _COPIES * len(data) + 1_000_000)

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self._budget.spend(len(data))
        return data
