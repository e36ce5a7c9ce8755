"""The office's profile: no dialogs, no blinking, nothing in the background, typed text stays as typed."""

from __future__ import annotations

import re
from pathlib import Path

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
