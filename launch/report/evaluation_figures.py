"""What an evaluation says about a policy: pass@k with intervals, of each family and of all. Pure.

A task is one instance (family and seed) and was played n times, c of them with success.

    pass@k of a task     1 - C(n - c, k) / C(n, k): the chance that one of k rollouts succeeds, unbiased (Chen et al., arXiv
                         2107.03374, equation 1)
    of several tasks     their mean
    interval, 95 %       Wilson's, for as many trials as there are tasks. A task's pass@k lies between 0 and 1, and nothing there
                         varies more than a coin with the same mean: with several rollouts of a task the interval is on the safe
                         side.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import comb, sqrt
from typing import Any

Z = 1.959964
"""Standard deviations of a normal distribution that 95 % lie within."""

Results = Mapping[tuple[str, int], tuple[int, int]]
"""(family, seed) -> (rollouts, successes)."""


def pass_at_k(num_rollouts: int, num_successes: int, k: int) -> float:
    """Of one task. Raises `ValueError` for fewer rollouts than ``k``."""
    if not 0 <= num_successes <= num_rollouts or not 1 <= k <= num_rollouts:
        raise ValueError(f"pass@{k} of {num_successes} successes in {num_rollouts} rollouts")
    return 1.0 - comb(num_rollouts - num_successes, k) / comb(num_rollouts, k)


def wilson_interval(share: float, num_trials: int) -> tuple[float, float]:
    """Of a success rate; (0, 1) without trials."""
    if not num_trials:
        return 0.0, 1.0
    spread = Z * sqrt(share * (1 - share) / num_trials + Z**2 / (4 * num_trials**2))
    middle, scale = share + Z**2 / (2 * num_trials), 1 + Z**2 / num_trials
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


def evaluation_figures(results: Results, *, rollouts_per_task: int) -> dict[str, Any]:
    """JSON-ready: `all` and `families`, each with its numbers and `pass@1`, `pass@2`, `pass@4` ... `pass@rollouts_per_task`.

    A task that was played fewer times than k (some rollouts were given up) does not count for pass@k.
    """
    families = sorted({family for family, _ in results})
    of_family = {family: [counts for (other, _), counts in sorted(results.items()) if other == family] for family in families}
    return {
        "all": _figures(list(results.values()), rollouts_per_task),
        "families": {family: _figures(counts, rollouts_per_task) for family, counts in of_family.items()},
    }


def impossible_share(results: Results, impossible: Collection[str]) -> dict[str, Any] | None:
    """How many of the tasks are of families that are ``impossible``, and their share, which is the score of an agent that says of
    every task that it cannot be done; None: there are none."""
    num_tasks = sum(family in impossible for family, _ in results)
    return {"num_tasks": num_tasks, "always_fail": num_tasks / len(results)} if num_tasks else None


def ks(rollouts_per_task: int) -> list[int]:
    """1, 2, 4, ... and the number itself."""
    powers = [1 << power for power in range(rollouts_per_task.bit_length())]
    return sorted({*powers, rollouts_per_task})


def _figures(counts: Sequence[tuple[int, int]], rollouts_per_task: int) -> dict[str, Any]:
    passes: dict[str, Any] = {}
    for k in ks(rollouts_per_task):
        values = [pass_at_k(n, c, k) for n, c in counts if n >= k]
        mean = sum(values) / len(values) if values else None
        low, high = wilson_interval(mean or 0.0, len(values))
        passes[f"pass@{k}"] = {"mean": mean, "low": low, "high": high, "num_tasks": len(values)}
    return {
        "num_tasks": len(counts),
        "num_rollouts": sum(n for n, _ in counts),
        "num_successes": sum(c for _, c in counts),
        **passes,
    }
