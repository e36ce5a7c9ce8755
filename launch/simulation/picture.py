"""Picture of a simulated run: stages of the learner and of some slots over time, and the ages of trained steps."""

from __future__ import annotations

from pathlib import Path

from computerrl.launch.simulation.loop import Simulation

_COLOURS = {"reset": "#b8c4cc", "steps": "#4c8eda", "training": "#d9822b"}
_NUM_SLOTS = 12


def draw(simulation: Simulation, path: Path, *, title: str) -> None:
    """Write a PNG; the simulation must have kept spans."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (stages, ages) = pyplot.subplots(2, 1, figsize=(10, 6.5), height_ratios=(3, 1.3), layout="constrained")
    slots = sorted({span.who for span in simulation.spans if span.who != "learner"}, key=_order)[:_NUM_SLOTS]
    rows = ["learner", *slots]
    shown = [span for span in simulation.spans if span.who in rows]
    for stage, colour in _COLOURS.items():
        for span in (span for span in shown if span.stage == stage):
            stages.barh(rows.index(span.who), span.ended_s - span.began_s, left=span.began_s, color=colour, height=0.7)
        stages.barh(0, 0, color=colour, label={"steps": "steps (desktop and generation)"}.get(stage, stage))
    stages.set_yticks(range(len(rows)), rows)
    stages.invert_yaxis()
    stages.set_xlim(0, max((span.ended_s for span in shown), default=1.0))
    stages.set_xlabel("simulated seconds; white: waiting for work")
    stages.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, frameon=False)
    stages.set_title(title, loc="left")
    found = simulation.counts.ages
    total = max(1, sum(found.values()))
    ages.bar(list(found), [count / total for count in found.values()], color="#4c8eda")
    ages.axvline(simulation.config.learner.max_age + 0.5, color="#c23030", linestyle="--", label="learner.max_age")
    ages.set_xlabel("age of trained steps, policy versions")
    ages.set_ylabel("share")
    ages.legend(frameon=False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _order(who: str) -> tuple[int, int]:
    actor, _, slot = who.removeprefix("slot ").partition(".")
    return int(slot), int(actor)
