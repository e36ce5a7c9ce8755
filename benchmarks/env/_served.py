"""Processes that `bench serve` asks: `computerrl serve-desktops`, ready to be asked. Part of `bench serve`."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
from websockets.sync.client import ClientConnection, connect

FAMILY = "calc-set-cell"
SEED = 100_005
MANY_STEPS = 1_000_000
START_LIMIT_S = 600.0


def row(name: str, value: float, unit: str, target: float | None = None, better: str = "lower") -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "target": target, "better": better}


@contextlib.contextmanager
def start(command: Sequence[str], folder: Path, pattern: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server, and what it says by ``pattern``."""
    output = folder / f"{len(list(folder.iterdir()))}.txt"
    with output.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while not (found := re.search(pattern, output.read_text(errors="replace"), re.MULTILINE)):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{' '.join(command)} did not start:\n{output.read_text(errors='replace')}")
            time.sleep(0.05)
        yield process, found[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


class Front:
    """A `computerrl serve-desktops`."""

    def __init__(self, process: subprocess.Popen[bytes], address: str, token: str) -> None:
        self.process, self.address, self.token = process, address, token
        self.headers = {"Authorization": f"Bearer {token}"}

    def client(self) -> httpx2.Client:
        return httpx2.Client(base_url=self.address, headers=self.headers, timeout=START_LIMIT_S, trust_env=False)

    def socket(self) -> ClientConnection:
        return connect(self.address.replace("http", "ws") + "/ws", additional_headers=self.headers, max_size=None, proxy=None)

    def reset(self, client: httpx2.Client) -> dict[str, str]:
        """Headers of a session with the task on screen, as soon as there is a desktop."""
        while (reply := client.post("/reset", json={"task": FAMILY, "seed": SEED})).status_code == 429:
            pass
        reply.raise_for_status()
        return {"X-Session-Id": reply.headers["X-Session-Id"]}


@contextlib.contextmanager
def serve_desktops(folder: Path, num_desktops: int, *, idle_limit_s: float = 600.0) -> Iterator[Front]:
    token_file = folder / "token"
    command = [sys.executable, "-m", "computerrl", "serve-desktops", "quickstart", "--port", "0", "--token-file", str(token_file)]
    command += ["--allow-execute", "--idle", str(idle_limit_s), f"tasks.families=[{FAMILY}]", f"tasks.max_steps={MANY_STEPS}"]
    command += [f"desktop.num_desktops={num_desktops}", "desktop.apps=[calc]", "desktop.reset_deadline_s=240"]
    with start([*command, "desktop.step_deadline_s=120"], folder, r"^serving: (\S+)$") as (process, address):
        yield Front(process, address, token_file.read_text())
