"""One trainer on several ranks: `learner.contracts.AnyTrainer` for the conductor, and the loop of the followers.

Every method is a call that all ranks do at the same time, each with its own `learner.training.trainer.Trainer`. Batches are sent
whole, since every rank packs them anew and takes its share. Only rank 0 ever sees the broker, a checkpoint's file or a receiver
of weights.
"""

from __future__ import annotations

import dataclasses
import datetime
import errno
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from computerrl.common import log
from computerrl.common.errors import RankLost
from computerrl.common.messages import Step, TaskRef, Trajectory
from computerrl.common.wire.codec import decode, encode
from computerrl.learner.algorithms.base import PER_TOKEN, Algorithm, Refines, TrainBatch
from computerrl.learner.checkpoints.checkpoint import StagedSection
from computerrl.learner.checkpoints.shards import ShardFiles, StagedShards
from computerrl.learner.model.ranks import END, RankGroup, SharedState, arrays_from_bytes, arrays_to_bytes
from computerrl.learner.objective.ages import PolicyAges
from computerrl.learner.poison import StepCheck
from computerrl.learner.training.trainer import Trainer

WRITE_TIMEOUT_S = 1800.0
"""For a rank to write its part of a checkpoint: 100 GB on a slow parallel file system."""


class RankedTrainer:
    """Rank 0's side. See the module's docstring."""

    def __init__(self, trainer: Trainer, ranks: RankGroup) -> None:
        assert ranks.rank == 0
        self._trainer = trainer
        self._ranks = ranks
        self._num_copies = 0
        self.algorithm: Algorithm = trainer.algorithm

    @property
    def vocabulary_size(self) -> int:
        return self._trainer.vocabulary_size

    @property
    def check_screenshot(self) -> StepCheck | None:
        return self._trainer.check_screenshot

    @property
    def revision(self) -> int:
        return self._trainer.revision

    @property
    def skipped(self) -> frozenset[int]:
        return self._trainer.skipped

    def refine(self, batch: TrainBatch) -> TrainBatch:
        if not isinstance(self.algorithm, Refines) or not self.algorithm.wants_look or not batch.samples:
            return batch
        self._ranks.call("refine", data=batch_to_bytes(batch))
        return self._trainer.refine(batch)

    def update(self, batch: TrainBatch) -> dict[str, float]:
        self._ranks.call("update", data=batch_to_bytes(batch))
        return self._trainer.update(batch)

    def sft_step(self, steps: Sequence[Step], lr: float) -> dict[str, float]:
        self._ranks.call("sft_step", facts={"lr": lr}, data=steps_to_bytes(steps))
        return self._trainer.sft_step(steps, lr)

    def change_objective(self, lr: float) -> None:
        self._ranks.call("change_objective", facts={"lr": lr})
        self._trainer.change_objective(lr)

    def set_reference(self) -> None:
        self._ranks.call("set_reference")
        self._trainer.set_reference()

    def state_dict(self) -> StagedSection:
        """Every rank has copied its slices when this returns, and writes them itself when rank 0 writes the section."""
        number = self._num_copies
        self._num_copies += 1
        self._ranks.call("copy", facts={"number": number})
        return _RankedSection(_staged(self._trainer, self._ranks), self._ranks, number)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """A state of any number of ranks: of several, each reads what it needs from the files; of one, rank 0 hands it out."""
        if isinstance(state, ShardFiles):
            self._ranks.call("load_shards", facts={"paths": [str(path.absolute()) for path in state.paths]})
            self._trainer.load_state_dict(state)
            # Only now may the files be moved or deleted.
            self._ranks.wait_for_all()
            return
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
        """End the followers' loops."""
        self._ranks.call(END)


def follow(trainer: Trainer, ranks: RankGroup) -> None:
    """Do the calls of rank 0 until `END`. Raises `RankLost` when rank 0 is gone, RuntimeError when another rank is."""
    calls: dict[str, Callable[[dict[str, Any], list[bytes]], object]] = {
        "refine": lambda facts, data: trainer.refine(batch_from_bytes(data)),
        "update": lambda facts, data: trainer.update(batch_from_bytes(data)),
        "sft_step": lambda facts, data: trainer.sft_step(steps_from_bytes(data), facts["lr"]),
        "change_objective": lambda facts, data: trainer.change_objective(facts["lr"]),
        "set_reference": lambda facts, data: trainer.set_reference(),
        "copy": lambda facts, data: _write_when_told(_staged(trainer, ranks), ranks, facts["number"]),
        "load_shards": lambda facts, data: _load_shards(trainer, ranks, facts["paths"]),
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


def _load_shards(trainer: Trainer, ranks: RankGroup, paths: Sequence[str]) -> None:
    trainer.load_state_dict(ShardFiles([Path(path) for path in paths]))
    ranks.wait_for_all()


# --- checkpoints -------------------------------------------------------------------------------------------------------


def _staged(trainer: Trainer, ranks: RankGroup) -> StagedShards:
    return StagedShards(trainer.state_dict(), rank=ranks.rank, num_ranks=ranks.num_ranks)


class _RankedSection:
    """`learner.checkpoints.checkpoint.StagedSection`: rank 0 names the folder, all write, rank 0 waits for all."""

    def __init__(self, own: StagedShards, ranks: RankGroup, number: int) -> None:
        self._own = own
        self._ranks = ranks
        self._number = number

    def write(self, folder: Path, *, section: str) -> None:
        store = self._ranks.store_of_thread("files")
        # The handle through which rank 0 sees the folder is its own process's; the others need a path.
        store.set(f"{self._number}/write", json.dumps([os.path.realpath(folder), section]))
        self._own.write(folder, section=section)
        for rank in range(1, self._ranks.num_ranks):
            key = f"{self._number}/written-{rank}"
            try:
                store.wait([key], datetime.timedelta(seconds=WRITE_TIMEOUT_S))
            except RuntimeError as error:
                raise RankLost(f"rank {rank} has not written its part of a checkpoint in {WRITE_TIMEOUT_S:.0f} s") from error
            code, text = json.loads(store.get(key))
            if code:
                raise OSError(code, f"rank {rank}: {text}")


def _write_when_told(own: StagedShards, ranks: RankGroup, number: int) -> None:
    """A follower's side, in a thread: calls go on meanwhile."""

    def write() -> None:
        store = ranks.store_of_thread("files")
        key = f"{number}/write"
        try:
            store.wait([key], datetime.timedelta(seconds=WRITE_TIMEOUT_S))
        except RuntimeError:
            return  # Rank 0 is gone, or did not want the copy: what becomes of the run is not decided here.
        folder, section = json.loads(store.get(key))
        outcome = (0, "")
        try:
            own.write(Path(folder), section=section)
        except Exception as error:  # noqa: BLE001
            # Thread boundary: rank 0 raises it.
            outcome = (getattr(error, "errno", None) or errno.EIO, f"{type(error).__name__}: {error}")
        store.set(f"{number}/written-{ranks.rank}", json.dumps(outcome))

    threading.Thread(target=write, name="checkpoint", daemon=True).start()


# --- batches as bytes --------------------------------------------------------------------------------------------------

_CARRIER = Trajectory(
    trajectory_id="-",
    group_id="-",
    index=0,
    order_id="-",
    kind="training",
    task=TaskRef("-", 0, "training"),
    instruction="",
    steps=(),
    reward=0.0,
    success=False,
    end_reason="task_finished",
    final_screenshot=None,
    actor="-",
    shown_by="",
    started_at=0.0,
    duration_s=0.0,
    reset_s=0.0,
    wait_s=0.0,
)
"""Steps travel inside a trajectory because the codec knows those; nothing else of it is read."""


def steps_to_bytes(steps: Sequence[Step]) -> list[bytes]:
    """``steps`` as frames of the codec, with all their fields."""
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
        elif item.name in PER_TOKEN and value is not None:
            arrays[item.name] = np.concatenate([np.zeros(0, np.float32), *value])
        elif item.name == "hints" and value is not None:
            arrays[item.name] = np.concatenate([np.zeros(0, np.int32), *value])
            arrays["hint_lengths"] = np.array([len(hint) for hint in value], np.int64)
        elif item.name == "ages":
            plain[item.name] = dataclasses.asdict(value)
        elif item.name == "not_chosen":
            plain[item.name] = sorted(value)
        elif item.name == "left_out":
            plain[item.name] = [[*key, reason] for key, reason in value.items()]
        elif item.name == "demonstrated":
            plain[item.name] = len(value)
        elif item.name != "samples":
            plain[item.name] = value
    # Numbers of an algorithm may be numpy's.
    text = json.dumps(plain, default=float)
    return [text.encode(), arrays_to_bytes(arrays), *steps_to_bytes((*batch.samples, *batch.demonstrated))]


def batch_from_bytes(data: Sequence[bytes]) -> TrainBatch:
    """Back from `batch_to_bytes`."""
    plain, arrays, *steps = data
    fields: dict[str, Any] = json.loads(plain) | arrays_from_bytes(arrays)
    ages = fields["ages"]
    fields["ages"] = PolicyAges(ages["version"], tuple(ages["restart_versions"]), tuple(ages["restart_positions"]))
    fields["not_chosen"] = frozenset(fields["not_chosen"])
    fields["left_out"] = {(trajectory_id, place): reason for trajectory_id, place, reason in fields["left_out"]}
    fields["trajectory_ids"] = tuple(fields["trajectory_ids"])
    both = steps_from_bytes(steps)
    samples = both[: len(both) - fields["demonstrated"]]
    fields["demonstrated"] = both[len(samples) :]
    ends = np.cumsum([len(step.action_tokens) for step in samples])[:-1]
    for name in PER_TOKEN:
        if fields[name] is not None:
            fields[name] = tuple(np.split(fields[name], ends)[: len(samples)])
    if fields["hints"] is not None:
        ends = np.cumsum(fields.pop("hint_lengths"))[:-1]
        fields["hints"] = tuple(np.split(fields["hints"], ends)[: len(samples)])
    return TrainBatch(samples=samples, **fields)
