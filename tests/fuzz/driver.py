"""Runs one target under atheris, with mutations that know the format beside those that do not: `make fuzz`."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import atheris

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

with atheris.instrument_imports(include=["computerrl.common", "computerrl.broker"]):
    from computerrl.common import log
    from tests.fuzz.targets import TARGETS
    from tests.support.wire_fuzz import mutated, pack, seeds, session, unpack

SEEDS = [*seeds().values(), *session()]


def mutate(data: bytes, max_bytes: int, seed: int) -> bytes:
    """One of libFuzzer's own mutations, or one that keeps the packets whole."""
    rng = random.Random(seed)
    if rng.random() < 0.3:
        return atheris.Mutate(data, max_bytes)
    packets = unpack(data)
    place = rng.randrange(len(packets) + 1)
    match rng.randrange(4):
        case 0:
            packets.insert(place, rng.choice(SEEDS))
        case 1 if packets:
            packets.insert(place, rng.choice(packets))
        case _ if place < len(packets):
            packets[place] = mutated(packets[place], rng)
        case _:
            packets.append(mutated(rng.choice(SEEDS), rng))
    changed = pack(packets)
    return changed if len(changed) <= max_bytes else data


def run(target: str, arguments: list[str]) -> None:
    """Fuzz until libFuzzer's limits are reached; it ends the process, with code 77 for a finding."""
    log.configure(level="error")
    atheris.Setup([target, *arguments], TARGETS[target], custom_mutator=mutate)
    atheris.Fuzz()
