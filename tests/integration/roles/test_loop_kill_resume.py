"""A real broker process and a real learner process (tiny model), killed with SIGKILL while groups flow: nothing is lost, nothing
is trained twice. Actors are threads here that submit made-up episodes."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from computerrl.broker.client import BrokerClient
from computerrl.common.config import load_config
from computerrl.common.errors import ComputerRLError, RankLost
from computerrl.common.lifecycle import StopToken
from computerrl.common.messages import Assignment, Step, StepTiming, Trajectory
from computerrl.common.metrics import read_json_lines
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.common.wire.transport import Client
from computerrl.launch.supervision import processes
from tests.support.forked import ForkedRole

ROOT = Path(__file__).parents[3]
NUM_UPDATES = {1: 18, 2: 9}
"""Of the whole run, by number of ranks: two take turns on the cores of a small machine."""


def episode_of(assignment: Assignment, version: int, chance: random.Random) -> Trajectory:
    """Two steps of random tokens; sampled by ``version``."""
    is_demonstration = assignment.kind == "demonstration"
    num = 0 if is_demonstration else 3
    steps = tuple(
        Step(
            prompt_tokens=np.array([chance.randrange(1000) for _ in range(12)]),
            action_tokens=np.array([5, 6, 7]),
            behavior_logprobs=np.full(num, -10.8, np.float32),
            policy_versions=np.full(num, version, np.int32),
            action_text="click(1)",
            format_ok=True,
            action_error="",
            screenshot=None,
            settled_by="quiet",
            timing=StepTiming(0.01, 0.01, 0.0),
        )
        for _ in range(2)
    )
    success = is_demonstration or chance.random() < 0.5
    return Trajectory(
        trajectory_id=assignment.assignment_id,
        group_id=assignment.group_id,
        index=assignment.index,
        order_id=assignment.order_id,
        kind=assignment.kind,
        task=assignment.task,
        instruction="do it",
        steps=steps,
        reward=float(success),
        success=success,
        end_reason="done_action",
        final_screenshot=None,
        actor="actor-0:test",
        shown_by="",
        started_at=time.time(),
        duration_s=0.1,
        reset_s=0.0,
        wait_s=0.0,
    )


class Run:
    """Processes of one run and the made-up actor."""

    def __init__(self, folder: Path, *, num_ranks: int, rank_timeout_s: float) -> None:
        learner = {
            # The episodes here say of made-up log-probs that the present weights sampled them.
            "num_ranks": num_ranks,
            "rank_timeout_s": rank_timeout_s,
            "max_logprob_gap": None,
            "device": "cpu",
            "group_size": 4,
            "groups_per_batch": 2,
            "checkpoint_every_updates": 3,
            "num_threads": 1,
            "recipe": {
                "demos_per_family": 2,
                "bc_epochs": 1,
                "eval_episodes_per_family": 2,
                "max_updates": NUM_UPDATES[num_ranks],
            },
            "entropulse": {"force_after_fraction": 0.5},
        }
        tree = {
            "name": "killed",
            "run_dir": str(folder),
            "model": {"name": "tiny-random", "dtype": "float32"},
            "tasks": {"families": ["files-move", "calc-set-cell"]},
            "learner": learner,
        }
        self.config_path = folder / "config.yaml"
        self.config_path.write_text(yaml.safe_dump(tree))
        self.config = load_config(self.config_path)
        self.folder = RunFolder(self.config.folder)
        self.keys = self.folder.create(self.config)
        self.acknowledged: set[str] = set()
        self._stop = StopToken()
        self._processes: dict[str, ForkedRole | subprocess.Popen] = {}
        self._actor = threading.Thread(target=self._act, daemon=True)

    def start(self, role: str) -> ForkedRole:
        process = self._processes[role] = ForkedRole(role, str(self.config_path))
        return process

    def start_learner_by_torchrun(self) -> subprocess.Popen:
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(self.config.learner.num_ranks),
            "-m",
            "computerrl",
            "learner",
            str(self.config_path),
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self._processes["learner"] = subprocess.Popen(command, env=environment, cwd=ROOT)
        return self._processes["learner"]

    def kill(self, role: str) -> None:
        self._processes[role].kill()
        self._processes[role].wait()

    def play(self) -> None:
        self._actor.start()

    def _act(self) -> None:
        address = self.folder.wait_for_broker(self._stop, 30.0)
        broker = BrokerClient(Client(address, keys=self.keys, sender="actor-0:test"))
        chance = random.Random(0)
        while not self._stop.stopped:
            try:
                version = broker.status().policy_version
                work = broker.request_assignment("test", version)
                if not isinstance(work, Assignment):
                    self._stop.wait(0.02)
                    continue
                if broker.submit(episode_of(work, version, chance)).accepted:
                    self.acknowledged.add(work.assignment_id)
            except ComputerRLError:
                self._stop.wait(0.1)

    def wait_update(self, update: int) -> None:
        deadline = time.monotonic() + 240
        while not any(line["event"] == "update" and line["update"] >= update for line in self.metrics()):
            assert time.monotonic() < deadline, self.metrics()[-1:]
            assert self._processes["learner"].poll() is None, "the learner ended"
            time.sleep(0.1)

    def metrics(self) -> list[dict]:
        return read_json_lines(self.folder.metrics_path)

    def close(self) -> None:
        self._stop.stop("test ends")
        for process in self._processes.values():
            process.kill()
            process.wait()


@pytest.fixture(params=[(1, 60.0)])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Run]:
    num_ranks, rank_timeout_s = request.param
    found = Run(tmp_path, num_ranks=num_ranks, rank_timeout_s=rank_timeout_s)
    yield found
    found.close()


@pytest.mark.parametrize("killed_at", [(7,), pytest.param((2, 7, 13), marks=pytest.mark.release)], ids=["once", "thrice"])
def test_learner_and_broker_killed_while_training_every_acknowledged_trajectory_accounted_once(
    run: Run, killed_at: tuple[int, ...]
) -> None:
    run.start("broker")
    run.start("learner")
    run.play()
    for update in killed_at:
        run.wait_update(update)
        run.kill("learner")
        if update == 7:
            run.kill("broker")
            run.start("broker")
        run.start("learner")
    assert run._processes["learner"].wait(timeout=120) == 0
    ledger = read_json_lines(run.folder.folder / "ledger.jsonl")
    recorded = [line["trajectory_id"] for line in ledger]
    assert len(recorded) == len(set(recorded)), "trained twice"
    lost = run.acknowledged - set(recorded)
    # Only the incomplete groups of the two RL orders may be given up, when these are closed; the broker says so by name.
    summary = [line for line in run.metrics() if line["event"] == "summary"][-1]
    given_up = summary["broker"].get("rejected/order_closed", 0)
    assert len(lost) <= given_up and all(name.startswith("rl-") for name in lost)
    assert summary["num_trajectories_lost"] == 0
    assert summary["max_policy_age_trained"] <= run.config.learner.max_age
    updates = [line for line in run.metrics() if line["event"] == "update"]
    assert [line["update"] for line in updates] == list(range(1, NUM_UPDATES[1] + 1))
    versions = [line["policy_version"] for line in updates]
    assert versions == sorted(set(versions))
    assert summary["num_entropulse_phases"] == 1


two_ranks = pytest.mark.parametrize("run", [(2, 60.0)], indirect=True)
one_and_two_ranks = pytest.mark.parametrize("run", [(1, 60.0), pytest.param((2, 60.0), marks=pytest.mark.release)], indirect=True)


@pytest.mark.release
@two_ranks
def test_learner_of_two_ranks_loses_either_ends_whole_and_resumes(run: Run) -> None:
    run.start("broker")
    run.play()
    for update, victim in ((2, "follower"), (6, "learner")):
        learner = run.start("learner")
        run.wait_update(update)
        (follower,) = processes.children_of(learner.pid)
        os.kill(follower if victim == "follower" else learner.pid, signal.SIGKILL)
        assert learner.wait(timeout=120) in (RankLost.exit_code, 1, -signal.SIGKILL)
        wait_until(lambda pid=follower: pid not in processes.parents())
    learner = run.start("learner")
    assert learner.wait(timeout=120) == 0
    recorded = [line["trajectory_id"] for line in read_json_lines(run.folder.folder / "ledger.jsonl")]
    assert len(recorded) == len(set(recorded)), "trained twice"
    updates = [line["update"] for line in run.metrics() if line["event"] == "update"]
    assert updates == list(range(1, NUM_UPDATES[2] + 1))
    summary = [line for line in run.metrics() if line["event"] == "summary"][-1]
    assert summary["num_trajectories_lost"] == 0


@pytest.mark.release
@pytest.mark.parametrize("run", [(2, 8.0)], indirect=True)
def test_learner_whose_rank_hangs_ends_after_the_time_limit(run: Run) -> None:
    run.start("broker")
    run.play()
    learner = run.start("learner")
    run.wait_update(2)
    (follower,) = processes.children_of(learner.pid)
    os.kill(follower, signal.SIGSTOP)
    assert learner.wait(timeout=run.config.learner.rank_timeout_s + 120) != 0
    wait_until(lambda: follower not in processes.parents())


@pytest.mark.release
@two_ranks
def test_learner_started_by_torchrun_trains_and_ends_with_it(run: Run) -> None:
    run.start("broker")
    run.play()
    torchrun = run.start_learner_by_torchrun()
    run.wait_update(3)
    ranks = processes.children_of(torchrun.pid)
    assert len(ranks) == 2
    torchrun.send_signal(signal.SIGTERM)
    torchrun.wait(timeout=120)
    wait_until(lambda: not ranks & processes.parents().keys())
    assert list(run.folder.checkpoints.glob("checkpoint-*/trainer-00001-of-00002.safetensors"))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@one_and_two_ranks
def test_learner_stopped_by_signal_ends_well_and_resumes(run: Run) -> None:
    run.start("broker")
    learner = run.start("learner")
    run.play()
    run.wait_update(4)
    followers = processes.children_of(learner.pid)
    learner.send_signal(signal.SIGTERM)
    assert learner.wait(timeout=120) == 0
    wait_until(lambda: not followers & processes.parents().keys())
    done = max(line["update"] for line in run.metrics() if line["event"] == "update")
    run.start("learner")
    run.wait_update(min(done + 2, run.config.learner.recipe.max_updates))
    updates = [line["update"] for line in run.metrics() if line["event"] == "update"]
    assert updates == list(range(1, len(updates) + 1))
