"""The quick form of the studies of one policy, and of scale: an untrained model, everything written.

Both studies of a policy are played serially on imitated desktops; one of them, and scale, on real ones as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.quick_study import quick_study, serial_study


def check_stages(cells: list[dict[str, Any]]) -> None:
    trained, *evaluated = cells
    assert trained["num_updates"] == 3 and trained["num_trajectories_lost"] == trained["num_recorded_twice"] == 0
    assert {cell["stage"]: sum(number for _, number in cell["counts"].values()) for cell in evaluated} == {
        "untouched": 3,
        "cloned": 3,
        "trained": 3,
    }


@pytest.mark.release
@pytest.mark.parametrize("name", ["language_model", "many_tasks"])
def test_quick_study_of_a_policy_evaluates_every_stage_serially(tmp_path: Path, name: str) -> None:
    check_stages(serial_study(tmp_path, name))


@pytest.mark.release
def test_quick_study_of_generalisation_evaluates_in_other_words_and_on_another_screen(tmp_path: Path) -> None:
    cells = serial_study(tmp_path, "generalisation")
    check_stages(cells[:4])
    shifted = {cell["stage"]: sum(number for _, number in cell["counts"].values()) for cell in cells[4:]}
    shifts = ("unseen words", "another screen")
    assert shifted == {f"{stage}, {shift}": 3 for shift in shifts for stage in ("cloned", "trained")}
    assert all(cell["failed_by"].keys() == {"trained on", "never trained on"} for cell in cells[3:])


@pytest.mark.release
def test_quick_study_of_a_policy_evaluates_every_stage_on_desktops(tmp_path: Path) -> None:
    check_stages(quick_study(tmp_path, "many_tasks"))


@pytest.mark.release
def test_quick_study_of_scale_measures_desktops(tmp_path: Path) -> None:
    cells = quick_study(tmp_path, "scale")
    assert [(cell["desktops"], cell["actors"]) for cell in cells] == [(1, 1), (2, 1)]
    assert all(cell["steps_per_s"] > 0 and cell["num_episodes"] > 0 and cell["memory_gb"] > 0 for cell in cells)
