"""Terminal output of a run: a live display on a terminal, one line per event elsewhere.

Everything shown comes from `launch.watch.run_state.RunState` and the supervisor's process views. `launch.watch.display_frame`
draws the live display; `line_for` is pure.
"""

from __future__ import annotations

import errno
import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any, TextIO, cast

from computerrl.common.clock import unix_now
from computerrl.launch.supervision.role_process import ProcessView
from computerrl.launch.watch.display_frame import Ending, View, duration, number, render
from computerrl.launch.watch.run_state import Record, RunState
from computerrl.launch.watch.start_up import StartUp

if TYPE_CHECKING:
    from rich.console import Console

NUM_NOTES = 4
QUIET_S = 15.0
"""After so long without a line, one tells the progress of the phase: evaluations and demonstrations take minutes."""
QUEUES = {"assignments": "playing", "trajectories_pending": "pending", "groups_waiting": "groups", "groups_unconsumed": "unsaved"}
"""Gauge of the broker -> word in a log line: episodes being played, trajectories whose group is not whole, groups the learner has
not taken, groups no checkpoint covers."""


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


class LiveDisplay:
    """Redraws `render` in place. Use in ``with``."""

    def __init__(self, console: Console, *, name: str) -> None:
        from rich.live import Live

        self._name = name
        self._started = time.monotonic()
        self._start_up = StartUp()
        self._notes: deque[str] = deque(maxlen=NUM_NOTES)
        self._address = ""
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=False)

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def note(self, line: str) -> None:
        """Something happened that a person should see."""
        self._notes.append(f"{time.strftime('%H:%M:%S')} {line}")

    def dashboard(self, address: str, hint: str) -> None:
        """The dashboard has an address: it stays on the display. ``hint``: the tunnel that leads to it, or empty."""
        self._address = address
        # Above the display, where it stays when the display has ended.
        self._live.console.print(f"dashboard: {address}", soft_wrap=True, highlight=False, markup=False)
        if hint:
            self._live.console.print(hint, soft_wrap=True, highlight=False, markup=False)

    def record(self, record: Record, state: RunState) -> None:
        """Shown by the next `update` already."""

    def update(self, state: RunState, views: Sequence[ProcessView], *, ending: Ending | None = None) -> None:
        """Draw what is known now."""
        elapsed_s = time.monotonic() - self._started
        if ending is None:
            for line in self._start_up.look(state, views, elapsed_s=elapsed_s):
                self._live.console.print(f" {line}", style="dim", highlight=False)
        view = View(self._name, state, views, unix_now(), elapsed_s, list(self._notes), self._address, ending)
        self._live.update(render(view, width=self._console.width), refresh=True)


class LineDisplay:
    """One plain line per update, phase, evaluation and note, for pipes, logs and batch jobs; and now and then one between."""

    def __init__(self, write: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._started = self._last_line = clock()
        self._start_up = StartUp()

    def __enter__(self) -> LineDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def note(self, line: str) -> None:
        """Something happened that a person should see."""
        self._line(f"note {line}")

    def dashboard(self, address: str, hint: str) -> None:
        """The dashboard has an address. ``hint``: the tunnel that leads to it, or empty."""
        self._line(f"dashboard: {address}")
        if hint:
            self._line(hint)

    def record(self, record: Record, state: RunState) -> None:
        """A new metrics record."""
        line = line_for(record, state=state)
        if line is not None:
            self._line(line)

    def update(self, state: RunState, views: Sequence[ProcessView], *, ending: Ending | None = None) -> None:
        """Parts of the run that have come up; then the progress of the phase, where nothing else was written for a while."""
        if ending is not None:
            self._line(ending.text)
            return
        elapsed_s = self._clock() - self._started
        for line in self._start_up.look(state, views, elapsed_s=elapsed_s):
            self.start(line)
        overdue = self._start_up.overdue(state, views, elapsed_s=elapsed_s)
        if overdue:
            self.start(overdue)
        self.progress(state.learner_note(), state.phase)

    def start(self, line: str) -> None:
        """A part of the run that is being started."""
        self._line(f"start {line}")

    def progress(self, note: str, phase: str) -> None:
        """Write ``note``, which tells how far ``phase`` is, unless a line was written a moment ago."""
        if note not in ("", phase) and self._clock() - self._last_line >= QUIET_S:
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


@contextmanager
def outliving_the_terminal() -> Iterator[None]:
    """Inside and afterwards, standard output and errors are dropped once their terminal or the other end of their pipe closes. A
    run that loses its terminal ends by the signal that comes with the loss, if there is one, and records how it ended."""
    out, errors = _Outliving(sys.stdout), _Outliving(sys.stderr)
    try:
        with redirect_stdout(cast(TextIO, out)), redirect_stderr(cast(TextIO, errors)):
            yield
    finally:
        for stream in (out, errors):
            stream.give_up_if_gone()


class _Outliving:
    """A text stream whose writes work, whatever becomes of the file behind it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write; the number of characters."""
        with self._safely():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush."""
        with self._safely():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def give_up_if_gone(self) -> None:
        """Write nowhere from now on if the other end is gone."""
        poller = select.poll()
        try:
            poller.register(self._stream.fileno(), 0)
        except (OSError, ValueError):  # no file behind it
            return
        if any(what & (select.POLLHUP | select.POLLERR) for _, what in poller.poll(0)):
            self._give_up()

    @contextmanager
    def _safely(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.EIO, errno.EPIPE):
                raise
            self._give_up()

    def _give_up(self) -> None:
        # What is still buffered goes there too, so that the interpreter's last flush has no complaint.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
