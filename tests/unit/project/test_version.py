"""The version: from git's tags, else as recorded; and the same wherever it is written by hand."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from computerrl import SOURCE_ROOT
from computerrl.launch.commands.main import cli
from computerrl.launch.setup import bundle
from computerrl.version import NEXT, RECORD_FILE, find_version, version_of


@pytest.mark.parametrize(
    ("described", "version"),
    [
        ("", f"{NEXT}.dev7+gabc1234"),
        ("v0.0.3-0-gabc1234", "0.0.3"),
        ("v0.0.3-2-gabc1234", f"{NEXT}.dev2+gabc1234"),
        ("v99.1.2-2-gabc1234", "99.1.3.dev2+gabc1234"),
        ("v1-2-gabc1234", f"{NEXT}.dev7+gabc1234"),
    ],
)
def test_version_is_the_tag_or_one_before_the_next_release(described: str, version: str) -> None:
    assert version_of(described, "abc1234", 7) == version


def _git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


def test_version_of_a_clone_follows_its_commits_and_tags(tmp_path: Path) -> None:
    _git(tmp_path, "init")
    (tmp_path / RECORD_FILE).write_text("Metadata-Version: 2.1\nName: computerrl\nVersion: 7.7.7\n")
    _git(tmp_path, "commit", "--allow-empty", "-m", "one")
    assert re.fullmatch(rf"{re.escape(NEXT)}\.dev1\+g[0-9a-f]+", find_version(tmp_path))
    _git(tmp_path, "tag", "v88.0.0")
    assert find_version(tmp_path) == "88.0.0"
    _git(tmp_path, "commit", "--allow-empty", "-m", "two")
    assert re.fullmatch(r"88\.0\.1\.dev1\+g[0-9a-f]+", find_version(tmp_path))


def test_version_without_git_is_the_recorded_one(tmp_path: Path) -> None:
    assert find_version(tmp_path) == find_version(tmp_path / "nowhere")  # that of the installed package
    (tmp_path / RECORD_FILE).write_text("Metadata-Version: 2.1\nName: computerrl\nVersion: 7.7.7\nSummary: Version: 1\n")
    assert find_version(tmp_path) == "7.7.7"


def test_source_of_a_bundle_records_its_version_and_is_built_with_it(tmp_path: Path) -> None:
    bundle.pack_source(tmp_path)
    with tarfile.open(tmp_path / bundle.SOURCE_FILE) as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / "computerrl"
    assert not (folder / ".git").exists() and find_version(folder) == find_version(SOURCE_ROOT)
    code = "from setuptools.config.setupcfg import read_configuration as r; print(r('setup.cfg')['metadata']['version'])"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == find_version(SOURCE_ROOT)


def test_command_prints_the_version() -> None:
    done = CliRunner().invoke(cli, ["--version"])
    assert done.output == f"computerrl {find_version(SOURCE_ROOT)}\n"


def test_versions_written_by_hand_are_the_next_release_or_the_newest() -> None:
    cited = re.search(r"^version: (\S+)$", (SOURCE_ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    logged = re.search(
        r"^## (?:Unreleased: )?\[?(\d+\.\d+\.\d+)", (SOURCE_ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )
    assert cited and logged and cited[1] == logged[1] == NEXT
