"""The documentation site: it builds without a warning, needs no other host, and has what is made from the sources."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from computerrl.common.actions import ACTIONS
from computerrl.common.errors import ComputerRLError, error_classes
from computerrl.launch.commands.main import cli

ROOT = Path(__file__).resolve().parents[3]
LOADED = re.compile(r"""<(?:script|img|iframe|source)\b[^>]*\bsrc="([^"]+)"|<link\b[^>]*\bhref="([^"]+)"|url\(["']?([^"')]+)""")
"""What a browser loads by itself when it shows a page or a style sheet."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it: a link or an anchor that leads nowhere, or a page without a way in, is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs/site"]
    command += ["-d", str(folder / "read"), "docs", str(folder / "pages")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "pages"


def test_site_loads_nothing_from_another_host(site: Path) -> None:
    files = [path for kind in ("*.html", "*.css") for path in site.rglob(kind)]
    loaded = {target for path in files for found in LOADED.findall(path.read_text("utf-8")) for target in found if target}
    assert len(files) > 30 and len(loaded) > 10
    assert not [target for target in loaded if target.startswith(("http:", "https:", "//"))]


def commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if not command.hidden:
            yield f"{path} {name}", command
            if isinstance(command, click.Group):
                yield from commands(command, f"{path} {name}")


def test_site_has_every_command_and_the_classes_for_plug_ins(site: Path) -> None:
    page = (site / "reference" / "commands.html").read_text("utf-8")
    assert not [path for path, _ in commands(cli, "computerrl") if f'<section id="{path.replace(" ", "-")}">' not in page]
    page = (site / "reference" / "plugins.html").read_text("utf-8")
    names = ("learner.algorithms.Algorithm.prepare", "env_server.tasks.family.Family.build", "actor.agents.base.Agent.begin")
    assert not [name for name in (*names, "env_server.gym.DesktopEnv.reset") if f'id="computerrl.{name}"' not in page]


def test_site_has_the_pages_that_lie_beside_docs(site: Path) -> None:
    assert '<section id="add-an-algorithm">' in (site / "how-to" / "contributing.html").read_text("utf-8")
    assert 'href="../how-to/contributing.html"' in (site / "tutorials" / "algorithm.html").read_text("utf-8")


def test_table_of_commands_whose_answer_may_be_no_is_that_of_their_help() -> None:
    page = (ROOT / "docs" / "reference" / "exit-codes.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| `computerrl ([a-z -]+?)(?: NAME)?` \| \w", page, re.MULTILINE)
    helps = {path: re.sub(r"\s+", " ", command.help or "") for path, command in commands(cli, "computerrl")}
    told = [path for path, text in helps.items() if re.search(r"[Ee]xit code (is )?1\b|Exit code 0: .*? 1: ", text)]
    assert [f"computerrl {name}" for name in shown] == sorted(told)


def test_table_of_exit_codes_is_that_of_the_errors() -> None:
    page = (ROOT / "docs" / "reference" / "exit-codes.md").read_text(encoding="utf-8")
    shown = {(name, int(code)) for code, name in re.findall(r"^\| (\d+) \| `(\w+)`", page, re.MULTILINE)}
    own = {cls for cls in error_classes().values() if "exit_code" in vars(cls)} - {ComputerRLError}
    assert shown == {(cls.__name__, cls.exit_code) for cls in own} and ComputerRLError.exit_code == 1


def test_symptoms_of_the_troubleshooting_page_are_words_that_the_project_prints() -> None:
    sources = "\n".join(
        path.read_text(encoding="utf-8")
        for room in ("common", "broker", "env_server", "actor", "learner", "launch")
        for path in (ROOT / room).rglob("*.py")
    )
    rows = re.findall(r"^\| (.+?) \|", (ROOT / "docs/how-to/troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE)
    quoted = {words for cell in rows for words in re.findall(r"`([^`]+)`", cell)} - {"computerrl: command not found"}
    assert len(quoted) > 5
    assert not [words for words in quoted if words not in sources]


def test_every_action_stands_on_the_page_of_actions(site: Path) -> None:
    page = (site / "reference" / "actions.html").read_text("utf-8")
    assert not [name for name in ACTIONS if f">{name}(" not in page]
