"""A recorded demonstration (`computerrl desktop`, `computerrl record`), as a page like that of an episode."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from computerrl.common.errors import ConfigError, Problem
from computerrl.common.run_files.recordings import RecordedStep, read_recording
from computerrl.common.vision.encoded import data_uri
from computerrl.launch.web.share import make_page


def recording_page(path: Path, *, is_linked: bool = False) -> str:
    """The page of the recording in file ``path``; ``is_linked`` as in `make_page`. Raises `ConfigError`."""
    try:
        recording = read_recording(path)
        pictures = {str(number): _picture(step) for number, step in enumerate(recording.steps)}
    except (ValueError, OSError) as error:
        step = "give a file that `computerrl desktop` or `computerrl record` has written"
        raise ConfigError([Problem("RUN", f"{str(path)!r:.200} {error}", step)]) from None
    source = recording.source
    episode = {
        "trajectory_id": recording.task.task_id,
        "family": recording.task.family,
        "seed": recording.task.seed,
        "instruction": recording.instruction,
        "reward": None,
        "success": True,
        "end_reason": "recorded by a person" if source is None else f"recorded from {source.trajectory_id} of {source.run}",
        "actor": recording.desktop if source is None else " ".join(filter(None, (source.agent, source.model))),
        "steps": [_step(number, step) for number, step in enumerate(recording.steps)],
        "final_screenshot": None,
    }
    return make_page(path.name, "a recorded demonstration", [episode], pictures, is_linked=is_linked)


def _step(number: int, step: RecordedStep) -> dict[str, Any]:
    size = {"width": step.observation.screen_width, "height": step.observation.screen_height}
    return {
        "action_text": step.action_text,
        "action_error": "",
        "format_ok": True,
        "tokens": [],
        "screenshot": {"content_hash": str(number), **size},
        "places": step.pointed,
    }


def _picture(step: RecordedStep) -> str:
    """As a data URI; empty where none was taken. Raises `ValueError` for one that is no base64."""
    return data_uri(base64.b64decode(step.picture, validate=True)) if step.picture else ""
