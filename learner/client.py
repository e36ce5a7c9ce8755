"""The part of the learner that other folders may use: its weight endpoint and the broadcast group.

`WeightClient` sends the control messages (which receiver takes part in which update); `BroadcastGroup` moves the bytes. Choosing
the version and loading it into an engine happen elsewhere (`learner.weights.sender`, `actor.serving.weight_receiver`).

Security: the control messages are encrypted and authenticated like every other socket of the run. torch.distributed does
neither: its store and its data connections are open to every process that can reach the address. They listen on
`learner.bind_address` (loopback unless changed) and a random port, and the store keys carry a random token that only
travels over the encrypted control socket. On a shared network, put them on the cluster's private interface.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from computerrl.common.errors import PeerTimeout, ProtocolError, WeightError
from computerrl.common.messages import (
    Ack,
    BaseModelInvitation,
    BroadcastInvitation,
    FileInvitation,
    Message,
    NothingNewer,
    WeightJoin,
    WeightLoaded,
)
from computerrl.common.wire.addresses import in_address, is_ipv6, split_address
from computerrl.common.wire.transport import Channel
from computerrl.learner.weight_bytes import apply_changes as apply_changes
from computerrl.learner.weight_bytes import checksum as checksum
from computerrl.learner.weight_bytes import make_buckets as make_buckets

if TYPE_CHECKING:
    import torch

    from computerrl.common.weight_plan import WeightPlan

WEIGHTS_ENDPOINT = "weights"
"""Name under which the learner announces its weight control socket in `Hello.endpoints`."""

PARK_S = 1.0
"""Time that the learner holds back its reply to a `WeightJoin` while there is no newer version. A new version reaches a waiting
receiver at once, and a receiver that died is forgotten within a second."""

_POLL_S = 0.001

_NUM_UNDER_WAY = 2
"""Number of buckets under way: one arrives while the one before it is checked. More would only wait for each other."""

_LOOK_AGAIN_S = 0.05
"""Pause between two looks for a file that is not there yet."""

Invitation = BaseModelInvitation | FileInvitation | BroadcastInvitation
"""Invitations to an update, one type for each way in which the weights travel."""


class WeightClient:
    """Typed requests to the learner's weight endpoint. After a restart of the learner it connects to the new address."""

    def __init__(self, connect: Callable[[], Channel]) -> None:
        """``connect`` opens a channel to the learner's present address; it raises `PeerTimeout` while there is no learner."""
        self._connect = connect
        self._channel: Channel | None = None

    def join(
        self, receiver: str, *, loaded_version: int, model_digest: str, held: str, timeout_s: float
    ) -> Invitation | NothingNewer:
        """Ask for the next weight update; arguments as in `WeightJoin`.

        Raises `PeerTimeout`, and `WeightError` when the learner has another base model."""
        message = WeightJoin(receiver=receiver, loaded_version=loaded_version, model_digest=model_digest, held=held)
        reply = self._request(message, timeout_s=timeout_s)
        if not isinstance(reply, Invitation | NothingNewer):
            raise ProtocolError(f"the learner answered WeightJoin with {type(reply).__name__}")
        return reply

    def loaded(self, receiver: str, *, policy_version: int, error: str, timeout_s: float) -> None:
        """Report the version that the receiver serves now, or the error with which the update failed."""
        message = WeightLoaded(receiver=receiver, policy_version=policy_version, error=error)
        reply = self._request(message, timeout_s=timeout_s)
        if not isinstance(reply, Ack):
            raise ProtocolError(f"the learner answered WeightLoaded with {type(reply).__name__}")

    def close(self) -> None:
        """Close the channel, if one is open."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _request(self, message: Message, *, timeout_s: float) -> Message:
        if self._channel is None:
            self._channel = self._connect()
        try:
            return self._channel.request(message, timeout_s=timeout_s)
        except PeerTimeout:
            # The learner is dead or restarted elsewhere: the next request looks it up again.
            self.close()
            raise


class BroadcastGroup:
    """Process group of one epoch, with the learner as rank 0. After any failure, abandon it and form the next.

    It is built from the backend's class directly, so that several epochs can live in one process and the default group of
    torch.distributed stays free for the training itself.
    """

    def __init__(
        self,
        *,
        store: Any,
        prefix: str,
        rank: int,
        world_size: int,
        backend: str,
        host: str,
        form_timeout_s: float,
        timeout_s: float,
    ) -> None:
        """Block until all members have joined. Raises RuntimeError when they have not within ``form_timeout_s``.

        ``store``: the learner's TCPStore (`serve_store`, `join_store`); ``host``: local address to listen on; ``timeout_s``:
        deadline of each broadcast afterwards.
        """
        import datetime

        import torch.distributed as dist

        form_timeout = datetime.timedelta(seconds=form_timeout_s)
        scoped = dist.PrefixStore(prefix, store)
        scoped.set_timeout(form_timeout)
        _meet(scoped, rank=rank, world_size=world_size, timeout=form_timeout)
        if backend == "nccl":
            nccl_options = dist.ProcessGroupNCCL.Options()
            # NCCL's watchdog ends the process, so it must come after our own deadline below.
            nccl_options._timeout = datetime.timedelta(seconds=10 * timeout_s)
            self._group: Any = dist.ProcessGroupNCCL(scoped, rank, world_size, nccl_options)
        else:
            options = dist.ProcessGroupGloo._Options()
            options._timeout = form_timeout
            options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
            self._group = dist.ProcessGroupGloo(scoped, rank, world_size, options)
        self._options = dist.BroadcastOptions()
        self._options.rootRank = 0
        self._options.rootTensor = 0
        self._options.timeout = datetime.timedelta(seconds=timeout_s)
        self._backend = backend
        self._timeout_s = timeout_s
        self._under_way: deque[Any] = deque()

    def broadcast(self, buffers: Sequence[torch.Tensor]) -> Iterator[int]:
        """Copy rank 0's ``buffers`` into those of all members. Yields the index of each buffer that has arrived, while the next
        one is under way. Blocks without the interpreter lock. Raises RuntimeError when a member is gone; abandon it then."""
        for i in range(len(buffers) + _NUM_UNDER_WAY - 1):
            if i < len(buffers):
                self._under_way.append(self._group.broadcast([buffers[i]], self._options))
            if i >= _NUM_UNDER_WAY - 1:
                self._under_way.popleft().wait()
                if self._backend == "nccl":
                    self._wait_for_stream()
                yield i - _NUM_UNDER_WAY + 1

    def _wait_for_stream(self) -> None:
        """Block until the bytes are there. NCCL's own wait only orders streams and has no deadline; the CPU reads them next."""
        import torch

        done = torch.cuda.Event()
        done.record()
        deadline = time.monotonic() + self._timeout_s
        while not done.query():
            if time.monotonic() > deadline:
                raise RuntimeError(f"a bucket took longer than {self._timeout_s:g} s: a member of the group hangs")
            time.sleep(_POLL_S)

    def abandon(self) -> None:
        """Leave the group. gloo closes its connections; NCCL must abort, because destroying may hang."""
        group, self._group = self._group, None
        if group is not None and self._backend == "nccl":
            group.abort()
        while self._under_way:
            # gloo ends a broadcast under way within its deadline or never, and then with the interpreter lock held.
            with contextlib.suppress(RuntimeError):
                self._under_way.popleft().wait()


def _meet(store: Any, *, rank: int, world_size: int, timeout: Any) -> None:
    """Wait until all members are there, before any of them connects to another.

    gloo waits 30 s for a member that dies while the group forms, whatever timeout it is given; here the caller's timeout holds.
    """
    store.set(f"here-{rank}", b"1")
    try:
        store.wait([f"here-{other}" for other in range(world_size)], timeout)
    except RuntimeError:
        store.delete_key(f"here-{rank}")  # A later member must not count this one as present.
        raise


def serve_store(host: str) -> tuple[Any, str]:
    """(store, address) of a new TCPStore that listens on ``host`` and a random port only (by default it takes all interfaces)."""
    import torch.distributed as dist

    family = socket.AF_INET6 if is_ipv6(host) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind((host, 0))
        listener.listen(128)
        port = listener.getsockname()[1]
        store = dist.TCPStore(host, port, None, True, wait_for_workers=False, master_listen_fd=listener.detach())
    return store, f"{in_address(host)}:{port}"


def join_store(address: str, *, timeout_s: float) -> Any:
    """Connect to the store at ``host:port``. Raises RuntimeError when no store listens there."""
    import datetime

    import torch.distributed as dist

    host, port = split_address(address)
    return dist.TCPStore(host, port, None, False, timeout=datetime.timedelta(seconds=timeout_s))


def local_host_towards(address: str) -> str:
    """Local address from which ``host:port`` is reached, on which this side of the group has to listen."""
    host, port = split_address(address)
    family = socket.AF_INET6 if is_ipv6(host) else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # Sends no packet; it only looks into the routing table.
        return str(probe.getsockname()[0])


def read_buckets(path: Path, plan: WeightPlan, *, timeout_s: float) -> list[torch.Tensor]:
    """Buckets of ``plan``, uint8 [bytes] each, from the file at ``path``. Waits up to ``timeout_s`` for the file: shared file
    systems show new names late. Raises `OSError`, and `WeightError` for a file that is not of this plan."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    deadline = time.monotonic() + timeout_s
    while not path.exists():
        if time.monotonic() > deadline:
            raise FileNotFoundError(f"{path} is not there: do learner and actors see the same run folder?")
        time.sleep(_LOOK_AGAIN_S)
    try:
        found = load_file(path)
    except SafetensorError as error:
        raise WeightError(f"{path} is no whole file of weights: {error}") from None
    expected = {f"bucket-{i}": (num_bytes,) for i, num_bytes in enumerate(plan.bucket_bytes)}
    if {name: tuple(tensor.shape) for name, tensor in found.items()} != expected:
        raise WeightError(f"{path} holds other buckets than its manifest says")
    return [found[name] for name in expected]


class WeightSink(Protocol):
    """Destination of new weights, for the learner's loop."""

    def publish_base(self, policy_version: int, *, probe_logprobs: Any) -> None:
        """Announce that ``policy_version`` is the untouched base model, which every engine has already."""

    def publish(self, policy_version: int, tensors: Mapping[str, torch.Tensor], *, probe_logprobs: Any) -> None:
        """Snapshot ``tensors`` and return at once; engines get them in the background."""

    def metrics(self) -> dict[str, float]:
        """Figures `learner/...` for the heartbeat."""


class DirectWeights:
    """`WeightSink` for serial mode: hands the tensors to an engine in the same process."""

    def __init__(self, load: Callable[..., float]) -> None:
        """``load`` is `PolicyEngine.load`."""
        self._load = load

    def publish_base(self, policy_version: int, *, probe_logprobs: Any) -> None:
        self._load(policy_version, {}, expected_probe=probe_logprobs)

    def publish(self, policy_version: int, tensors: Mapping[str, torch.Tensor], *, probe_logprobs: Any) -> None:
        copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        self._load(policy_version, copies, expected_probe=probe_logprobs)

    def metrics(self) -> dict[str, float]:
        return {}
