"""Changes of weights: exact for any bits, few where few weights change, and refused where they cannot be right. Checksums: they
tell one bucket from another, whichever way they are computed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from computerrl.common.errors import WeightError
from computerrl.common.weight_plan import SummedBy
from computerrl.learner import weight_bytes
from computerrl.learner.weight_bytes import MOST_CHANGED, apply_changes, changes, checksum

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


def test_buckets_on_the_host_of_a_gpu_are_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [len(bucket) for bucket in weight_bytes.make_buckets([3, 0, 64], "cpu")] == [3, 0, 64]
    asked: list[dict[str, object]] = []
    monkeypatch.setattr(torch, "empty", lambda size, **options: asked.append(options))
    for has_gpu, device in ((True, "cpu"), (False, "cpu"), (True, "cuda")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda has_gpu=has_gpu: has_gpu)
        weight_bytes.make_buckets([8], device)
    assert [one["pin_memory"] for one in asked] == [True, False, False]


def by_hand(data: bytes) -> int:
    """The sum of words in Python's own numbers."""
    golden, first, second = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
    whole = len(data) // 8
    total = len(data) * second
    for place in range(whole + 1):
        word = int.from_bytes(data[8 * place : 8 * place + 8].ljust(8, b"\0"), "little")
        mixed = (word + place * golden) % 2**64
        mixed = (mixed ^ (mixed >> 30)) * first % 2**64
        mixed = (mixed ^ (mixed >> 27)) * second % 2**64
        total += mixed ^ (mixed >> 31)
    return total % 2**64


@given(data=st.binary(max_size=300), chunk=st.integers(1, 9))
def test_sum_of_words_is_that_of_whole_numbers_in_chunks_of_any_size(data: bytes, chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weight_bytes, "_CHUNK_WORDS", chunk)
        bucket = torch.from_numpy(np.frombuffer(data, np.uint8).copy())
        assert checksum(bucket, "words") == by_hand(data)


@pytest.mark.parametrize("by", ["xxh3", "words"])
@given(seed=st.integers(0, 2**32 - 1), damage=st.sampled_from(["bit", "swap", "zeros", "shift", "cut"]))
def test_damaged_bytes_have_another_checksum(by: SummedBy, seed: int, damage: str) -> None:
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, 4096 + int(rng.integers(8)), dtype=np.uint8)
    other = data.copy()
    at, to = sorted(8 * rng.choice(500, 2, replace=False))
    if damage == "bit":
        other[at] ^= 1 << rng.integers(8)
    elif damage == "swap":
        # Words that differ in their highest bits alone, many places apart.
        data[at : at + 8], data[to : to + 8] = 0, [0, 0, 0, 0, 0, 0, 0, 0x80]
        other = data.copy()
        other[at : at + 8], other[to : to + 8] = data[to : to + 8], data[at : at + 8]
    elif damage == "zeros":
        data[at:to] |= 1
        other = data.copy()
        other[at:to] = 0
    elif damage == "shift":
        other = np.roll(data, 8)
    else:
        data[-1] = 0
        other = data[:-1]
    assert checksum(torch.from_numpy(other.copy()), by) != checksum(torch.from_numpy(data), by)
