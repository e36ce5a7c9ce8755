"""One frame of the live display: what is known of a run in, something that `rich` draws out. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from computerrl.launch.supervision.role_process import ProcessView
from computerrl.launch.watch.run_state import Record, RunState, phase_title
from computerrl.launch.watch.start_up import waiting_for

if TYPE_CHECKING:
    from rich.console import RenderableType

BLOCKS = "▁▂▃▄▅▆▇█"
SPARKLINE_WIDTH = 24
WIDE = 100
"""Columns from which the two blocks of figures stand side by side."""
_FIXED = "\N{NO-BREAK SPACE}"
SHARE_UPDATES = 10
"""Updates over which a family's share of the training rollouts is taken."""
QUEUE_TITLES = {
    "assignments": "episodes being played",
    "trajectories_pending": "episodes whose group is not whole",
    "groups_waiting": "groups waiting for the learner",
    "groups_unconsumed": "groups not in a checkpoint yet",
}
"""Gauge of the broker -> words on a page."""


def sparkline(values: Sequence[float | None], *, low: float, high: float, width: int = SPARKLINE_WIDTH) -> str:
    """The last ``width`` values as block characters between ``low`` and ``high``; gaps where a value is missing."""
    marks = []
    for value in values[-width:]:
        if value is None:
            marks.append(" ")
            continue
        share = (value - low) / (high - low) if high > low else 0.0
        marks.append(BLOCKS[round(min(1.0, max(0.0, share)) * (len(BLOCKS) - 1))])
    return "".join(marks)


def duration(seconds: float | None) -> str:
    """`4:05`, `1:02:03`, `–` when unknown."""
    if seconds is None or seconds < 0:
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def number(value: float | None, digits: int = 2) -> str:
    """Fixed digits, `–` when unknown."""
    return "–" if value is None else f"{value:.{digits}f}"


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended."""

    text: str
    """`finished 06:04, took 24:14`."""
    is_good: bool


@dataclass(frozen=True, slots=True)
class View:
    """Everything that one frame of the display shows."""

    name: str
    state: RunState
    processes: Sequence[ProcessView]
    now: float
    """Unix seconds."""
    elapsed_s: float
    """Time since the start of this attempt; of a run that is looked at from outside, without its pauses."""
    notes: Sequence[str] = ()
    address: str = ""
    """Address of the dashboard; empty when there is none."""
    ending: Ending | None = None


def ending_of(outcome: str, *, ended: float, took_s: float) -> Ending:
    """For an attempt that ended at Unix time ``ended`` with ``outcome`` finished, stopped or failed."""
    clock = time.strftime("%H:%M", time.localtime(ended))
    return Ending(f"{outcome} {clock}, took {duration(took_s)}", outcome == "finished")


def render(view: View, *, width: int) -> RenderableType:
    """The whole display, for a terminal of ``width`` columns."""
    from rich.console import Group
    from rich.text import Text

    state = view.state
    parts: list[RenderableType] = [_head(view)]
    if view.ending is None:
        note = state.learner_note()
        if view.processes and not state.phase:
            parts.append(Text(f" waiting for {waiting_for(state, view.processes)}", style="dim"))
        elif note and note != state.phase:
            parts.append(_line(f" {note}", "dim"))
    if state.phase:
        parts += [_figures(view, width=width), _families(state, width=width)]
    if view.processes:
        parts.append(_process_line(view))
    if view.address and view.ending is None:
        # On lines of its own and unbroken, so that a terminal makes it a link.
        parts.append(Text.assemble((" dashboard ", "dim"), view.address, overflow="fold"))
    parts += [_line(f" {note}", "yellow") for note in view.notes]
    return Group(*parts)


def _line(text: str, style: str) -> RenderableType:
    from rich.text import Text

    return Text(text, style=style, overflow="ellipsis", no_wrap=True)


def _head(view: View) -> RenderableType:
    from rich.text import Text

    state = view.state
    name = (f" {view.name} ", "bold reverse")
    if view.ending is not None:
        return Text.assemble(name, "  ", (view.ending.text, "bold green" if view.ending.is_good else "bold yellow"))
    left_s = state.last_update.get("time_left_s")
    if left_s is not None and state.last_update.get("time") is not None:
        left_s = max(0.0, left_s - (view.now - state.last_update["time"]))
    in_phase = f" {duration(view.now - state.phase_started)}" if state.phase_started is not None else ""
    phase = phase_title(state.phase) or "starting"
    parts: list[str | tuple[str, str]] = [name, "  ", (phase, "bold cyan"), (in_phase, "dim")]
    parts += [("   run ", "dim"), duration(view.elapsed_s)]
    if left_s is not None:
        parts += [("   left about ", "dim"), duration(left_s)]
    return Text.assemble(*parts)


def _figures(view: View, *, width: int) -> RenderableType:
    """Two blocks: learning, and the machinery. Side by side on a wide terminal, else one below the other."""
    from rich.table import Table

    state, update = view.state, view.state.last_update
    history: Callable[[str], list[Any]] = lambda key: [record.get(key) for record in state.updates]  # noqa: E731
    entropies = [value for value in history("entropy") if value is not None]
    version = state.policy_version
    learning = [
        ("updates", f"{update.get('update', 0)}", ""),
        ("newest policy version", f"{'–' if version is None else version}", ""),
        ("success in training", _share(update.get("success")), sparkline(history("success"), low=0.0, high=1.0)),
        ("entropy", number(update.get("entropy")), sparkline(history("entropy"), low=0.0, high=max(entropies, default=1.0))),
        ("policy age", _age_text(update), ""),
    ]
    machinery = [("training", f"{number(update.get('trained_tokens_per_s'), 0)} tokens/s"), ("not trained", _not_trained(state))]
    if view.ending is None:
        machinery = [
            ("desktops", _desktops_text(state)),
            ("desktop actions", _actions_text(state)),
            ("actors' time", _shares(state)),
            *machinery,
        ]
    else:
        num_actions = (state.summary or update).get("env_steps")
        machinery.insert(0, ("desktop actions", "–" if num_actions is None else f"{num_actions:,.0f}"))
    if width >= WIDE:
        grid = Table.grid(padding=(0, 1))
        for style, min_width in (("dim", 22), ("bold", 5), ("green", 0), ("dim", 16), ("", 10)):
            grid.add_column(style=style, no_wrap=True, min_width=min_width)
        for index, (name, value, extra) in enumerate(learning):
            other = machinery[index] if index < len(machinery) else ("", "")
            grid.add_row(f" {name}", value, extra, f" {other[0]}", other[1])
        return grid
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="dim", no_wrap=True, min_width=22)
    grid.add_column(overflow="ellipsis", no_wrap=True)
    for name, value, extra in learning:
        grid.add_row(f" {name}", f"{value}  {extra}" if extra else value)
    for name, value in machinery:
        grid.add_row(f" {name}", value)
    return grid


_MEAN = "mean over families"
_EVALUATED = {"eval-before": "before", "eval-after-bc": "cloned", "eval-after-rl": "after RL"}


def _families(state: RunState, *, width: int) -> RenderableType:
    """Success by family: evaluations and the training curve; and its share of the latest training rollouts."""
    from rich.table import Table

    families: dict[str, None] = {}
    for record in (*state.evaluations, *state.updates[-1:]):
        families.update(dict.fromkeys(record.get("families", record.get("success_by_family", {}))))
    if not families:
        return _line(" success by task family: after the first evaluation", "dim")
    titles = [_EVALUATED.get(str(record.get("phase")), str(record.get("phase"))) for record in state.evaluations]
    longest = max(map(len, families))
    with_training, with_share = bool(state.updates), bool(state.updates) and width >= 72
    used = 2 + max(longest, len(_MEAN)) + sum(max(len(title), 5) + 2 for title in titles) + 10 * with_training + 10 * with_share
    table = Table(box=None, padding=(0, 1), header_style="dim")
    table.add_column("family", no_wrap=True, overflow="ellipsis")
    columns = [*titles, *(["training"] if with_training else []), *(["rollouts"] if with_share else []), ""]
    for title in columns:
        table.add_column(title, no_wrap=True)
    rollouts = [record.get("rollouts_by_family", {}) for record in state.updates[-SHARE_UPDATES:]]
    num_rollouts = sum(sum(counts.values()) for counts in rollouts)
    for family in families:
        curve = [record.get("success_by_family", {}).get(family) for record in state.updates]
        known = [value for value in curve if value is not None]
        cells = []
        for record in state.evaluations:
            item = record.get("families", {}).get(family)
            cells.append(f"{item['successes']}/{item['episodes']}" if item else "–")
        if with_training:
            cells.append(_share(known[-1] if known else None))
        if with_share:
            cells.append(_share(sum(counts.get(family, 0) for counts in rollouts) / num_rollouts if num_rollouts else None))
        room = max(0, min(SPARKLINE_WIDTH, width - used - 2))
        table.add_row(family, *cells, sparkline(curve, low=0.0, high=1.0, width=room) if room >= 4 else "")
    means = [_share(record.get("success")) for record in state.evaluations]
    last = [_share(state.last_update.get("success"))] if with_training else []
    table.add_row(_MEAN, *means, *last, *([""] if with_share else []), "", style="bold")
    return table


def _process_line(view: View) -> RenderableType:
    from rich.text import Text

    is_over = view.ending is not None and view.ending.is_good
    line = Text(" ")
    for process in view.processes:
        if process.state == "ended" and (is_over or view.state.summary is not None):
            line.append(f"✓{_FIXED}", style="green")
        elif process.state == "ended":
            line.append(f"✗{_FIXED}", style="yellow" if view.ending is not None else "red")
        else:
            line.append(f"●{_FIXED}", style="green" if process.state == "running" else "yellow")
        line.append(process.name)
        if process.num_restarts:
            word = "restart" if process.num_restarts == 1 else "restarts"
            line.append(f"{_FIXED}({process.num_restarts}{_FIXED}{word})", style="yellow")
        line.append("  ")
    if view.ending is None and view.state.status is None and view.state.phase:
        line.append("the broker does not answer", style="dim")
    return line


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _age_text(update: Record) -> str:
    low, mean, high = (update.get(f"policy_age_{name}") for name in ("min", "mean", "max"))
    if low is None or mean is None or high is None:
        return "–"
    return f"{low:.0f} to {high:.0f}, mean {mean:.1f}"


def _actions_text(state: RunState) -> str:
    rate = state.metric("actor/env_steps_per_s", state.last_update.get("env_steps_per_s"))
    step_s = state.metric("actor/step_p50_s")
    return f"{number(rate, 1)} a second" + ("" if step_s is None else f", {step_s:.2f} s each")


def _not_trained(state: RunState) -> str:
    """Shares of the steps that were submitted, by the reason they were not trained for; refusals of the broker as counts."""
    refused = {}
    if state.status is not None:
        refused = {name: count for name, count in state.status.counters.items() if name.startswith("rejected/") and count}
    lost = _lost_text(state.last_update.get("waste", {})).replace("_", " ")
    refusals = " ".join(f"{name.removeprefix('rejected/').replace('_', ' ')} {count}" for name, count in refused.items())
    return " ".join(text for text in (lost, refusals) if text not in ("", "–")) or "–"


def _desktops_text(state: RunState) -> str:
    num_leased, num_ready = (state.metric(f"env_server/desktops_{name}") for name in ("leased", "ready"))
    return f"{number(num_leased, 0)} of {number(num_ready, 0)} playing"


def _shares(state: RunState) -> str:
    parts = []
    for key, word in (("generate", "model"), ("desktop", "desktop"), ("idle", "idle"), ("bound_wait", "age bound")):
        value = state.metric(f"actor/{key}_fraction")
        if value is not None:
            parts.append(f"{word} {value:.0%}")
    return " ".join(parts) or "–"


def _lost_text(waste: Mapping[str, Any]) -> str:
    """`masked 2% too_old 3%`: shares of the steps submitted; `–` when nothing was taken yet."""
    num_steps = waste.get("submitted", {}).get("steps")
    if not num_steps:
        return "–"
    return " ".join(f"{reason} {amount['steps'] / num_steps:.0%}" for reason, amount in waste["lost"].items()) or "none"
