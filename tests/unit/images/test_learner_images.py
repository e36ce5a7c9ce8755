"""The learner and the images of its groups: fetched from a broker that forgets them, trained on, kept for pools, deleted."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from computerrl.common.errors import ResumeError
from computerrl.common.messages import NoGroup, ScreenshotRef, Step, Trajectory, TrajectoryGroup, content_hash
from computerrl.common.metrics import read_json_lines
from computerrl.learner.images import ImageFolder, names_in
from computerrl.learner.poison import Poison
from tests.support.loop_fakes import Bench, FakeBroker, FakeTrainer, make_config


class Shows(FakeBroker):
    """Every trajectory shows the screen that its group begins with, and one of its own. Images go with their groups."""

    def __init__(self) -> None:
        super().__init__()
        self.images: dict[str, bytes] = {}
        self.given: Counter[str] = Counter()
        self.lost: set[str] = set()
        """Trajectories whose own image is nowhere."""

    def fetch_group(self, group_seq: int) -> TrajectoryGroup | NoGroup:
        group = super().fetch_group(group_seq)
        if isinstance(group, NoGroup):
            return group
        return replace(group, trajectories=tuple(map(self._showing, group.trajectories)))

    def fetch_images(self, names: Collection[str]) -> dict[str, bytes]:
        unforgotten = (self._showing(one) for group in self.groups[self.forgotten :] for one in group.trajectories)
        held = set(names_in(unforgotten)) & set(names) & self.images.keys()
        self.given.update(held)
        return {name: self.images[name] for name in held}

    def _showing(self, trajectory: Trajectory) -> Trajectory:
        shown = [trajectory.group_id.encode(), trajectory.trajectory_id.encode()]
        refs = tuple(ScreenshotRef(content_hash(data), "segment", 0, len(data), 8, 8) for data in shown)
        self.images |= {ref.content_hash: data for ref, data in zip(refs, shown, strict=True)}
        if trajectory.trajectory_id in self.lost:
            del self.images[refs[1].content_hash]
        return replace(trajectory, steps=tuple(replace(step, images=refs) for step in trajectory.steps))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(tmp_path, make_config())
    bench.broker = Shows()
    folder = ImageFolder(bench.folder.images)

    def read(steps: Sequence[Step]) -> None:
        for step in steps:
            assert step.images
            for ref in step.images:
                folder.read(ref)

    def check(step: Step) -> Poison | None:
        try:
            read([step])
        except OSError:
            return "picture_missing"
        return None

    sft_step, update = FakeTrainer.sft_step, FakeTrainer.update

    def sft_step_with_images(self: FakeTrainer, steps: Sequence[Step], lr: float) -> dict[str, float]:
        read(steps)
        return sft_step(self, steps, lr)

    def update_with_images(self: FakeTrainer, batch: Any) -> dict[str, float]:
        read(batch.samples)
        return update(self, batch)

    monkeypatch.setattr(FakeTrainer, "check_screenshot", staticmethod(check))
    monkeypatch.setattr(FakeTrainer, "sft_step", sft_step_with_images)
    monkeypatch.setattr(FakeTrainer, "update", update_with_images)
    return bench


def test_control_thread_goes_on_while_images_are_fetched(bench: Bench) -> None:
    is_begun, may_end = threading.Event(), threading.Event()
    fetch = bench.broker.fetch_images

    def slow_fetch(names: Collection[str]) -> Mapping[str, bytes]:
        is_begun.set()
        assert may_end.wait(60)
        return fetch(names)

    bench.broker.fetch_images = slow_fetch  # type: ignore[method-assign]
    loop = bench.start()
    for _ in range(10_000):
        bench.clock.advance(1.0)
        loop.tick()
        if is_begun.wait(0.001):
            break
    # Ticks end, with nothing to do, and groups after the first are taken from the broker.
    assert not any([loop.tick() for _ in range(20)]) and loop.state.cursor == 0
    assert len(bench.broker.groups) > 1
    may_end.set()
    bench.run(loop)


@pytest.mark.parametrize("seed", range(3))
def test_learner_that_is_killed_reads_every_image_that_it_trains_on(bench: Bench, seed: int) -> None:
    bench.kill_often(random.Random(seed), most_ticks=40)
    loop = bench.run(bench.start())
    assert isinstance(bench.broker, Shows)
    assert set(bench.broker.given.values()) == {1}, "each image travels once, whoever was killed"
    kept = {path.name for path in bench.folder.images.iterdir()}
    assert set(loop.pools.image_names()) <= kept


def test_images_that_neither_pools_nor_groups_need_are_deleted(bench: Bench) -> None:
    loop = bench.run(bench.start())
    assert isinstance(bench.broker, Shows)
    kept = {path.name for path in bench.folder.images.iterdir()}
    assert set(loop.pools.image_names()) <= kept and kept < set(bench.broker.images), (len(kept), len(bench.broker.images))


def test_images_that_are_nowhere_poison_their_trajectories_alone(bench: Bench) -> None:
    assert isinstance(bench.broker, Shows)
    bench.broker.lost = {"rl-1/0/1", "rl-1/2/3"}
    bench.run(bench.start())
    outcomes = {line["trajectory_id"]: line["outcome"] for line in read_json_lines(bench.folder.folder / "ledger.jsonl")}
    assert {name for name, outcome in outcomes.items() if outcome == "picture_missing"} == bench.broker.lost
    assert outcomes["rl-1/0/0"] == "trained"


def test_learner_whose_kept_images_are_gone_does_not_go_on_without_them(bench: Bench) -> None:
    loop = bench.start()
    while not bench.broker.forgotten:
        if not loop.tick():
            time.sleep(0.01)  # threads check the images
    bench.checkpoints.wait()
    shutil.rmtree(bench.folder.images)
    with pytest.raises(ResumeError, match=r"images of the episodes .* are not in"):
        bench.start()
