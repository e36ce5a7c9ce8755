"""Metrics over the contents of text documents (docx, odt)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from env_server.tasks.osworld.metrics.files import load, opening, read_lines
from env_server.tasks.osworld.metrics.general import Rules, score


def open_document(path: str) -> Any:
    """A docx file, or `BrokenFile`."""
    import docx

    return load(path, lambda place: docx.Document(str(place)))


def paragraphs_of(path: str) -> list[str]:
    """The paragraphs of a docx or odt file, or the lines of any other text."""
    if path.endswith(".docx"):
        return [paragraph.text for paragraph in open_document(path).paragraphs]
    if path.endswith(".odt"):
        return load(path, _odt_paragraphs)
    return read_lines(path)


def _odt_paragraphs(place: Path) -> list[str]:
    from odf import teletype
    from odf.opendocument import load as load_odf
    from odf.text import H, P

    body = load_odf(str(place)).text
    wanted = {P(stylename="x").qname, H(outlinelevel=1).qname}
    return [teletype.extractText(node) for node in _walk(body) if getattr(node, "qname", None) in wanted]


def _walk(node: Any) -> list[Any]:
    found = []
    for child in node.childNodes:
        found += [child, *_walk(child)]
    return found


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
    """Both documents have the same paragraphs, by the options.

    ``content_only`` and ``fuzzy_match`` give how alike they are, 0 to 1; ``reference_base_result`` stretches what lies above it.
    """
    from rapidfuzz import fuzz

    found, wanted = paragraphs_of(result), paragraphs_of(expected)
    if delete_empty_lines:
        found, wanted = [text for text in found if text.strip()], [text for text in wanted if text.strip()]
    if ignore_order:
        found, wanted = sorted(found), sorted(wanted)
    if ignore_case:
        found, wanted = [text.lower() for text in found], [text.lower() for text in wanted]
    if content_only or (fuzzy_match and ignore_blanks):
        ratio = fuzz.ratio(_joined(found), _joined(wanted)) / 100
        return _above(float(ratio), reference_base_result)
    if ignore_blanks:
        return score(_joined(found) == _joined(wanted))
    if len(found) != len(wanted):
        return 0.0
    if fuzzy_match:
        ratios = [fuzz.ratio(one, other) / 100 for one, other in zip(found, wanted, strict=True)]
        return _above(float(sum(ratios) / len(ratios)) if ratios else 1.0, reference_base_result)
    return score(found == wanted)


def _joined(paragraphs: Sequence[str]) -> str:
    return re.sub(r"\s+", " ", "\n".join(paragraphs)).strip()


def _above(value: float, base: float | None) -> float:
    return value if base is None else max(0.0, (value - base) / (1 - base))


def compare_docx_files_and_ignore_new_lines(result: str, expected: str, **_: Any) -> float:
    """The same paragraphs without regard to empty ones."""
    found = [text for text in paragraphs_of(result) if text.strip()]
    return score(found == [text for text in paragraphs_of(expected) if text.strip()])


def compare_docx_lines(result: str, expected: str) -> float:
    """The same set of paragraphs, in any order."""
    return score({text.strip() for text in paragraphs_of(result)} == {text.strip() for text in paragraphs_of(expected)})


def compare_docx_tables(result: str, expected: str) -> float:
    """Both documents have the same tables with the same texts."""
    return score(_tables(result) == _tables(expected))


def _tables(path: str) -> list[list[list[str]]]:
    return [[[cell.text.strip() for cell in row.cells] for row in table.rows] for table in open_document(path).tables]


def compare_docx_images(result: str, expected: str) -> float:
    """Both documents show the same pictures in the same order, pixel by pixel."""
    import io

    from PIL import Image

    def pictures(path: str) -> list[tuple[tuple[int, int], bytes]]:
        document = open_document(path)
        found = []
        for node in document.element.body.iter("{http://schemas.openxmlformats.org/drawingml/2006/main}blip"):
            part = document.part.related_parts.get(node.get(f"{_R}embed"))
            if part is not None:
                with opening(path):
                    image = Image.open(io.BytesIO(part.blob)).convert("RGB")
                found.append((image.size, image.tobytes()))
        return found

    return score(pictures(result) == pictures(expected))


_R = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"


def compare_line_spacing(result: str, expected: str) -> float:
    """The same text, and every paragraph with the same line spacing."""
    if not compare_docx_files(result, expected):
        return 0.0

    def spacings(path: str) -> list[Any]:
        return [paragraph.paragraph_format.line_spacing for paragraph in open_document(path).paragraphs]

    return score(spacings(result) == spacings(expected))


_REFERENCES = {"references", "bibliography", "works cited", "reference"}


def compare_references(
    result: str, expected: str, *, content_only: bool = True, reference_base_result: float | None = None
) -> float:
    """How alike the lists of references are, entry by entry; 0 when their numbers differ."""
    from rapidfuzz import fuzz

    found, wanted = _references(result), _references(expected)
    if len(found) != len(wanted) or not wanted:
        return 0.0
    if not content_only:
        return score(found == wanted)
    ratio = sum(fuzz.ratio(one, other) for one, other in zip(found, wanted, strict=True)) / len(wanted) / 100
    return _above(float(ratio), reference_base_result)


def _references(path: str) -> list[str]:
    texts = [text.strip() for text in paragraphs_of(path)]
    starts = [index for index, text in enumerate(texts) if text.lower().strip(" :.") in _REFERENCES]
    return [text for text in texts[starts[-1] + 1 :] if text] if starts else []


def compare_unique_train_records(result: str, expected: Sequence[str], **_: Any) -> float:
    """Of lines ``time,train,...`` one of each train is left: the trains of the expected file, every line from the initial file.

    ``expected``: the wanted file and the file before.
    """
    wanted_path, initial_path = expected
    found = [text for text in paragraphs_of(result) if text.strip()]
    wanted = [text for text in paragraphs_of(wanted_path) if text.strip()]
    initial = {text for text in paragraphs_of(initial_path) if text.strip()}

    def trains(lines: Sequence[str]) -> list[str]:
        return [line.split(",")[1].strip() if line.count(",") else line for line in lines]

    if len(set(trains(found))) != len(found):
        return 0.0
    return score(set(trains(found)) == set(trains(wanted)) and set(found) <= initial)


def fuzzy_place_math(result: str, rules: Rules) -> float:
    """Three answers, word by word against the expected ones: the mean of each word's best likeness. Other numbers of words: 0."""
    from rapidfuzz import fuzz

    words = [word for text in paragraphs_of(result) for word in text.split()]
    if len(words) != 3:
        return 0.0
    return float(sum(max(fuzz.ratio(word, answer) for answer in rules["expected"]) for word in words) / 3 / 100)


def simple_docx_compare(result: str, expected: str) -> float:
    """Both documents have the same paragraphs (with the same styles' names) and the same tables."""

    def outline(path: str) -> Any:
        texts = [(paragraph.style.name if paragraph.style is not None else "", paragraph.text.strip())
                 for paragraph in open_document(path).paragraphs if paragraph.text.strip()]  # fmt: skip
        return texts, _tables(path)

    return score(outline(result) == outline(expected))
