"""What the dashboard shows of a run at a moment: records and statuses in, plain values out. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from computerrl.common.messages import DesktopView, Status
from computerrl.launch.report.charts import Figure, bars, smooth
from computerrl.launch.report.report_data import ActiveTime, Attempt, percent
from computerrl.launch.report.report_data import tiles as report_tiles
from computerrl.launch.report.run_charts import family_charts, main_charts, phase_bands
from computerrl.launch.watch.display_frame import QUEUE_TITLES
from computerrl.launch.watch.run_state import RunState, phase_title

RECENT_UPDATES = 20
"""The histogram of ages is of so many."""
_FRACTIONS = {
    "generate": "generation",
    "desktop": "desktop",
    "bound_wait": "staleness bound",
    "no_work": "no work",
    "idle": "between",
}
_ENDED = {"finished": "finished", "stopped": "was stopped", "failed": "failed"}
SILENT_S = 5.0
"""A process that has not been heard of for longer is shown as silent."""


def tiles(state: RunState, *, max_age: float) -> list[dict[str, Any]]:
    """The figures at the top while a run is under way: title, value, remark. Of one that has ended: `report_data.tiles`."""
    update = state.last_update
    evaluation = state.evaluations[-1] if state.evaluations else {}
    ages = [update.get(f"policy_age_{name}") for name in ("min", "mean", "max")]
    age_text = "–" if None in ages else f"{ages[0]:g} / {ages[1]:.2f} / {ages[2]:g}"
    version = "–" if state.policy_version is None else state.policy_version
    env_steps = int(state.metric("actor/env_steps_total", update.get("env_steps")) or 0)
    smoothed = smooth([(0.0, float(record["success"])) for record in state.updates if record.get("success") is not None])
    evaluated = phase_title(str(evaluation["phase"])) if "phase" in evaluation else "no evaluation yet"
    kind = "tuning" if evaluation.get("split") == "tuning" else "held-out"
    rows: list[tuple[str, str, str]] = [
        (f"{kind} success", percent(evaluation.get("success")), evaluated),
        ("training success", percent(smoothed[-1][1] if smoothed else None), "smoothed over updates"),
        ("updates", f"{update.get('update', 0)}", f"newest policy version: {version}"),
        ("policy age", age_text, f"least / mean / greatest; bound {max_age:g}"),
        ("env steps/s", _number(state.metric("actor/env_steps_per_s")), f"{env_steps:,} in all"),
        ("entropy", _number(update.get("entropy"), 3), "nats per action token"),
        ("trained tokens/s", _number(update.get("trained_tokens_per_s"), 0), "while an update is computed"),
        ("time left", _minutes(state.metric("learner/time_left_s", update.get("time_left_s"))), "estimate"),
    ]
    return [{"title": title, "value": value, "remark": remark} for title, value, remark in rows]


def ended_tiles(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The figures at the top once a run has ended: those of its report."""
    return [{"title": row["remark"], "value": row["value"], "remark": ""} for row in report_tiles(report)]


def ended_text(attempt: Attempt) -> str:
    """How and when an attempt ended, in a sentence."""
    assert attempt.ended is not None
    reason = f" ({attempt.reason})" if attempt.outcome != "finished" and attempt.reason else ""
    clock = time.strftime("%Y-%m-%d %H:%M", time.localtime(attempt.ended))
    return f"This run {_ENDED.get(attempt.outcome, 'has ended')}{reason} at {clock}."


def desktop_rows(views: Mapping[str, DesktopView]) -> list[dict[str, Any]]:
    """One for each desktop, as short as they can be: there may be thousands."""
    return [
        {
            "id": place,
            "state": view.state,
            "why": view.reason,
            "holder": view.holder.partition(":")[0],
            "task": "" if view.task is None else f"{view.task.family} #{view.task.seed}",
            "steps": view.num_steps,
            "action": view.action[:120],
            "error": view.action_error[:200],
            "reward": view.reward,
            "picture": "" if view.screenshot is None else view.screenshot.content_hash,
            "size": [] if view.screenshot is None else [view.screenshot.width, view.screenshot.height],
            "places": view.places,
        }
        for place, view in sorted(views.items(), key=lambda item: tuple(map(int, item[0].split("/"))))
    ]


def process_rows(status: Status | None, supervised: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Everybody the broker hears of, and what the supervisor knows of them."""
    heard = {f"{peer.role}-{peer.index}": peer for peer in status.peers} if status is not None else {}
    rows = []
    for name in sorted({*heard, *supervised}):
        peer, known = heard.get(name), supervised.get(name, {})
        state = str(known.get("state", "running" if peer is not None else "gone"))
        if peer is not None and peer.age_s > SILENT_S:
            state = f"silent for {peer.age_s:.0f} s"
        rows.append(
            {
                "name": name,
                "state": state,
                "host": peer.host if peer else "",
                "pid": peer.pid if peer else known.get("pid"),
                "restarts": int(known.get("restarts", 0)),
                "note": status.notes.get(name, "") if status else "",
            }
        )
    return rows


def flow(state: RunState) -> dict[str, Any]:
    """Queues, drops with the statistic of their bias, where the time goes, weight updates."""
    status, update = state.status, state.last_update
    gauges = status.gauges if status is not None else update.get("broker") or {}
    waste = update.get("waste") or {}
    lost = {reason: amount.get("trajectories", 0) for reason, amount in (waste.get("lost") or {}).items()}
    counters = status.counters if status is not None else {}
    refused = {name.removeprefix("rejected/"): count for name, count in counters.items() if name.startswith("rejected/")}
    drops, trained = {**refused, **lost}, waste.get("trained") or {}
    bias = (("KS of lengths", trained.get("length_ks")), ("TV of families", trained.get("family_tv")))
    fractions = {title: state.metric(f"actor/{name}_fraction") for name, title in _FRACTIONS.items()}
    train_s, wait_s = float(update.get("train_s") or 0.0), float(update.get("wait_s") or 0.0)
    learner = {"training": train_s, "waiting": wait_s} if train_s + wait_s > 0 else {}
    return {
        "queues": [{"name": word, "value": gauges.get(gauge)} for gauge, word in QUEUE_TITLES.items()],
        "drops": [{"reason": reason.replace("_", " "), "count": count} for reason, count in sorted(drops.items()) if count],
        "bias": [{"name": name, "value": _number(value, 3)} for name, value in bias],
        "time": [
            {"who": "actors", "shares": _shares({name: value or 0.0 for name, value in fractions.items()})},
            {"who": "learner, last update", "shares": _shares(learner)},
        ],
        "weights": [
            {"name": name, "value": value}
            for name, value in (
                ("last broadcast", _number(state.metric("learner/weight_broadcast_s"), 2, " s")),
                ("generation stood still", _number(state.metric("engine/load_stall_s"), 3, " s")),
                ("receivers", _number(state.metric("learner/weight_receivers"), 0)),
                ("broadcasts", _number(state.metric("learner/weight_broadcasts"), 0)),
                ("epochs (groups formed)", _number(state.metric("learner/weight_epochs"), 0)),
                ("broken off", _number(state.metric("learner/weight_broadcasts_failed"), 0)),
            )
        ],
    }


def curves(state: RunState, active: ActiveTime, *, max_age: float) -> dict[str, Any]:
    """The figures of the page."""
    bands = phase_bands(state, active)
    trained = {name for update in state.updates for name in update.get("success_by_family") or {}}
    families = sorted(trained | {name for evaluation in state.evaluations for name in evaluation.get("families") or {}})
    found = main_charts(state, active, bands)
    charts = [{"title": title, "caption": caption, "figure": drawn} for title, caption, drawn in found]
    ages = age_histogram(state, max_age=max_age)
    if ages is not None:
        caption = f"Steps of the last {RECENT_UPDATES} updates by policy age; dashed: the bound beyond which none is trained."
        charts.insert(3, {"title": "Age of trained steps", "caption": caption, "figure": ages})
    by_family = [{"title": name, "figure": drawn} for name, drawn in family_charts(state, active, bands, families)]
    return {"charts": charts, "families": by_family}


def age_histogram(state: RunState, *, max_age: float) -> Figure | None:
    """Steps by age over the latest updates, up to the bound at least; None before anything was trained."""
    counts: dict[int, int] = {}
    for update in state.updates[-RECENT_UPDATES:]:
        for age, count in (update.get("num_steps_by_age") or {}).items():
            counts[int(age)] = counts.get(int(age), 0) + int(count)
    if not counts:
        return None
    bound = int(max_age) if max_age < 64 else max(counts)
    shown = range(max(bound, *counts) + 2)
    return bars("Age of trained steps", [(str(age), float(counts.get(age, 0))) for age in shown], limit=str(bound))


def _shares(parts: Mapping[str, float]) -> list[dict[str, Any]]:
    total = sum(parts.values())
    return [{"name": name, "share": value / total} for name, value in parts.items() if total > 0]


def _number(value: float | None, digits: int = 1, unit: str = "") -> str:
    return "–" if value is None else f"{value:,.{digits}f}{unit}"


def _minutes(seconds: float | None) -> str:
    if seconds is None or seconds < 0:
        return "–"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
