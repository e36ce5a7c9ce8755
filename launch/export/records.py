"""A stored trajectory as one tree of plain values: the content of the formats `jsonl` and `parquet`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from computerrl.common.metrics import json_ready

PathOf = Callable[[str], str | None]
"""Content hash of a screenshot -> its relative path in the export; None: it is not stored."""

TRAJECTORY_FIELDS = (
    "trajectory_id", "group_id", "order_id", "kind", "family", "seed", "instruction", "reward", "success", "end_reason",
    "shown_by", "outcome", "started_at", "duration_s",
)  # fmt: skip
"""Fields of a trajectory, as in docs/how-to/export.md."""


def trajectory_tree(record: dict[str, Any], *, path_of: PathOf | None) -> dict[str, Any]:
    """The trajectory of ``record``. ``path_of``: None leaves the screenshots out."""
    tree = {name: record.get(name) for name in TRAJECTORY_FIELDS}
    steps = [step_tree(step, number, path_of=path_of) for number, step in enumerate(record["steps"])]
    return json_ready({**tree, "steps": steps, "final_screenshot": _screenshot(record.get("final_screenshot"), path_of)})


def step_tree(step: dict[str, Any], number: int, *, path_of: PathOf | None) -> dict[str, Any]:
    """Step ``number`` of a trajectory, counted from 0."""
    tokens = step["tokens"]
    return {
        "step": number,
        "screenshot": _screenshot(step.get("screenshot"), path_of),
        "prompt": None if step["prompt"] is None else [_part(part, path_of) for part in step["prompt"]],
        "completion": step.get("action_text"),
        "format_ok": step.get("format_ok"),
        "action_error": step.get("action_error"),
        "places": list(step.get("places") or ()),
        "tokens": [token["text"] for token in tokens],
        "logprobs": [token["logprob"] for token in tokens],
        "policy_versions": [token["version"] for token in tokens],
        "advantage": step.get("advantage"),
    }


def step_rows(tree: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The steps of a trajectory's ``tree`` as rows of a table: each with the fields of its trajectory."""
    shared = {name: tree[name] for name in TRAJECTORY_FIELDS}
    for step in tree["steps"]:
        yield {**shared, "num_steps": len(tree["steps"]), **step}


def _part(part: str | dict[str, Any], path_of: PathOf | None) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part, "image": None}
    return {"type": "image", "text": None, "image": None if path_of is None else path_of(part["content_hash"])}


def _screenshot(ref: dict[str, Any] | None, path_of: PathOf | None) -> str | None:
    return None if ref is None or path_of is None else path_of(ref["content_hash"])
