"""Text files as characters, lines and table rows, whatever encoding and line ends an application wrote."""

from __future__ import annotations

import codecs
import csv
import io

from computerrl.env_server.tasks.reading.limits import MAX_TEXT_BYTES

_MARKS = (
    # UTF-32 comes first: its little-endian mark begins with that of UTF-16.
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def decoded(data: bytes) -> str:
    r"""The text of a file, its line ends as ``\n``.

    A byte order mark names the encoding. Text without one is UTF-16 if every second byte of it is mostly zero, UTF-8 if it is
    valid, and Windows-1252 otherwise. No byte is replaced by a mark, so that different files stay different.
    Raises `UnicodeDecodeError` for a file that breaks the encoding that its mark names.
    """
    return _characters(data).replace("\r\n", "\n").replace("\r", "\n")


def _characters(data: bytes) -> str:
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return data.decode(encoding)
    wide = _wide_without_mark(data)
    for encoding in (wide, "utf-8", "cp1252") if wide else ("utf-8", "cp1252"):
        try:
            return data.decode(encoding)
        except UnicodeDecodeError:
            continue
    # Five bytes have no letter in Windows-1252; Latin-1 has one for each byte.
    return data.decode("latin-1")


def _wide_without_mark(data: bytes) -> str:
    """``utf-16-le`` or ``utf-16-be`` for text of two bytes a letter without a mark, else nothing."""
    start = data[:2000]
    if len(data) < 2 or len(data) % 2:
        return ""
    zeros_first, zeros_second = start[::2].count(0), start[1::2].count(0)
    if max(zeros_first, zeros_second) < 0.4 * len(start) / 2 or min(zeros_first, zeros_second) > 0:
        return ""
    return "utf-16-le" if zeros_second else "utf-16-be"


def lines_of(text: str) -> list[str]:
    r"""Lines that end with ``\n``. Form feeds and Unicode's separators are letters of a line, unlike in `str.splitlines`."""
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def table_rows(text: str) -> list[list[str]]:
    """Rows of comma-separated values; a quoted cell may hold line breaks. Raises `csv.Error`."""
    csv.field_size_limit(max(csv.field_size_limit(), MAX_TEXT_BYTES))  # the text as a whole is bounded where it is read
    return list(csv.reader(io.StringIO(text, newline="")))
