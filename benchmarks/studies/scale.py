"""Density and scale: how desktop steps per second grow with desktops and actors on one machine, and the limits.

Twice: `desktops alone` plays scripted demonstrations of light tasks, without any model, which shows what desktops cost;
`the loop` trains the language model, engines and learner beside the desktops on the same cores. Next to the loop stands what
`computerrl simulate` says of it, calibrated from the run with four desktops and one actor alone; its engines have processors of
their own, as GPUs are, so where cores are shared it must be too high. What it says of 1,000 desktops is a simulation and nothing
else.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import yaml

from computerrl.benchmarks.studies import _runs
from computerrl.benchmarks.studies._plots import figure
from computerrl.benchmarks.studies._runs import RunFailed
from computerrl.benchmarks.studies._statistics import Record, markdown, mean_and_error, with_error
from computerrl.benchmarks.studies._study import Page, Study
from computerrl.launch.simulation.calibrate import calibrate
from computerrl.launch.simulation.cluster import Cluster
from computerrl.launch.simulation.what_if import Setting
from computerrl.launch.watch.logs import Choice, RunLogs

ALONE, LOOP = "desktops alone", "the loop"
DESKTOPS, ACTORS = (1, 2, 4, 8, 16, 32, 48), (1, 2, 4)
LOOP_DESKTOPS = (1, 2, 4, 8, 16)
CALIBRATED = (4, 1)
LARGE = (1000, 64)
_STARTING_EPISODES, _WARM_EPISODES = 16, 6
"""Episodes per desktop before measuring begins: about as many as the first desktops play until the last one is up, which takes
two minutes with 32 desktops on two cores and halves the rate; and, from there, until all applications run everywhere."""
_MEASURED_EPISODES, _MIN_EPISODES = 9, 90
"""Per desktop, and in all; the last one of each desktop does not count, for others are done by then."""
_MEMORY_MB = 350
"""Of a desktop, measured with these light families; the default of 700 holds for all, and would allow no 48 here."""
_FAMILIES = ("calc-set-cell", "web-click-button", "files-move")
_RL_S = 120
_SIMULATED_S = 1800.0
LIMITS = (
    "Machines of more cores: the two here are threads of one core, and every part of the loop shares them.",
    "Engines on GPUs: with one, generation would not compete with desktops.",
    "Spread: unless --seeds asks for more, each point is one run of one or two minutes.",
    "1,000 desktops: that line is a simulation with the times of this machine, engines on processors of their own.",
)


def run(folder: Path, *, quick: bool, num_seeds: int | None) -> None:
    """Measure every point with every seed, write the page."""
    common = yaml.safe_load(_runs.CONFIG.read_text(encoding="utf-8"))
    points = [(ALONE, *point) for point in ([(1, 1), (2, 1)] if quick else _pairs(DESKTOPS))]
    points += [(LOOP, *point) for point in ([] if quick else sorted(_pairs(LOOP_DESKTOPS), key=lambda p: p != CALIBRATED))]
    study = Study(folder, name="scale", settings={"config": common, "points": points, "rl_s": _RL_S, "warm": _WARM_EPISODES})
    jobs = [(seed, *point) for seed in range(num_seeds or 1) for point in points]
    cells = []
    for seed, kind, desktops, actors in jobs:

        def make(seed: int = seed, kind: str = kind, desktops: int = desktops, actors: int = actors) -> Record:
            return _measure(study.folder, kind, desktops, actors, seed=seed, quick=quick)

        key = f"{kind}, {desktops} desktops, {actors} actors, seed {seed}"
        cells.append(study.cell(key, make, of=len(jobs), show=lambda cell: f"{cell['steps_per_s']:.1f} steps/s"))
    page = Page("Density and scale", __doc__ or "", table(cells), lambda path: draw(path, cells), LIMITS)
    study.write(page, cells, quick=quick)


def _pairs(desktops: Sequence[int]) -> list[tuple[int, int]]:
    return [(number, actors) for number in desktops for actors in ACTORS if actors <= number]


def _measure(folder: Path, kind: str, desktops: int, actors: int, *, seed: int, quick: bool) -> Record:
    """One point: steps per second, and the load of the machine meanwhile."""
    settings: dict[str, Any] = {
        "desktop.num_desktops": desktops,
        "actor.num_actors": actors,
        "actor.num_episodes": -(-desktops // actors),
        "seed": seed,
        "learner.recipe.eval_episodes_per_family": 0,
        "desktop.memory_per_desktop_mb": _MEMORY_MB,
    }
    warm = 0 if quick else _WARM_EPISODES * desktops
    if kind == ALONE:
        # Quick: as few as leave the last desktop time to start before the first one has played them all.
        measured = max(_MIN_EPISODES, _MEASURED_EPISODES * desktops)
        episodes = 40 * desktops if quick else _STARTING_EPISODES * desktops + warm + measured
        settings |= {
            "model.name": "tiny-random",
            "model.trainable_top_layers": None,
            "model.dtype": "float32",
            "tasks.families": _FAMILIES,
            "learner.recipe.max_updates": 0,
            "learner.recipe.demos_per_family": -(-episodes // len(_FAMILIES)),
            "learner.recipe.bc_batch_size": 64,
            "learner.recipe.bc_epochs": 1,
        }
    else:
        model, _ = _runs.cloned_model(folder, f"cloned-{seed}", seed, {"learner.recipe.eval_episodes_per_family": 0})
        settings |= {
            "model.name": str(model),
            "learner.recipe.demos_per_family": 0,
            "learner.recipe.max_rl_s": _RL_S,
            "learner.recipe.max_rl_env_steps": None,
        }
    name = _runs.run_name(f"{kind}-{desktops}-{actors}", seed)
    samples: list[tuple[float, float, float]] = []
    with _runs.started(folder, name, settings) as process:
        while process.poll() is None:
            busy = psutil.cpu_percent(interval=0.5)
            samples.append((time.time(), busy / 100, psutil.virtual_memory().used / 2**30))
    run_folder = _runs.train(folder, name, settings)
    played = list(_runs.episodes(run_folder, kind="demonstration" if kind == ALONE else "training"))
    found = {"kind": kind, "desktops": desktops, "actors": actors, "seed": seed}
    found |= rates(played, samples, since=all_started(run_folder, desktops), warm=warm, last=desktops)
    if kind == LOOP and (desktops, actors) == CALIBRATED:
        found["predicted"] = _predictions(run_folder, seed=seed)
    _runs.slim(run_folder)
    return found


def all_started(run_folder: Path, desktops: int) -> float:
    """Unix seconds at which ``desktops`` desktops were up for the first time. Raises `RunFailed` when they never were."""
    lines = RunLogs(run_folder, Choice(processes=("env_server",))).read()
    starts = sorted(line.at for line in lines if line.text.startswith("desktop.started "))
    if len(starts) < desktops:
        raise RunFailed(f"{run_folder}: only {len(starts)} of {desktops} desktops started; see its logs/latest/env_server-0.log")
    return starts[desktops - 1]


def rates(
    played: Sequence[Record], samples: Sequence[tuple[float, float, float]], *, since: float, warm: int, last: int
) -> Record:
    """Steps and episodes per second from the end of the first ``warm`` episodes that ended after ``since`` (Unix seconds) to that
    of all but the ``last``; how busy the processor was then; memory in GiB, at most.

    ``samples``: (Unix seconds, share of all cores, GiB in use). Raises `RunFailed` when too few episodes were played.
    """
    by_end = sorted((episode for episode in played if _end(episode) > since), key=_end)
    inside = by_end[warm : len(by_end) - last]
    if not inside:
        raise RunFailed(
            f"{len(by_end)} episodes after the last desktop's start are too few to measure: {warm} are for warming up, the last "
            f"{last} do not count"
        )
    low = _end(by_end[warm - 1]) if warm else max(since, min(episode["started_at"] for episode in by_end))
    high = _end(inside[-1])
    busy = [share for at, share, _ in samples if low < at <= high]
    timings = [step["timing"]["desktop_s"] for episode in inside for step in episode["steps"] if step["timing"]["desktop_s"] > 0]
    return {
        "steps_per_s": sum(len(episode["steps"]) for episode in inside) / (high - low),
        "episodes_per_s": len(inside) / (high - low),
        "step_p50_s": statistics.median(timings) if timings else None,
        "reset_p50_s": statistics.median([episode["reset_s"] for episode in inside]) if inside else None,
        "processor_busy": statistics.mean(busy) if busy else None,
        "memory_gb": max((used for _, _, used in samples), default=None),
        "num_episodes": len(inside),
    }


def _end(episode: Record) -> float:
    return float(episode["started_at"]) + float(episode["duration_s"])


def _predictions(run_folder: Path, *, seed: int) -> dict[str, float]:
    """Steps per second that the simulator expects of each point of the loop, and of `LARGE`."""
    found = calibrate(run_folder, crowding=Cluster().crowding)
    predicted = {}
    for desktops, actors in [*_pairs(LOOP_DESKTOPS), LARGE]:
        cluster = replace(found.cluster, num_desktops=desktops, num_actors=actors)
        figures = Setting("scale", found.config, cluster, found.workload).run(_SIMULATED_S, seed=seed)
        predicted[f"{desktops}, {actors}"] = figures.env_steps_per_s
    return predicted


def _predicted(cells: Sequence[Record]) -> dict[str, float]:
    return next((cell["predicted"] for cell in cells if "predicted" in cell), {})


def _points(cells: Sequence[Record]) -> list[tuple[tuple[str, int, int], list[Record]]]:
    """((kind, actors, desktops), results of all seeds), sorted."""
    found: dict[tuple[str, int, int], list[Record]] = {}
    for cell in cells:
        found.setdefault((cell["kind"], cell["actors"], cell["desktops"]), []).append(cell)
    return sorted(found.items())


def table_of(data: Mapping[str, Any]) -> str:
    """The table of ``data``, the contents of a data.json of this study."""
    return table(data["cells"])


def table(cells: Sequence[Record]) -> str:
    """A line per point."""
    predicted = _predicted(cells)
    rows = []
    for (kind, actors, desktops), mine in _points(cells):
        expected = predicted.get(f"{desktops}, {actors}") if kind == LOOP else None
        rows.append(
            [
                kind,
                str(desktops),
                str(actors),
                with_error([cell["steps_per_s"] for cell in mine], ".1f"),
                "" if expected is None else f"{expected:.1f}",
                with_error([cell["step_p50_s"] for cell in mine]),
                with_error([cell["reset_p50_s"] for cell in mine]),
                with_error([cell["processor_busy"] for cell in mine], ".0%"),
                with_error([cell["memory_gb"] for cell in mine], ".1f"),
            ]
        )
    headings = [
        "what",
        "desktops",
        "actors",
        "env steps/s",
        "simulated",
        "step, median (s)",
        "reset, median (s)",
        "processor busy",
        "GiB in use",
    ]
    large = predicted.get(f"{LARGE[0]}, {LARGE[1]}")
    extrapolated = (
        f"\n**Simulation, not measurement:** {LARGE[0]:,} desktops and {LARGE[1]} actors with engines of their own would play "
        f"{large:.0f} steps/s with the learner of this machine.\n"
        if large is not None
        else ""
    )
    return markdown(headings, rows) + extrapolated


def _actors(number: int) -> str:
    return f"{number} actor{'' if number == 1 else 's'}"


def draw(path: Path, cells: Sequence[Record]) -> None:
    """Steps per second over desktops, a line for each number of actors; measured and simulated."""
    drawing, axes = figure(2)
    predicted = _predicted(cells)
    for place, kind in zip(axes, (ALONE, LOOP), strict=True):
        for actors in ACTORS:
            mine = {number: of for (what, who, number), of in _points(cells) if (what, who) == (kind, actors)}
            if not mine:
                continue
            found = [mean_and_error([cell["steps_per_s"] for cell in of]) for of in mine.values()]
            means, errors = zip(*found, strict=True)
            (line, *_) = place.errorbar(list(mine), means, yerr=errors, marker="o", capsize=2, label=_actors(actors))
            expected = [predicted.get(f"{number}, {actors}") for number in mine]
            if kind == LOOP and None not in expected:
                place.plot(list(mine), expected, linestyle=":", color=line.get_color(), label=f"{_actors(actors)}, simulated")
        place.set(title=kind, xlabel="desktops", ylabel="env steps/s", xscale="log")
        place.set_ylim(bottom=0)
        place.set_xticks(DESKTOPS, [str(number) for number in DESKTOPS])
        place.grid(alpha=0.3)
        if any(cell["kind"] == kind for cell in cells):
            place.legend(fontsize="small")
    drawing.savefig(path, dpi=110)
