"""`computerrl simulate`: estimates of a run on a cluster of another size. Options and printing; `launch.simulation` models."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from computerrl.launch.commands.options import Number, Run, with_config
from computerrl.launch.progress import Progress

if TYPE_CHECKING:
    from computerrl.launch.simulation.calibrate import Calibration
    from computerrl.launch.simulation.figures import Figures
    from computerrl.launch.simulation.what_if import Setting

PLAIN_HOURS, WHAT_IF_HOURS = 24.0, 4.0
"""Default simulated time. --what-if simulates a dozen settings, so that each is shorter."""
_FAILURES = {"desktop_mtbf_h": "desktop_mtbf_s", "actor_mtbf_h": "actor_mtbf_s", "learner_mtbf_h": "learner_mtbf_s"}


@click.command(short_help="Simulate a run on a cluster of another size.")
@with_config(is_required=False)
@click.option("--from-run", "run", type=Run(), metavar="RUN", help="Use the times of RUN's episodes and updates.")
@click.option("--check", is_flag=True, help="With --from-run: print the run's figures beside those of the model.")
@click.option("--desktops", type=click.IntRange(max=100_000), help="Number of desktops on all nodes together.")
@click.option("--actors", type=click.IntRange(max=10_000), help="Number of engines (GPUs) that sample for the desktops.")
@click.option("--hours", type=Number(0.01, 10_000), help="Simulated hours. Default: 24, or 4 with --what-if.")
@click.option("--crowding", type=Number(), help="Share by which each further completion slows an engine: 0 to 1.")
@click.option("--train-s", type=Number(0, 86_400), help="Seconds of an update.")
@click.option("--desktop-step-s", type=Number(0, 600), help="Seconds of an action on a desktop, settling included.")
@click.option("--generate-step-s", type=Number(0, 600), help="Seconds of a completion on an engine without others.")
@click.option("--steps", type=Number(1, 10_000), help="Mean number of actions of an episode.")
@click.option("--stragglers", type=Number(0, 1), help="Share of episodes on desktops that are ten times slower.")
@click.option("--desktop-mtbf-h", type=Number(0.1, 1e6), help="Mean hours between failures of one desktop.")
@click.option("--actor-mtbf-h", type=Number(0.1, 1e6), help="Mean hours between failures of one actor.")
@click.option("--learner-mtbf-h", type=Number(0.1, 1e6), help="Mean hours between failures of the learner.")
@click.option(
    "--what-if", is_flag=True, help="Also change eta, batch, desktops, actors, training, stragglers and failures one by one."
)
@click.option("--replay", metavar="NAME", help="Simulate a published comparison: areal, dart, verl, robustrl, or all.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Seed of the simulation.")
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Also write all figures to this file.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Folder for a picture of the stages.")
def simulate(config: Path | None, overrides: tuple[str, ...], **wishes: Any) -> None:
    """Simulate a run of CONFIG on a cluster of another size, and print rates, policy age, the bottleneck, and improvements.

    The real broker core makes the broker's decisions. Desktops, engines and the learner are modelled by times: assumed times,
    which are printed, or those of a recorded run. docs/concepts/simulator.md describes the model and its limits.

    \b
    computerrl simulate quickstart --desktops 64 --actors 8 --what-if
    computerrl simulate quickstart broker.eta=4 --desktops 1000 --actors 64
    computerrl simulate quickstart --desktops 64 --actors 8 --out studies/plan
    computerrl simulate --from-run latest --check
    computerrl simulate --from-run latest --desktops 64 --actors 8 --train-s 20
    computerrl simulate --replay all
    """
    from computerrl.launch.simulation.loop import Simulation

    if wishes["replay"] is not None:
        _replay(wishes["replay"], seed=wishes["seed"], json_file=wishes["json_file"])
        return
    base, calibration = _setting(config, overrides, wishes)
    hours = wishes["hours"] or (WHAT_IF_HOURS if wishes["what_if"] else PLAIN_HOURS)
    duration_s = 3600.0 * hours
    if wishes["check"]:
        _check(base, calibration, seed=wishes["seed"], json_file=wishes["json_file"])
        return
    _show_assumptions(base)
    found: dict[str, Any] = {"assumptions": {**base.workload.assumptions(), **base.cluster.assumptions()}}
    began = time.perf_counter()
    with Progress("simulating as asked") as shown:
        figures = base.run(duration_s, seed=wishes["seed"], on_progress=lambda name, share: shown(share, 1.0))
    _show_figures(figures, wall_s=time.perf_counter() - began)
    found["figures"] = figures.as_dict()
    found["desktops_per_gpu"] = _show_desktops_per_gpu(base, seed=wishes["seed"])
    if wishes["what_if"]:
        found["what_if"] = _show_what_if(base, duration_s, seed=wishes["seed"])
    if wishes["out"] is not None:
        from computerrl.launch.simulation import picture

        wishes["out"].mkdir(parents=True, exist_ok=True)
        kept_s = max(60.0, 4 * figures.median_episode_s, 3 * 3600.0 / max(1.0, figures.updates_per_h))
        short = Simulation(base.config, base.cluster, base.workload, seed=wishes["seed"], keep_spans_s=kept_s).play(2 * kept_s)
        picture.draw(
            short, wishes["out"] / "stages.png", title=f"{base.cluster.num_desktops} desktops, {base.cluster.num_actors} actors"
        )
        click.echo(f"picture: {wishes['out'] / 'stages.png'}")
    _write(wishes["json_file"], found)


def _setting(config: Path | None, overrides: Sequence[str], wishes: dict[str, Any]) -> tuple[Setting, Calibration | None]:
    """The run to simulate. Raises `ConfigError`, `click.UsageError`."""
    from computerrl.common.config import load_config
    from computerrl.launch.simulation.calibrate import calibrate
    from computerrl.launch.simulation.cluster import Cluster
    from computerrl.launch.simulation.what_if import Setting
    from computerrl.launch.simulation.workload import AssumedWorkload, with_stragglers

    calibration = None
    if wishes["run"] is not None:
        if config is not None or overrides:
            raise click.UsageError("--from-run uses the run's own configuration; leave out CONFIG and --set")
        calibration = calibrate(wishes["run"], crowding=Cluster().crowding if wishes["crowding"] is None else wishes["crowding"])
        base = Setting("the run", calibration.config, calibration.cluster, calibration.workload)
    elif config is None:
        raise click.UsageError("give a CONFIG, --from-run RUN, or --replay NAME")
    else:
        laws = {"desktop_step_s": "desktop_step_s", "generate_step_s": "generate_step_s", "steps": "mean_steps"}
        given = {field: wishes[name] for name, field in laws.items() if wishes[name] is not None}
        base = Setting("as asked", load_config(config, overrides=overrides), Cluster(), AssumedWorkload(**given))
    changes = {
        field: wishes[name] for name, field in (("desktops", "num_desktops"), ("actors", "num_actors"), ("crowding", "crowding"))
    }
    cluster = replace(base.cluster, **{field: value for field, value in changes.items() if value is not None})
    if wishes["train_s"] is not None:
        cluster = replace(cluster, train_fixed_s=wishes["train_s"], train_step_s=0.0)
    hours = {field: 3600.0 * wishes[name] for name, field in _FAILURES.items() if wishes[name] is not None}
    cluster = replace(cluster, failures=replace(cluster.failures, **hours))
    workload = base.workload if wishes["stragglers"] is None else with_stragglers(base.workload, wishes["stragglers"], 10.0)
    return replace(base, cluster=cluster, workload=workload), calibration


def _show_assumptions(base: Setting) -> None:
    click.echo("model, not measurement; its assumptions:")
    for name, text in {**base.workload.assumptions(), **base.cluster.assumptions()}.items():
        click.echo(f"  {name:22} {text}")
    learner = base.config.learner
    bound = f"eta {base.config.broker.eta}, max_age {learner.max_age}, staleness mode {learner.staleness.mode}"
    click.echo(f"  {'batch and bound':22} {learner.groups_per_batch} groups of {learner.group_size}, {bound}\n")


def _show_figures(figures: Figures, *, wall_s: float) -> None:
    lines = {
        "environment steps": f"{figures.env_steps_per_s:.2f} /s",
        "episodes": f"{figures.episodes_per_h:.0f} /h, median {figures.median_episode_s:.1f} s, "
        f"99 % within {figures.p99_episode_s:.0f} s",
        "updates": f"{figures.updates_per_h:.2f} /h, {figures.steps_trained_per_s:.2f} steps trained /s",
        "policy age": f"mean {figures.mean_age:.3f} (Little's law {figures.little_age:.3f}), at most {figures.max_age}; "
        f"{figures.too_old_share:.2%} of steps too old",
        "desktops": f"in use {figures.desktop_use:.0%}, waiting for work {figures.waiting_share:.0%}",
        "engines": f"{figures.engine_use:.0%} of slot time in completions",
        "learner": f"in training {figures.learner_use:.0%}, effective {figures.effective_share:.1%}",
        "lost": f"{figures.lost_share:.2%} of episodes",
        "bottleneck": figures.bottleneck,
    }
    for name, text in lines.items():
        click.echo(f"{name:20} {text}")
    click.echo(f"{figures.duration_s / 3600:g} h simulated in {wall_s:.1f} s")


def _show_desktops_per_gpu(base: Setting, *, seed: int) -> dict[str, Any]:
    from computerrl.launch.simulation.what_if import desktops_per_gpu

    with Progress("simulating an engine alone") as shown:
        answer, rates = desktops_per_gpu(
            base, 3600.0, seed=seed, on_progress=lambda name, share: shown.doing(f"simulating {name} ({share:.0%} of it)")
        )
    click.echo(
        f"\nan engine alone can use {answer} desktops (steps/s: " + ", ".join(f"{n}: {rate:.2f}" for n, rate in rates) + ")"
    )
    return {"answer": answer, "steps_per_s": dict(rates)}


def _show_what_if(base: Setting, duration_s: float, *, seed: int) -> dict[str, Any]:
    from computerrl.launch.simulation.what_if import table, variations

    click.echo(f"\n{'what if':38} {'steps/s':>9} {'updates/h':>10} {'age':>6} {'too old':>8} {'waiting':>8}  bottleneck")
    first: list[float] = []
    number = sum(1 for _ in variations(base))

    def show(name: str, row: Figures) -> None:
        first.append(row.env_steps_per_s)
        change = f"{row.env_steps_per_s / first[0] - 1:+.0%}" if len(first) > 1 and first[0] else ""
        click.echo(
            f"{name:38} {row.env_steps_per_s:9.2f} {row.updates_per_h:10.2f} {row.mean_age:6.2f} {row.too_old_share:8.2%} "
            f"{row.waiting_share:8.0%}  {row.bottleneck.partition(' (')[0]} {change}"
        )

    with Progress("simulating what if", unit="settings", total=number) as shown:
        rows = table(base, duration_s, seed=seed, on_row=show, on_progress=lambda name, share: shown(len(first) + share, number))
    return {name: row.as_dict() for name, row in rows}


def _check(base: Setting, calibration: Calibration | None, *, seed: int, json_file: Path | None) -> None:
    """Print the run's figures beside those of the model."""
    if calibration is None:
        raise click.UsageError("--check needs --from-run RUN")
    measured = calibration.measured
    figures = base.run(50 * measured.duration_s, seed=seed)
    rows = {
        "seconds from update to update": (measured.update_s, 3600 / figures.updates_per_h),
        "environment steps per second": (measured.env_steps_per_s, figures.env_steps_per_s),
        "mean policy age": (measured.mean_age, figures.mean_age),
    }
    click.echo(
        f"{'':32} {'measured':>9} {'model':>9} {'ratio':>7}   ({measured.num_updates} updates in {measured.duration_s:.0f} s)"
    )
    for name, (was, is_now) in rows.items():
        click.echo(f"{name:32} {was:9.3f} {is_now:9.3f} {is_now / was if was else math.nan:7.2f}")
    _write(json_file, {name: {"measured": was, "model": is_now} for name, (was, is_now) in rows.items()})


def _replay(name: str, *, seed: int, json_file: Path | None) -> None:
    from computerrl.common.errors import ConfigError, Problem
    from computerrl.launch.simulation.replays import REPLAYS

    chosen = list(REPLAYS) if name == "all" else [name]
    if not REPLAYS.keys() >= set(chosen):
        raise ConfigError([Problem("--replay", f"there is no comparison {name!r}", f"choose from {', '.join(REPLAYS)}, all")])
    found = {}
    for one in chosen:
        replay = REPLAYS[one]()
        click.echo(f"MODEL REPLAY of {replay.source}")
        for text in replay.assumptions:
            click.echo(f"  {text}")
        figures = []
        for setting in replay.settings:
            figures.append(setting.run(replay.duration_s, seed=seed))
            row = figures[-1]
            click.echo(
                f"  {setting.name:36} {row.updates_per_h:8.2f} updates/h {row.env_steps_per_s:8.2f} steps/s"
                f"  desktops {row.desktop_use:4.0%}  engines {row.engine_use:4.0%}  learner {row.learner_use:4.0%}"
                f"  age {row.mean_age:.2f}  effective {row.effective_share:.0%}"
            )
        rows = replay.judge(figures)
        for row_ in rows:
            published = "–" if math.isnan(row_.published) else f"{row_.published:.2f}"
            click.echo(f"  -> {row_.what:34} published {published:>5}   model {row_.model:.2f}")
        click.echo()
        found[one] = {"rows": [vars_of(row_) for row_ in rows], "assumptions": replay.assumptions}
    _write(json_file, found)


def vars_of(row: Any) -> dict[str, Any]:
    """The row for JSON. A factor that was not published is null."""
    return {"what": row.what, "published": None if math.isnan(row.published) else row.published, "model": row.model}


def _write(json_file: Path | None, tree: dict[str, Any]) -> None:
    if json_file is not None:
        json_file.write_text(json.dumps(tree, indent=2))
