"""Metrics over the contents of text documents (docx, odt)."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from computerrl.env_server.tasks.osworld.metrics.docx_content import (
    DocxFile,
    all_texts,
    outline,
    paragraphs,
    pictures,
    read_docx,
    tables,
    texts,
)
from computerrl.env_server.tasks.osworld.metrics.files import load, opening, read_lines
from computerrl.env_server.tasks.osworld.metrics.general import Rules, score
from computerrl.env_server.tasks.osworld.metrics.odt_content import odt_texts
from computerrl.env_server.tasks.osworld.metrics.similarity import decoded_image
from computerrl.env_server.tasks.reading import limits
from computerrl.env_server.tasks.reading.limits import Budget
from computerrl.env_server.tasks.reading.texts import likeness

T = TypeVar("T")


def open_document(path: str) -> Any:
    """A docx file, or `BrokenFile`."""
    return read_docx(path).document


def _read(path: str, read: Callable[[DocxFile], T]) -> T:
    """What ``read`` finds in a docx file."""
    file = read_docx(path)
    return load(path, lambda place: read(file))


def texts_of(path: str) -> list[str]:
    """Every text that a reader of a docx or odt file sees, paragraph by paragraph, or the lines of any other file."""
    if path.endswith(".docx"):
        return _read(path, all_texts)
    return odt_texts(path) if path.endswith(".odt") else read_lines(path)


def body_of(path: str) -> list[str]:
    """The same without what stands beside the text of a docx file: text boxes, notes, headers and footers."""
    return _read(path, lambda file: texts(file.body)) if path.endswith(".docx") else texts_of(path)


def compare_docx_files(
    result: str,
    expected: str,
    *,
    ignore_blanks: bool = True,
    ignore_case: bool = False,
    ignore_order: bool = False,
    content_only: bool = False,
    fuzzy_match: bool = False,
    delete_empty_lines: bool = False,
    reference_base_result: float | None = None,
) -> float:
    """Both documents have the same texts (see `texts_of`), by the options.

    ``content_only`` and ``fuzzy_match`` give how alike they are, 0 to 1; ``reference_base_result`` stretches what lies above it.
    """
    found, wanted = texts_of(result), texts_of(expected)
    if delete_empty_lines:
        found, wanted = [text for text in found if text.strip()], [text for text in wanted if text.strip()]
    if ignore_order:
        found, wanted = sorted(found), sorted(wanted)
    if ignore_case:
        found, wanted = [text.lower() for text in found], [text.lower() for text in wanted]
    if content_only or (fuzzy_match and ignore_blanks):
        return _above(likeness(_joined(found), _joined(wanted)), reference_base_result)
    if ignore_blanks:
        return score(_joined(found) == _joined(wanted))
    if len(found) != len(wanted):
        return 0.0
    if fuzzy_match:
        ratios = [likeness(one, other) for one, other in zip(found, wanted, strict=True)]
        return _above(float(sum(ratios) / len(ratios)) if ratios else 1.0, reference_base_result)
    return score(found == wanted)


def _joined(paragraphs: Sequence[str]) -> str:
    return re.sub(r"\s+", " ", "\n".join(paragraphs)).strip()


def _above(value: float, base: float | None) -> float:
    return value if base is None else max(0.0, (value - base) / (1 - base))


def compare_docx_files_and_ignore_new_lines(result: str, expected: str, *, ignore_blanks: bool = True, **_: Any) -> float:
    """The same texts without regard to empty paragraphs; with ``ignore_blanks`` the ends of paragraphs are blanks as well."""
    return compare_docx_files(result, expected, ignore_blanks=ignore_blanks, delete_empty_lines=True)


def compare_docx_lines(result: str, expected: str) -> float:
    """The same set of paragraphs, in any order."""
    return score({text.strip() for text in texts_of(result)} - {""} == {text.strip() for text in texts_of(expected)} - {""})


def compare_docx_tables(result: str, expected: str) -> float:
    """Both documents have the same tables with the same texts."""
    return score(_read(result, tables) == _read(expected, tables))


def compare_docx_images(result: str, expected: str) -> float:
    """Both documents show the same pictures in the same order, pixel by pixel."""

    def seen(path: str) -> list[str]:
        budget = Budget("pixels of all pictures", limits.MAX_ALL_PIXELS)
        known: dict[bytes, str] = {}
        found = []
        for data in _read(path, lambda file: list(pictures(file))):
            if data not in known:
                with opening(path):
                    image = decoded_image(io.BytesIO(data))
                    budget.spend(image.width * image.height)
                known[data] = f"{image.size} {hashlib.sha256(image.convert('RGB').tobytes()).hexdigest()}"
            found.append(known[data])
        return found

    return score(seen(result) == seen(expected))


def compare_line_spacing(result: str, expected: str) -> float:
    """The same text, and every paragraph with the same line spacing."""
    if not compare_docx_files(result, expected):
        return 0.0

    def spacings(path: str) -> list[Any]:
        return [paragraph.paragraph_format.line_spacing for paragraph in paragraphs(open_document(path))]

    return score(spacings(result) == spacings(expected))


_REFERENCES = {"references", "bibliography", "works cited", "reference"}


def compare_references(
    result: str, expected: str, *, content_only: bool = True, reference_base_result: float | None = 0.5
) -> float:
    """How alike the lists of references are, entry by entry; 0 when their numbers differ.

    ``reference_base_result``: likeness that pays nothing; what lies above it is stretched to 0..1.
    """
    found, wanted = _references(result), _references(expected)
    if len(found) != len(wanted) or not wanted:
        return 0.0
    if not content_only:
        return score(found == wanted)
    ratio = sum(likeness(one, other) for one, other in zip(found, wanted, strict=True)) / len(wanted)
    return _above(ratio, reference_base_result)


def _references(path: str) -> list[str]:
    texts = [text.strip() for text in body_of(path)]
    starts = [index for index, text in enumerate(texts) if text.lower().strip(" :.") in _REFERENCES]
    return [text for text in texts[starts[-1] + 1 :] if text] if starts else []


def compare_unique_train_records(result: str, expected: Sequence[str], **_: Any) -> float:
    """Of lines ``time,train,...`` one of each train is left: the trains of the expected file, every line from the initial file.

    ``expected``: the wanted file and the file before.
    """
    wanted_path, initial_path = expected
    found, wanted, initial = (
        [text.strip() for text in body_of(path) if text.strip()] for path in (result, wanted_path, initial_path)
    )

    def trains(lines: Sequence[str]) -> list[str]:
        return [line.split(",")[1].strip() if line.count(",") else line for line in lines]

    if len(set(trains(found))) != len(found):
        return 0.0
    return score(set(trains(found)) == set(trains(wanted)) and set(found) <= set(initial))


def fuzzy_place_math(result: str, rules: Rules) -> float:
    """Three answers, word by word against the expected ones: the mean of each word's best likeness. Other numbers of words: 0."""
    words = [word for text in body_of(result) for word in text.split()]
    if len(words) != 3:
        return 0.0
    return float(sum(max(likeness(word, answer) for answer in rules["expected"]) for word in words) / 3)


def simple_docx_compare(result: str, expected: str) -> float:
    """Both documents have the same content in the same order: texts, tables, pictures, text boxes, page breaks, notes, comments,
    headers and footers. How it looks does not count."""
    return score(_read(result, outline) == _read(expected, outline))
