"""Baselines of `broker`: other ways of moving the same bytes, in the same run on the same disk."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import zmq

from computerrl.common.host import keep_freed_memory
from computerrl.common.lifecycle import die_with_parent
from computerrl.common.wire.keys import Keys
from computerrl.common.wire.ports import free_looking_ports
from computerrl.common.wire.transport import generate_keys

_SPAWN = multiprocessing.get_context("spawn")
_CHUNK_BYTES = 1_000_000
_START_LIMIT_S = 10.0

Peer = Callable[[Sequence[bytes], int, Path], float]
"""(payloads, in flight at most, folder on the run's disk) -> seconds until all have arrived"""


def raw_write(payloads: Sequence[bytes], _window: int, folder: Path) -> float:
    """One file, 1 MB a write, one fdatasync at its end."""
    data, num_bytes = os.urandom(_CHUNK_BYTES), sum(map(len, payloads))
    path = folder / "raw"
    started = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for left in range(num_bytes, 0, -_CHUNK_BYTES):
            file.write(data[:left])
        os.fdatasync(file.fileno())
    took_s = time.perf_counter() - started
    path.unlink()
    return took_s


def push_pull(payloads: Sequence[bytes], _window: int, folder: Path, *, keys: Keys | None = None) -> float:
    """ZeroMQ PUSH to PULL in another process, encrypted with ``keys``: no acknowledgement, nothing on disk."""
    del folder
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_pull, args=(theirs, len(payloads), keys))
    process.start()
    try:
        with zmq.Context() as context, context.socket(zmq.PUSH) as push:
            if keys is not None:
                push.curve_serverkey = keys.server_public
                push.curve_publickey, push.curve_secretkey = keys.client_public, keys.client_secret
            push.connect(ours.recv())
            started = time.perf_counter()
            for payload in payloads:
                push.send(payload, copy=False)
            ours.recv()
            return time.perf_counter() - started
    finally:
        process.terminate()
        process.join()


def encrypted_push_pull(payloads: Sequence[bytes], window: int, folder: Path) -> float:
    """The rate over CURVE alone."""
    return push_pull(payloads, window, folder, keys=generate_keys())


def _pull(pipe: Connection, count: int, keys: Keys | None) -> None:
    die_with_parent()
    keep_freed_memory()
    with zmq.Context() as context, context.socket(zmq.PULL) as pull:
        if keys is not None:
            pull.curve_server = True
            pull.curve_publickey, pull.curve_secretkey = keys.server_public, keys.server_secret
        port = pull.bind_to_random_port("tcp://127.0.0.1")
        pipe.send(f"tcp://127.0.0.1:{port}")
        for _ in range(count):
            pull.recv()
        pipe.send("done")


def redis_streams(payloads: Sequence[bytes], window: int, folder: Path) -> float:
    """XADD to a stream of an own redis-server with appendfsync everysec; acknowledged before they are on disk."""
    home = folder / "redis"
    home.mkdir()
    (port,) = free_looking_ports(1)
    options = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(home), "--save", "", "--appendonly", "yes"]
    process = subprocess.Popen(["redis-server", *options, "--appendfsync", "everysec"], stdout=subprocess.DEVNULL)
    try:
        with _connect(port) as connection:
            return _add_all(connection, payloads, window)
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(home)


def _connect(port: int) -> socket.socket:
    deadline = time.monotonic() + _START_LIMIT_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _add_all(connection: socket.socket, payloads: Sequence[bytes], window: int) -> float:
    answers, num_open = connection.makefile("rb"), 0

    def take_answer() -> None:
        length = answers.readline()  # $15\r\n, then the entry's id
        if not length.startswith(b"$"):
            raise RuntimeError(f"redis answered {length!r}")
        answers.readline()

    started = time.perf_counter()
    for payload in payloads:
        head = b"*5\r\n$4\r\nXADD\r\n$6\r\nstream\r\n$1\r\n*\r\n$4\r\ndata\r\n$%d\r\n" % len(payload)
        connection.sendall(b"".join((head, payload, b"\r\n")))
        num_open += 1
        if num_open == window:
            take_answer()
            num_open -= 1
    for _ in range(num_open):
        take_answer()
    return time.perf_counter() - started


def ray_queue(payloads: Sequence[bytes], window: int, folder: Path) -> float:
    """Calls of a Ray actor that keeps its arguments; nothing on disk."""
    import ray

    del folder
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:

        @ray.remote
        class Queue:
            def __init__(self) -> None:
                self.kept: list[bytes] = []

            def put(self, payload: bytes) -> int:
                self.kept.append(payload)
                return len(self.kept)

        queue = Queue.remote()  # type: ignore[attr-defined]
        ray.get(queue.put.remote(b""))
        started = time.perf_counter()
        running: list[object] = []
        for payload in payloads:
            running.append(queue.put.remote(payload))
            if len(running) == window:
                _, running = ray.wait(running, num_returns=1)
        ray.get(running)
        return time.perf_counter() - started
    finally:
        ray.shutdown()


PEERS: dict[str, Peer] = {
    "raw sequential write + fdatasync": raw_write,
    "ZeroMQ PUSH/PULL, plain": push_pull,
    "ZeroMQ PUSH/PULL, CURVE": encrypted_push_pull,
    "Redis Streams, appendfsync everysec": redis_streams,
    "Ray actor queue": ray_queue,
}


def missing(name: str) -> str:
    """Requirement of the peer that this machine lacks; empty: none."""
    if name.startswith("Redis") and shutil.which("redis-server") is None:
        return "redis-server is not installed"
    if name.startswith("Ray") and importlib.util.find_spec("ray") is None:
        return "ray is not installed"
    return ""
