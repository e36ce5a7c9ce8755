"""The office's profile: the settings that it begins with, and which of its files and options have changed since.

It begins without dialogs, without blinking, with nothing in the background, and typed text stays as typed. The office keeps its
options in memory and in one file. It adds to that file its memory of windows, which is no option and which `document_windows`
and `sheet_window` put right.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from ..files.folder import below, read_regular

PROGRAM = Path("/usr/lib/libreoffice/program")

_SETTINGS = (
    ("Office.Common/Misc", "FirstRun", "false"),
    ("Office.Common/Misc", "ShowTipOfTheDay", "false"),
    ("Office.Common/Misc", "CrashReport", "false"),
    ("Office.Common/Misc", "UseLocking", "false"),
    ("Office.Common/Misc", "UseDocumentOOoLockFile", "false"),
    ("Office.Common/Misc", "UseDocumentSystemFileLocking", "false"),
    ("Office.Common/Misc", "Persona", "no"),
    ("Office.Common/Misc", "PersonaSettings", ""),
    ("Setup/Product", "ooSetupLastVersion", "99.0"),
    ("Setup/Product", "WhatsNew", "false"),
    ("Setup/Office", "ooSetupInstCompleted", "true"),
    ("Setup/Office", "OfficeRestartInProgress", "false"),
    ("Office.Calc/Input", "AutoInput", "false"),
    ("Office.Common/Save/Document", "WarnAlienFormat", "false"),
    ("Office.Recovery/AutoSave", "Enabled", "false"),
    ("Office.Recovery/RecoveryInfo", "Enabled", "false"),
    ("Office.Common/AutoCorrect", "TwoCapitalsAtStart", "false"),
    ("Office.Common/AutoCorrect", "CapitalAtStartSentence", "false"),
    ("Office.Common/AutoCorrect", "UseReplacementTable", "false"),
    ("Office.Common/AutoCorrect", "ReplaceDoubleQuote", "false"),
    ("Office.Common/AutoCorrect", "ReplaceSingleQuote", "false"),
    ("Office.Common/AutoCorrect", "ChangeDash", "false"),
    ("Office.Common/AutoCorrect", "SetInetAttribute", "false"),
    ("Office.Common/AutoCorrect", "CorrectAccidentalCapsLock", "false"),
    ("Office.Common/Security/Scripting", "DisableMacrosExecution", "true"),
)
_NAMES = "{http://openoffice.org/2001/registry}"
_NO_OPTIONS = (
    "/org.openoffice.Office.UI.",
    "/org.openoffice.Office.Views/",
    "/org.openoffice.Setup/",
    "/org.openoffice.Office.Linguistic/ServiceManager/",
    "/org.openoffice.VCL/",
)
"""Its memory of windows, and of the dictionaries and accessibility that it has found."""
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
"""Its memory of dialogs and documents: the office looks these up each time, so they can be taken away while it runs."""
_MEMBER = re.compile(r"\['((?:[^'\\]|\\.)*)'\]")


def settings_file() -> str:
    """registrymodifications.xcu of a fresh profile: no dialogs, no blinking, typed text stays as typed."""
    items = "".join(
        f'<item oor:path="/org.openoffice.{path}"><prop oor:name="{name}" oor:op="fuse"><value>{value}</value></prop></item>\n'
        for path, name, value in _SETTINGS
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<oor:items xmlns:oor="http://openoffice.org/2001/registry" '
        'xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">\n'
        f"{items}</oor:items>\n"
    )


def mark_extensions_current(user: Path) -> None:
    """Spare a fresh profile the restart that the office makes after looking through its (no) extensions."""
    match = re.search(r"^buildid=(.+)$", (PROGRAM / "versionrc").read_text(encoding="utf-8"), flags=re.MULTILINE)
    if match:
        (user / "extensions").mkdir(exist_ok=True)
        (user / "extensions" / "buildid").write_text(match[1], encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Registry:
    """Traces of the last task in a registry's file."""

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
