"""The quick form of every study that compares arms: real desktops, an untrained model, everything written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.quick_study import quick_study


@pytest.mark.parametrize("name", ["asynchrony", "entropulse", "staleness_desktops", "api_gui", "algorithms", "faults"])
def test_quick_study_trains_every_arm_on_desktops(tmp_path: Path, name: str) -> None:
    cells = quick_study(tmp_path, name)
    assert len(cells) >= 2
    for cell in cells:
        assert cell["num_updates"] == 3 and cell["rl_env_steps"] > 0 and len(cell["updates"]) == 3
        assert cell["num_trajectories_lost"] == cell["num_recorded_twice"] == 0
        assert all(0 <= cell[f"slots_{what}"] < 1.2 for what in ("generating", "on_desktop", "waiting"))
    if name == "faults":
        assert [cell["num_kills"] > 0 for cell in cells] == [False, True, True]
