"""Metrics over the state of the system, and over folders and archives of files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from computerrl.env_server.tasks.osworld.metrics.files import archive_members, load, read_text, xml_of
from computerrl.env_server.tasks.osworld.metrics.general import Rules, score
from computerrl.env_server.tasks.osworld.metrics.matching import BadRule
from computerrl.env_server.tasks.osworld.metrics.texts import decoded, lines_of
from computerrl.env_server.tasks.reading.texts import literal_of


def is_utc_0(result: str) -> float:
    """The output of ``timedatectl`` names a time zone without an offset."""
    zone = next((line for line in lines_of(result) if "Time zone" in line), "")
    return score("+0000" in zone)


def check_gnome_favorite_apps(result: str, rules: Rules) -> float:
    """The printed list of favourites has exactly the expected applications, in any order."""
    try:
        found = literal_of(result.strip().removeprefix("@as "))
    except ValueError:
        return 0.0
    return score(isinstance(found, list) and sorted(map(str, found)) == sorted(rules["expected"]))


def check_text_enlarged(result: str) -> float:
    """The text scaling factor is above 1."""
    found = re.search(r"\d{1,9}(\.\d{1,9})?", result)
    return score(found is not None and float(found.group()) > 1)


def check_moved_jpgs(result: Mapping[str, Any], rules: Rules) -> float:
    """A folder (as the getter ``list_directory`` gives it) holds exactly the expected names."""
    return score({child["name"] for child in result.get("children", [])} == set(rules["expected"]))


def is_shortcut_on_desktop(result: Mapping[str, str], rules: Rules) -> float:
    """One of the desktop's starters (file name -> content) has the wanted ``name``, ``url``, ``id`` or ``exec``."""
    kind = rules["type"]
    if kind not in ("name", "url", "id", "exec"):
        raise BadRule(f"is_shortcut_on_desktop by {kind!r}")
    wanted = str(rules[kind])
    return score(any(_is_shortcut(kind, wanted, lines_of(content)) for content in result.values()))


_OF_CHROMIUM = re.compile(
    r"Exec=/usr/lib/chromium/chromium --user-data-dir=\S+ (--profile-directory=\S+) (?:--ignore-\S+ )?(\S+)"
)
"""A starter of the desktop's browser, for an installed page or for an address."""


def _as_by_chrome(line: str) -> str:
    """A starter's line as Google Chrome wrote it when task files were made: for a page by its id alone, installed or not."""
    match = _OF_CHROMIUM.fullmatch(line)
    if match is None:
        return line
    profile, page = match.groups()
    app = page if page.startswith("--app-id=") else f"--app-id={_app_id(page)}"
    return f"Exec=/opt/google/chrome/google-chrome {profile} {app}"


def _app_id(address: str) -> str:
    """The browser's id of the page: half of a hash of its address's hash, digits as the letters a to p."""
    twice = hashlib.sha256(hashlib.sha256(address.encode()).digest()).hexdigest()
    return "".join(chr(ord("a") + int(digit, 16)) for digit in twice[:32])


def _is_shortcut(kind: str, wanted: str, lines: Sequence[str]) -> bool:
    if kind in ("name", "exec"):
        return f"{kind.capitalize()}={wanted}" in map(_as_by_chrome, lines)
    return any(wanted in line for line in lines if line.startswith(("URL=", "Exec=")))


def compare_archive(result: str, expected: str, *, file_path: str = "", file_type: str = "text", **options: Any) -> float:
    """Both archives have the same files, and these are alike by the metric of their type; the mean of all files.

    ``file_path`` looks into one folder of the archives; ``file_type``: text, pdf, docx, ppt, image, csv, table, audio, video.
    """
    found, wanted = archive_members(result), archive_members(expected)
    if file_path:
        prefix = file_path.strip("/") + "/"
        found, wanted = _below(found, prefix), _below(wanted, prefix)
    if not wanted or set(found) != set(wanted):
        return 0.0
    return sum(_alike(found[name], wanted[name], name, file_type, options) for name in wanted) / len(wanted)


_ARCHIVED = {
    "text": "compare_text_file",
    "pdf": "compare_pdfs",
    "docx": "compare_docx_files",
    "ppt": "compare_pptx_files",
    "image": "compare_images",
    "csv": "compare_csv",
    "table": "compare_table",
    "audio": "compare_audios",
    "video": "compare_videos",
}


def _below(members: Mapping[str, bytes], prefix: str) -> dict[str, bytes]:
    return {name[len(prefix) :]: data for name, data in members.items() if name.startswith(prefix)}


def _alike(found: bytes, wanted: bytes, name: str, file_type: str, options: Mapping[str, Any]) -> float:
    import tempfile

    from computerrl.env_server.tasks.osworld.metrics import metric
    from computerrl.env_server.tasks.osworld.metrics.files import BrokenFile

    if file_type not in _ARCHIVED:
        raise BadRule(f"compare_archive of {file_type!r}")
    if found == wanted:
        return 1.0
    with tempfile.TemporaryDirectory(prefix="osworld-") as folder:
        places = [Path(folder, side, Path(name).name) for side in ("result", "expected")]
        for place, data in zip(places, (found, wanted), strict=True):
            place.parent.mkdir()
            place.write_bytes(data)
        try:
            return metric(_ARCHIVED[file_type])(str(places[0]), str(places[1]), **options)
        except BrokenFile as error:
            if error.path == places[0]:
                return 0.0
            raise


def compare_zip_files(result: str, expected: str) -> float:
    """Two archives hold the same files: PDF files with the same text, all others with the same bytes."""
    found, wanted = archive_members(result), archive_members(expected)
    return score(set(found) == set(wanted) and all(_same_member(found[name], wanted[name], name) for name in wanted))


_SAME_PDF_TEXT = 0.95
"""Likeness of two texts from which on they are the same. An application writes a time and an identifier into every PDF file, so
that two exports of one document never have the same bytes."""


def _same_member(found: bytes, wanted: bytes, name: str) -> bool:
    if name.lower().endswith(".pdf"):
        return _alike(found, wanted, name, "pdf", {}) >= _SAME_PDF_TEXT
    return found == wanted


def compare_result_files(result: str | Sequence[str], expected: str | Sequence[str]) -> float:
    """Every file has the same bytes as its partner; for text files blanks at the ends do not count.

    Where the expected file is one number, the result has that number, with or without words around it.
    """
    found = [result] if isinstance(result, str) else list(result)
    wanted = [expected] if isinstance(expected, str) else list(expected)
    return score(len(found) == len(wanted) and all(map(_same_file, found, wanted)))


def _same_file(found: str, wanted: str) -> bool:
    if load(found, Path.read_bytes) == load(wanted, Path.read_bytes):
        return True
    text, answer = read_text(found).strip(), read_text(wanted).strip()
    if not _NUMBER.fullmatch(answer):
        return text == answer
    return any(abs(float(number) - float(answer)) < _SAME_NUMBER for number in _NUMBER.findall(text))


_NUMBER = re.compile(r"(?<![\w.])[-+]?\d++(?:\.\d++)?+(?:[eE][-+]?\d++)?+(?![\w.]*\w)")
_SAME_NUMBER = 1e-4


def compare_epub(result: str, expected: str) -> float:
    """Two books hold the same parts; their identifiers and dates do not count. The mean over the parts."""
    found, wanted = _book(result), _book(expected)
    if not wanted or set(found) != set(wanted):
        return 0.0
    return sum(found[name] == content for name, content in wanted.items()) / len(wanted)


_DC = "{http://purl.org/dc/elements/1.1/}"


def _is_always_new(node: Any) -> bool:
    """Is this the book's identifier or date, or a remark that holds one?"""
    if node.tag in (f"{_DC}identifier", f"{_DC}date"):
        return True
    is_remark = isinstance(node.tag, str) and node.tag.rpartition("}")[2] == "meta"
    return is_remark and any(word in value for value in node.attrib.values() for word in ("uid", "modified"))


def _book(path: str) -> dict[str, object]:
    """Part -> its content: markup by the words and tags it has, everything else by its bytes."""
    parts: dict[str, object] = {}
    for name, data in archive_members(path).items():
        parts[name] = data
        if name.endswith((".html", ".xhtml", ".htm", ".opf", ".ncx", ".xml")):
            text = decoded(data)
            try:
                parts[name] = _markup(xml_of(text.encode()))
            except ValueError:
                parts[name] = " ".join(text.split())
    return parts


def _markup(node: Any) -> str:
    return " ".join(" ".join(_pieces(node)).split())


def _pieces(node: Any) -> Iterator[str]:
    if not _is_always_new(node):
        yield f"<{node.tag}> {node.text or ''}"
        for child in node:
            yield from _pieces(child)
    yield node.tail or ""
