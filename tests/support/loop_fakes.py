"""Ten-line parts around a `LearnerLoop`: a broker that plays every order at once, a trainer of one number, a sink."""

import random
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from computerrl.common.config import RunConfig
from computerrl.common.errors import OrderRefused
from computerrl.common.messages import NoGroup, RolloutOrder, Status, Step, StepTiming, TaskRef, Trajectory, TrajectoryGroup
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.learner.algorithms import make_algorithm
from computerrl.learner.checkpoints.checkpoint import CheckpointStore
from computerrl.learner.conductor import LearnerLoop
from computerrl.learner.contracts import Neighbours
from tests.support.clock import ManualClock

FAMILIES = ("click", "type")


def make_step(*, version: int, prompt: Sequence[int] = (1, 2, 3), format_ok: bool = True) -> Step:
    versions = [] if version < 0 else [version] * 2
    return Step(
        prompt_tokens=np.array(prompt),
        action_tokens=np.array([4, 5]),
        behavior_logprobs=np.full(len(versions), -0.5, np.float32),
        policy_versions=np.array(versions, dtype=np.int32),
        action_text="click(1)",
        format_ok=format_ok,
        action_error="",
        screenshot=None,
        settled_by="quiet",
        timing=StepTiming(0.1, 0.1, 0.0),
    )


def make_trajectory(order: RolloutOrder, task: TaskRef, group: int, index: int, *, success: bool, version: int) -> Trajectory:
    group_id = f"{order.order_id}/{group}"
    return Trajectory(
        trajectory_id=f"{group_id}/{index}",
        group_id=group_id,
        index=index,
        order_id=order.order_id,
        kind=order.kind,
        task=task,
        instruction="do it",
        steps=(make_step(version=version), make_step(version=version)),
        reward=float(success),
        success=success,
        end_reason="done_action",
        final_screenshot=None,
        actor="actor-0:x",
        shown_by="",
        started_at=0.0,
        duration_s=1.0,
        reset_s=0.1,
        wait_s=0.0,
    )


class FakeBroker:
    """Completes groups as the learner asks for them; keeps them until they are reported as consumed."""

    def __init__(self, *, eta: int = 1, groups_per_batch: int = 2) -> None:
        self.orders: dict[str, RolloutOrder] = {}
        self.closed: set[str] = set()
        self.groups: list[TrajectoryGroup] = []
        self.made: dict[str, int] = {}
        self.forgotten = 0
        self.version = -1
        self.announced: list[int] = []
        self.delivered: set[int] = set()
        self.in_flight: tuple[int, ...] = ()
        self.num_released: int | None = None
        """Groups that may be complete by now; None: any number."""
        self.success = lambda order, group, index: (group + index) % 2 == 0
        self.can_play = lambda task, index: True
        """What cannot be played is missing in its group."""
        self.sampled_version = lambda: max(0, self.version - 1)

    def place_order(self, order: RolloutOrder) -> None:
        known = self.orders.setdefault(order.order_id, order)
        if known != order or order.order_id in self.closed:
            raise OrderRefused(f"{order.order_id} is taken")

    def close_order(self, order_id: str) -> None:
        assert order_id in self.orders
        self.closed.add(order_id)

    def fetch_group(self, group_seq: int) -> TrajectoryGroup | NoGroup:
        assert self.forgotten <= group_seq <= len(self.groups), "asked for a group that was reported as consumed"
        if group_seq == len(self.groups) and not self._complete_one():
            return NoGroup(self.in_flight)
        self.delivered.add(group_seq)
        return self.groups[group_seq]

    def fetch_images(self, names: Collection[str]) -> Mapping[str, bytes]:
        raise AssertionError("the model takes no images here")

    def _complete_one(self) -> bool:
        if self.num_released is not None and len(self.groups) >= self.num_released:
            return False
        # An RL order has no end: demonstrations that RL asks for come before its next group.
        for order in sorted(self.orders.values(), key=lambda order: order.kind == "training"):
            number = self.made.get(order.order_id, 0)
            limit = None if order.num_per_family is None else order.num_per_family * len(order.families)
            if order.order_id in self.closed or (limit is not None and number >= limit):
                continue
            self.made[order.order_id] = number + 1
            family = order.families[number % len(order.families)]
            split = order.split or order.kind
            task = TaskRef(family, order.first_seed + number // len(order.families), split)
            version = -1 if order.kind == "demonstration" else self.sampled_version()
            trajectories = tuple(
                make_trajectory(
                    order,
                    task,
                    number,
                    i,
                    version=version,
                    success=order.kind == "demonstration" or self.success(order, number, i),
                )
                for i in range(order.group_size)
                if self.can_play(task, i)
            )
            group_id = f"{order.order_id}/{number}"
            num_given_up = order.group_size - len(trajectories)
            group = TrajectoryGroup(len(self.groups), group_id, order.order_id, order.kind, task, trajectories, num_given_up)
            self.groups.append(group)
            return True
        return False

    def report_consumption(self, group_seq: int) -> None:
        assert group_seq <= len(self.groups)
        self.forgotten = max(self.forgotten, group_seq)

    def announce_version(self, policy_version: int, *, group_seq: int) -> None:
        assert policy_version > self.version, "a version number was used twice"
        self.version = policy_version
        self.announced.append(policy_version)

    def status(self, *, timeout_s: float | None = None) -> Status:
        delivered = sum(len(self.groups[seq].trajectories) for seq in self.delivered)
        return Status("run", self.version, {"delivered": delivered, "rejected/duplicate": 1}, {}, (), {}, {})


class FakeTrainer:
    """Its only weight counts optimizer steps; prepare is the real algorithm's."""

    vocabulary_size = 1 << 20
    check_screenshot = None
    skipped: frozenset[int] = frozenset()

    def __init__(self, config: RunConfig) -> None:
        self.algorithm = make_algorithm(config.learner, seed=config.seed)
        self.weight = torch.zeros(1)
        self.reference = torch.zeros(1)
        self.lrs: list[float] = []
        self.entropy = 1.0

    @property
    def revision(self) -> int:
        return hash((float(self.weight), float(self.reference), tuple(self.lrs)))

    def refine(self, batch: Any) -> Any:
        return batch

    def update(self, batch: Any) -> dict[str, float]:
        if batch.samples:
            self.weight += 1
        return {**batch.metrics, "loss": 0.5, "entropy": self.entropy, "train_s": 0.1}

    def sft_step(self, steps: Sequence[Step], lr: float) -> dict[str, float]:
        assert steps
        self.weight += 100
        return {"loss": 1.0, "entropy": 1.0, "num_tokens": 2.0 * len(steps)}

    def change_objective(self, lr: float) -> None:
        self.lrs.append(lr)

    def set_reference(self) -> None:
        self.reference = self.weight.clone()

    def state_dict(self) -> dict[str, Any]:
        return {"weight": self.weight, "reference": self.reference, "lr": self.lrs[-1] if self.lrs else 0.0}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weight, self.reference = state["weight"].clone(), state["reference"].clone()
        self.lrs = [state["lr"]]

    def trainable_tensors(self) -> dict[str, torch.Tensor]:
        return {"weight": self.weight}

    def probe_logprobs(self) -> np.ndarray:
        return self.weight.numpy().astype(np.float32)


class FakeWeights:
    """Remembers what was published."""

    def __init__(self) -> None:
        self.published: dict[int, float | None] = {}

    def publish_base(self, policy_version: int, *, probe_logprobs: Any) -> None:
        self.published[policy_version] = None

    def publish(self, policy_version: int, tensors: Any, *, probe_logprobs: Any) -> None:
        assert policy_version not in self.published
        self.published[policy_version] = float(tensors["weight"])

    def metrics(self) -> dict[str, float]:
        return {}


class Bench:
    """A run folder and a broker that outlive any number of learners."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self.config = config
        self.folder = RunFolder(folder)
        self.broker = FakeBroker()
        self.weights = FakeWeights()
        self.trainer = FakeTrainer(config)
        self.clock = ManualClock()

    def start(self) -> LearnerLoop:
        """A learner process begins (again): fresh parts, the state from disk."""
        self.trainer = FakeTrainer(self.config)
        self.checkpoints = CheckpointStore(self.folder.checkpoints, num_kept=self.config.learner.num_checkpoints_kept)
        around = Neighbours(
            broker=self.broker,
            trainer=self.trainer,
            weights=self.weights,
            folder=self.folder,
            checkpoints=self.checkpoints,
            clock=self.clock,
        )
        return LearnerLoop.begun(
            self.config,
            around,
            families=FAMILIES,
            announced_version=self.broker.version,
            checkpoint=self.checkpoints.load(),
        )

    def kill_often(self, chance: random.Random, *, most_ticks: int) -> None:
        """Six learners, each of which dies after a random number of ticks."""
        for _ in range(6):
            loop = self.start()
            for _ in range(chance.randrange(1, most_ticks)):
                if not loop.finished:
                    loop.tick()
            # A write or a fetch under way is another test's business; here the process is gone after it.
            self.checkpoints.wait()
            loop._books.intake.close(wait=True)

    def run(self, loop: LearnerLoop, *, max_ticks: int = 10_000) -> LearnerLoop:
        """Tick until finished."""
        for _ in range(max_ticks):
            if loop.finished:
                loop.close()
                return loop
            self.clock.advance(1.0)
            if not loop.tick() and not loop.finished:
                assert self.trainer.check_screenshot is not None, f"stuck in {loop.state.phase}"
                time.sleep(0.001)  # Threads of the intake check screenshots.
        raise AssertionError(f"not finished: {loop.state}")


def make_config(**learner: Any) -> RunConfig:
    """Two demonstrations and three evaluation episodes per family, six updates of two groups of four."""
    recipe = {"demos_per_family": 2, "eval_episodes_per_family": 3, "max_updates": 6, **learner.pop("recipe", {})}
    values = {"group_size": 4, "groups_per_batch": 2, "checkpoint_every_updates": 2, "recipe": recipe, **learner}
    return RunConfig.model_validate({"mode": "serial", "learner": values})
