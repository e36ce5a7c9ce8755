"""Thousands of actors in a few processes, each with its own CURVE connection, place and incarnation; for `broker_scale`.

    crowd = Crowd(...); crowd.set(num_playing=10, ...); time.sleep(...); report = crowd.take_report()

Every actor says hello and then sends heartbeats as often as the broker wants them. The first ``num_playing`` of a crowd also take
assignments and hand in trajectories; the last ``num_deaf`` ask on and on and never read an answer. One thread a process, no
`BrokerClient`: two thousand of those would be four thousand threads.
"""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import zmq

from computerrl.benchmarks._episodes import make_step, make_trajectory
from computerrl.common.errors import ComputerRLError
from computerrl.common.host import allow_files
from computerrl.common.lifecycle import die_with_parent
from computerrl.common.messages import (
    Assignment,
    AssignmentRequest,
    DirectoryRequest,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Message,
    NoAssignment,
    Trajectory,
    TrajectoryReceipt,
)
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.common.wire import codec
from computerrl.common.wire.transport import client_socket

_DEAF_PERIOD_S = 0.05
_LATE_S = 20.0
"""Without an answer for this long a player asks again."""


@dataclass(slots=True)
class Orders:
    """Orders to a crowd."""

    num_playing: int = 0
    num_deaf: int = 0
    deaf_reads: bool = False
    """Whether the deaf clients read their answers after all; that is the baseline."""
    think_s: float = 0.0
    """Mean pause between a receipt and the next request of the same player."""
    num_tokens: int = 200
    """Of a trajectory."""


@dataclass(slots=True)
class Report:
    """Observations of a crowd since the last report."""

    num_welcomed: int = 0
    """Actors that the broker knows; since the start."""
    accepted: list[str] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    """Of requests and submissions of the players."""
    num_refused: int = 0
    """Requests for an assignment that got none."""
    num_beats: int = 0
    """Heartbeats answered."""
    num_errors: int = 0


@dataclass(slots=True, eq=False)
class _Actor:
    index: int
    sender: str
    socket: zmq.Socket[bytes]
    asked_at: float = 0.0
    waiting_for: int = 0
    """Id of the request whose answer decides the next one; 0: there is none."""
    beat: int = 0
    """Id of the heartbeat that waits for its answer, 0 when none does."""
    welcomed: bool = False

    @property
    def incarnation(self) -> str:
        return self.sender.rpartition(":")[2]


def run_crowd(pipe: Connection, folder: Path, first_index: int, num_actors: int) -> None:
    """Process of one crowd: takes `Orders` from ``pipe`` and answers each with the `Report` on the time before; None ends it."""
    die_with_parent()
    allow_files(4 * num_actors + 100)
    _Crowd(RunFolder(folder), first_index, num_actors).run(pipe)


class _Crowd:
    def __init__(self, folder: RunFolder, first_index: int, num_actors: int) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, num_actors + 100)
        self._poller = zmq.Poller()
        self._ids = itertools.count(1)
        self._ticks = itertools.count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._orders = Orders()
        self._report = Report()
        self._beat_period_s = 1.0
        keys, known = folder.load_keys(), folder.read_broker()
        assert known is not None, "the broker has not started"
        self._actors = []
        for index in range(first_index, first_index + num_actors):
            socket = client_socket(self._context, keys)
            socket.setsockopt(zmq.RCVHWM, 8)
            socket.setsockopt(zmq.RCVBUF, 1 << 14)
            socket.connect(known["address"])
            actor = _Actor(index, f"actor-{index}:load-{index}", socket)
            self._actors.append(actor)
            self._poller.register(socket, zmq.POLLIN)
            # Spread over seconds, as they would start.
            self._later((index - first_index) * 0.002, lambda actor=actor: self._greet(actor))  # type: ignore[misc]
        self._of_socket = {actor.socket: actor for actor in self._actors}

    def run(self, pipe: Connection) -> None:
        while True:
            if pipe.poll():
                orders = pipe.recv()
                if orders is None:
                    self._context.destroy(linger=0)
                    return
                pipe.send(self._report)
                self._report = Report(num_welcomed=self._report.num_welcomed)
                self._obey(orders)
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                heapq.heappop(self._due)[2]()
            for socket, _ in self._poller.poll(5):
                self._read(self._of_socket[socket])

    def _obey(self, orders: Orders) -> None:
        before, self._orders = self._orders, orders
        for actor in self._actors[before.num_playing : orders.num_playing]:
            self._later(random.uniform(0.0, orders.think_s), lambda actor=actor: self._ask(actor))  # type: ignore[misc]
        for actor in self._actors[len(self._actors) - orders.num_deaf :] if orders.num_deaf else []:
            if not orders.deaf_reads:
                self._poller.unregister(actor.socket)
            self._shout(actor)

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + delay_s, next(self._ticks), action))

    def _send(self, actor: _Actor, message: Message) -> int:
        number = next(self._ids)
        try:
            actor.socket.send_multipart(codec.encode(message, sender=actor.sender, message_id=number), zmq.DONTWAIT)
        except zmq.Again:
            self._report.num_errors += 1
        return number

    def _greet(self, actor: _Actor) -> None:
        self._send(actor, Hello("actor", actor.index, actor.incarnation, "node", 1, {}))
        self._later(1.0, lambda: self._beat(actor))

    def _beat(self, actor: _Actor) -> None:
        if actor.welcomed:
            if not actor.beat:
                actor.beat = self._send(actor, Heartbeat("actor", actor.index, actor.incarnation, {}, ""))
            if actor.waiting_for and time.monotonic() - actor.asked_at > _LATE_S:
                self._ask(actor)
        self._later(self._beat_period_s, lambda: self._beat(actor))

    def _shout(self, actor: _Actor) -> None:
        if self._orders.num_deaf:
            self._send(actor, DirectoryRequest("env_server"))
            self._later(_DEAF_PERIOD_S, lambda: self._shout(actor))

    def _ask(self, actor: _Actor) -> None:
        if actor.index - self._actors[0].index < self._orders.num_playing:
            actor.asked_at = time.monotonic()
            actor.waiting_for = self._send(actor, AssignmentRequest(actor.incarnation, 1 << 30, f"r{next(self._ticks)}"))

    def _read(self, actor: _Actor) -> None:
        while True:
            try:
                frames = actor.socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            try:
                answer = codec.decode(frames)
            except ComputerRLError:
                self._report.num_errors += 1
                continue
            if not actor.welcomed:
                actor.welcomed = True
                self._report.num_welcomed += 1
            if answer.cause_id == actor.beat:
                actor.beat = 0
                self._report.num_beats += 1
                if isinstance(answer.message, HeartbeatAck):
                    self._beat_period_s = answer.message.period_s
            if answer.cause_id == actor.waiting_for:
                self._go_on(actor, answer.message)

    def _go_on(self, actor: _Actor, answer: Message) -> None:
        now = time.monotonic()
        self._report.latencies_s.append(now - actor.asked_at)
        actor.waiting_for = 0
        if isinstance(answer, Assignment):
            actor.asked_at = now
            actor.waiting_for = self._send(actor, _episode(answer, actor.sender, self._orders.num_tokens))
            return
        if isinstance(answer, NoAssignment):
            self._report.num_refused += 1
            self._later(answer.retry_after_s, lambda: self._ask(actor))
            return
        if isinstance(answer, TrajectoryReceipt) and answer.accepted:
            self._report.accepted.append(answer.trajectory_id)
        else:
            self._report.num_errors += 1
        pause_s = self._orders.think_s
        self._later(random.uniform(0.5, 1.5) * pause_s, lambda: self._ask(actor))


def _episode(work: Assignment, actor: str, num_tokens: int) -> Trajectory:
    return make_trajectory(work, [make_step(np.arange(num_tokens), np.arange(8), logprobs=[-0.5] * 8)], actor=actor)
