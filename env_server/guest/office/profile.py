"""The office's profile: which of its files and options are no longer those that it began with.

The office keeps its options in memory and in one file. It adds to that file what it remembers of windows, which is no option
and which `document_windows` and `sheet_window` put right.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from ..files.folder import below, read_regular

_NAMES = "{http://openoffice.org/2001/registry}"
_NO_OPTIONS = (
    "/org.openoffice.Office.UI.",
    "/org.openoffice.Office.Views/",
    "/org.openoffice.Setup/",
    "/org.openoffice.Office.Linguistic/ServiceManager/",
    "/org.openoffice.VCL/",
)
"""What it remembers of windows, and which dictionaries and accessibility it has found."""
_COMMON = "/org.openoffice.Office.Common"
_DEFAULTS: Mapping[str, Mapping[str, str]] = {
    f"{_COMMON}/SearchOptions": {"": "false"},
    f"{_COMMON}/SearchOptions/Japanese": {"": "true"},
    f"{_COMMON}/UserColors": {"RecentColor": "-1", "RecentColorName": "Automatic"},
    f"{_COMMON}/Print/Dialog": {"LayoutSectionExpanded": "false", "RangeSectionExpanded": "true"},
}
"""Defaults that the office writes when it opens a dialog; the empty name stands for all others."""
_MADE_BY_USE = frozenset({"user/autocorr", "user/wordbook"})
"""Folders that come, empty, with the first word that is typed or checked."""
_WORDS, _NO_WORDS = "user/wordbook/standard.dic", b"---\n"
"""Words that an agent has added to the dictionary, and how the file ends without any."""
_TEMPORARY = "tmp"
REGISTRY = "user/registrymodifications.xcu"
_SETS = tuple(
    f"/org.openoffice.Office.{node}"
    for node in (
        "Views/Dialogs",
        "Views/TabDialogs",
        "Views/TabPages",
        "Common/Misc/FilePickerLastDirectory",
        "Histories/Histories/org.openoffice.Office.Histories:HistoryInfo['PickList']/ItemList",
        "Histories/Histories/org.openoffice.Office.Histories:HistoryInfo['PickList']/OrderList",
    )
)
"""What the office remembers of dialogs and documents: it looks these up each time, so they can be taken away while it runs."""
_MEMBER = re.compile(r"\['((?:[^'\\]|\\.)*)'\]")


@dataclass(frozen=True, slots=True)
class Registry:
    """What a registry's file says of the last task."""

    options: Mapping[str, str]
    """Path and name -> value."""
    remembered: Sequence[tuple[str, str]]
    """Nodes and the names of their members that are there for no other reason than that a dialog or a file was opened."""


def read_registry(registry: bytes) -> Registry:
    """Of the registry's file; empty for what is no such file."""
    try:
        items = ElementTree.fromstring(registry)
    except ElementTree.ParseError:
        return Registry({}, ())
    found, remembered = {}, set()
    for item in items:
        path = item.get(f"{_NAMES}path", "")
        node = next((node for node in _SETS if path == node or path.startswith(f"{node}/")), None)
        if node is None and path.startswith(_NO_OPTIONS):
            continue
        for one in item:
            name = one.get(f"{_NAMES}name", one.tag)
            if node is not None:
                member = _MEMBER.search(path, len(node))
                if one.get(f"{_NAMES}op") != "remove":  # such an entry stays for good
                    remembered.add((node, member[1] if member else name))
                continue
            texts = [part.text or "" for part in one.iter() if part.tag in ("value", "it")]
            defaults = _DEFAULTS.get(path, {})
            if defaults.get(name, defaults.get("")) != "".join(texts):
                found[f"{path} {name}"] = "\n".join(texts)
    return Registry(found, sorted(remembered))


def changes(first: Mapping[str, str], now: Mapping[str, str], *, restored: Mapping[str, str] | None = None) -> list[str]:
    """Names of options that were changed, added or taken away; ``restored``: those that were put back, with their values."""
    wanted = {**(restored or {}), **first}
    return sorted(name for name in first.keys() | now.keys() if wanted.get(name) != now.get(name))


def files(profile: Path) -> frozenset[str]:
    """Names of all files and folders of the profile, but for temporary ones and those that any use makes."""
    found = {os.path.relpath(entry.path, profile) for entry in below(profile, leave_out=[profile / _TEMPORARY])}
    if (read_regular(profile / _WORDS) or b"").endswith(_NO_WORDS):
        found.remove(_WORDS)
    return frozenset(found - _MADE_BY_USE)
