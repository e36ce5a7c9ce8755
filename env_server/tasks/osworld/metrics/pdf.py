"""Metrics over PDF files."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from env_server.tasks.osworld.metrics.files import load, read_text
from env_server.tasks.osworld.metrics.general import Rules, score
from env_server.tasks.osworld.metrics.matching import compare
from env_server.tasks.osworld.metrics.similarity import average_hash, rgb, ssim

_LOCK = threading.Lock()
"""PDFium is not made for several threads; desktops are judged on several."""
_MAX_PAGES = 500


def _pages(path: str, read: Any) -> list[Any]:
    import pypdfium2

    def parse(place: Any) -> list[Any]:
        with _LOCK:
            document = pypdfium2.PdfDocument(place)
            try:
                if len(document) > _MAX_PAGES:
                    raise ValueError(f"{len(document)} pages are too many")
                return [read(document[index]) for index in range(len(document))]
            finally:
                document.close()

    return load(path, parse)


def pdf_text(path: str) -> str:
    """All text, page after page."""
    return "\n".join(_pages(path, lambda page: page.get_textpage().get_text_bounded())).strip()


def compare_pdfs(result: str | Sequence[str], expected: str | Sequence[str]) -> float:
    """How alike the texts of PDF files are, 0 to 1; the mean over pairs of files."""
    from rapidfuzz import fuzz

    found = [result] if isinstance(result, str) else list(result)
    wanted = [expected] if isinstance(expected, str) else list(expected)
    if len(found) != len(wanted):
        return 0.0
    ratios = [fuzz.ratio(pdf_text(one), pdf_text(other)) / 100 for one, other in zip(found, wanted, strict=True)]
    return float(sum(ratios) / len(ratios)) if ratios else 0.0


def check_pdf_pages(result: str, rules: Rules) -> float:
    """The number of pages compares to ``ref_value`` as ``relation`` says."""
    return score(compare(rules["relation"], len(_pages(result, lambda page: None)), rules["ref_value"]))


def is_gold_text_included_in_pdf(result: str, expected: str) -> float:
    """The PDF has every value of a JSON file of expected texts."""
    from env_server.tasks.osworld.metrics.files import read_json

    text = pdf_text(result)
    wanted = read_json(expected) if expected.endswith(".json") else [read_text(expected)]
    values = wanted.values() if isinstance(wanted, dict) else wanted
    return score(all(str(value) in text for value in values))


def compare_pdf_images(result: str, expected: str) -> float:
    """Both files show the same pictures page by page; the share of pages that do."""

    def render(page: Any) -> Any:
        return page.render(scale=1.0).to_pil().convert("RGB")

    found, wanted = _pages(result, render), _pages(expected, render)
    if len(found) != len(wanted) or not wanted:
        return 0.0
    return sum(_same_page(one, other) for one, other in zip(found, wanted, strict=True)) / len(wanted)


def _same_page(found: Any, wanted: Any) -> bool:
    if found.size == wanted.size and ssim(rgb(found), rgb(wanted)) >= 0.95:
        return True
    differing = sum(a != b for a, b in zip(average_hash(found), average_hash(wanted), strict=True))
    return found.size != wanted.size and differing <= 8
