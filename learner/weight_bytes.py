"""Bytes of a bucket of weights: their checksum, and their changes from one version to the next, exact to the bit.

A step of RL at a learning rate of 1e-6 is mostly far smaller than a bfloat16's last place: nearly all weights are what they were,
and most others have become their neighbours in bfloat16. Words of 16 bits are compared, whatever they mean. Changes are bytes:

    lengths   3 x int32: bytes of gaps, steps, words
    gaps      a byte for each changed word: unchanged words before it; 255: so many are unchanged, and the gap goes on
    steps     int8 for each changed word: new word less old word; -128: the new word stands below
    words     int16 for each of these

Whoever applies them knows the old words. Whether the right ones, the checksum tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import xxhash

from computerrl.common.errors import WeightError
from computerrl.common.weight_plan import SummedBy

if TYPE_CHECKING:
    import torch

MOST_CHANGED = 0.25
"""Share of changed words beyond which a bucket travels as a whole: finding and applying the changes would take longer than they
save."""
_LONG = 255
_ELSEWHERE = -128
_NUM_LENGTHS = 3
_FACTORS = (-7046029254386353131, -4658895280553007687, -7723592293110705685)
_SHIFTS = (30, 27, 31)
"""Of SplitMix64."""
_CHUNK_WORDS = 1 << 23
"""Words that are summed at once, which takes some times their memory."""


def make_buckets(sizes: Sequence[int], device: torch.device | str) -> list[torch.Tensor]:
    """uint8 [bytes] of each of ``sizes`` on ``device``. On the host of a GPU they are pinned: copies to and from it then take a
    third of the time."""
    import torch

    pinned = torch.device(device).type == "cpu" and torch.cuda.is_available()
    return [torch.empty(size, dtype=torch.uint8, device=device, pin_memory=pinned) for size in sizes]


def checksum(bucket: torch.Tensor, by: SummedBy) -> int:
    """64 bits for ``bucket``, uint8 [bytes].

    ``xxh3``: XXH3, on the host, as fast as memory gives the bytes (five times CRC-32), and without the interpreter lock.
    ``words``: the sum of its 64-bit words, each mixed with its place, on the device that holds it, so that weights on a GPU need
    no way to the host. Damage to one word always changes it, other damage all but once in 2^64.
    """
    if by == "xxh3":
        return xxhash.xxh3_64_intdigest(bucket.cpu().numpy())
    import torch

    num_whole = bucket.numel() // 8
    rest = torch.zeros(8, dtype=torch.uint8, device=bucket.device)
    rest[: bucket.numel() - 8 * num_whole] = bucket[8 * num_whole :]
    total = _word_sum(rest.view(torch.int64), num_whole) + bucket.numel() * _FACTORS[2]
    for first in range(0, num_whole, _CHUNK_WORDS):
        end = min(num_whole, first + _CHUNK_WORDS)
        total += _word_sum(bucket[8 * first : 8 * end].view(torch.int64), first)
    return total % (1 << 64)


def _word_sum(word_W: torch.Tensor, first: int) -> int:
    """Sum of the words after the finalizer of SplitMix64 (Steele, Lea, Flood 2014), with their place as its counter."""
    import torch

    place_W = torch.arange(first, first + len(word_W), device=word_W.device)
    mixed_W = word_W + place_W * _FACTORS[0]
    for shift, factor in zip(_SHIFTS, _FACTORS[1:], strict=False):
        # A shift that draws in zeros, which int64 has not.
        mixed_W = (mixed_W ^ ((mixed_W >> shift) & ((1 << (64 - shift)) - 1))) * factor
    last = _SHIFTS[-1]
    return int((mixed_W ^ ((mixed_W >> last) & ((1 << (64 - last)) - 1))).sum())


def changes(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor | None:
    """Bytes, uint8 [bytes], that make ``new`` of ``old`` (uint8 [bytes], of equal length and on one device), on that device; none
    where nothing changed. None: more than `MOST_CHANGED` of its words did."""
    import torch

    if old.numel() % 2:
        return None
    old_W, new_W = old.view(torch.int16), new.view(torch.int16)
    is_changed_W = old_W != new_W
    num_changed = int(is_changed_W.sum())
    if not num_changed:
        return old.new_empty(0)
    if num_changed > MOST_CHANGED * len(new_W):
        return None
    at_N = is_changed_W.nonzero().flatten()
    gap_N = at_N.diff(prepend=at_N.new_tensor([-1])) - 1
    end_N = (gap_N // _LONG + 1).cumsum(0) - 1
    gaps = torch.full((int(end_N[-1]) + 1,), _LONG, dtype=torch.uint8, device=old.device)
    gaps[end_N] = (gap_N % _LONG).to(torch.uint8)
    # int16 wraps as the words do.
    step_N = new_W[at_N] - old_W[at_N]
    is_far_N = step_N.abs() >= -_ELSEWHERE
    is_far_N |= step_N == torch.iinfo(torch.int16).min
    words = new_W[at_N[is_far_N]]
    steps = step_N.masked_fill(is_far_N, _ELSEWHERE).to(torch.int8)
    lengths = torch.tensor([gaps.nbytes, steps.nbytes, words.nbytes], dtype=torch.int32, device=old.device)
    parts = [lengths.view(torch.uint8), gaps, steps.view(torch.uint8), words.view(torch.uint8)]
    found = torch.cat(parts)
    return found if len(found) < new.numel() else None


def apply_changes(bucket: torch.Tensor, found: torch.Tensor) -> None:
    """Make the new ``bucket`` of the old one, in place, by what `changes` gave. Raises `WeightError` for bytes that it cannot
    have given; ``bucket`` is then as it was."""
    import torch

    if not len(found):
        return
    header = _NUM_LENGTHS * 4
    if len(found) < header or bucket.numel() % 2:
        raise WeightError(f"changes of weights arrived damaged: {len(found)} bytes for a bucket of {bucket.numel()}")
    lengths = found[:header].clone().view(torch.int32).tolist()
    if min(lengths) < 0 or sum(lengths) != len(found) - header or lengths[2] % 2:
        raise WeightError(f"changes of weights arrived damaged: {len(found) - header} bytes are said to be {lengths}")
    gaps, steps, words = found[header:].split(lengths)
    is_end = gaps != _LONG
    at_N = (gaps.to(torch.int64) + is_end).cumsum(0)[is_end] - 1
    step_N = steps.view(torch.int8)
    is_far_N = step_N == _ELSEWHERE
    word_W = bucket.view(torch.int16)
    if len(at_N) != len(step_N) or int(is_far_N.sum()) != lengths[2] // 2 or (len(at_N) and int(at_N[-1]) >= len(word_W)):
        raise WeightError("changes of weights arrived damaged: their parts do not fit each other")
    new_N = word_W[at_N] + step_N.to(torch.int16)
    new_N[is_far_N] = words.clone().view(torch.int16)
    word_W[at_N] = new_N
