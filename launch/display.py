"""What a person sees while a run goes on: a live display on a terminal, one line per event elsewhere.

Everything drawn comes from `launch.run_state.RunState` and the supervisor's process views; `render` and `line_for` are pure.
Keeps no figures of its own and never asks anybody anything.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from launch.run_state import Record, RunState
from launch.supervisor import ProcessView
from launch.waste_view import lengths_text, lost_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

BLOCKS = "▁▂▃▄▅▆▇█"
SPARKLINE_WIDTH = 24
NUM_NOTES = 4
QUIET_S = 60.0
"""After so long without a line, one says how far the phase is: evaluations and demonstrations take minutes."""
SHARE_UPDATES = 10
"""Updates over which a family's share of the training rollouts is taken."""
QUEUES = {"assignments": "playing", "trajectories_pending": "pending", "groups_waiting": "groups", "groups_unconsumed": "unsaved"}
"""Gauge of the broker -> word on the display: episodes being played, trajectories whose group is not whole, groups the learner
has not taken, groups no checkpoint covers."""


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
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def number(value: float | None, digits: int = 2) -> str:
    """Fixed digits, `–` when unknown."""
    return "–" if value is None else f"{value:.{digits}f}"


# --- one line per event ----------------------------------------------------------------------------------------------


def line_for(record: Record, *, state: RunState) -> str | None:
    """The line of one metrics record for logs and pipes: words first, then key=value. None: not worth a line."""
    match record.get("event"):
        case "phase":
            reason = record.get("reason")
            return f"phase={record.get('phase')}" + (f" reason={reason!r}" if reason else "")
        case "evaluation":
            families = record.get("families", {})
            parts = [f"{name}={item.get('successes')}/{item.get('episodes')}" for name, item in families.items()]
            head = f"evaluation phase={record.get('phase')} version={record.get('policy_version')}"
            return " ".join([head, f"success={number(record.get('success'), 3)}", *parts])
        case "update":
            return _update_line(record, state)
        case "sft":
            return f"sft phase={record.get('phase')} step={record.get('step')} loss={number(record.get('loss'), 3)}"
    return None


def _update_line(record: Record, state: RunState) -> str:
    drops = ",".join(f"{reason}:{count}" for reason, count in record.get("drops", {}).items() if count) or "none"
    queues = ",".join(f"{name}:{value:g}" for name, value in _queues(state).items()) or "unknown"
    return " ".join(
        [
            f"update={record.get('update')} phase={record.get('phase')} version={record.get('policy_version')}",
            f"success={number(record.get('success'), 3)} entropy={number(record.get('entropy'), 3)}",
            f"age={_age(record)} stall={_stall(record)}",
            f"env_steps_per_s={number(record.get('env_steps_per_s'), 1)}",
            f"trained_tokens_per_s={number(record.get('trained_tokens_per_s'), 0)}",
            f"queues={queues} drops={drops} length_ks={number(record.get('length_ks'))}",
            f"left={duration(record.get('time_left_s'))}",
        ]
    )


def _stall(record: Record) -> str:
    """Seconds that the update waited for steps in flight, of all it waited for groups."""
    return f"{number(record.get('stall_s'), 1)}/{number(record.get('wait_s'), 1)}"


def _age(record: Record) -> str:
    low, mean, high = (record.get(f"policy_age_{name}") for name in ("min", "mean", "max"))
    return f"{number(low, 0)}/{number(mean, 2)}/{number(high, 0)}"


def _queues(state: RunState) -> dict[str, float]:
    gauges = state.status.gauges if state.status is not None else {}
    return {word: gauges[name] for name, word in QUEUES.items() if name in gauges}


# --- the live display ------------------------------------------------------------------------------------------------


def render(
    state: RunState, views: Sequence[ProcessView], notes: Sequence[str], *, name: str, elapsed_s: float, now: float
) -> RenderableType:
    """The whole display. ``now`` is Unix seconds."""
    from rich.console import Group
    from rich.text import Text

    update = state.last_update
    left_s = update.get("time_left_s")
    if left_s is not None and update.get("time") is not None:
        left_s = max(0.0, left_s - (now - update["time"]))
    in_phase = f" {duration(now - state.phase_started)}" if state.phase_started is not None else ""
    head = Text.assemble(
        (f" {name} ", "bold reverse"),
        "  ",
        (state.phase or "starting", "bold cyan"),
        (in_phase, "dim"),
        ("   elapsed ", "dim"),
        duration(elapsed_s),
        ("   left about ", "dim"),
        duration(left_s),
    )
    note = state.learner_note()
    doing = Text(f" {note}", style="dim") if note and note != state.phase else Text("")
    parts: list[RenderableType] = [head, doing, _figures(state), _families(state), _process_line(state, views)]
    parts += [Text(f" {line}", style="yellow", overflow="ellipsis", no_wrap=True) for line in notes]
    return Group(*parts)


def _figures(state: RunState) -> RenderableType:
    from rich.table import Table

    update = state.last_update
    history: Callable[[str], list[Any]] = lambda key: [record.get(key) for record in state.updates]  # noqa: E731
    entropies = [value for value in history("entropy") if value is not None]
    version = state.status.policy_version if state.status is not None else update.get("policy_version")
    left = [
        ("update", f"{update.get('update', '–')}", ""),
        ("policy version", f"{'–' if version is None else version}", ""),
        ("success", number(update.get("success")), sparkline(history("success"), low=0.0, high=1.0)),
        ("entropy", number(update.get("entropy")), sparkline(history("entropy"), low=0.0, high=max(entropies, default=1.0))),
        ("policy age", _age(update) if update else "–", "min/mean/max"),
        ("env steps/s", number(state.metric("actor/env_steps_per_s", update.get("env_steps_per_s")), 1), ""),
        ("stalled/waited", _stall(update), "s"),
        ("length bias", number(update.get("length_ks")), "KS distance"),
    ]
    right = [
        ("queues", " ".join(f"{key} {value:g}" for key, value in _queues(state).items()) or "–"),
        ("dropped", " ".join(f"{key} {value}" for key, value in _drops(state).items()) or "none"),
        (
            "desktops",
            f"{_whole(state, 'env_server/desktops_leased')} leased of {_whole(state, 'env_server/desktops_ready')} ready",
        ),
        ("step, reset", f"{_seconds(state, 'actor/step_p50_s')}, {_seconds(state, 'actor/reset_p50_s')} at the median"),
        ("actor time", _shares(state)),
        ("training", f"{number(update.get('trained_tokens_per_s'), 0)} tokens/s"),
        ("lost", lost_text(update.get("waste", {}))),
        ("trained", lengths_text(update.get("waste", {}))),
    ]
    grid = Table.grid(padding=(0, 1))
    for style in ("dim", "bold", "green", "dim", ""):
        grid.add_column(style=style, no_wrap=True)
    for (name, value, extra), (other, text) in zip(left, right, strict=True):
        grid.add_row(f" {name}", value, extra, f" {other}", text)
    return grid


def _families(state: RunState) -> RenderableType:
    """Success by family: evaluations and the training curve; and its share of the latest training rollouts."""
    from rich.table import Table
    from rich.text import Text

    families: dict[str, None] = {}
    for record in (*state.evaluations, *state.updates[-1:]):
        families.update(dict.fromkeys(record.get("families", record.get("success_by_family", {}))))
    if not families:
        return Text(" no episode has been judged yet", style="dim")
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for title in ("family", *[str(record.get("phase")) for record in state.evaluations], "training", "share", ""):
        table.add_column(title, no_wrap=True)
    rollouts = [record.get("rollouts_by_family", {}) for record in state.updates[-SHARE_UPDATES:]]
    num_rollouts = sum(sum(counts.values()) for counts in rollouts)
    for family in families:
        curve = [record.get("success_by_family", {}).get(family) for record in state.updates]
        known = [value for value in curve if value is not None]
        evaluated = []
        for record in state.evaluations:
            item = record.get("families", {}).get(family)
            evaluated.append(f"{item['successes']}/{item['episodes']}" if item else "–")
        share = f"{sum(counts.get(family, 0) for counts in rollouts) / num_rollouts:.0%}" if num_rollouts else "–"
        table.add_row(family, *evaluated, number(known[-1] if known else None), share, sparkline(curve, low=0.0, high=1.0))
    return table


def _process_line(state: RunState, views: Sequence[ProcessView]) -> RenderableType:
    from rich.text import Text

    line = Text(" ")
    colours = {"running": "green", "restarting": "yellow", "ended": "red"}
    for view in views:
        line.append("● ", style=colours[view.state])
        line.append(view.name)
        if view.num_restarts:
            line.append(f" ({view.num_restarts} restart{'s' if view.num_restarts > 1 else ''})", style="yellow")
        line.append("  ")
    if views and state.status is None:
        line.append("broker does not answer yet", style="dim")
    return line


def _drops(state: RunState) -> dict[str, int]:
    drops = {reason: count for reason, count in state.last_update.get("drops", {}).items() if count}
    if state.status is not None:
        for name, count in state.status.counters.items():
            if name.startswith("rejected/") and count:
                drops[name.removeprefix("rejected/")] = count
    return drops


def _whole(state: RunState, name: str) -> str:
    return number(state.metric(name), 0)


def _seconds(state: RunState, name: str) -> str:
    value = state.metric(name)
    return "–" if value is None else f"{value:.2f} s"


def _shares(state: RunState) -> str:
    parts = []
    for key, word in (("generate", "generation"), ("desktop", "desktop"), ("idle", "idle"), ("bound_wait", "staleness bound")):
        value = state.metric(f"actor/{key}_fraction")
        if value is not None:
            parts.append(f"{word} {value:.0%}")
    return " ".join(parts) or "–"


class LiveDisplay:
    """Redraws `render` in place. Use in ``with``."""

    def __init__(self, console: Console, *, name: str) -> None:
        from rich.live import Live

        self._name = name
        self._started = time.monotonic()
        self._notes: deque[str] = deque(maxlen=NUM_NOTES)
        self._live = Live(console=console, auto_refresh=False, transient=False)

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def note(self, line: str) -> None:
        """Something happened that a person should see."""
        self._notes.append(f"{time.strftime('%H:%M:%S')} {line}")

    def record(self, record: Record, state: RunState) -> None:
        """Shown by the next `update` already."""

    def update(self, state: RunState, views: Sequence[ProcessView]) -> None:
        """Draw what is known now."""
        elapsed_s = time.monotonic() - self._started
        self._live.update(
            render(state, views, list(self._notes), name=self._name, elapsed_s=elapsed_s, now=time.time()), refresh=True
        )


class LineDisplay:
    """One plain line per update, phase, evaluation and note, for pipes, logs and batch jobs; and now and then one between."""

    def __init__(self, write: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._last_line = clock()

    def __enter__(self) -> LineDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def note(self, line: str) -> None:
        """Something happened that a person should see."""
        self._line(f"note {line}")

    def record(self, record: Record, state: RunState) -> None:
        """A new metrics record."""
        line = line_for(record, state=state)
        if line is not None:
            self._line(line)

    def update(self, state: RunState, views: Sequence[ProcessView]) -> None:
        """How far the phase is, where the learner knows and nothing else was said for a while."""
        note = state.learner_note()
        if note not in ("", state.phase) and self._clock() - self._last_line >= QUIET_S:
            self._line(f"progress {note}")

    def _line(self, text: str) -> None:
        self._last_line = self._clock()
        self._write(f"{time.strftime('%H:%M:%S')} {text}")


Display = LiveDisplay | LineDisplay


def make_display(*, name: str) -> Display:
    """Live on a terminal, lines elsewhere."""
    from rich.console import Console

    console = Console()
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveDisplay(console, name=name)
    return LineDisplay(lambda line: print(line, flush=True))
