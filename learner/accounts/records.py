"""Files that the learner writes for people, reports and tests: metrics.jsonl, episodes.jsonl with samples.jsonl (their tokens),
ledger.jsonl, TensorBoard events.

All are append-only. A checkpoint holds their lengths, and a resumed learner continues copies of that length, since everything
after it happens again. So each line belongs to the surviving run, and a suspended learner that was replaced writes into files
that no process reads any more. Computes nothing.
"""

from __future__ import annotations

import base64
import io
import os
import secrets
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import asdict

from computerrl.common import log
from computerrl.common.clock import unix_now
from computerrl.common.messages import ElementTarget, ScreenshotRef, Step, Trajectory
from computerrl.common.metrics import JsonLines
from computerrl.common.run_files.run_folder import RunFolder, write_atomically
from computerrl.env_server.client import read_screenshot

if TYPE_CHECKING:
    from PIL.Image import Image
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

_MAX_SCREENS = 6
"""Screens in a film strip."""

_HEIGHT, _GAP = 180, 4
"""Height of a screen in a film strip and gap between two screens, in pixels."""

_JPEG_QUALITY = 70

LEDGER_FILE = "ledger.jsonl"
"""Below the run folder."""

TENSORBOARD_FOLDER = "tensorboard"
"""Below the run folder."""


_CHUNK_BYTES = 1 << 20
_NO_PLACES = np.zeros(0, dtype=np.intp)


class Records:
    """The learner's append-only files."""

    def __init__(
        self, folder: RunFolder, *, positions: Mapping[str, int], has_wandb: bool = False, image_token: int | None = None
    ) -> None:
        """Keep ``positions`` of the files (file name -> bytes; missing: none) and append from there. ``has_wandb``: the numbers
        of updates for Weights & Biases as well, offline. ``image_token``: id of the model's image token; None: it takes text
        alone."""
        self._paths = {
            "metrics": folder.metrics_path,
            "episodes": folder.episodes_path,
            "samples": folder.samples_path,
            "ledger": folder.folder / LEDGER_FILE,
        }
        for name, path in self._paths.items():
            _cut(path, positions.get(name, 0))
        self._files = {name: JsonLines(path) for name, path in self._paths.items()}
        self._tensorboard_folder = folder.folder / TENSORBOARD_FOLDER
        self._tensorboard: EventFileWriter | None = None
        self._wandb = _open_wandb(folder.folder) if has_wandb else None
        self._trajectories = folder.trajectories
        self._image_token = image_token
        self._shown: set[tuple[str, str]] = set()
        """(order, family) of which a film strip was written."""

    def event(self, event: str, **fields: Any) -> None:
        """One line of metrics.jsonl."""
        self._files["metrics"].append({"event": event, "time": unix_now(), **fields})

    def scalars(self, step: int, values: Mapping[str, Any]) -> None:
        """Numbers of one update for TensorBoard; anything else in ``values`` is left out."""
        numbers = {name: float(value) for name, value in values.items() if _is_number(value)}
        _add_scalars(self._writer(step), step, numbers)
        if self._wandb is not None:
            self._wandb.log(numbers, step=step)

    def _writer(self, step: int) -> EventFileWriter:
        if self._tensorboard is None:
            self._tensorboard = _open_tensorboard(self._tensorboard_folder, step=step)
        return self._tensorboard

    def ledger_line(self, line: Mapping[str, Any]) -> None:
        """One line of ledger.jsonl."""
        self._files["ledger"].append(line)

    def episode(
        self, trajectory: Trajectory, outcome: str, *, age_max: int | None = None, advantages: Sequence[float | None] = ()
    ) -> None:
        """One line of episodes.jsonl and one of samples.jsonl. ``outcome``: as in the ledger; ``age_max``: of its oldest step,
        where it was in a batch; ``advantages``: of its steps, None for those that were not in the loss."""
        record = _episode_record(trajectory)
        self._files["episodes"].append({**record, "outcome": outcome, "age_max": age_max})
        samples = [_sample(step, self._image_token) for step in trajectory.steps]
        line = {"trajectory_id": trajectory.trajectory_id, "steps": samples, "advantages": list(advantages)}
        self._files["samples"].append(line)

    def film_strip(self, trajectory: Trajectory, *, step: int) -> None:
        """An episode's screens for TensorBoard: the first episode of each family in every evaluation."""
        key = (trajectory.order_id, trajectory.task.family)
        if trajectory.kind != "evaluation" or key in self._shown:
            return
        self._shown.add(key)
        found = make_film_strip(trajectory, self._trajectories)
        if found is not None:
            verdict = "solved" if trajectory.success else "failed"
            _add_image(self._writer(step), step, f"{trajectory.task.family}/{key[0]} {verdict}", *found)

    def positions(self) -> dict[str, int]:
        """Lengths of the files now."""
        return {name: path.stat().st_size for name, path in self._paths.items()}

    def paths(self) -> tuple[Path, ...]:
        """The files whose lengths `positions` returns."""
        return tuple(self._paths.values())

    def close(self) -> None:
        """Flush and close."""
        for file in self._files.values():
            file.close()
        if self._tensorboard is not None:
            self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()


def make_film_strip(trajectory: Trajectory, trajectories: Path) -> tuple[bytes, int, int] | None:
    """(JPEG, width, height) of the first screens of ``trajectory`` and the last; None where none can be read."""
    from PIL import Image

    shown = [(step.screenshot, step.places) for step in trajectory.steps[: _MAX_SCREENS - 1]]
    shown.append((trajectory.final_screenshot, ()))
    found = [_screen(ref, places, trajectories) for ref, places in shown if ref is not None]
    screens = [screen for screen in found if screen is not None]
    if not screens:
        return None
    width = sum(screen.width for screen in screens) + _GAP * (len(screens) - 1)
    whole, left = Image.new("RGB", (width, _HEIGHT), "white"), 0
    for screen in screens:
        whole.paste(screen, (left, 0))
        left += screen.width + _GAP
    buffer = io.BytesIO()
    whole.save(buffer, format="JPEG", quality=_JPEG_QUALITY)
    return buffer.getvalue(), width, _HEIGHT


def _screen(ref: ScreenshotRef, places: Sequence[int], trajectories: Path) -> Image | None:
    from PIL import Image

    from computerrl.common.vision.encoded import mark_places

    try:
        with Image.open(io.BytesIO(read_screenshot(trajectories, ref))) as stored:
            screen = stored.convert("RGB")
    except (OSError, ValueError):
        return None  # on a host whose files are not seen here
    small = screen.resize((max(1, screen.width * _HEIGHT // screen.height), _HEIGHT))
    mark_places(small, places, width=ref.width, height=ref.height)
    return small


def _episode_record(trajectory: Trajectory) -> dict[str, Any]:
    versions = [int(version) for step in trajectory.steps for version in step.policy_versions]
    steps = [
        {
            "action_text": step.action_text,
            "action_error": step.action_error,
            "format_ok": step.format_ok,
            "settled_by": step.settled_by,
            "screenshot": _screenshot(step.screenshot),
            "places": list(step.places),
            **({} if step.target is None else {"target": _target(step.target)}),
            "timing": asdict(step.timing),
            **({} if step.usage is None else {"usage": asdict(step.usage)}),
        }
        for step in trajectory.steps
    ]
    return {
        "trajectory_id": trajectory.trajectory_id,
        "group_id": trajectory.group_id,
        "order_id": trajectory.order_id,
        "kind": trajectory.kind,
        "family": trajectory.task.family,
        "seed": trajectory.task.seed,
        "instruction": trajectory.instruction,
        "reward": trajectory.reward,
        "success": trajectory.success,
        "end_reason": trajectory.end_reason,
        "min_policy_version": min(versions, default=-1),
        "max_policy_version": max(versions, default=-1),
        "started_at": trajectory.started_at,
        "duration_s": trajectory.duration_s,
        "reset_s": trajectory.reset_s,
        "wait_s": trajectory.wait_s,
        "actor": trajectory.actor,
        "shown_by": trajectory.shown_by,
        "steps": steps,
        "final_screenshot": _screenshot(trajectory.final_screenshot),
    }


def _target(target: ElementTarget) -> list[int]:
    return [target.x, target.y, target.width, target.height, target.screen_width, target.screen_height]


def _sample(step: Step, image_token: int | None) -> dict[str, Any]:
    """Tokens of a step's prompt and action. Each image of the prompt is one marker among the tokens: -1 the first of ``images``,
    -2 the second."""
    shown, images = _with_markers(step, image_token)
    prompt = zlib.compress(np.ascontiguousarray(shown, dtype="<i4").tobytes(), level=1)
    return {
        "prompt": base64.b64encode(prompt).decode(),
        **({"images": images} if images else {}),
        "tokens": step.action_tokens.tolist(),
        "logprobs": [round(float(logprob), 4) for logprob in step.behavior_logprobs],
        "versions": step.policy_versions.tolist(),
    }


def _with_markers(step: Step, image_token: int | None) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """(prompt tokens with a marker for each image, the images: name, size in pixels, number of image tokens).

    All screenshots of an episode have the size of its desktop's screen, so the images of a prompt take equal numbers of tokens.
    A prompt of which that is not true stays as it is: the intake has refused it."""
    tokens, num_images = step.prompt_tokens, len(step.images)
    at = np.flatnonzero(tokens == image_token) if image_token is not None and num_images else _NO_PLACES
    sizes = {(ref.width, ref.height) for ref in step.images}
    if not len(at) or len(sizes) > 1 or len(at) % num_images:
        return tokens, []
    parts, images, end = [], [], 0
    for number, of_image in enumerate(np.split(at, num_images)):
        # Markers of rows and columns that some families write between the tokens of an image go with them.
        parts += [tokens[end : of_image[0]], [-1 - number]]
        ref = step.images[number]
        shape = {"width": ref.width, "height": ref.height, "num_tokens": len(of_image)}
        images.append({"content_hash": ref.content_hash, **shape})
        end = of_image[-1] + 1
    return np.concatenate([*parts, tokens[end:]]), images


def _screenshot(ref: ScreenshotRef | None) -> dict[str, Any] | None:
    return None if ref is None else asdict(ref)


def _cut(path: Path, num_bytes: int) -> None:
    """Put a file of its first ``num_bytes`` in the place of ``path``; a shorter one lost lines to a power cut, and says so."""
    if not path.exists():
        return
    draft = path.with_name(f".{path.name}")
    with path.open("rb") as old, draft.open("wb") as new:
        size, missing = os.fstat(old.fileno()).st_size, num_bytes
        while chunk := old.read(min(missing, _CHUNK_BYTES)):
            new.write(chunk)
            missing -= len(chunk)
        new.flush()
        os.fsync(new.fileno())
    draft.replace(path)
    if missing:
        log.get_logger().error("records.shorter_than_checkpoint", path=str(path), size=size, expected=num_bytes)


def _open_tensorboard(folder: Path, *, step: int) -> EventFileWriter:
    # Not torch.utils.tensorboard: importing that takes five seconds, this one half a second.
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    folder.mkdir(parents=True, exist_ok=True)
    writer = EventFileWriter(str(folder), flush_secs=10)
    # Readers forget events of this and later steps that a dead learner wrote.
    writer.add_event(Event(wall_time=unix_now(), step=step, session_log=SessionLog(status=SessionLog.START)))
    return writer


def _add_image(writer: EventFileWriter, step: int, tag: str, jpeg: bytes, width: int, height: int) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=jpeg)
    writer.add_event(Event(wall_time=unix_now(), step=step, summary=Summary(value=[Summary.Value(tag=tag, image=image)])))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _open_wandb(folder: Path) -> Any:
    import wandb

    (folder / "wandb").mkdir(exist_ok=True)
    settings = wandb.Settings(mode=os.environ.get("WANDB_MODE", "offline"), console="off", disable_git=True, x_disable_stats=True)
    name = folder.resolve().name
    return wandb.init(project="computerrl", name=name, id=_wandb_id(folder), dir=folder, settings=settings)


def _wandb_id(folder: Path) -> str:
    """The same id for every attempt, which `wandb sync` puts together. It differs between runs of one name in two run folders,
    which may be two persons'."""
    path = folder / "wandb" / "run-id"
    if not path.exists():
        write_atomically(path, f"{folder.resolve().name}-{secrets.token_hex(4)}".encode())
    return path.read_text(encoding="utf-8")


def _add_scalars(writer: EventFileWriter, step: int, values: Mapping[str, float]) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    entries = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
    writer.add_event(Event(wall_time=unix_now(), step=step, summary=Summary(value=entries)))
