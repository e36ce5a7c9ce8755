"""Which parameters of a test are played in the default tier (`make test`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

THINNED: Mapping[str, int] = {
    "test_broker_kill_points": 4, "test_browser_tools": 6, "test_calc_tools": 10, "test_cli_commands": 2,
    "test_dashboard_page": 0, "test_desktop_actions": 2, "test_desktop_resets": 16, "test_files_tools": 0,
    "test_forge_families": 10, "test_forge_on_desktops": 0, "test_gimp_tools": 0, "test_impress_tools": 0,
    "test_miniwob_on_desktops": 0, "test_office_windows": 0, "test_osworld_on_desktop": 3, "test_osworld_oracle": 0,
    "test_forged_verdicts": 6, "test_osworld_settings": 0, "test_osworld_sites": 0, "test_reading_limits": 3,
    "test_setup_packages": 3, "test_visible_elements": 10, "test_visible_menus": 0, "test_vlc_tools": 0, "test_writer_tools": 0,
}  # fmt: skip
"""File -> one of so many of its tests is of the default tier; 0: none. They try applications method by method, or one property
in many places: a fault in what they share shows in each of them. What the image full alone has is of the release tier, and so is
the dashboard of a live run: its parts are tried in `test_run_pages`."""


def thin(items: Sequence[pytest.Item]) -> None:
    """Mark `release` what `THINNED` leaves out of the default tier."""
    places: Counter[str] = Counter()
    for item in items:
        file = item.path.stem
        if file in THINNED and item.get_closest_marker("release") is None:
            if not THINNED[file] or places[file] % THINNED[file]:
                item.add_marker(pytest.mark.release)
            places[file] += 1


def one_in(number: int, values: Iterable[Any]) -> list[Any]:
    """Parameters: the first, and each ``number``-th after it, as they are; the others marked `release`. A tuple is
    one value of each parameter."""

    def left_out(value: Any) -> Any:
        return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.release)

    return [left_out(value) if place % number else value for place, value in enumerate(values)]
