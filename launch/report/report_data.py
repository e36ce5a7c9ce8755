"""The figures of a report out of a run's records: pure, no files, no drawing.

Everything is computed from what is there, so that a run stopped early (or killed) has a report as well; what cannot be known
is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from computerrl.common.messages import Status
from computerrl.launch.report.chance import Chance, Compared, Targets, compare
from computerrl.launch.report.rewards_view import rewards_of
from computerrl.launch.watch.run_state import Record, RunState

EVALUATIONS = {
    "success_before": "eval-before",
    "success_after_bc": "eval-after-bc",
    "success_after_rl": "eval-after-rl",
    "success_blank_images": "eval-blank-images",
    "success_foreign_images": "eval-foreign-images",
}
"""Field of report.json -> phase whose evaluation it is."""
EVALUATION_TITLES = {
    "success_before": "before",
    "success_after_bc": "after cloning",
    "success_after_rl": "after RL",
    "success_blank_images": "with black images",
    "success_foreign_images": "with other screens",
}
CONTROLS = ("success_blank_images", "success_foreign_images")
"""Shown only where they were played."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One life of the supervisor."""

    started: float
    """Unix seconds."""
    ended: float | None
    """None: it was killed before it could write it."""
    outcome: str = ""
    reason: str = ""
    message: str = ""
    num_restarts: dict[str, int] = field(default_factory=dict)
    clock: str = ""
    """What its records count from: `common.clock.unix_now`."""


class ActiveTime:
    """Seconds the run was going, at a moment: pauses between attempts do not count."""

    def __init__(self, attempts: Sequence[Attempt], *, last_record: float) -> None:
        self._spans = []
        for index, attempt in enumerate(attempts):
            next_started = attempts[index + 1].started if index + 1 < len(attempts) else float("inf")
            ended = attempt.ended if attempt.ended is not None else min(next_started, last_record)
            self._spans.append((attempt.started, max(attempt.started, ended)))

    @property
    def total_s(self) -> float:
        return sum(end - start for start, end in self._spans)

    def at(self, moment: float) -> float:
        """Seconds active until ``moment``."""
        return sum(max(0.0, min(moment, end) - start) for start, end in self._spans)


def success_of(record: Record) -> dict[str, Any]:
    """One evaluation as report.json shows it: counts per family, mean over families, episodes that were given up and count
    nowhere, and of which instances they were (`learner.recipe.eval_split`)."""
    families = {
        name: {
            "successes": item["successes"],
            "episodes": item["episodes"],
            "success": item["successes"] / item["episodes"] if item["episodes"] else None,
        }
        for name, item in record.get("families", {}).items()
    }
    known = [item["success"] for item in families.values() if item["success"] is not None]
    return {
        "mean": sum(known) / len(known) if known else None,
        "episodes": sum(item["episodes"] for item in families.values()),
        "num_given_up": int(record.get("num_given_up", 0)),
        "split": record.get("split") or "evaluation",
        "policy_version": record.get("policy_version"),
        "families": families,
    }


def figures(
    state: RunState, *, episodes: Iterable[Record], active: ActiveTime, driver: str, final_status: Status | None
) -> dict[str, Any]:
    """All fields of report.json that come from the records."""
    summary = state.summary or {}
    totals, targets = EpisodeTotals(), Targets()
    for episode in episodes:
        totals.add(episode)
        targets.add(episode)
    evaluations = {record.get("phase"): record for record in (*state.evaluations, *state.controls)}
    wall_s = active.total_s
    env_steps = int(summary.get("env_steps") or max(totals.num_steps, int(state.last_update.get("env_steps") or 0)))
    rl_phases = [record for record in state.phases if str(record.get("phase", "")).startswith("sft-")]
    lost = summary.get("num_trajectories_lost", _num_lost(final_status))
    tokens = [record["trained_tokens_per_s"] for record in state.updates if record.get("trained_tokens_per_s")]
    padded = [record["padded_tokens_ratio"] for record in state.updates if record.get("padded_tokens_ratio")]
    ages = [record["policy_age_max"] for record in state.updates if record.get("policy_age_max") is not None]
    return {
        **{name: success_of(evaluations[phase]) if phase in evaluations else None for name, phase in EVALUATIONS.items()},
        "chances": {family: asdict(chance) for family, chance in targets.chances().items()},
        "wall_s": round(wall_s, 1),
        "env_steps": env_steps,
        "env_steps_per_s": round(env_steps / wall_s, 2) if wall_s > 0 else None,
        "num_episodes": totals.num_episodes,
        "num_updates": int(summary.get("num_updates") or len({record.get("update") for record in state.updates})),
        "num_entropulse_phases": len({record["phase"] for record in rl_phases}),
        "driver": driver,
        "num_trajectories_lost": lost,
        "max_policy_age_trained": summary.get("max_policy_age_trained", max(ages, default=None)),
        "drops": drops_of(state, final_status),
        "waste": summary.get("waste") or state.last_update.get("waste") or {},
        "rewards": rewards_of(state.updates),
        "stall_s": summary.get("stall_s", sum(float(record.get("stall_s") or 0.0) for record in state.updates)),
        "time_shares": {
            "actor": totals.shares(),
            "learner": _learner_shares(state),
        },
        "step_p50_s": totals.step_p50_s(),
        "reset_p50_s": totals.reset_p50_s(final_status),
        "actor_idle_fraction": _mean_metric(final_status, "actor/idle_fraction"),
        "actor_load_stall_s": _mean_metric(final_status, "engine/load_stall_s"),
        "trained_tokens_per_s": round(median(tokens), 1) if tokens else None,
        "trained_tokens_ratio": round(median(padded), 2) if padded else None,
    }


def shown_evaluations(report: Mapping[str, Any]) -> dict[str, str]:
    """Field -> title of the evaluations that a page has a place for."""
    return {name: title for name, title in EVALUATION_TITLES.items() if name not in CONTROLS or report.get(name) is not None}


def shown_controls(report: Mapping[str, Any]) -> list[tuple[str, Compared]]:
    """(title, comparison with an agent that sees no screen) of the evaluations with wrong screens, and of the one that they
    repeat."""
    if not any(report.get(name) for name in CONTROLS):
        return []
    chances = {family: Chance(**chance) for family, chance in report["chances"].items()}
    names = [name for name in ("success_after_rl", *CONTROLS) if report.get(name)]
    played = [(EVALUATION_TITLES[name], compare(report[name]["families"], chances)) for name in names]
    return [(title, compared) for title, compared in played if compared is not None]


def tiles(report: Mapping[str, Any]) -> list[dict[str, str]]:
    """The figures at the head of a page about a run that has ended: value, remark."""
    rows = []
    for name, title in shown_evaluations(report).items():
        success = report[name]
        remark = f"success {title}"
        if success is not None:
            remark += f", {success['episodes']} {'tuning' if success['split'] == 'tuning' else 'held-out'} episodes"
            remark += f", {success['num_given_up']} given up" if success["num_given_up"] else ""
        rows.append((percent(success["mean"] if success is not None else None), remark))
    rounds = report["num_entropulse_phases"]
    lost, age = ("–" if report[name] is None else report[name] for name in ("num_trajectories_lost", "max_policy_age_trained"))
    rows += [
        (number(report["env_steps_per_s"]), f"environment steps per second, {number(report['env_steps'])} in all"),
        (str(report["num_updates"]), f"RL updates, {rounds} Entropulse round{'' if rounds == 1 else 's'}"),
        (str(lost), f"trajectories lost; greatest policy age trained: {age}"),
    ]
    return [{"value": value, "remark": remark} for value, remark in rows]


def closing_line(report: Mapping[str, Any]) -> str:
    """`success 0% -> 51% (cloned) -> 76% (RL), 24 min 14 s`: what a run achieved, in a line; parts that are unknown are left
    out."""
    steps = []
    for name, remark in (("success_before", ""), ("success_after_bc", " (cloned)"), ("success_after_rl", " (RL)")):
        success = report[name]
        if success is not None and success["mean"] is not None:
            steps.append(f"{percent(success['mean'])}{remark}")
    achieved = f"success {' -> '.join(steps)}" if steps else "no evaluation was completed"
    return f"{achieved}, {long_duration(report['wall_s'])}"


def long_duration(seconds: float | None) -> str:
    """`24 min 14 s`, `–` when unknown."""
    if seconds is None:
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def percent(value: float | None) -> str:
    """`76%`, `–` when unknown."""
    return "–" if value is None else f"{value * 100:.0f}%"


def number(value: float | None, unit: str = "") -> str:
    """Three digits, or all digits before the point of a large one; `–` when unknown."""
    if value is None:
        return "–"
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{text} {unit}".strip()


class EpisodeTotals:
    """Sums over episodes.jsonl."""

    def __init__(self) -> None:
        self.num_episodes = 0
        self.num_steps = 0
        self._step_s: list[float] = []
        self._desktop_total_s = 0.0
        self._reset_s: list[float] = []
        self._generate_s = 0.0
        self._total_s = 0.0

    def add(self, episode: Record) -> None:
        """Take one episode in."""
        self.num_episodes += 1
        reset_s = float(episode.get("reset_s") or 0.0)
        if reset_s:
            self._reset_s.append(reset_s)
        self._total_s += float(episode.get("duration_s") or 0.0)
        for step in episode.get("steps", ()):
            timing = step.get("timing") or {}
            self.num_steps += 1
            desktop_s = float(timing.get("desktop_s") or 0.0)
            self._desktop_total_s += desktop_s
            # What did not parse never reached the desktop.
            if step.get("format_ok", True):
                self._step_s.append(desktop_s)
            self._generate_s += float(timing.get("generate_s") or 0.0)

    def shares(self) -> dict[str, float] | None:
        """Of the time of all episode slots: desktop (steps and resets), generation, the rest."""
        if self._total_s <= 0:
            return None
        desktop = min(1.0, (self._desktop_total_s + sum(self._reset_s)) / self._total_s)
        generation = min(1.0 - desktop, self._generate_s / self._total_s)
        return {
            "desktop": round(desktop, 3),
            "generation": round(generation, 3),
            "waiting": round(max(0.0, 1.0 - desktop - generation), 3),
        }

    def step_p50_s(self) -> float | None:
        return round(median(self._step_s), 4) if self._step_s else None

    def reset_p50_s(self, status: Status | None) -> float | None:
        if self._reset_s:
            return round(median(self._reset_s), 4)
        return _mean_metric(status, "actor/reset_p50_s")


def drops_of(state: RunState, status: Status | None) -> dict[str, int]:
    """Reason -> count, from the start of the run: the learner's own, and the broker's refusals."""
    latest = (state.summary or {}).get("drops") or state.last_update.get("drops") or {}
    drops = {str(reason): int(count) for reason, count in latest.items()}
    for name, count in (status.counters if status is not None else {}).items():
        if name.startswith("rejected/") and count:
            reason = name.removeprefix("rejected/")
            drops[reason] = max(drops.get(reason, 0), count)
    return {reason: count for reason, count in sorted(drops.items()) if count}


def _num_lost(status: Status | None) -> int | None:
    """Accepted by the broker and neither delivered nor held."""
    counters = status.counters if status is not None else {}
    if not {"accepted", "delivered", "held"} <= counters.keys():
        return None
    return max(0, counters["accepted"] - counters["delivered"] - counters["held"])


def _learner_shares(state: RunState) -> dict[str, float] | None:
    train_s = sum(float(record.get("train_s") or 0.0) for record in state.updates)
    wait_s = sum(float(record.get("wait_s") or 0.0) for record in state.updates)
    if train_s + wait_s <= 0:
        return None
    return {"training": round(train_s / (train_s + wait_s), 3), "waiting": round(wait_s / (train_s + wait_s), 3)}


def _mean_metric(status: Status | None, name: str) -> float | None:
    values = [metrics[name] for metrics in (status.metrics.values() if status is not None else ()) if name in metrics]
    return round(sum(values) / len(values), 4) if values else None
