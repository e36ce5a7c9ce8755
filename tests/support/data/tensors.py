"""Comparing numbers that two ways of computing give."""

from __future__ import annotations

import torch


def assert_near(found: torch.Tensor, expected: torch.Tensor, *, part: float) -> None:
    """No number differs by more than ``part`` of the largest one of ``expected``, or of 1.

    Elements of a gradient are sums of larger terms that cancel, and each processor sums in its own order: what a small element
    lacks is no part of itself.
    """
    largest = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(found, expected, atol=part * largest, rtol=0)
