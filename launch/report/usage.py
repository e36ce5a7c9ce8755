"""What models on servers were asked by an agent that plays or teaches, and what that cost: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from computerrl.common.config import player_name

_COUNTS = ("input_tokens", "output_tokens", "num_requests")


def count_usage(episodes: Sequence[Mapping[str, Any]], agent: Mapping[str, Any]) -> dict[str, Any]:
    """Tokens and requests that servers have counted for the steps of ``episodes``, and what they cost by the prices of ``agent``
    (None: it names none), and the number of episodes that ended because the agent failed."""
    steps = [step.get("usage") or {} for episode in episodes for step in episode["steps"]]
    total: dict[str, Any] = {name: sum(int(step.get(name, 0)) for step in steps) for name in _COUNTS}
    prices = agent["input_price"], agent["output_price"]
    cost = (total["input_tokens"] * prices[0] + total["output_tokens"] * prices[1]) / 1e6
    failed = sum(episode["end_reason"] == "agent_failed" for episode in episodes)
    return {**total, "cost": cost if any(prices) else None, "num_agent_failed": failed}


def usage_line(usage: Mapping[str, Any]) -> str:
    """`12 requests, 3,400 tokens in, 210 out, cost 0.02`; empty where no server was asked."""
    if not usage["num_requests"]:
        return ""
    cost = "" if usage["cost"] is None else f", cost {usage['cost']:.4g}"
    return f"{usage['num_requests']:,} requests, {usage['input_tokens']:,} tokens in, {usage['output_tokens']:,} out{cost}"


def demonstrators(episodes: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Who showed the demonstrations among ``episodes`` -> how many (`num`), and how many of these succeeded (`num_successes`)."""
    found: dict[str, dict[str, int]] = {}
    for episode in episodes:
        if episode.get("kind") == "demonstration":
            counts = found.setdefault(episode.get("shown_by") or "not recorded", {"num": 0, "num_successes": 0})
            counts["num"] += 1
            counts["num_successes"] += bool(episode["success"])
    return dict(sorted(found.items()))


def teaching(config: Mapping[str, Any], episodes: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """What the teacher of a run with the resolved ``config`` was asked: its name and `count_usage`. None: it has no teacher."""
    teacher = config["learner"]["recipe"].get("teacher")
    if not teacher:
        return None
    shown = [episode for episode in episodes if episode["kind"] == "demonstration"]
    return {
        "name": player_name(teacher),
        **count_usage(shown, teacher["agent"]),
    }
