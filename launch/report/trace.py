"""Spans of episodes through all processes, as a trace file for Perfetto or chrome://tracing. Pure: records in, events out.

    actor-0 slot 1   |reset|generate|desktop|generate|desktop|            what episodes.jsonl knows of each episode
    env_servers      |reset|        |desktop|        |desktop|
    broker                                                   |group  |    from its end until its group was whole (its log)
    learner                                                          |waits |update 7|    until and while it was trained

Nothing is measured for it: these are the times that every run records. Within an episode steps follow each other without gaps,
and what was neither desktop nor generation is its last span.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from computerrl.launch.watch.run_state import Record

Event = dict[str, Any]

_PROCESSES = ("actors", "env_servers", "broker", "learner")
_ACTORS, _DESKTOPS, _BROKER, _LEARNER = range(4)
US = 1e6


def trace_events(
    episodes: Sequence[Record], *, ledger: Iterable[Record], updates: Iterable[Record], completed: Mapping[str, float]
) -> list[Event]:
    """Chrome's trace events. ``completed``: Unix seconds at which each group was whole, by its id."""
    used = (line for line in ledger if line.get("outcome") not in ("demonstrated", "evaluated"))
    used_in = {line["trajectory_id"]: int(line["update"]) for line in used}
    by_update = {int(record["update"]): record for record in updates if record.get("update") is not None}
    events = [_name("process_name", process=number, name=name) for number, name in enumerate(_PROCESSES)]
    slots = _Slots()
    for episode in sorted(episodes, key=lambda record: float(record.get("started_at") or 0.0)):
        update = by_update.get(used_in.get(episode["trajectory_id"], -1))
        events += _episode(episode, slots, update=update, completed=completed.get(_group_of(episode)))
    for record in by_update.values():
        events += _update(record)
    return [
        *events,
        *(
            _name("thread_name", process=process, name=name, thread=thread)
            for process in (_ACTORS, _DESKTOPS)
            for name, thread in slots.names.items()
        ),
    ]


class _Slots:
    """Episodes of one actor that overlap are on lines of their own."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self._busy_until: dict[str, float] = {}

    def take(self, actor: str, start: float, end: float) -> int:
        for number in range(len(self._busy_until) + 1):
            name = f"{actor} slot {number}"
            if self._busy_until.get(name, 0.0) <= start:
                self._busy_until[name] = end
                return self.names.setdefault(name, len(self.names))
        raise AssertionError("there is always one more line")


def _episode(episode: Record, slots: _Slots, *, update: Record | None, completed: float | None) -> Iterator[Event]:
    name, start = str(episode["trajectory_id"]), float(episode["started_at"])
    end = start + float(episode["duration_s"])
    line = slots.take(str(episode["actor"]).partition(":")[0], start, end)
    facts = {field: episode.get(field) for field in ("instruction", "reward", "end_reason", "outcome", "age_max")}
    yield _span(f"{episode['family']} {name}", start, end, process=_ACTORS, thread=line, span=name, args=facts)
    at = start
    for part, seconds, args in _parts(episode):
        yield _span(part, at, at + seconds, process=_ACTORS, thread=line, span=f"{name}:{part}", parent=name, args=args)
        if not part.startswith("generate"):
            span, parent = f"{name}:{part}:done", f"{name}:{part}"
            yield _span(part, at, at + seconds, process=_DESKTOPS, thread=line, span=span, parent=parent, args=args)
        at += seconds
    if at < end:
        yield _span("between", at, end, process=_ACTORS, thread=line, span=f"{name}:between", parent=name)
    if completed is not None and completed > end:
        yield from _waiting("waits for its group", end, completed, name=name)
    if update is not None:
        begun = float(update["time"]) - float(update.get("train_s") or 0.0)
        if begun > (completed or end):
            yield from _waiting("waits for the learner", completed or end, begun, name=name)
        flow = {"cat": "episode", "name": "used", "id": name}
        yield {**flow, "ph": "s", "ts": (end - 1e-6) * US, "pid": _ACTORS, "tid": line}
        yield {**flow, "ph": "f", "bp": "e", "ts": begun * US, "pid": _LEARNER, "tid": 0}


def _parts(episode: Record) -> Iterator[tuple[str, float, Event]]:
    yield "reset", float(episode.get("reset_s") or 0.0), {}
    for number, step in enumerate(episode.get("steps") or (), start=1):
        timing = step.get("timing") or {}
        said = {"answer": step.get("action_text"), "error": step.get("action_error")}
        yield f"generate {number}", float(timing.get("generate_s") or 0.0), said
        yield f"desktop {number}", float(timing.get("desktop_s") or 0.0), {"settle_s": timing.get("settle_s")}


def _update(record: Record) -> Iterator[Event]:
    end, train_s = float(record["time"]), float(record.get("train_s") or 0.0)
    wait_s, name = float(record.get("wait_s") or 0.0), f"update {record['update']}"
    if wait_s > 0:
        begun = end - train_s
        yield _span("waits for groups", begun - wait_s, begun, process=_LEARNER, thread=0, span=f"{name}:wait", parent=name)
    names = ("policy_version", "success", "num_trajectories_trained", "policy_age_mean", "policy_age_max")
    args = {field: record.get(field) for field in names}
    yield _span(name, end - train_s, end, process=_LEARNER, thread=0, span=name, args=args)


def _waiting(what: str, start: float, end: float, *, name: str) -> Iterator[Event]:
    """Asynchronous: any number of episodes wait at a time."""
    both = {"cat": "waiting", "name": what, "id": name, "pid": _BROKER, "tid": 0}
    yield {**both, "ph": "b", "ts": start * US, "args": {"trajectory_id": name}}
    yield {**both, "ph": "e", "ts": end * US}


def _span(
    name: str,
    start: float,
    end: float,
    *,
    process: int,
    thread: int,
    span: str,
    parent: str = "",
    args: Mapping[str, Any] | None = None,
) -> Event:
    told = {"trace_id": span.partition(":")[0], "span_id": span, **({"parent_id": parent} if parent else {}), **(args or {})}
    duration = max(0.0, end - start) * US
    return {"ph": "X", "name": name, "ts": start * US, "dur": duration, "pid": process, "tid": thread, "args": told}


def _name(what: str, *, process: int, name: str, thread: int = 0) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _group_of(episode: Record) -> str:
    return str(episode.get("group_id") or str(episode["trajectory_id"]).rpartition("/")[0])
