"""Each guarantee of docs/concepts/guarantees.md names tests that prove it in the default tier of `make test`."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
COLUMN = "default tier"
OF_THE_RELEASE_TIER = "tests/integration/runs/test_train_improves.py::test_train_quickstart_cut_short_improves_on_held_out_seeds"
"""A test that must not be found in the default tier."""


def named_tests(text: str) -> dict[str, tuple[str, ...]]:
    """Guarantee -> test nodes in its column `default tier`, from the first table of a Markdown text."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    table = itertools.takewhile(lambda line: line.startswith("|"), lines[start:])
    headings, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table)
    place = headings.index(COLUMN)
    return {row[0]: tuple(re.findall(r"`([^`]+)`", row[place])) for row in rows}


def problems(named: Mapping[str, tuple[str, ...]], collected: Iterable[str]) -> list[str]:
    """Guarantees without a test, and tests that are not in ``collected``, nodes without their parameters."""
    known = set(collected)
    lacking = [f"{guarantee}: no test" for guarantee, nodes in named.items() if not nodes]
    unknown = [(guarantee, node) for guarantee, nodes in named.items() for node in nodes if node not in known]
    return lacking + [f"{guarantee}: {node} is not in the default tier" for guarantee, node in unknown]


def without_parameters(nodes: Iterable[str]) -> set[str]:
    """Tests and their classes."""
    return {"::".join(node.partition("[")[0].split("::")[:depth]) for node in nodes for depth in (2, 3)}


def collect(files: Iterable[str]) -> set[str]:
    """Nodes of the default tier in ``files``, without parameters; the class alone as well, where a test has one."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "not release", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return without_parameters(line for line in done.stdout.splitlines() if "::" in line)


def known_to(session: pytest.Session) -> set[str]:
    """Nodes of the default tier that ``session`` plays, as `collect` gives them."""
    return without_parameters(item.nodeid for item in session.items if item.get_closest_marker("release") is None)


def test_every_guarantee_is_proven_in_the_default_tier(request: pytest.FixtureRequest) -> None:
    named = named_tests((ROOT / "docs" / "concepts" / "guarantees.md").read_text(encoding="utf-8"))
    assert len(named) > 10
    files = {node.partition("::")[0] for nodes in named.values() for node in nodes}
    assert not [file for file in files if not (ROOT / file).is_file()]
    # Collecting once more takes as long as importing all that the tests import, and is needed only when a part of them is played.
    known = known_to(request.session)
    if problems(named, known):
        known = collect(sorted(files))
    assert problems(named, known) == []


def test_test_of_the_release_tier_is_not_collected() -> None:
    """pytest ends with 5 where it finds no test."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "not release", "-p", "no:cacheprovider"]
    assert subprocess.run([*command, OF_THE_RELEASE_TIER], cwd=ROOT, capture_output=True, timeout=300).returncode == 5


TABLE = """# Title

| guarantee | how | where | default tier |
| --- | --- | --- | --- |
| One. | so | there | {} |

| another | table |
| --- | --- |
| Two. | x |
"""


@pytest.mark.parametrize(
    ("cell", "found"),
    [
        ("`a.py::test_a`", []),
        ("`a.py::test_a`, `a.py::TestB`", []),
        ("", ["One.: no test"]),
        ("a.py::test_a", ["One.: no test"]),
        ("`a.py::test_c`", ["One.: a.py::test_c is not in the default tier"]),
        ("`a.py::test_a`, `b.py::test_a`", ["One.: b.py::test_a is not in the default tier"]),
    ],
)
def test_row_without_a_collected_test_is_reported(cell: str, found: list[str]) -> None:
    assert problems(named_tests(TABLE.format(cell)), {"a.py::test_a", "a.py::TestB"}) == found


PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_of_the_source_that_a_page_names_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`((?:tests|benchmarks|examples)/[\w/.*-]+)", text)
    assert [name for name in named if not any(ROOT.glob(name.rstrip(".")))] == []


def test_files_of_tests_that_guarantees_name_are_there() -> None:
    text = (ROOT / "docs/concepts/guarantees.md").read_text(encoding="utf-8")
    named = re.findall(r"`(test_\w+(?:\*|\.py))", text)
    assert len(named) > 10
    assert [name for name in named if not any((ROOT / "tests").rglob(name))] == []
