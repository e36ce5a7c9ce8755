"""One trainer on several ranks: `learner.parts.Trainer` for the conductor, who does not know, and the followers' loop.

Every method is a call that all ranks do at the same time, each with its own `learner.trainer.Trainer`. What a batch holds
travels whole, since every rank packs it anew and takes its share; no rank but the first ever sees the broker, a checkpoint's
file or a receiver of weights.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from common import log
from common.codec import decode, encode
from common.messages import Step, TaskRef, Trajectory
from learner.algorithms import Algorithm, TrainBatch
from learner.ranks import END, RankGroup, SharedState, arrays_from_bytes, arrays_to_bytes
from learner.trainer import Trainer


class RankedTrainer:
    """Rank 0's side. See the module's docstring."""

    def __init__(self, trainer: Trainer, ranks: RankGroup) -> None:
        assert ranks.rank == 0
        self._trainer = trainer
        self._ranks = ranks
        self.algorithm: Algorithm = trainer.algorithm

    @property
    def vocabulary_size(self) -> int:
        return self._trainer.vocabulary_size

    def update(self, batch: TrainBatch) -> dict[str, float]:
        self._ranks.call("update", data=batch_to_bytes(batch))
        return self._trainer.update(batch)

    def sft_step(self, steps: Sequence[Step], lr: float) -> dict[str, float]:
        self._ranks.call("sft_step", facts={"lr": lr}, data=steps_to_bytes(steps))
        return self._trainer.sft_step(steps, lr)

    def reset_optimizer(self, lr: float) -> None:
        self._ranks.call("reset_optimizer", facts={"lr": lr})
        self._trainer.reset_optimizer(lr)

    def set_reference(self) -> None:
        self._ranks.call("set_reference")
        self._trainer.set_reference()

    def state_dict(self) -> dict[str, Any]:
        """Whole tensors, on the CPU: the same as one process would give, so that a run may go on with another number of ranks."""
        self._ranks.call("state_dict")
        return self._trainer.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        specs = SharedState.specs_of(state)
        self._ranks.call("load_state_dict", facts={"specs": specs})
        self._trainer.load_state_dict(SharedState(self._ranks, specs, state))

    def trainable_tensors(self) -> dict[str, torch.Tensor]:
        self._ranks.call("trainable_tensors")
        return self._trainer.trainable_tensors()

    def probe_logprobs(self) -> np.ndarray:
        self._ranks.call("probe_logprobs")
        return self._trainer.probe_logprobs()

    def close(self) -> None:
        """Let the followers go."""
        self._ranks.call(END)


def follow(trainer: Trainer, ranks: RankGroup) -> None:
    """Do what rank 0 does until it says `END`. Raises `RankLost` when it is gone, RuntimeError when another rank is."""
    calls: dict[str, Callable[[dict[str, Any], list[bytes]], object]] = {
        "update": lambda facts, data: trainer.update(batch_from_bytes(data)),
        "sft_step": lambda facts, data: trainer.sft_step(steps_from_bytes(data), facts["lr"]),
        "reset_optimizer": lambda facts, data: trainer.reset_optimizer(facts["lr"]),
        "set_reference": lambda facts, data: trainer.set_reference(),
        "state_dict": lambda facts, data: trainer.state_dict(),
        "load_state_dict": lambda facts, data: trainer.load_state_dict(SharedState(ranks, facts["specs"], {})),
        "trainable_tensors": lambda facts, data: trainer.trainable_tensors(),
        "probe_logprobs": lambda facts, data: trainer.probe_logprobs(),
    }
    while True:
        name, facts, data = ranks.next_call()
        if name == END:
            log.get_logger().info("rank.ended", rank=ranks.rank)
            return
        calls[name](facts, data)


# --- batches as bytes --------------------------------------------------------------------------------------------------

_CARRIER = Trajectory(
    trajectory_id="-", group_id="-", index=0, order_id="-", kind="training", task=TaskRef("-", 0, "training"), instruction="",
    steps=(), reward=0.0, success=False, end_reason="task_finished", final_screenshot=None, actor="-", started_at=0.0,
    duration_s=0.0, reset_s=0.0, wait_s=0.0,
)  # fmt: skip
"""Steps travel inside a trajectory because the codec knows those; nothing else of it is read."""


def steps_to_bytes(steps: Sequence[Step]) -> list[bytes]:
    """Whole steps, whatever fields they have."""
    from msgspec.structs import replace

    return encode(replace(_CARRIER, steps=tuple(steps)), sender="learner-0:ranks", message_id=0, limited=False)


def steps_from_bytes(data: Sequence[bytes]) -> tuple[Step, ...]:
    """Back from `steps_to_bytes`."""
    carrier = decode(data, kinds={"Trajectory"}, limited=False).message
    assert isinstance(carrier, Trajectory)
    return carrier.steps


def batch_to_bytes(batch: TrainBatch) -> list[bytes]:
    """Every field of ``batch``: plain values as JSON, arrays as safetensors, steps by the codec."""
    plain: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    for item in dataclasses.fields(batch):
        value = getattr(batch, item.name)
        if isinstance(value, np.ndarray):
            arrays[item.name] = value
        elif item.name != "samples":
            plain[item.name] = value
    return [json.dumps(plain).encode(), arrays_to_bytes(arrays), *steps_to_bytes(batch.samples)]


def batch_from_bytes(data: Sequence[bytes]) -> TrainBatch:
    """Back from `batch_to_bytes`."""
    plain, arrays, *steps = data
    fields: dict[str, Any] = json.loads(plain) | arrays_from_bytes(arrays)
    return TrainBatch(samples=steps_from_bytes(steps), **fields)
