"""Our evaluators beside the published ones, on made pairs of files and values.

The published package is installed into a virtual environment of its own, from the package index that pip is configured for.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.foreign.environment import make_environment
from tests.oracle.compare import FOLDER, describe, make_pairs, ours, published, table, without_published
from tests.oracle.differences import DIFFERENCES, unexplained

MIN_PAIRS = 1500
NOT_PUBLISHED = [
    "check_play_and_exit",
    "check_structure_sim_with_threshold",
    "compare_spreadsheet",
    "simple_docx_compare",
    "simple_pptx_compare",
]
"""Metrics of OfficeWorld, which are in no package, and those that OSWorld got after its package."""


@pytest.mark.timeout(4 * 3600)
def test_pairs_agree_with_the_published_evaluators_or_differ_on_purpose(
    tmp_path: Path, check_golden: Callable[[str, bytes], None]
) -> None:
    (tmp_path / "pairs").mkdir()
    pairs = make_pairs(tmp_path / "pairs")
    assert len(pairs) >= MIN_PAIRS
    assert len({describe(pair) for pair in pairs}) == len(pairs)
    assert without_published(pairs) == NOT_PUBLISHED
    python = make_environment(tmp_path / "oracle", FOLDER / "requirements.txt")
    theirs = list(published(python, pairs, tmp_path))
    differing = [pair for pair, other in zip(pairs, theirs, strict=True) if not ours(pair).agrees(other)]
    print(table(pairs, differing))
    names = [(pair.metric, pair.kind) for pair in differing]
    assert list(unexplained(names)) == []
    assert [one.why for one in DIFFERENCES if not any(one.covers(*name) for name in names)] == []
    check_golden("osworld_differences.txt", "".join(f"{line}\n" for line in sorted(map(describe, differing))).encode())
