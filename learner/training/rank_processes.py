"""Starting and ending the learner's ranks: this process is rank 0 or one of the others.

    learner (rank 0) ──starts──► learner --index 0, RANK=1 ─► follow()        one Linux process each, on this machine
                     ──starts──► learner --index 0, RANK=2 ─► follow()

Followers are the same command with torchrun's variables in their environment. Under torchrun itself (which then may span
machines) no process is started here: RANK is set already. A rank that ends by itself ends the whole learner, and followers end
with rank 0: they get a signal of the kernel, and their store closes. The supervisor (or torchrun) starts the learner again.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from computerrl.common import log
from computerrl.common.config import RunConfig
from computerrl.common.errors import ConfigError, Problem, RankLost
from computerrl.common.lifecycle import SUPERVISOR_VARIABLE, StopToken, gc_paused
from computerrl.common.wire.addresses import interface_of, own_address, split_address
from computerrl.learner.client import serve_store

if TYPE_CHECKING:
    from computerrl.learner.contracts import AnyTrainer
    from computerrl.learner.model.policy import Policy
    from computerrl.learner.model.ranks import RankGroup

_HOST = "127.0.0.1"
"""Address of the store: the ranks that are started here are on this machine, and no other process needs to reach it."""

INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")

END_TIMEOUT_S = 10.0
"""Time for followers to end after they were told to; then they are killed."""

LOST_GRACE_S = 3.0
"""Time after the death of a rank for the training thread to fail by itself, with a better message; then the process ends."""

FOLLOWER_STOP_S = 2.5
"""Time that a follower keeps running after a stop, as long as rank 0 may take: rank 0 needs it for a last checkpoint."""


def is_follower() -> bool:
    """Is this process a rank that carries out the calls of rank 0?"""
    return int(os.environ.get("RANK", "0")) > 0


@dataclass(slots=True)
class _Followers:
    """The processes that rank 0 started."""

    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    ending: threading.Event = field(default_factory=threading.Event)
    lost: str = ""
    """Rank that ended by itself, and its exit code, in words."""

    def start(self, config_path: Path, *, address: str, num_ranks: int, index: int) -> None:
        host, port = split_address(address)
        for rank in range(1, num_ranks):
            env = os.environ | {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(num_ranks),
                "MASTER_ADDR": host,
                "MASTER_PORT": str(port),
                SUPERVISOR_VARIABLE: str(os.getpid()),
            }
            argv = [sys.executable, "-m", "computerrl", "learner", str(config_path), "--index", str(index)]
            process = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL)
            self.processes.append(process)
            threading.Thread(target=self._watch, args=(process, rank), name=f"rank-{rank}", daemon=True).start()

    def _watch(self, process: subprocess.Popen[bytes], rank: int) -> None:
        code = process.wait()
        if self.ending.is_set():
            return
        self.lost = f"rank {rank} ended with exit code {code}"
        log.get_logger().error("rank.lost", rank=rank, exit_code=code)
        if not self.ending.wait(LOST_GRACE_S):
            sys.stderr.flush()
            os._exit(RankLost.exit_code)

    def end(self, *, timeout_s: float) -> None:
        """Wait for all, kill those that stay."""
        self.ending.set()
        deadline = time.monotonic() + timeout_s
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=max(0.0, deadline - time.monotonic()))
            if process.poll() is None:
                process.kill()
                process.wait()


@contextlib.contextmanager
def open_trainer(config: RunConfig, *, config_path: Path, index: int = 0) -> Iterator[tuple[AnyTrainer, Policy]]:
    """The trainer that the conductor uses, on as many ranks as configured, and rank 0's policy. Followers end with the block.

    ``config_path``: a file from which followers read the same ``config``. Raises `ConfigError` when torchrun's number of
    processes is another one, `RankLost` when a rank ends or does not come up.
    """
    with gc_paused():
        from computerrl.learner.model.policy import load_policy
        from computerrl.learner.training.trainer import Trainer

    if config.learner.num_ranks == 1 and "RANK" not in os.environ:
        with gc_paused():
            policy = load_policy(config)
            alone = Trainer(config, policy)
        yield alone, policy
        return
    from computerrl.learner.training.ranked_trainer import RankedTrainer

    followers = _Followers()
    store = _store_of_torchrun(config) if "RANK" in os.environ else _start(followers, config, config_path, index)
    try:
        ranks, whole = _make(config, store, rank=0)
        trainer = RankedTrainer(whole, ranks)
        yield trainer, whole.policy
        followers.ending.set()
        trainer.close()
        followers.end(timeout_s=END_TIMEOUT_S)
        ranks.close()
    except RuntimeError as error:
        # An error of torch in a collective does not name the lost peer. Its death may be noticed a moment later.
        time.sleep(0.5)
        if not followers.lost:
            raise
        raise RankLost(f"{followers.lost}: see its lines in this log") from error
    finally:
        followers.end(timeout_s=0.0)


def run_follower(config: RunConfig, *, stop: StopToken) -> None:
    """Carry out the calls of rank 0 until it ends. Raises `RankLost` when rank 0 ended unexpectedly."""
    from computerrl.learner.training.ranked_trainer import follow

    rank = int(os.environ["RANK"])
    threading.Thread(target=_end_after_stop, args=(stop,), name="exit-limit", daemon=True).start()
    ranks, trainer = _make(config, _store_of_torchrun(config), rank=rank)
    try:
        follow(trainer, ranks)
    except RuntimeError as error:
        if ranks.leader_lives:
            raise
        raise RankLost(f"rank {rank}: rank 0 has ended") from error
    ranks.close()


def _make(config: RunConfig, store: Any, *, rank: int) -> tuple[RankGroup, Any]:
    with gc_paused():
        from computerrl.learner.model.policy import choose_device
        from computerrl.learner.model.ranks import RankGroup
        from computerrl.learner.model.sharding import load_sharded_policy
        from computerrl.learner.training.trainer import Trainer

    device = choose_device(config.learner.device)
    learner = config.learner
    ranks = RankGroup(
        store,
        rank=rank,
        num_ranks=learner.num_ranks,
        device=device,
        timeout_s=learner.rank_timeout_s,
        context_size=learner.context_parallel_size,
    )
    return ranks, Trainer(config, load_sharded_policy(config, ranks), ranks=ranks)


def _start(followers: _Followers, config: RunConfig, config_path: Path, index: int) -> Any:
    # torch.distributed has no authentication: its connections stay on this machine. Its default is the host's first address.
    for variable in INTERFACE_VARIABLES:
        os.environ.setdefault(variable, "lo")
    store, address = serve_store(_HOST)
    followers.start(config_path, address=address, num_ranks=config.learner.num_ranks, index=index)
    return store


def _store_of_torchrun(config: RunConfig) -> Any:
    """The store that the variables in the environment name."""
    import torch.distributed as dist

    # torch takes the host's first address, which may be on another network; a loopback that is configured reaches no other host.
    interface = interface_of(own_address(config.learner.bind_address))
    for variable in INTERFACE_VARIABLES:
        if interface is not None and os.environ.get(variable, "lo") == "lo":
            os.environ[variable] = interface
    store, _, num_ranks = next(dist.rendezvous("env://"))
    if num_ranks != config.learner.num_ranks:
        reason = f"{config.learner.num_ranks}, but torchrun has started {num_ranks} processes"
        step = f"set learner.num_ranks={num_ranks}, or start it without torchrun"
        raise ConfigError([Problem("learner.num_ranks", reason, step)])
    return store


def _end_after_stop(stop: StopToken) -> None:
    stop.wait()
    time.sleep(FOLLOWER_STOP_S)
    log.get_logger().info("rank.cut_off", reason=stop.reason)
    sys.stderr.flush()
    os._exit(0)
