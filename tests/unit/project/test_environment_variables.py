"""The page of commands has every environment variable of ours that a person may set."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDERS = ("actor", "broker", "common", "env_server", "launch", "learner")
SET_BY_US = {
    "COMPUTERRL_CLOCK",
    "COMPUTERRL_DESCRIPTOR_STORE",
    "COMPUTERRL_DESKTOP_KEY",
    "COMPUTERRL_DESKTOP_URL",
    "COMPUTERRL_ERROR_FILE",
    "COMPUTERRL_KEPT_DESCRIPTORS",
    "COMPUTERRL_PROCESS_TOKEN",
    "COMPUTERRL_RUN_TOKEN",
    "COMPUTERRL_SUPERVISOR_PID",
}
"""Variables that a process of ours sets for those that it starts."""


def test_environment_variables_that_are_read_are_in_the_table() -> None:
    read = {
        name
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r"[\"'](COMPUTERRL_[A-Z_]+)[\"']", path.read_text(encoding="utf-8"))
    }
    rows = (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8").splitlines()
    named = {name for row in rows if row.startswith("|") for name in re.findall(r"`([A-Z_]+)`", row.split("|")[1])}
    assert read - SET_BY_US == {name for name in named if name.startswith("COMPUTERRL_")}
    assert read >= SET_BY_US
