"""Which parameters of a test are played in the default tier (`make test`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def one_in(number: int, values: Iterable[Any]) -> list[Any]:
    """Parameters: the first, and each ``number``-th after it, as they are; the others marked `release`."""
    return [
        value if place % number == 0 else pytest.param(value, marks=pytest.mark.release) for place, value in enumerate(values)
    ]
