"""Every fuzzing target on the golden messages, on what was once found, and on mutations that are always the same."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS
from tests.support.wire_fuzz import mutated, of_today, pack, seeds, session, unpack

CORPUS = Path(__file__).parents[3] / "fuzz/corpus"


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.bin")), ids=lambda path: path.stem)
@pytest.mark.parametrize("target", TARGETS)
def test_target_survives_what_was_once_found(target: str, path: Path) -> None:
    TARGETS[target](pack([of_today(frames) for frames in unpack(path.read_bytes())]))


@pytest.mark.parametrize("target", TARGETS)
def test_target_survives_the_golden_messages_alone_and_together(target: str) -> None:
    golden = list(seeds().values())
    for frames in golden:
        TARGETS[target](pack([frames, frames]))
    TARGETS[target](pack(golden))
    TARGETS[target](pack(session()))


@pytest.mark.parametrize("target", TARGETS)
def test_target_survives_mutated_golden_messages(target: str) -> None:
    rng = random.Random(1)
    golden, played = list(seeds().values()), session()
    for _ in range(100):
        TARGETS[target](pack([mutated(rng.choice(golden), rng) for _ in range(rng.randint(1, 6))]))
        TARGETS[target](pack([mutated(frames, rng) if rng.random() < 0.2 else frames for frames in played]))


def test_packets_come_out_of_a_file_as_they_went_in() -> None:
    packets = [[b"", b"abc"], [b"x" * 70], []]
    assert unpack(pack(packets)) == packets
    assert unpack(pack(packets)[:-2])[-1:] != packets[-1:]
