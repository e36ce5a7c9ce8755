"""Runs studies of one policy on many families: untouched, after cloning, after RL; on the families it learned and on others."""

from __future__ import annotations

import fnmatch
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from computerrl.benchmarks.studies import _runs
from computerrl.benchmarks.studies._designs import Generalist
from computerrl.benchmarks.studies._plots import figure
from computerrl.benchmarks.studies._statistics import Record, markdown, pooled_curve
from computerrl.benchmarks.studies._study import Page, Study
from computerrl.env_server.tasks import FAMILIES
from computerrl.launch.report.evaluation_figures import wilson_interval

STAGES = ("untouched", "cloned", "trained")
QUICK_FAMILIES, QUICK_UNSEEN = ("web-click-button", "calc-set-cell"), ("web-click-option",)
_MIN_WINDOW = 5
"""Minimum number of updates over which a point of a learning curve is the mean."""


def run(design: Generalist, folder: Path, *, quick: bool, num_seeds: int | None) -> None:
    """Clone, train and evaluate in ``folder``, and write the page. ``num_seeds``: None: one."""
    families, unseen = (QUICK_FAMILIES, QUICK_UNSEEN) if quick else (expand(design.families), tuple(design.unseen))
    settings = {**design.settings, **(design.quick if quick else {}), "tasks.families": families}
    num_episodes = 1 if quick else design.num_episodes
    common = yaml.safe_load(_runs.CONFIG.read_text(encoding="utf-8"))
    made_of = {"config": common, "settings": settings, "unseen": unseen, "num_episodes": num_episodes}
    if design.shifts:
        made_of["shifts"] = design.shifts
    study = Study(folder, name=design.name, settings=made_of)
    settings["learner.recipe.eval_episodes_per_family"] = num_episodes
    seeds = range(num_seeds or 1)
    shifted = [(stage, shift) for shift in design.shifts for stage in STAGES[1:]]
    number = len(seeds) * (1 + len(STAGES) + len(shifted))
    cells = []
    for seed in seeds:
        train = partial(_trained, study.folder, seed, settings, unseen)
        cells.append(study.cell(f"RL, seed {seed}", train, of=number, show=lambda cell: f"{cell['num_updates']} updates"))
        for stage in STAGES:
            evaluate = partial(_evaluated, study.folder, stage, seed, settings, unseen)
            cells.append(study.cell(f"{stage}, seed {seed}", evaluate, of=number, show=lambda cell: f"{cell['mean']:.3f}"))
        for stage, shift in shifted:
            under = partial(_shifted, study.folder, stage, seed, settings, unseen, shift, design.shifts[shift])
            title = f"{stage_under(stage, shift)}, seed {seed}"
            cells.append(study.cell(title, under, of=number, show=lambda cell: f"{cell['mean']:.3f}"))
    text = table_of(design, {"settings": study.settings, "cells": cells})
    turn = math.ceil(len(families) / (settings.get("learner.groups_per_batch") or common["learner"]["groups_per_batch"]))
    plot = partial(draw, cells=cells, families=families, unseen=unseen, turn=turn)
    page = Page(design.title, design.question, text, plot, design.limits)
    study.write(page, cells, quick=quick)


def expand(families: Sequence[str]) -> tuple[str, ...]:
    """``families`` with each name that ends in `*` replaced by all families that begin so."""
    return tuple(name for text in families for name in (fnmatch.filter(FAMILIES, text) if text.endswith("*") else [text]))


def _cloned(folder: Path, seed: int, settings: Mapping[str, Any], unseen: Sequence[str]) -> tuple[Path, Record]:
    """The policy that has cloned demonstrations of the families it is to learn; evaluated before and after on all families."""
    wider = {
        "tasks.families": (*settings["tasks.families"], *unseen),
        "learner.recipe.demos_of_family": dict.fromkeys(unseen, 0),
        "learner.recipe.eval_before_episodes_per_family": None,
    }
    return _runs.cloned_model(folder, f"cloned-{seed}", seed, {**settings, **wider})


def _trained(folder: Path, seed: int, settings: Mapping[str, Any], unseen: Sequence[str]) -> Record:
    """RL from the cloned policy; its model is kept."""
    model, cloned = _cloned(folder, seed, settings, unseen)
    start = {"model.name": str(model), "learner.recipe.demos_per_family": 0, "seed": seed}
    run = _runs.train(folder, f"rl-{seed}", {**settings, **start, "learner.recipe.eval_episodes_per_family": 0})
    _runs.export(run, folder / "models" / f"trained-{seed}")
    found = {"stage": "RL", "arm": "RL", "seed": seed, **_runs.harvest(run), "demonstration_steps": cloned["demonstration_steps"]}
    _runs.slim(run)
    return found


def _evaluated(folder: Path, stage: str, seed: int, settings: Mapping[str, Any], unseen: Sequence[str]) -> Record:
    """Held-out success of one stage: successes and episodes of each family."""
    if stage == "trained":
        return _played(folder, stage, folder / "models" / f"trained-{seed}", seed, settings, unseen)
    _, cloned = _cloned(folder, seed, settings, unseen)
    return _record(stage, seed, cloned["untouched"] if stage == "untouched" else cloned)


def _shifted(
    folder: Path,
    stage: str,
    seed: int,
    settings: Mapping[str, Any],
    unseen: Sequence[str],
    shift: str,
    changes: Mapping[str, Any],
) -> Record:
    """The same of a stage under settings that the policy was not trained with."""
    model = folder / "models" / f"trained-{seed}" if stage == "trained" else _cloned(folder, seed, settings, unseen)[0]
    return _played(folder, stage_under(stage, shift), model, seed, {**settings, **changes}, unseen)


def stage_under(stage: str, shift: str) -> str:
    """Name of an evaluation of ``stage`` under the settings of ``shift``."""
    return f"{stage}, {shift}"


def _played(folder: Path, stage: str, model: Path, seed: int, settings: Mapping[str, Any], unseen: Sequence[str]) -> Record:
    """Held-out success of ``model``, and how episodes ended that failed."""
    only = {
        "model.name": str(model),
        "tasks.families": (*settings["tasks.families"], *unseen),
        "learner.recipe.demos_per_family": 0,
        "learner.recipe.max_updates": 0,
        "learner.recipe.eval_before_episodes_per_family": None,
        "seed": seed,
    }
    run = _runs.train(folder, f"eval-{stage.replace(', ', '-').replace(' ', '-')}-{seed}", {**settings, **only})
    found = _runs.evaluations(run)["success_before"]
    failed = [one for one in _runs.episodes(run, kind="evaluation") if not one["success"]]
    ends = {
        what: dict(Counter(one["end_reason"] for one in failed if (one["family"] in unseen) == is_unseen))
        for what, is_unseen in (("trained on", False), ("never trained on", True))
    }
    _runs.slim(run)
    return {**_record(stage, seed, found), "failed_by": ends}


def _record(stage: str, seed: int, found: Record) -> Record:
    counts = {name: [one["successes"], one["episodes"]] for name, one in found["families"].items()}
    return {"stage": stage, "seed": seed, "mean": found["mean"], "counts": counts, "num_given_up": found["num_given_up"]}


def pooled(cells: Sequence[Record], stage: str, families: Sequence[str]) -> tuple[int, int]:
    """(successes, episodes) of a stage on some families, all seeds together."""
    counts = [cell["counts"][name] for cell in cells if cell["stage"] == stage for name in families if name in cell["counts"]]
    return sum(successes for successes, _ in counts), sum(episodes for _, episodes in counts)


def table_of(design: Generalist, data: Mapping[str, Any]) -> str:
    """The tables of ``data``, the contents of a data.json of ``design``: its families, settings and results."""
    settings = data["settings"]
    return table(
        data["cells"],
        families=settings["settings"]["tasks.families"],
        unseen=settings["unseen"],
        shifts=tuple(settings.get("shifts", ())),
        published=design.published,
        note=design.published_note,
    )


def table(
    cells: Sequence[Record],
    *,
    families: Sequence[str],
    unseen: Sequence[str],
    published: Mapping[str, Mapping[str, float]],
    note: str = "",
    shifts: Sequence[str] = (),
) -> str:
    """Success of each stage with its interval, of each family beside its published success, and how episodes failed."""
    groups = {"families trained on": families, **({"families never trained on": unseen} if unseen else {})}
    shown = [one for what, names in groups.items() for one in ((what, names), *_by_kind(names))]
    overall = [
        [f"{what} ({len(names)})", *(_with_interval(*pooled(cells, stage, names)) for stage in STAGES), *_changes(cells, names)]
        for what, names in shown
    ]
    overall += [
        [
            f"{what}, {shift} ({len(names)})",
            "–",
            *(_with_interval(*pooled(cells, stage_under(stage, shift), names)) for stage in STAGES[1:]),
            *_changes(cells, names, [stage_under(stage, shift) for stage in STAGES[1:]]),
        ]
        for shift in shifts
        for what, names in groups.items()
    ]
    rows = [
        [
            name,
            *(_counted(*pooled(cells, stage, [name])) for stage in STAGES),
            *(_score(of.get(name)) for of in published.values()),
        ]
        for names in groups.values()
        for name in sorted(names)
    ]
    known = [name for name in (*families, *unseen) if any(name in of for of in published.values())]
    if known:
        ours = [pooled(cells, stage, known) for stage in STAGES]
        rows.append(
            [
                f"mean of the {len(known)} with figures of others",
                *(_score(successes / episodes if episodes else None) for successes, episodes in ours),
                *(_score(statistics.mean(of[name] for name in known if name in of)) for of in published.values()),
            ]
        )
    given_up = sum(cell["num_given_up"] for cell in cells if cell["stage"] != "RL")
    trained = [cell for cell in cells if cell["stage"] == "RL"]
    effort = "; ".join(
        f"seed {cell['seed']}: {cell['num_updates']} updates, {cell['rl_env_steps']:,} desktop steps in {cell['rl_s'] / 60:.0f} "
        f"minutes of RL, {cell['num_trajectories_lost']} lost, greatest age {cell['max_policy_age_trained']}"
        for cell in trained
    )
    explained = "rose, fell, at 0: families from cloned to trained, and those at 0 in both"
    return (
        f"{markdown(['held-out success', *STAGES, 'rose', 'fell', 'at 0'], overall)}\nWith 95 % intervals (Wilson); {given_up} "
        f"evaluation episodes given up; {explained}. {effort}.\n\n"
        f"{_failures(cells)}"
        f"{markdown(['family', *STAGES, *published], rows)}" + (f"\n{note}\n" if known else "")
    )


def _failures(cells: Sequence[Record]) -> str:
    """How held-out episodes ended that failed; empty for results of before this was counted."""
    found: dict[tuple[str, str], Counter[str]] = {}
    for cell in cells:
        for what, ends in cell.get("failed_by", {}).items():
            found.setdefault((cell["stage"], what), Counter()).update(ends)
    kinds = sorted({end for ends in found.values() for end in ends})
    if not kinds:
        return ""
    rows = [[f"{stage}, families {what}", *(str(ends[kind]) for kind in kinds)] for (stage, what), ends in found.items()]
    return f"{markdown(['failed episodes by their end', *(kind.replace('_', ' ') for kind in kinds)], rows)}\n"


def _by_kind(families: Sequence[str]) -> list[tuple[str, list[str]]]:
    """(kind, its families): names share the first word, or the first two of OfficeForge; nothing where all are of one kind."""
    kinds: dict[str, list[str]] = {}
    for name in sorted(families):
        words = name.split("-")
        kinds.setdefault("-".join(words[: 2 if words[0] == "forge" else 1]), []).append(name)
    return [(f"{kind}-*", names) for kind, names in kinds.items()] if len(kinds) > 1 else []


def _changes(cells: Sequence[Record], families: Sequence[str], stages: Sequence[str] = STAGES[1:]) -> list[str]:
    """Number of families whose success rose from the first stage to the second, that fell, and that are at 0 in both."""
    both = [tuple(pooled(cells, stage, [name])[0] for stage in stages) for name in families]
    counts = (sum(after > before for before, after in both), sum(after < before for before, after in both), both.count((0, 0)))
    return [str(count) for count in counts]


def _with_interval(successes: int, episodes: int) -> str:
    if not episodes:
        return "–"
    low, high = wilson_interval(successes / episodes, episodes)
    return f"{successes / episodes:.3f} ({low:.3f} to {high:.3f}; {episodes} episodes)"


def _score(share: float | None) -> str:
    return "" if share is None else f"{share:.2f}"


def _counted(successes: int, episodes: int) -> str:
    return f"{successes}/{episodes}" if episodes else "–"


def draw(path: Path, *, cells: Sequence[Record], families: Sequence[str], unseen: Sequence[str], turn: int) -> None:
    """Learning curves of each seed and of each application, and success of the stages. ``turn``: updates in which each family
    is played once; curves are means of whole turns."""
    drawing, (left, middle, right) = figure(3)
    window = turn * math.ceil(_MIN_WINDOW / turn)
    trained = [cell for cell in cells if cell["stage"] == "RL"]
    for cell in trained:
        left.plot(*pooled_curve(cell["updates"], families, window=window), label=f"seed {cell['seed']}")
    by_application: dict[str, list[str]] = {}
    for name in families:
        by_application.setdefault(FAMILIES[name].app, []).append(name)
    for app, mine in sorted(by_application.items()) if trained else []:
        middle.plot(*pooled_curve(trained[0]["updates"], mine, window=window), label=f"{app} ({len(mine)})")
    for axes, what in ((left, "all families"), (middle, "families by application")):
        axes.set(xlabel="desktop steps of RL", ylabel=f"training success, {what}", ylim=(0, 1))
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    groups = {"trained on": families, **({"never trained on": unseen} if unseen else {})}
    for number, (what, names) in enumerate(groups.items()):
        counts = [pooled(cells, stage, names) for stage in STAGES]
        shares = [successes / max(1, episodes) for successes, episodes in counts]
        ends = [wilson_interval(share, episodes) for share, (_, episodes) in zip(shares, counts, strict=True)]
        lows = [max(0.0, share - low) for share, (low, _) in zip(shares, ends, strict=True)]
        highs = [max(0.0, high - share) for share, (_, high) in zip(shares, ends, strict=True)]
        places = [index + 0.38 * number for index in range(len(STAGES))]
        right.bar(places, shares, 0.36, yerr=(lows, highs), capsize=3, label=what)
    right.set_xticks(range(len(STAGES)), STAGES)
    right.set(ylabel="held-out success", ylim=(0, 1))
    right.legend()
    right.grid(alpha=0.3, axis="y")
    drawing.savefig(path, dpi=110)
