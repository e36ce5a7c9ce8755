"""A numpy generator as a tensor, for checkpoints that hold nothing but tensors and JSON. Pure."""

from __future__ import annotations

import numpy as np
import torch


def pack_generator(generator: np.random.Generator) -> torch.Tensor:
    """A numpy generator's state (PCG64: two 128-bit numbers and a buffered half) as int64 words."""
    state = generator.bit_generator.state
    assert state["bit_generator"] == "PCG64"
    words = [value >> shift & 0xFFFFFFFF for value in state["state"].values() for shift in (0, 32, 64, 96)]
    return torch.tensor([*words, state["has_uint32"], state["uinteger"]], dtype=torch.int64)


def unpack_generator(packed: torch.Tensor) -> np.random.Generator:
    """Back from `pack_generator`."""
    words = packed.tolist()
    numbers = [sum(word << 32 * i for i, word in enumerate(words[start : start + 4])) for start in (0, 4)]
    generator = np.random.default_rng()
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": numbers[0], "inc": numbers[1]},
        "has_uint32": words[8],
        "uinteger": words[9],
    }
    return generator
