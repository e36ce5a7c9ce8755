"""`computerrl train` with real processes and real, contained desktops: killed, stopped, resumed, finished, nothing left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from computerrl.common.metrics import read_json_lines
from computerrl.launch.supervision import processes
from tests.support.data.image_prompts import VLLM_TEXT, make_folder
from tests.support.desktops import LIGHT_FAMILIES

ROOT = Path(__file__).resolve().parents[3]
CONFIG = ROOT / "configs" / "smoke.yaml"
STEP_LIMIT_S = 300.0
"""For one thing to happen; far more than it takes, on a busy machine too, where vLLM starts again."""


class Train:
    """One `computerrl train` in ``folder``."""

    def __init__(self, folder: Path, *words: str, max_updates: int) -> None:
        self._output = folder / "output.txt"
        until = f"learner.recipe.max_updates={max_updates}"
        command = [sys.executable, "-m", "computerrl", "train", str(CONFIG), "--set", until, LIGHT_FAMILIES, *words]
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.seen: set[int] = set()
        self._shared_memory: set[Path] = set()

    @property
    def output(self) -> str:
        return self._output.read_text()

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + STEP_LIMIT_S
        while not condition():
            assert self.process.poll() is None, f"ended before {what}:\n{self.output}"
            assert time.monotonic() < deadline, f"no {what} within {STEP_LIMIT_S:g} s:\n{self.output}"
            now = processes.descendants([self.process.pid])
            self.seen |= now
            self._shared_memory |= processes.shared_memory_of(now)
            time.sleep(0.25)

    def wait_line(self, pattern: str) -> None:
        self.wait_until(lambda: re.search(pattern, self.output) is not None, pattern)

    def update(self) -> int:
        return max((int(number) for number in re.findall(r"update=(\d+)", self.output)), default=0)

    def wait_updates(self, more: int) -> None:
        wanted = self.update() + more
        self.wait_until(lambda: self.update() >= wanted, f"update {wanted}")

    def kill(self, command: str, number: signal.Signals = signal.SIGKILL) -> None:
        """A signal to the role that runs ``command``."""
        for pid in processes.descendants([self.process.pid]):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except FileNotFoundError:
                continue  # It has ended since.
            if b"computerrl" in words and command.encode() in words:
                os.kill(pid, number)
                return
        raise AssertionError(f"no process runs {command}")

    def end(self) -> int:
        return self.process.wait(timeout=STEP_LIMIT_S)

    def left(self) -> set[int]:
        return self.seen & processes.parents().keys()

    def shared_memory_left(self) -> set[Path]:
        """What of its own is still there: other tests keep files beside them."""
        return {file for file in self._shared_memory | processes.named_after(self.seen) if file.exists()}


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Callable[..., Train]]:
    started: list[Train] = []

    def begin(*words: str, max_updates: int) -> Train:
        started.append(Train(tmp_path, *words, max_updates=max_updates))
        return started[-1]

    yield begin
    for run in started:
        processes.kill_all(run.left() | ({run.process.pid} if run.process.poll() is None else set()))
        run.process.wait()


def test_train_killed_stopped_and_resumed_finishes_with_nothing_lost_or_left(train: Callable[..., Train], tmp_path: Path) -> None:
    run = train(max_updates=1000)
    run.wait_line(r"update=1 ")
    for command in ("actor", "env-server"):
        run.kill(command)
    for name in ("actor-0", "env_server-0"):
        run.wait_line(rf"note {name} ended \(SIGKILL\)")
    run.wait_updates(2)
    taken_over = (tmp_path / "runs" / "latest" / "logs" / "latest" / "env_server-0.log").read_text().count("desktop.taken_over")
    assert taken_over > 0, "desktops outlive their env_server"
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130, run.output
    assert not run.left()
    assert not run.shared_memory_left()
    stopped_at = run.update()

    # From here on with actors that have no engine of their own.
    # Updates may come in pairs, so that some are left when the last process is killed.
    last = stopped_at + 10
    run = train("--resume", "--set", "actor.inference=central", "--set", "actor.num_actors=2", max_updates=last)
    run.wait_line(r"update=")
    for command, number in (("engine", signal.SIGSEGV), ("broker", signal.SIGKILL), ("learner", signal.SIGKILL)):
        run.kill(command, number)
        run.wait_line(rf"note {command}-0 ended \({number.name}\)")
        run.wait_updates(1)
    assert run.end() == 0, run.output
    assert not run.left()
    assert not run.shared_memory_left()

    folder = tmp_path / "runs" / "latest"
    assert "Fatal Python error: Segmentation fault" in (folder / "logs" / "latest" / "engine-0.log").read_text()
    report = json.loads((folder / "report.json").read_text())
    assert report["finished"] is True
    assert report["driver"] == "apptainer"
    assert report["num_updates"] == last
    assert report["num_trajectories_lost"] == 0
    assert report["restarts"] == {"actor-0": 1, "env_server-0": 1, "engine-0": 1, "broker-0": 1, "learner-0": 1}, run.output
    updates = Counter(record["update"] for record in read_json_lines(folder / "metrics.jsonl") if record["event"] == "update")
    assert updates == Counter(range(1, last + 1)), "every update once, along one lineage"
    episodes = Counter(episode["trajectory_id"] for episode in read_json_lines(folder / "trajectories" / "episodes.jsonl"))
    assert set(episodes.values()) == {1}, "no trajectory twice"
    assert (folder / "report.html").stat().st_size > 10_000


@pytest.mark.release
@pytest.mark.parametrize(("engine", "family"), [("transformers", "qwen3_vl"), ("vllm", "idefics3")])
def test_train_on_images_with_every_role_killed_loses_no_trajectory_and_no_image(
    train: Callable[..., Train], tmp_path: Path, engine: str, family: str
) -> None:
    model = make_folder(tmp_path / "model", family, text=VLLM_TEXT if engine == "vllm" else None, tied=True)
    settings = [
        f"model.name={model}",
        f"actor.engine={engine}",
        "actor.prompt={format: compact_vision, images: 2, max_prompt_tokens: 400}",
        "actor.inference=central",
        "actor.num_actors=2",
        "desktop.screenshot_format=png",
        # Log-probs of engine and learner are compared: images that one of them misses would end the run.
        "learner.max_logprob_gap=0.001",
        "tasks.families=[editor-type-save]",
        "learner.recipe.eval_episodes_per_family=0",
    ]
    run = train(*(word for setting in settings for word in ("--set", setting)), max_updates=9)
    run.wait_line(r"update=1 ")
    for command in ("actor", "env-server", "engine", "broker", "learner"):
        run.kill(command)
        run.wait_line(rf"note {command.replace('-', '_')}-\d ended \(SIGKILL\)")
        run.wait_updates(1)
    assert run.end() == 0, run.output
    assert not run.left()
    folder = tmp_path / "runs" / "latest"
    report = json.loads((folder / "report.json").read_text())
    assert report["finished"] is True and report["num_updates"] == 9 and report["num_trajectories_lost"] == 0
    assert sum(report["restarts"].values()) == 5
    updates = Counter(record["update"] for record in read_json_lines(folder / "metrics.jsonl") if record["event"] == "update")
    assert updates == Counter(range(1, 10)), "every update once, along one lineage"
    episodes = Counter(episode["trajectory_id"] for episode in read_json_lines(folder / "trajectories" / "episodes.jsonl"))
    assert set(episodes.values()) == {1}, "no trajectory twice"
    ledger = list(read_json_lines(folder / "ledger.jsonl"))
    assert set(Counter(line["trajectory_id"] for line in ledger).values()) == {1}, "one outcome each"
    outcomes = Counter(line["outcome"] for line in ledger)
    assert outcomes["demonstrated"] >= 2 and not [name for name in outcomes if name.startswith("picture_")], outcomes
    # The learner has images of its own: it reads no segment of an env_server.
    assert list((folder / "images").iterdir())


@pytest.mark.release
def test_train_role_with_an_impossible_option_ends_the_run_with_its_message(train: Callable[..., Train]) -> None:
    run = train("--set", "learner.algorithm.options={no_such_option: 1}", max_updates=1)
    assert run.end() == 2, run.output
    assert "no_such_option" in run.output
    assert "starts again" not in run.output
    assert not run.left()
