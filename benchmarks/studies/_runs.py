"""Training runs on real desktops as cells of a study: `computerrl train`, and the figures in its records.

A run that was broken off is resumed from its checkpoint. Of a finished run only the records are kept; checkpoints and screenshots
of dozens of runs would fill a disk.

    runs/cloned-0/    behaviour cloning, once per seed ──► models/cloned-0, the policy that arms of that seed start from
    runs/ARM-0/       RL of one arm
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, TextIO

from computerrl import SOURCE_ROOT
from computerrl.benchmarks.studies._designs import Arm, Play
from computerrl.benchmarks.studies._statistics import Record
from computerrl.common.config import load_config
from computerrl.common.errors import ComputerRLError
from computerrl.common.lifecycle import die_with_parent
from computerrl.common.metrics import read_json_lines
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.launch.plan.run_names import CONFIG_FILE, REPORT_FILE, is_finished, read_resolved
from computerrl.launch.report.report_data import EVALUATIONS
from computerrl.launch.run import local

CONFIG = Path(__file__).with_name("desktop.yaml")
"""Settings that all runs have in common."""
_UPDATE = (
    "update", "phase", "rl_s", "rl_env_steps", "success", "entropy", "policy_age_mean", "policy_age_max", "wait_s", "train_s",
    "stall_s", "clip_fraction", "importance_weight", "num_steps_trained", "num_steps", "logprob_gap", "success_by_family",
    "target_known", "grounding_reward",
)  # fmt: skip
_REPORT = (
    "wall_s",
    "env_steps",
    "env_steps_per_s",
    "num_updates",
    "num_trajectories_lost",
    "max_policy_age_trained",
    "step_p50_s",
    "actor_idle_fraction",
    "actor_load_stall_s",
    "trained_tokens_per_s",
)
_END_LIMIT_S = 60.0
KILLS_FILE = "kills.json"
"""In the folder of a run that was disturbed: which processes were killed, and how long it took with that."""
_KEPT = {CONFIG_FILE, REPORT_FILE, "report.html", "metrics.jsonl", "versions.json", "logs", KILLS_FILE}


class RunFailed(ComputerRLError):
    """A run of a study ended with an error."""

    code = "run_failed"


def train(folder: Path, name: str, settings: Mapping[str, Any]) -> Path:
    """Train in ``folder``/runs/``name``, or go on with it; gives the run's folder.

    A run of `mode: serial` is trained in this process, any other by `computerrl train`. Raises `RunFailed`; a serial run also
    raises the typed errors of its set-up.
    """
    run = folder / "runs" / name
    if is_finished(run):
        return run
    if settings.get("mode") == "serial":
        code = _train_here(folder, name, settings)
    else:
        with started(folder, name, settings) as process:
            code = process.wait()
    if code != 0 or not is_finished(run):
        log = folder / "runs" / f"{name}.log"
        said = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
        step = "the same command goes on where it ended"
        raise RunFailed(f"run {name} ended with exit code {code}; the end of {log}:\n{said}\n    -> {step}")
    return run


@contextmanager
def started(folder: Path, name: str, settings: Mapping[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    """`computerrl train` under way, resumed if it was begun before; it is terminated at the end of the `with` block."""
    command = [sys.executable, "-m", "computerrl", "train", str(CONFIG)]
    for override in _overrides(name, settings):
        command += ["--set", override]
    with _announced(folder, name) as (out, begun):
        if begun:
            command.append("--resume")
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=_environment(),
            stdout=out,
            stderr=subprocess.STDOUT,
            # The run ends with the study, in whatever way the study ends.
            preexec_fn=die_with_parent,  # noqa: PLW1509  # one thread
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(_END_LIMIT_S)


def _train_here(folder: Path, name: str, settings: Mapping[str, Any]) -> int:
    """Train in serial mode, in this process; gives the exit code."""
    overrides = _overrides(name, {**settings, "run_dir": str(folder / "runs")})
    with _announced(folder, name) as (out, begun), redirect_stdout(out), redirect_stderr(out):
        code, _ = local.play(load_config(CONFIG, overrides=overrides), resume=begun)
        return code


def _overrides(name: str, settings: Mapping[str, Any]) -> list[str]:
    """Values of `--set` for the run ``name``."""
    return [f"{key}={json.dumps(value)}" for key, value in {"name": name, **settings}.items()]


@contextmanager
def _announced(folder: Path, name: str) -> Iterator[tuple[TextIO, bool]]:
    """Print that the run ``name`` begins or goes on; gives its open log, and whether it was begun before."""
    run = folder / "runs" / name
    begun = (run / CONFIG_FILE).exists()
    if not begun:  # One that was killed before it wrote anything has left its name taken.
        shutil.rmtree(run, ignore_errors=True)
    print(f"{name} {'goes on' if begun else 'begins'}; to watch it: computerrl dashboard {run}", flush=True)
    log = folder / "runs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as out:
        yield out, begun


def cloned_model(folder: Path, name: str, seed: int, settings: Mapping[str, Any]) -> tuple[Path, Record]:
    """A policy that has cloned some demonstrations, made once for each ``name``: its folder, its evaluation on held-out
    instances, that of the untouched model (None unless settings ask for one) and the mean length of its demonstrations."""
    model, kept = folder / "models" / name, folder / "models" / f"{name}.json"
    if not kept.exists():
        run = train(folder, name, {**settings, "seed": seed, "learner.recipe.max_updates": 0})
        export(run, model)
        shown = list(episodes(run, kind="demonstration"))
        evaluated = evaluations(run)
        found = {
            **evaluated.get("success_after_bc", {}),
            "untouched": evaluated.get("success_before"),
            "demonstration_steps": steps_per_success(shown),
        }
        kept.write_text(json.dumps(found))
        slim(run)
    return model, json.loads(kept.read_text())


def export(run: Path, model: Path) -> None:
    """The trained model of ``run`` as a model folder. Raises `RunFailed`."""
    shutil.rmtree(model, ignore_errors=True)
    model.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "computerrl", "export", str(run), str(model)]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True)
    if done.returncode != 0:
        raise RunFailed(f"export of {run} failed: {done.stderr.strip()}")


def play(folder: Path, arm: Arm, seed: int, settings: Mapping[str, Any], *, how: Play = train) -> Record:
    """RL of one arm with one seed: its figures, a row per update, its evaluations. The run is slimmed then."""
    run = how(folder, run_name(arm.name, seed), {**settings, **arm.settings, "seed": seed})
    found = {"arm": arm.name, "seed": seed, **harvest(run)}
    if (run / KILLS_FILE).exists():
        disturbed = json.loads((run / KILLS_FILE).read_text())
        found |= {**disturbed, "num_kills": len(disturbed["kills"])}
    slim(run)
    return found


def run_name(what: str, seed: int) -> str:
    """A run's name: letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", f"{what}-{seed}".lower())


def harvest(run: Path) -> Record:
    """Figures of a finished run from its records."""
    report = json.loads((run / REPORT_FILE).read_text())
    updates = [record for record in read_json_lines(RunFolder(run).metrics_path) if record["event"] == "update"]
    last = evaluations(run).get("success_after_rl") or {}
    played = list(episodes(run))
    rl_s = updates[-1]["rl_s"] if updates else 0.0
    lines = read_json_lines(run / "ledger.jsonl")
    return {
        **{name: report.get(name) for name in _REPORT},
        "success": last.get("mean"),
        "rl_s": rl_s,
        "rl_env_steps": updates[-1]["rl_env_steps"] if updates else 0,
        "num_ledger_lines": len(lines),
        "num_recorded_twice": len(lines) - len({line["trajectory_id"] for line in lines}),
        **shares(updates, played, rl_s=rl_s, num_slots=num_slots(run)),
        "distinct_solutions": distinct_solutions(played[len(played) * 3 // 4 :]),
        "steps_per_success": steps_per_success(played[len(played) * 3 // 4 :]),
        "families": {name: item["success"] for name, item in last.get("families", {}).items()},
        "updates": [{name: update.get(name) for name in _UPDATE} for update in updates],
    }


def evaluations(run: Path) -> dict[str, Record]:
    """The evaluations in report.json that were played."""
    report = json.loads((run / REPORT_FILE).read_text())
    return {name: report[name] for name in EVALUATIONS if report.get(name)}


def episodes(run: Path, *, kind: str = "training") -> Iterator[Record]:
    """Stored episodes of ``kind``, with their steps."""
    for record in read_json_lines(RunFolder(run).episodes_path):
        if record["kind"] == kind:
            yield record


def num_slots(run: Path) -> int:
    """Number of episodes that the actors of ``run`` play at a time."""
    actor = read_resolved(run)["actor"]
    return int(actor["num_actors"]) * int(actor["num_episodes"])


def shares(updates: Sequence[Record], played: Sequence[Record], *, rl_s: float, num_slots: int) -> Record:
    """Shares of RL's time that the learner and the actors' slots spent in each activity; waiting is the rest."""
    slots_s = rl_s * num_slots
    if not slots_s:
        return {}
    timings = [step["timing"] for episode in played for step in episode["steps"]]
    generate = sum(timing["generate_s"] for timing in timings) / slots_s
    desktop = (sum(timing["desktop_s"] for timing in timings) + sum(episode["reset_s"] for episode in played)) / slots_s
    train = sum(update["train_s"] for update in updates) / rl_s
    return {
        "learner_training": train,
        "learner_waiting": 1 - train,
        "slots_generating": generate,
        "slots_on_desktop": desktop,
        "slots_waiting": max(0.0, 1 - generate - desktop),
    }


def distinct_solutions(played: Sequence[Record]) -> float | None:
    """Different scripts per success, mean over groups with at least two: 1 when no two are alike. None: no group has."""
    groups: dict[str, list[tuple[str, ...]]] = {}
    for episode in played:
        if episode["success"]:
            groups.setdefault(episode["group_id"], []).append(tuple(step["action_text"] for step in episode["steps"]))
    found = [len(set(scripts)) / len(scripts) for scripts in groups.values() if len(scripts) > 1]
    return sum(found) / len(found) if found else None


def steps_per_success(played: Sequence[Record]) -> float | None:
    """Mean length of the episodes that succeeded; None: none did."""
    lengths = [len(episode["steps"]) for episode in played if episode["success"]]
    return sum(lengths) / len(lengths) if lengths else None


def slim(run: Path) -> None:
    """Remove everything from ``run`` but its records."""
    for path in run.iterdir():
        if path.name in _KEPT:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE_ROOT)}
