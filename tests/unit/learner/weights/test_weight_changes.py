"""Changes of weights: exact for any bits, few where few weights change, and refused where they cannot be right."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from computerrl.common.errors import WeightError
from computerrl.learner.weight_changes import MOST_CHANGED, apply_changes, changes

WORDS = 4000


def as_bytes(words: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(words.astype(np.uint16).view(np.uint8).copy())


def pair(seed: int, *, share: float, far: bool) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    old = rng.integers(0, 1 << 16, WORDS)
    is_changed = rng.random(WORDS) < share
    step = rng.integers(1, 1 << 16, WORDS) if far else rng.integers(-130, 131, WORDS)
    return as_bytes(old), as_bytes((old + is_changed * step) % (1 << 16))


@given(seed=st.integers(0, 2**32 - 1), share=st.sampled_from([0, 0.0005, 0.01, 0.2, MOST_CHANGED, 1]), far=st.booleans())
def test_old_words_and_their_changes_make_the_new_words(seed: int, share: float, far: bool) -> None:
    old, new = pair(seed, share=share, far=far)
    found = changes(old, new)
    if found is None:
        assert share >= MOST_CHANGED
        return
    assert len(found) < len(new)
    apply_changes(old, found)
    assert torch.equal(old, new)


@pytest.mark.parametrize("at", [[0], [254], [255], [256], [0, 3999], [3999], [510, 1020, 1021], list(range(0, WORDS, 511))])
def test_gaps_of_all_lengths(at: list[int]) -> None:
    old, new = as_bytes(np.zeros(WORDS)), np.zeros(WORDS)
    new[at] = np.arange(1, len(at) + 1)
    found = changes(old, as_bytes(new))
    assert found is not None
    apply_changes(old, found)
    assert torch.equal(old, as_bytes(new))


@pytest.mark.parametrize("new", [0x8000, 0x7FFF, 127, 128, 129, 0xFF80, 0xFF7F, 0xFFFF])
def test_steps_of_all_sizes(new: int) -> None:
    words = np.zeros(WORDS)
    words[7] = new
    old = as_bytes(np.zeros(WORDS))
    found = changes(old, as_bytes(words))
    assert found is not None
    apply_changes(old, found)
    assert torch.equal(old, as_bytes(words))


def test_bfloat16_after_a_step_of_rl_takes_a_thirtieth() -> None:
    rng = np.random.default_rng(1)
    masters = torch.from_numpy(rng.normal(0, 0.03, 1 << 20))
    after = masters + torch.from_numpy(1e-6 * rng.normal(0, 1, 1 << 20))
    found = changes(masters.bfloat16().view(torch.uint8), after.bfloat16().view(torch.uint8))
    assert found is not None and 0 < len(found) < (2 << 20) / 30


def test_odd_bucket_travels_whole() -> None:
    assert changes(torch.zeros(5, dtype=torch.uint8), torch.zeros(5, dtype=torch.uint8)) is None


@given(seed=st.integers(0, 2**32 - 1), at=st.floats(0, 1, exclude_max=True), byte=st.integers(1, 255), cut=st.booleans())
def test_damaged_changes_are_refused_or_give_other_words_but_never_end_otherwise(
    seed: int, at: float, byte: int, cut: bool
) -> None:
    old, new = pair(seed, share=0.02, far=bool(seed % 2))
    found = changes(old, new)
    assert found is not None
    place = int(at * len(found))
    damaged = found[:place].clone() if cut else found.clone()
    if not cut:
        damaged[place] ^= byte
    before = old.clone()
    try:
        apply_changes(old, damaged)
    except WeightError:
        assert torch.equal(old, before)
