"""The batch of `learner`: groups that SmolLM2-135M sampled on real desktops in two short trainings, in `recorded_groups.json`.

One group has the compact prompts of the quickstart with long lists of elements, one the published format. Tokens, answers and
outcomes are as recorded; behaviour log-probs are not, since those of a policy trained a little further would not fit the weights
that are measured: `with_logprobs` gives them. To record anew, from journals of runs and ids of groups in them:

    python -m computerrl.benchmarks.learner._recorded_groups RUN/GROUP_ID [RUN/GROUP_ID ...]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from computerrl.benchmarks._episodes import make_group, make_step
from computerrl.common.messages import Step, TaskRef, TrajectoryGroup

FILE = Path(__file__).with_name("recorded_groups.json")


def load_groups(*, num_groups: int, max_rollouts: int | None = None, max_steps: int | None = None) -> list[TrajectoryGroup]:
    """The first ``num_groups``; of each ``max_rollouts`` and of those ``max_steps`` at most, successes and failures by turns as
    far as there are both. Tokens are SmolLM2's. Behaviour log-probs are 0 until `with_logprobs`."""
    recorded = json.loads(FILE.read_text(encoding="utf-8"))["groups"][:num_groups]
    return [_group(seq, each, max_rollouts=max_rollouts, max_steps=max_steps) for seq, each in enumerate(recorded)]


def with_logprobs(groups: Sequence[TrajectoryGroup], logprobs: Sequence[np.ndarray]) -> list[TrajectoryGroup]:
    """The same groups with ``logprobs`` ([A] float32 for every step, in order) as those of the policy that sampled."""
    given = iter(logprobs)
    return [
        replace(
            group,
            trajectories=tuple(
                replace(one, steps=tuple(replace(step, behavior_logprobs=next(given)) for step in one.steps))
                for one in group.trajectories
            ),
        )
        for group in groups
    ]


def _group(seq: int, recorded: dict[str, Any], *, max_rollouts: int | None, max_steps: int | None) -> TrajectoryGroup:
    task = TaskRef(recorded["family"], recorded["seed"], "training")
    by_outcome = {outcome: [one for one in recorded["rollouts"] if one["success"] == outcome] for outcome in (True, False)}
    chosen: list[dict[str, Any]] = []
    while by_outcome[True] or by_outcome[False]:
        chosen += [left.pop(0) for left in by_outcome.values() if left]
    episodes = [(list(map(_step, one["steps"][:max_steps])), one["success"]) for one in chosen[:max_rollouts]]
    return make_group(seq, "bench", task, episodes, instruction=recorded["instruction"])


def _step(recorded: dict[str, Any]) -> Step:
    prompt, action, text = (recorded[name] for name in ("prompt_tokens", "action_tokens", "action_text"))
    return make_step(prompt, action, text=text, format_ok=recorded["format_ok"])


def record(sources: Sequence[str]) -> None:
    """Write `FILE` from ``sources``, each RUN/GROUP_ID. Raises `SystemExit` for a group that is not there."""
    from computerrl.broker.journal.audit import read_all
    from computerrl.common.run_files.run_folder import RunFolder

    groups = []
    for source in sources:
        run, group_id = Path(source).parents[1], "/".join(Path(source).parts[-2:])
        found = [
            content
            for _, kind, content in read_all(RunFolder(run).journal)
            if kind == "Trajectory" and content["group_id"] == group_id
        ]
        if not found:
            raise SystemExit(f"{source}: no such group; computerrl journal cat RUN --kind Trajectory shows what there is")
        groups.append(_recorded(sorted(found, key=lambda one: one["index"])))
    lines = json.dumps({"groups": groups}, indent=1).splitlines()
    # One line for each list of tokens.
    joined = ("".join(line.strip() for line in part) if is_number else "\n".join(part) for is_number, part in _by_kind(lines))
    FILE.write_text("\n".join(joined) + "\n", encoding="utf-8")


def _by_kind(lines: Sequence[str]) -> list[tuple[bool, list[str]]]:
    return [(kind, list(part)) for kind, part in groupby(lines, lambda line: line.strip().rstrip(",").isdigit())]


def _recorded(trajectories: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first = trajectories[0]
    step_fields = ("prompt_tokens", "action_tokens", "action_text", "format_ok")
    return {
        "family": first["task"]["family"],
        "seed": first["task"]["seed"],
        "instruction": first["instruction"],
        "rollouts": [
            {"success": one["success"], "steps": [{name: step[name] for name in step_fields} for step in one["steps"]]}
            for one in trajectories
        ],
    }


if __name__ == "__main__":
    record(sys.argv[1:])
