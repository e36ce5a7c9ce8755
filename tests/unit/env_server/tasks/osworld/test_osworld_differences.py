"""The table of differences from the published evaluators is the documentation's."""

from __future__ import annotations

import re
from pathlib import Path

from computerrl.env_server.tasks.osworld.metrics import METRICS
from tests.oracle.differences import DIFFERENCES, unexplained

ROOT = Path(__file__).resolve().parents[5]


def test_differences_stand_in_the_documentation() -> None:
    shown = (ROOT / "docs/how-to/osworld.md").read_text(encoding="utf-8").splitlines()
    assert [one.row() for one in DIFFERENCES if one.row() not in shown] == []


def test_differences_name_metrics_that_exist() -> None:
    assert [one for one in DIFFERENCES if not any(re.fullmatch(one.metrics, name) for name in METRICS)] == []


def test_differing_pairs_are_all_explained() -> None:
    lines = (ROOT / "tests/golden/osworld_differences.txt").read_text(encoding="utf-8").splitlines()
    pairs = [(metric, kind) for metric, _, kind in (line.partition(": ") for line in lines)]
    assert list(unexplained(pairs)) == []
    assert [one for one in DIFFERENCES if not any(one.covers(*pair) for pair in pairs)] == []
