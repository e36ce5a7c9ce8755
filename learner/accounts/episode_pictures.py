"""An episode as one picture for TensorBoard: its screens side by side. Reads stored screenshots; draws nothing on them."""

from __future__ import annotations

import io
from pathlib import Path

from computerrl.common.messages import ScreenshotRef, Trajectory
from computerrl.env_server.client import read_screenshot

MAX_SCREENS, HEIGHT, GAP = 6, 180, 4
QUALITY = 70


def strip(trajectory: Trajectory, trajectories: Path) -> tuple[bytes, int, int] | None:
    """(JPEG, width, height) of its first screens and the last; None where none can be read."""
    from PIL import Image

    refs = [step.screenshot for step in trajectory.steps[: MAX_SCREENS - 1]] + [trajectory.final_screenshot]
    screens = [screen for ref in refs if ref is not None and (screen := _screen(ref, trajectories)) is not None]
    if not screens:
        return None
    width = sum(screen.width for screen in screens) + GAP * (len(screens) - 1)
    whole, left = Image.new("RGB", (width, HEIGHT), "white"), 0
    for screen in screens:
        whole.paste(screen, (left, 0))
        left += screen.width + GAP
    buffer = io.BytesIO()
    whole.save(buffer, format="JPEG", quality=QUALITY)
    return buffer.getvalue(), width, HEIGHT


def _screen(ref: ScreenshotRef, trajectories: Path):  # type: ignore[no-untyped-def]
    from PIL import Image

    try:
        with Image.open(io.BytesIO(read_screenshot(trajectories, ref))) as stored:
            picture = stored.convert("RGB")
    except (OSError, ValueError):
        return None  # on a host whose files are not seen here
    return picture.resize((max(1, picture.width * HEIGHT // picture.height), HEIGHT))
