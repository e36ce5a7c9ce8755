"""Limits of what a judge reads, and the one error for passing them.

Each limit lies far above an honest file of an office task. Together they keep
one judgement below the limits of its process (`env_server.judging.judge.Limits`).
"""

from __future__ import annotations

from typing import IO

MAX_UNPACKED_BYTES = 64_000_000
"""Bytes that one archive or office file may unpack to, counted while unpacking."""
MAX_MEMBERS = 10_000
"""Files in one archive."""
MAX_XML_BYTES = 40_000_000
"""XML of one office file, all parts together. A part of XML without pictures of a long book has a few megabytes."""
MAX_TAGS = 700_000
"""Tags of one office file, all parts together, start and end tags counted apart. A node takes 100 to 500 bytes when parsed."""
MAX_PARAGRAPHS = 50_000
"""Paragraphs of a text document or a presentation; judges look up the style of each."""
MAX_ATTRIBUTES = 2_000_000
MAX_CELLS = 100_000
"""Stored rows and cells of one workbook. One takes 700 bytes and 15 microseconds; a judgement opens up to four workbooks."""
MAX_CELL_TEXT = 20_000_000
"""Characters in all cells of one workbook; a shared text counts once for each cell that shows it."""
MAX_FORMULA = 8192
"""Characters of a formula that several cells share: the format's own limit."""
MAX_NUMBER_FORMAT = 1000
"""Characters of a number format; the format allows 255."""
MAX_TITLE = 255
"""Characters of a sheet's name; the format allows 31."""
MAX_SHEETS = 1000
MAX_SLIDES = 1000
MAX_PLACEHOLDERS = 100
"""Placeholders of one slide, layout or master."""
MAX_RANGES = 1000
"""Areas of one data validation that are compared with a rule."""
MAX_RANGE_WORK = 5_000_000
"""Cells looked at for the merged areas, conditional formats and column widths of one sheet; areas may overlap."""
MAX_TEXT_BYTES = 20_000_000
"""A text file."""
MAX_DOCUMENT_TEXT = 20_000_000
"""Characters of a document's text; a note counts once for each mark that refers to it."""
MAX_NESTED_TABLES = 20
"""Tables within tables, whose texts count at every level."""
MAX_BLANKS = 1000
"""Blanks that one mark of an odt file stands for."""
MAX_STYLE_CHAIN = 50
"""Styles that are based on one another."""
MAX_OPEN_FIELDS = 100
"""Fields within fields of a text document."""
MAX_TABLE_CELLS = 1_000_000
"""Cells of a CSV file."""
MAX_JSON_VALUES = 1_000_000
MAX_JSON_BYTES = 10_000_000
MAX_LITERAL_BYTES = 100_000
"""A Python literal that a program printed; its tree takes some hundred bytes a character."""
MAX_YAML_BYTES = 200_000
"""The parser of YAML takes 20 microseconds a byte."""
MAX_SEARCHED = 100_000
"""Characters that a task's pattern is tried on at once; what it costs beyond its letters, the judgement's process bounds."""
MAX_COMPARED = 60_000_000_000
"""Product of the lengths of two texts whose likeness is measured; the measure looks at 64 pairs in one step."""
MAX_COMPARED_LINES = 5_000_000
"""Pairs of equal lines looked at by a comparison line by line."""
MAX_PIXELS = 16_000_000
"""Pixels of a picture: 4000 x 4000."""
MAX_ALL_PIXELS = 100_000_000
"""Pixels of all pictures or pages of one document."""
MAX_SQL_STEPS = 20_000_000
"""Instructions of SQLite's virtual machine for one query, about a second."""
MAX_SQL_ROWS = 100_000
MAX_SQL_VALUE = 1_000_000
"""Bytes of one value or row of a database."""
MAX_SQL_BYTES = 50_000_000
"""Bytes of all rows that a query gives."""
MAX_SQL_HEAP = 200_000_000
"""Memory of SQLite in bytes, sorting included."""


class LimitPassed(ValueError):
    """A file or an answer passes a limit.

    The agent's score is 0 with this reason; where the file is the task's own, the task is at fault.
    """


def within(what: str, value: int, most: int) -> int:
    """``value``. Raises `LimitPassed` when it is more than ``most``."""
    if value > most:
        raise LimitPassed(f"{what}: {value}, at most {most} are read")
    return value


class Budget:
    """A count that only grows; the end of it is `LimitPassed`."""

    def __init__(self, what: str, most: int) -> None:
        self._what, self._most, self.spent = what, most, 0

    def spend(self, amount: int = 1) -> None:
        """Count ``amount`` more."""
        self.spent += amount
        within(self._what, self.spent, self._most)


class Counted:
    """A stream for reading that counts every byte that it gives."""

    def __init__(self, stream: IO[bytes], budget: Budget) -> None:
        self._stream, self._budget = stream, budget

    def read(self, size: int = -1) -> bytes:
        """At most ``size`` bytes."""
        data = self._stream.read(size)
        self._budget.spend(len(data))
        return data
