"""What other folders may use of the learner: its weight endpoint and the broadcast group.

`WeightClient` is the control side (who takes part in which broadcast); `BroadcastGroup` moves the bytes. Deciding what is
sent and loading it into an engine happen elsewhere (`learner.weights.sender`, `actor.serving.weight_receiver`).

Security: the control messages are encrypted and authenticated like every other socket of the run. torch.distributed has
neither: its store and its data connections are open to whoever can reach the address. They listen on
`learner.bind_address` (loopback unless changed) and a random port, and the store keys carry a random token that only
travels over the encrypted control socket; on a shared network put them on the cluster's private interface.
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
from computerrl.common.messages import Ack, Message, WeightInvitation, WeightJoin, WeightLoaded
from computerrl.common.wire.addresses import in_address, is_ipv6, split_address

if TYPE_CHECKING:
    import torch

    from computerrl.common.weight_plan import WeightPlan

WEIGHTS_ENDPOINT = "weights"
"""Name under which the learner announces its weight control socket in `Hello.endpoints`."""

PARK_S = 1.0
"""The learner holds a `WeightJoin` back this long when it has nothing new, then says so: a new version reaches a waiting
receiver at once, and a receiver that died is forgotten within a second."""

_POLL_S = 0.001

_NUM_UNDER_WAY = 2
"""Buckets: one whose bytes come while the one before it is checked. More only wait for each other."""

_LOOK_AGAIN_S = 0.05


class Channel(Protocol):
    """The part of `common.wire.transport.Channel` used here."""

    def request(self, message: Message, *, timeout_s: float) -> Message: ...

    def close(self) -> None: ...


class WeightClient:
    """Typed requests to the learner's weight endpoint; finds the learner again when it came back at another address."""

    def __init__(self, connect: Callable[[], Channel]) -> None:
        """``connect`` opens a channel to where the learner is now; it raises `PeerTimeout` while there is none."""
        self._connect = connect
        self._channel: Channel | None = None

    def join(self, receiver: str, *, loaded_version: int, model_digest: str, timeout_s: float) -> WeightInvitation:
        """Ask to take part in the next broadcast; see `WeightInvitation.epoch` for "nothing new"."""
        message = WeightJoin(receiver=receiver, loaded_version=loaded_version, model_digest=model_digest)
        answer = self._request(message, timeout_s=timeout_s)
        if not isinstance(answer, WeightInvitation):
            raise ProtocolError(f"the learner answered WeightJoin with {type(answer).__name__}")
        return answer

    def loaded(self, receiver: str, *, policy_version: int, error: str, load_s: float, timeout_s: float) -> None:
        """Report the version served now, or why it could not be loaded."""
        message = WeightLoaded(receiver=receiver, policy_version=policy_version, error=error, load_s=load_s)
        answer = self._request(message, timeout_s=timeout_s)
        if not isinstance(answer, Ack):
            raise ProtocolError(f"the learner answered WeightLoaded with {type(answer).__name__}")

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
            # Dead, or restarted elsewhere: look it up again next time.
            self.close()
            raise


class BroadcastGroup:
    """One epoch's process group: rank 0 is the learner. Any failure makes it useless; abandon it and form the next.

    Built from the backend's class directly, so that several epochs can live in one process and the default group of
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
        """Blocks until all members are there; raises RuntimeError when they are not within ``form_timeout_s``.

        ``store`` is the learner's TCPStore (`serve_store`, `join_store`); ``host`` the local address to listen on;
        ``timeout_s`` is for each broadcast afterwards.
        """
        import datetime

        import torch.distributed as dist

        form_timeout = datetime.timedelta(seconds=form_timeout_s)
        scoped = dist.PrefixStore(prefix, store)
        scoped.set_timeout(form_timeout)
        _meet(scoped, rank=rank, world_size=world_size, timeout=form_timeout)
        if backend == "nccl":
            nccl_options = dist.ProcessGroupNCCL.Options()
            # Its watchdog ends the process: only if ours below did not see it.
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
        """Rank 0's ``buffers`` into everybody's: gives the index of each whose bytes are there, while the next one is under way.
        Blocks without the interpreter lock. RuntimeError when a member is gone; the group is of no use then."""
        for i in range(len(buffers) + _NUM_UNDER_WAY - 1):
            if i < len(buffers):
                self._under_way.append(self._group.broadcast([buffers[i]], self._options))
            if i >= _NUM_UNDER_WAY - 1:
                self._under_way.popleft().wait()
                if self._backend == "nccl":
                    self._wait_for_stream()
                yield i - _NUM_UNDER_WAY + 1

    def _wait_for_stream(self) -> None:
        """NCCL's own wait only orders streams, and the bytes are looked at by the CPU next; nor has it a deadline."""
        import torch

        done = torch.cuda.Event()
        done.record()
        deadline = time.monotonic() + self._timeout_s
        while not done.query():
            if time.monotonic() > deadline:
                raise RuntimeError(f"a bucket took longer than {self._timeout_s:g} s: a member of the group hangs")
            time.sleep(_POLL_S)

    def abandon(self) -> None:
        """Let go of everybody. gloo closes its connections; NCCL must abort, destroying may hang."""
        group, self._group = self._group, None
        if group is not None and self._backend == "nccl":
            group.abort()
        while self._under_way:
            # gloo ends what is under way within its deadline or never lets go, and then with the interpreter lock held.
            with contextlib.suppress(RuntimeError):
                self._under_way.popleft().wait()


def _meet(store: Any, *, rank: int, world_size: int, timeout: Any) -> None:
    """Wait until all members are there, before any of them connects to another.

    gloo waits 30 s for a member that dies while the group forms, whatever timeout it is given; here it is the caller's.
    """
    store.set(f"here-{rank}", b"1")
    try:
        store.wait([f"here-{other}" for other in range(world_size)], timeout)
    except RuntimeError:
        store.delete_key(f"here-{rank}")  # Whoever comes later must not take us for present.
        raise


def serve_store(host: str) -> tuple[Any, str]:
    """(store, address) of a TCPStore that listens on ``host`` and a random port only (by itself it takes all interfaces)."""
    import torch.distributed as dist

    family = socket.AF_INET6 if is_ipv6(host) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind((host, 0))
        listener.listen(128)
        port = listener.getsockname()[1]
        store = dist.TCPStore(host, port, None, True, wait_for_workers=False, master_listen_fd=listener.detach())
    return store, f"{in_address(host)}:{port}"


def join_store(address: str, *, timeout_s: float) -> Any:
    """Connect to the store at ``host:port``; RuntimeError when nobody listens there."""
    import datetime

    import torch.distributed as dist

    host, port = split_address(address)
    return dist.TCPStore(host, port, None, False, timeout=datetime.timedelta(seconds=timeout_s))


def local_host_towards(address: str) -> str:
    """The local address from which ``host:port`` is reached: where this side of the group has to listen."""
    host, port = split_address(address)
    family = socket.AF_INET6 if is_ipv6(host) else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # No packet is sent: this only asks the routing table.
        return str(probe.getsockname()[0])


def read_buckets(path: Path, plan: WeightPlan, *, timeout_s: float) -> list[torch.Tensor]:
    """Buckets of ``plan``, uint8 [bytes] each. A file that is not there yet (shared file systems show new names late) is waited
    for. Raises `OSError`, `WeightError` for a file that is not of this plan."""
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
    """Where the learner's loop puts new weights."""

    def publish_base(self, policy_version: int, *, probe_logprobs: Any) -> None:
        """``policy_version`` is the untouched base model, which every engine has already."""

    def publish(self, policy_version: int, tensors: Mapping[str, torch.Tensor], *, probe_logprobs: Any) -> None:
        """Snapshot ``tensors`` and return at once; engines get them in the background."""

    def metrics(self) -> dict[str, float]:
        """`learner/...` figures for the heartbeat."""


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
