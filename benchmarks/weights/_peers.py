"""Baselines of `weights`: plain torch.distributed, one flat broadcast of all bytes, and one per tensor.

A rank of such a group in a process of its own. Arguments: rank, world size, port, rounds, backend, model. Rank 0 prints JSON
lists of seconds for each way: from the first call until its last one is done, as our sender measures itself.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from computerrl.benchmarks.weights._tensors import model_tensors
from computerrl.common.lifecycle import die_with_parent


def main() -> None:
    die_with_parent()
    torch.set_num_threads(1)
    rank, world_size, port, rounds = map(int, sys.argv[1:5])
    backend, model = sys.argv[5:7]
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    tensors = [tensor.to(device) for tensor in model_tensors(model).values()]
    flat = torch.empty(sum(tensor.nbytes for tensor in tensors), dtype=torch.uint8, device=device)

    def one_flat() -> None:
        dist.broadcast(flat, 0)

    def each() -> None:
        for tensor in tensors:
            dist.broadcast(tensor, 0)

    found = {"flat": _timed(one_flat, rounds), "each": _timed(each, rounds)}
    if rank == 0:
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()


def _timed(work: Callable[[], None], rounds: int) -> list[float]:
    seconds = []
    for _ in range(rounds + 1):
        dist.barrier()
        started = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return seconds[1:]  # The first one touches the memory.


if __name__ == "__main__":
    main()
