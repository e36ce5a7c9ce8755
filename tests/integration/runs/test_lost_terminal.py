"""A run whose terminal or pipe is gone: it ends or goes on as asked, and writes down how it ended."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from computerrl.launch.watch.display import outliving_the_terminal
from tests.support.desktops import LIGHT_FAMILIES

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 300.0

Ends = tuple[BinaryIO, BinaryIO]
"""The end that a test reads and may close, and the end that programs have."""


def both_ends(descriptors: tuple[int, int]) -> Ends:
    return open(descriptors[0], "rb", buffering=0), open(descriptors[1], "wb", buffering=0)


@pytest.fixture
def terminal() -> Iterator[Ends]:
    ours, theirs = both_ends(pty.openpty())
    with ours, theirs:
        yield ours, theirs


def train(folder: Path, config: str, *words: str, terminal: BinaryIO, nohup: bool = False) -> subprocess.Popen[bytes]:
    """`computerrl train` as the first process of its terminal's session."""

    def prepare() -> None:
        fcntl.ioctl(1, termios.TIOCSCTTY, 0)
        # The tests themselves may have been started with nohup.
        signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)

    command = [sys.executable, "-m", "computerrl", "train", str(ROOT / "configs" / f"{config}.yaml"), *words]
    with terminal:
        return subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"},
            stdin=subprocess.DEVNULL,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            preexec_fn=prepare,
        )


def wait_update(folder: Path, ours: BinaryIO) -> None:
    """Until the run has trained; what it shows is taken meanwhile, as a terminal does."""
    metrics = folder / "runs" / "latest" / "metrics.jsonl"
    while not (metrics.exists() and '"event":"update"' in metrics.read_text().replace(" ", "")):
        assert ours.read(65536)


def ending(folder: Path) -> dict[str, Any]:
    run = folder / "runs" / "latest"
    assert (run / "report.html").stat().st_size > 0
    return dict(json.loads((run / "logs" / "latest" / "attempt.json").read_text()))


@pytest.mark.parametrize("make", [os.pipe, pty.openpty])
def test_writing_goes_on_to_nowhere(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = both_ends(make())
    with ours, theirs, open(os.dup(theirs.fileno()), "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with outliving_the_terminal():
            print("heard", flush=True)
            assert ours.read(100).strip() == b"heard"
            ours.close()
            for _ in range(3):
                print("not heard", flush=True)
            assert sys.stdout.fileno() == stream.fileno()


def test_full_disk_is_still_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "wb", buffering=0) as full, open(os.dup(full.fileno()), "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with outliving_the_terminal(), pytest.raises(OSError, match="No space left"):
            print("x", flush=True)
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())


@pytest.mark.parametrize("config", ["serial", pytest.param("smoke", marks=pytest.mark.release)])
def test_terminal_that_closes_stops_the_run_in_good_order(tmp_path: Path, terminal: Ends, config: str) -> None:
    ours, theirs = terminal
    process = train(tmp_path, config, "learner.recipe.max_updates=100000", LIGHT_FAMILIES, terminal=theirs)
    wait_update(tmp_path, ours)
    ours.close()
    assert process.wait(LIMIT_S) == 128 + signal.SIGHUP
    how = ending(tmp_path)
    assert (how["outcome"], how["reason"]) == ("stopped", "stopped by SIGHUP")


def test_nohup_run_outlives_its_terminal(tmp_path: Path, terminal: Ends) -> None:
    ours, theirs = terminal
    process = train(tmp_path, "serial", "learner.recipe.max_updates=4", LIGHT_FAMILIES, terminal=theirs, nohup=True)
    wait_update(tmp_path, ours)
    ours.close()
    assert process.wait(LIMIT_S) == 0
    assert ending(tmp_path)["outcome"] == "finished"
