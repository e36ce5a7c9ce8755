"""Film strips of episodes, before and after: which to show, and their screenshots as small data URIs.

Chooses evaluation episodes of the same family and seed, so that the same task is seen twice. Reads screenshots through
`env_server.client`; draws no page.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from computerrl.launch.watch.run_state import Record

NUM_FAMILIES = 8
MAX_FRAMES = 7
THUMBNAIL_WIDTH = 360
THUMBNAIL_QUALITY = 55
"""About 8 kB a frame: 8 families x 2 strips x 4 frames stay below 1 MB of page."""
BEFORE_ORDERS = ("eval-before", "eval-after-bc")
"""The earliest evaluation there is stands for `before`."""
AFTER_ORDERS = ("eval-after-rl", "eval-after-bc")


@dataclass(frozen=True, slots=True)
class Frame:
    """One screen and what was done on it."""

    picture: str
    """Data URI; empty when the screenshot is missing."""
    action: str
    error: str


@dataclass(frozen=True, slots=True)
class Film:
    """One episode."""

    title: str
    """`before`, `after RL`, ..."""
    reward: float
    success: bool
    end_reason: str
    frames: tuple[Frame, ...]
    num_left_out: int
    episode: str
    """Name of the episode for `computerrl replay RUN EPISODE`."""


@dataclass(frozen=True, slots=True)
class Strip:
    """The same task instance, played at different times of the run."""

    family: str
    seed: int
    instruction: str
    films: tuple[Film, ...]


_TITLES = {"eval-before": "before", "eval-after-bc": "after cloning", "eval-after-rl": "after RL"}


def make_strips(episodes: Sequence[Record], *, trajectories: Path) -> list[Strip]:
    """One strip per family at most, in order of family name."""
    strips = []
    for pair in choose_pairs(episodes)[:NUM_FAMILIES]:
        films = tuple(_film(episode, trajectories) for episode in pair)
        strips.append(Strip(pair[-1]["family"], pair[-1]["seed"], str(pair[-1].get("instruction", "")), films))
    return strips


def choose_pairs(episodes: Sequence[Record]) -> list[tuple[Record, ...]]:
    """For each family the pair of episodes that shows most: same seed, failed before and solved after if there is one."""
    by_family: dict[str, dict[str, dict[int, Record]]] = {}
    for episode in episodes:
        if episode.get("kind") == "evaluation":
            orders = by_family.setdefault(episode["family"], {})
            orders.setdefault(_phase_of(episode), {})[episode["seed"]] = episode
    return [pair for _, orders in sorted(by_family.items()) if (pair := _best_pair(orders))]


def _phase_of(episode: Record) -> str:
    """`eval-after-rl` for its order and for the `eval-after-rl.2` that was placed when a run fell back to an older checkpoint."""
    return str(episode.get("order_id", "")).partition(".")[0]


def _best_pair(orders: dict[str, dict[int, Record]]) -> tuple[Record, ...]:
    before = next((orders[name] for name in BEFORE_ORDERS if name in orders), {})
    after = next((orders[name] for name in AFTER_ORDERS if name in orders), {})
    if not before or not after or before is after:
        alone = after or before
        solved = [episode for episode in alone.values() if episode.get("success")]
        return (next(iter(solved or alone.values())),) if alone else ()
    common = sorted(before.keys() & after.keys())
    if not common:
        return (next(iter(after.values())),)

    def merit(seed: int) -> tuple[bool, bool, int]:
        return (
            bool(after[seed].get("success")) and not before[seed].get("success"),
            bool(after[seed].get("success")),
            len(after[seed].get("steps", ())),
        )

    best = max(common, key=merit)
    return before[best], after[best]


def _film(episode: Record, trajectories: Path) -> Film:
    steps = list(episode.get("steps", ()))
    left_out = max(0, len(steps) - MAX_FRAMES)
    frames = [
        Frame(_picture_of(step, trajectories), caption(str(step.get("action_text", ""))), complaint(step))
        for step in steps[:MAX_FRAMES]
    ]
    last = thumbnail(episode.get("final_screenshot"), trajectories)
    if last:
        frames.append(Frame(last, "", ""))
    order = _phase_of(episode)
    return Film(
        title=_TITLES.get(order, order),
        reward=float(episode.get("reward") or 0.0),
        success=bool(episode.get("success")),
        end_reason=str(episode.get("end_reason", "")).replace("_", " "),
        frames=tuple(frames),
        num_left_out=left_out,
        episode=str(episode.get("trajectory_id", "")),
    )


def _picture_of(step: dict[str, Any], trajectories: Path) -> str:
    return thumbnail(step.get("screenshot"), trajectories, places=step.get("places") or ())


def caption(answer: str) -> str:
    """The action in an answer: its last line that is neither fence nor tag. Most answers are one line."""
    lines = [line.strip() for line in answer.splitlines()]
    said = [line for line in lines if line and not line.startswith(("```", "<"))]
    return said[-1] if said else answer.strip()


def complaint(step: dict[str, Any]) -> str:
    """Reason why a step's answer was not carried out; empty where it was."""
    if step.get("action_error"):
        return str(step["action_error"])
    return "" if step.get("format_ok", True) else "not an action"


def thumbnail(ref: dict[str, Any] | None, trajectories: Path, *, places: Sequence[int] = ()) -> str:
    """The screenshot as a small WebP data URI, with marks at ``places``; empty when it cannot be read."""
    if not ref:
        return ""
    from PIL import Image

    from computerrl.common.messages import ScreenshotRef
    from computerrl.common.vision.encoded import mark_places
    from computerrl.env_server.client import read_screenshot

    try:
        with Image.open(io.BytesIO(read_screenshot(trajectories, ScreenshotRef(**ref)))) as stored:
            picture = stored.convert("RGB")
            picture.thumbnail((THUMBNAIL_WIDTH, THUMBNAIL_WIDTH))
            mark_places(picture, places, width=stored.width, height=stored.height)
            buffer = io.BytesIO()
            picture.save(buffer, format="WEBP", quality=THUMBNAIL_QUALITY, method=4)
    except (OSError, ValueError, TypeError):
        return ""  # an unfinished segment of a killed run
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()
