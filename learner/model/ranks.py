"""Ranks: the processes that share one trainer's work, and how they agree on what to do next.

    rank 0   conductor ─► RankedTrainer ──┬──► its own Trainer ─┐
                            call + bytes  │                     ├─ FSDP2: weights gathered, gradients summed
    rank 1.. follow()  ◄──────────────────┴──► its own Trainer ─┘

Rank 0 tells the others each call through the store, where waiting costs nothing and may last hours; what belongs to a call
travels as raw bytes in a broadcast, and small results come back in a gather. torch's own object collectives would do all of
that with pickle, which this project does not use. Which calls there are and what they carry is
`learner.training.ranked_trainer`'s business, how weights are divided `learner.model.sharding`'s.

A rank that dies closes its connections: gloo then fails in all others at once, NCCL after the time limit; a follower that
waits for a call sees the store go. A broken group is not repaired: its processes end and are started again.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist

from computerrl.common.errors import RankLost

MEET_TIMEOUT_S = 120.0
"""For all ranks to come up: each imports torch and transformers first, which takes long on a cold disk."""

_LISTEN_S = 5.0
"""A follower looks up this often while it waits for a call; the store answers the moment there is one."""

_NUM_CALLS_KEPT = 64
"""Calls stay in the store this long: followers are never so far behind, since almost every call has a collective in it."""

END = "end"
"""The call after which followers return."""


class Ranks(Protocol):
    """The trainer's view of the other ranks."""

    rank: int
    num_ranks: int
    counts_packs: bool
    """Whether this rank counts figures of the packs that it runs. Of the ranks that share a pack, the first does."""

    def share(self, costs: Sequence[int]) -> list[tuple[int, bool]]:
        """(index, idle) of each piece of work this rank does, in order; ``costs`` are those of all pieces, the same on all ranks.

        Equally many on every rank, because each is a collective: a rank without a piece of its own does another's, idle.
        """
        ...

    def sum(self, values: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
        """Pairs of all ranks added up by name, in the order of ranks: exactly the same everywhere."""
        ...

    def gather(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The arrays of all ranks, whose names differ."""
        ...

    def add_up(self, tensor: torch.Tensor) -> None:
        """Make ``tensor`` the sum over all ranks, in place."""
        ...


class Solo:
    """One process: no torch.distributed."""

    rank = 0
    num_ranks = 1
    counts_packs = True

    def share(self, costs: Sequence[int]) -> list[tuple[int, bool]]:
        return [(index, False) for index in range(len(costs))]

    def sum(self, values: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
        return dict(values)

    def gather(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return arrays

    def add_up(self, tensor: torch.Tensor) -> None:
        pass


SOLO = Solo()


# torch 2.13 has new names, and warns of the old ones.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class ContextRanks:
    """See `learner.model.parallel.context.ContextGroup`."""

    def __init__(self, group: dist.ProcessGroup, *, index: int, size: int) -> None:
        self._group = group
        self.index = index
        self.size = size

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `ContextGroup`."""
        whole = tensor.new_empty((self.size * len(tensor), *tensor.shape[1:]))
        _all_gather(whole, tensor.contiguous(), group=self._group)
        return whole

    def reduce_scatter(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `ContextGroup`."""
        own = tensor.new_empty((len(tensor) // self.size, *tensor.shape[1:]))
        _reduce_scatter(own, tensor.contiguous(), group=self._group)
        return own


class RankGroup:
    """This process as one of several; makes the default group of torch.distributed."""

    def __init__(
        self, store: Any, *, rank: int, num_ranks: int, device: torch.device, timeout_s: float, context_size: int = 1
    ) -> None:
        """``store``: a TCPStore that rank 0 serves. ``timeout_s``: for each collective. ``context_size``: neighbouring ranks that
        share each pack, a divisor of ``num_ranks``. Blocks until all ranks are there.

        Raises `RankLost` when they are not within `MEET_TIMEOUT_S`.
        """
        self.rank = rank
        self.num_ranks = num_ranks
        self.device = torch.device(device.type, rank % torch.cuda.device_count()) if device.type == "cuda" else device
        self._store = store
        self._calls = dist.PrefixStore("calls", store)
        self._num_calls = 0
        scoped = dist.PrefixStore("ranks", store)
        scoped.set(f"here-{rank}", b"1")
        try:
            scoped.wait([f"here-{other}" for other in range(num_ranks)], datetime.timedelta(seconds=MEET_TIMEOUT_S))
        except dist.DistError as error:
            raise RankLost(f"rank {rank} waited {MEET_TIMEOUT_S:.0f} s for {num_ranks - 1} others: see their logs") from error
        # Both backends on a GPU: calls and figures are bytes on the CPU, only weights and gradients go through NCCL.
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            store=scoped,
            rank=rank,
            world_size=num_ranks,
            timeout=datetime.timedelta(seconds=timeout_s),
        )
        if device.type == "cuda":
            torch.cuda.set_device(self.device)
        self._context_size = context_size
        self.context = self._make_context(timeout_s) if context_size > 1 else None
        self.counts_packs = rank % context_size == 0

    def _make_context(self, timeout_s: float) -> ContextRanks:
        size, timeout = self._context_size, datetime.timedelta(seconds=timeout_s)
        # Every rank makes all groups, its own and the others', in one order.
        groups = [dist.new_group(list(range(first, first + size)), timeout=timeout) for first in range(0, self.num_ranks, size)]
        return ContextRanks(groups[self.rank // size], index=self.rank % size, size=size)

    def store_of_thread(self, purpose: str) -> Any:
        """A connection of its own to the store, for another thread: waiting on it blocks no other."""
        return dist.PrefixStore(purpose, self._store.clone())

    def close(self) -> None:
        """Leave the group. Only when no collective is under way; after a failure, end the process instead."""
        dist.destroy_process_group()

    # --- work and figures --------------------------------------------------------------------------------------------

    def share(self, costs: Sequence[int]) -> list[tuple[int, bool]]:
        """See `Ranks.share`. Dealt out by size: ranks go through layers in lockstep, so what they do at the same time should
        be equally large. Ranks that share packs do the same."""
        order = sorted(range(len(costs)), key=lambda index: (-costs[index], index))
        number, num_shares = self.rank // self._context_size, self.num_ranks // self._context_size
        own = [(index, False) for index in order[number::num_shares]]
        num_rounds = -(-len(costs) // num_shares)
        return own if len(own) == num_rounds else [*own, (order[-1], True)]

    def sum(self, values: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
        """See `Ranks.sum`. The names may differ between ranks."""
        total: dict[str, tuple[float, float]] = {}
        for data in self.exchange(json.dumps(values).encode()):
            for name, (first, second) in json.loads(data).items():
                before = total.get(name, (0.0, 0.0))
                total[name] = (before[0] + first, before[1] + second)
        return total

    def gather(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """See `Ranks.gather`."""
        found: dict[str, np.ndarray] = {}
        for data in self.exchange(arrays_to_bytes(arrays)):
            found |= arrays_from_bytes(data)
        return found

    def add_up(self, tensor: torch.Tensor) -> None:
        """See `Ranks.add_up`."""
        dist.all_reduce(tensor)

    # --- bytes -------------------------------------------------------------------------------------------------------

    def exchange(self, data: bytes) -> list[bytes]:
        """``data`` of all ranks, in the order of ranks."""
        lengths = torch.zeros(self.num_ranks, dtype=torch.int64)
        lengths[self.rank] = len(data)
        dist.all_reduce(lengths)
        longest = int(lengths.max())
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(data)] = torch.from_numpy(np.frombuffer(data, np.uint8).copy())
        found = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.num_ranks)]
        dist.all_gather(found, padded)
        return [row[:length].numpy().tobytes() for row, length in zip(found, lengths.tolist(), strict=True)]

    def wait_for_all(self) -> None:
        """Until all ranks are here."""
        self.exchange(b"")

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Rank 0's ``tensor`` (contiguous, on the CPU) on all ranks; the others give one to write into, of the same size."""
        if tensor.numel():
            dist.broadcast(tensor.reshape(-1).view(torch.uint8), src=0)
        return tensor

    # --- calls -------------------------------------------------------------------------------------------------------

    def call(self, name: str, *, facts: Mapping[str, Any] | None = None, data: Sequence[bytes] = ()) -> None:
        """Rank 0 only: have the followers do ``name``; ``facts`` is JSON-ready, ``data`` may be large."""
        message = {"name": name, "facts": facts or {}, "lengths": [len(item) for item in data]}
        self._calls.set(str(self._num_calls), json.dumps(message))
        if self._num_calls >= _NUM_CALLS_KEPT:
            self._calls.delete_key(str(self._num_calls - _NUM_CALLS_KEPT))
        self._num_calls += 1
        for item in data:
            self.broadcast(torch.from_numpy(np.frombuffer(item, np.uint8).copy()))

    @property
    def leader_lives(self) -> bool:
        """Rank 0 (or torchrun), whose store it is, still answers."""
        try:
            self._calls.check(["0"])
        except dist.DistError:
            return False
        return True

    def next_call(self) -> tuple[str, dict[str, Any], list[bytes]]:
        """Followers only: wait for rank 0. Returns (name, facts, data). Raises `RankLost` when rank 0 is gone."""
        key = str(self._num_calls)
        while True:
            try:
                self._calls.wait([key], datetime.timedelta(seconds=_LISTEN_S))
                message = json.loads(self._calls.get(key))
                break
            except dist.DistStoreError:
                continue  # Nothing yet: rank 0 waits for trajectories.
            except dist.DistNetworkError as error:
                raise RankLost(f"rank {self.rank}: rank 0 has ended") from error
        self._num_calls += 1
        received = [self.broadcast(torch.empty(length, dtype=torch.uint8)) for length in message["lengths"]]
        return message["name"], message["facts"], [tensor.numpy().tobytes() for tensor in received]


# --- tensors, one at a time --------------------------------------------------------------------------------------------

_DTYPES = {str(dtype): dtype for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8)}


class SharedState(Mapping[str, torch.Tensor]):
    """Rank 0's tensors as all ranks see them: reading one is a broadcast, so all must read the same ones in the same order.

    No rank but the first ever holds more than the one it reads.
    """

    def __init__(self, ranks: RankGroup, specs: Mapping[str, tuple[str, Sequence[int]]], own: Mapping[str, torch.Tensor]) -> None:
        """``specs``: name -> (dtype, shape), see `specs_of`; ``own``: the tensors on rank 0, nothing elsewhere."""
        self._ranks = ranks
        self._specs = specs
        self._own = own

    @staticmethod
    def specs_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[str, list[int]]]:
        """JSON-ready."""
        return {name: (str(tensor.dtype), list(tensor.shape)) for name, tensor in tensors.items()}

    def __getitem__(self, name: str) -> torch.Tensor:
        dtype, shape = self._specs[name]
        if self._ranks.rank == 0:
            return self._ranks.broadcast(self._own[name].detach().cpu().contiguous())
        return self._ranks.broadcast(torch.empty(tuple(shape), dtype=_DTYPES[dtype]))

    def __contains__(self, name: object) -> bool:
        return name in self._specs  # Mapping's own would read the tensor.

    def __iter__(self) -> Any:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)


def arrays_to_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """As safetensors: names, dtypes and shapes are kept, and reading it runs no code."""
    from safetensors.numpy import save

    return save({name: np.ascontiguousarray(array) for name, array in arrays.items()})


def arrays_from_bytes(data: bytes) -> dict[str, np.ndarray]:
    """Back from `arrays_to_bytes`."""
    from safetensors.numpy import load

    return load(data)
