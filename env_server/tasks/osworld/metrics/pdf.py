"""Metrics over PDF files."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from computerrl.env_server.tasks.osworld.metrics.files import load, opening, read_text
from computerrl.env_server.tasks.osworld.metrics.general import Rules, score
from computerrl.env_server.tasks.osworld.metrics.matching import compare
from computerrl.env_server.tasks.osworld.metrics.similarity import average_hash, rgb, ssim
from computerrl.env_server.tasks.reading import limits
from computerrl.env_server.tasks.reading.limits import Budget, LimitPassed, within
from computerrl.env_server.tasks.reading.texts import likeness

_LOCK = threading.RLock()
"""PDFium is not made for several threads; desktops are judged on several."""
_MAX_PAGES = 500


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    """A PDF file of bounded length."""
    import pypdfium2

    def parse(place: Path) -> Any:
        document = pypdfium2.PdfDocument(place)
        try:
            within("pages", len(document), _MAX_PAGES)
        except LimitPassed:
            document.close()
            raise
        return document

    with _LOCK, closing(load(path, parse)) as document:
        yield document


def _pages(path: str, document: Any) -> Iterator[Any]:
    for index in range(len(document)):
        with opening(path):
            page = document[index]
        yield page


def pdf_text(path: str) -> str:
    """All text, page after page."""
    size = Budget("characters of text", limits.MAX_DOCUMENT_TEXT)
    texts = []
    with _opened(path) as document:
        for page in _pages(path, document):
            with opening(path):
                texts.append(page.get_textpage().get_text_bounded())
                size.spend(len(texts[-1]))
    return "\n".join(texts).strip()


def compare_pdfs(result: str | Sequence[str], expected: str | Sequence[str]) -> float:
    """How alike the texts of PDF files are, 0 to 1; the mean over pairs of files."""
    found = [result] if isinstance(result, str) else list(result)
    wanted = [expected] if isinstance(expected, str) else list(expected)
    if len(found) != len(wanted):
        return 0.0
    ratios = [likeness(pdf_text(one), pdf_text(other)) for one, other in zip(found, wanted, strict=True)]
    return float(sum(ratios) / len(ratios)) if ratios else 0.0


def check_pdf_pages(result: str, rules: Rules) -> float:
    """The number of pages compares to ``ref_value`` as ``relation`` says."""
    with _opened(result) as document:
        num_pages = sum(1 for _ in _pages(result, document))
    return score(compare(rules["relation"], num_pages, rules["ref_value"]))


def is_gold_text_included_in_pdf(result: str, expected: str) -> float:
    """The PDF has every value of a JSON file of expected texts."""
    from computerrl.env_server.tasks.osworld.metrics.files import read_json

    text = pdf_text(result)
    wanted = read_json(expected) if expected.endswith(".json") else [read_text(expected)]
    values = wanted.values() if isinstance(wanted, dict) else wanted
    return score(all(str(value) in text for value in values))


def compare_pdf_images(result: str, expected: str) -> float:
    """Both files show the same pictures page by page; the share of pages that do."""

    with _opened(result) as found, _opened(expected) as wanted:
        if len(found) != len(wanted) or not len(wanted):
            return 0.0
        pairs = zip(_rendered(result, found), _rendered(expected, wanted), strict=True)
        return sum(_same_page(one, other) for one, other in pairs) / len(wanted)


def _rendered(path: str, document: Any) -> Iterator[Any]:
    """Pictures of the pages, one at a time."""
    size = Budget("pixels of all pages", limits.MAX_ALL_PIXELS)
    for page in _pages(path, document):
        with opening(path):
            width, height = page.get_size()
            size.spend(within("pixels of a page", int(width * height), limits.MAX_PIXELS))
            picture = page.render(scale=1.0).to_pil().convert("RGB")
        yield picture


def _same_page(found: Any, wanted: Any) -> bool:
    if found.size == wanted.size and ssim(rgb(found), rgb(wanted)) >= 0.95:
        return True
    differing = sum(a != b for a, b in zip(average_hash(found), average_hash(wanted), strict=True))
    return found.size != wanted.size and differing <= 8
