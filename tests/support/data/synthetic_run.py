"""A run folder as a finished (or broken off) run leaves it, with made-up numbers: for tests of what reads run folders."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import asdict
from PIL import Image, ImageDraw

from computerrl.common.config import RunConfig
from computerrl.common.metrics import JsonLines
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.env_server.drivers.screenshots import ScreenshotStore
from computerrl.launch.report.report_data import Attempt
from computerrl.launch.report.write import write_attempt

FAMILIES = ("web-click-button", "web-enter-text", "calc-set-cell", "calc-type-cell", "editor-type-save", "files-rename")
START = 1_790_000_000.0


def write_run(folder: Path, *, until: str = "end", num_updates: int = 24) -> Path:
    """A run folder; ``until`` "rl": killed in the middle of RL, "start": before anything was recorded."""
    config = RunConfig(name=folder.name, run_dir=str(folder.parent))
    run = RunFolder(folder)
    run.create(config)
    logs = run.logs / "1"
    logs.mkdir()
    if until == "start":
        write_attempt(logs, Attempt(START, START + 2, "stopped", "stopped by SIGINT"))
        return folder
    metrics = JsonLines(run.metrics_path)
    end = START
    for record in _metrics(num_updates):
        if until == "rl" and record.get("update", 0) > num_updates // 2:
            break
        metrics.append(record)
        end = record["time"]
    metrics.close()
    _episodes(run, with_after=until == "end")
    if until == "end":
        write_attempt(logs, Attempt(START, end + 2, "finished", "finished", num_restarts={"actor-0": 1}))
    else:
        write_attempt(logs, Attempt(START, None))
    return folder


def _metrics(num_updates: int) -> Iterator[dict[str, Any]]:
    rng = random.Random(1)
    now = START + 6.0

    def evaluation(phase: str, level: float) -> dict[str, Any]:
        families = {
            name: {"successes": round(20 * min(1.0, max(0.0, level + rng.uniform(-0.2, 0.2)))), "episodes": 20}
            for name in FAMILIES
        }
        success = sum(item["successes"] / 20 for item in families.values()) / len(families)
        return dict(event="evaluation", time=now, phase=phase, policy_version=0, families=families, success=success)

    yield dict(event="phase", time=now, phase="demonstrations", reason="start")
    yield dict(event="phase", time=now + 0.1, phase="eval-before", reason="start")
    now += 70
    yield evaluation("eval-before", 0.05)
    yield dict(event="phase", time=now, phase="bc", reason="demonstrations complete")
    for step in range(8):
        now += 9
        yield dict(event="sft", time=now, phase="bc", step=step, loss=2.0 * 0.7**step, entropy=1.0, num_tokens=500)
    yield dict(event="phase", time=now, phase="eval-after-bc", reason="cloned")
    now += 55
    yield evaluation("eval-after-bc", 0.4)
    yield dict(event="phase", time=now, phase="rl-1", reason="evaluated")
    for update in range(1, num_updates + 1):
        if update == 2 * num_updates // 3:
            yield dict(event="phase", time=now, phase="sft-1", reason="entropy 0.21 < 0.5 x 0.48, slope 0.002")
            now += 25
            yield dict(event="phase", time=now, phase="rl-2", reason="sft done")
        now += 17 + rng.uniform(-3, 3)
        yield _update(update, num_updates, now, rng)
    yield dict(event="phase", time=now, phase="eval-after-rl", reason="max_updates")
    now += 60
    yield evaluation("eval-after-rl", 0.92)
    yield dict(
        event="summary", time=now, env_steps=5210, num_updates=num_updates, num_trajectories_lost=0, max_policy_age_trained=3
    )


def _amount(trajectories: int, steps: int, mean_length: float, **bias: float) -> dict[str, Any]:
    return dict(trajectories=trajectories, steps=steps, action_tokens=10 * steps, mean_length=mean_length, **bias)


WASTE = dict(
    submitted=_amount(700, 2000, 2.86),
    trained=_amount(660, 1860, 2.82, length_ks=0.031, family_tv=0.012),
    within_bound=dict(mean_length=2.84, length_ks=0.027, family_tv=0.008),
    lost=dict(
        masked=_amount(9, 60, 6.7, length_ks=0.021, family_tv=0.004),
        no_signal=_amount(32, 60, 1.9, length_ks=0.004, family_tv=0.005),
        too_old=_amount(8, 20, 2.5, length_ks=0.007, family_tv=0.003),
    ),
    lengths=[[1, 200.0, 195.0], [2, 180.0, 178.0], [3, 120.0, 116.0], [6, 200.0, 162.0]],
)
"""As `learner.accounts.waste.Waste.figures` writes it."""


def _update(update: int, num_updates: int, now: float, rng: random.Random) -> dict[str, Any]:
    rise = 0.42 + 0.5 * (1 - math.exp(-3 * update / num_updates))
    by_family = {name: min(1.0, max(0.0, rise + rng.uniform(-0.25, 0.2))) for name in FAMILIES}
    sft = update >= 2 * num_updates // 3
    return dict(
        event="update",
        time=now,
        phase="rl-2" if sft else "rl-1",
        update=update,
        policy_version=update,
        success=sum(by_family.values()) / len(by_family),
        success_by_family=by_family,
        rollouts_by_family={name: 30 if name == FAMILIES[0] else 6 for name in FAMILIES},
        entropy=0.5 * math.exp(-0.05 * update) + (0.15 if sft else 0.0) + rng.uniform(-0.02, 0.02),
        policy_age_min=0,
        policy_age_mean=0.7 + rng.uniform(-0.3, 0.3),
        policy_age_max=rng.choice([1, 2, 2, 3]),
        loss=rng.uniform(-0.1, 0.1),
        kl=0.001 * update,
        grad_norm=rng.uniform(0.2, 0.9),
        clip_fraction=rng.uniform(0.0, 0.08),
        num_trajectories=32,
        num_steps=90,
        num_tokens=11_000,
        train_s=9.0,
        wait_s=6.0,
        trained_tokens_per_s=1100 + rng.uniform(-80, 80),
        padded_tokens_ratio=2.6,
        stall_s=1.5,
        stall_end="arrived",
        waste=WASTE,
        length_ks=0.027,
        family_tv=0.008,
        drops={"too_old": update // 3, "order_closed": 5},
        env_steps=update * 200,
        env_steps_per_s=9 + rng.uniform(-2, 2),
        time_left_s=max(0.0, 400 - 17.0 * update),
    )


def _episodes(run: RunFolder, *, with_after: bool) -> None:
    store = ScreenshotStore(run.trajectories, incarnation="synthetic")
    lines = JsonLines(run.episodes_path)
    for family in FAMILIES:
        for order, success in (("eval-before", False), ("eval-after-rl", True)) if with_after else (("eval-before", False),):
            steps = []
            for index, action in enumerate(("click(3)", 'type(4, "Lisbon")', 'key("ctrl+s")', "done()")[: 4 if success else 2]):
                ref = store.put(_screen(family, f"{order} step {index}"))
                steps.append(
                    dict(
                        action_text=action if success or index == 0 else "I will click the the",
                        action_error="",
                        format_ok=success,
                        settled_by="quiet",
                        screenshot=asdict(ref),
                        timing=dict(generate_s=0.4, desktop_s=0.13, settle_s=0.05),
                    )
                )
            lines.append(
                dict(
                    trajectory_id=f"{order}/{family}:10000000/0",
                    order_id=order,
                    kind="evaluation",
                    family=family,
                    seed=10_000_000,
                    instruction="Write <Lisbon> into cell B2 and save the file.",
                    reward=float(success),
                    success=success,
                    end_reason="done_action" if success else "step_limit",
                    min_policy_version=0,
                    max_policy_version=0,
                    duration_s=3.1,
                    reset_s=0.42,
                    steps=steps,
                    final_screenshot=asdict(store.put(_screen(family, f"{order} end"))),
                )
            )
    with run.episodes_path.open("a") as file:
        file.write(json.dumps({"kind": "evaluation"})[:-4])  # torn by a crash
    store.close()
    lines.close()


def _screen(family: str, text: str) -> np.ndarray:
    """A small one: a run has 48 of them, which are encoded."""
    picture = Image.new("RGB", (200, 150), (236, 236, 232))
    draw = ImageDraw.Draw(picture)
    draw.rectangle((10, 10, 190, 140), fill=(255, 255, 255), outline=(120, 120, 120))
    draw.rectangle((10, 10, 190, 24), fill=(70, 90, 120))
    for row in range(12):
        draw.line((10, 30 + 9 * row, 190, 30 + 9 * row), fill=(215, 215, 215))
    draw.text((15, 12), family, fill=(255, 255, 255))
    draw.text((20, 32), text, fill=(20, 20, 20))
    return np.asarray(picture)
