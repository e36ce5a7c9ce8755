"""Which tests the default tier leaves out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.tiers import THINNED, one_in, thin


class Item:
    """What `thin` sees of a test."""

    def __init__(self, file: str, *, marked: bool = False) -> None:
        self.path = Path(f"{file}.py")
        self.marked = marked

    def get_closest_marker(self, name: str) -> object:
        return name if self.marked and name == "release" else None

    def add_marker(self, _mark: pytest.MarkDecorator) -> None:
        self.marked = True


def test_thinned_files_are_there_once() -> None:
    names = Counter(path.stem for path in Path(__file__).resolve().parents[2].rglob("test_*.py") if path.stem in THINNED)
    assert names == dict.fromkeys(THINNED, 1)


def test_thin_keeps_the_first_and_every_so_manieth_of_a_file_and_all_of_others() -> None:
    file, number = next(iter(THINNED.items()))
    items = [Item(file, marked=place == 1) for place in range(2 * number + 2)]
    others = [Item("test_of_no_such_file") for _ in range(3)]
    thin(cast(Any, [*items, *others]))
    # The second was marked by itself, and is not counted.
    assert [place for place, item in enumerate(items) if not item.marked] == [0, number + 1, 2 * number + 1]
    assert not any(item.marked for item in others)


@pytest.mark.parametrize("number", [1, 2, 3, 7])
def test_one_in_keeps_the_first_and_every_so_manieth_and_loses_none(number: int) -> None:
    values = one_in(number, range(10))
    assert [value for value in values if isinstance(value, int)] == list(range(0, 10, number))
    assert [value if isinstance(value, int) else value.values[0] for value in values] == list(range(10))
