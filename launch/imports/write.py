"""`computerrl import-trajectories`: writes trajectories of another program as tokens to clone, whole or not at all.

Prompts and answers are made by the actor's own prompt builder, so that cloning sees what an episode with these screens and
actions would have shown. Of a trajectory the part before the first step that cannot be said here is kept: what follows would have
another past.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from computerrl.common.actions import ActionSyntaxError, render_action
from computerrl.common.config import RunConfig
from computerrl.common.errors import ConfigError, PictureError, Problem
from computerrl.common.messages import MAX_IMAGE_BYTES, Observation, ScreenshotRef
from computerrl.common.models.folder import model_folder
from computerrl.common.run_files.imported import FORMAT_VERSION, HEAD_FILE, IMAGES_FOLDER, ImportHead, prompts_digest
from computerrl.launch.export.new_folder import require_new, written_whole
from computerrl.launch.export.tally import Tally
from computerrl.launch.grounding.pictures import Pictures
from computerrl.launch.imports.agentnet import MAX_LINE_BYTES, NoAction, Pointer, Trajectory, TrajectoryStep, action_of, read_line
from computerrl.launch.progress import Tell, tell_nobody

if TYPE_CHECKING:
    from computerrl.actor.prompts.builder import Prompt
    from computerrl.actor.prompts.formats.base import PastAction
    from computerrl.common.messages import Action, Step
    from computerrl.learner.supervised.pool import KeptEpisode

FORMAT = "agentnet"
_FAMILY = "agentnet"
_IMAGE_FOLDERS = ("images", ".")
"""Folders of screenshots beside a file, where none is given."""


class Wishes(NamedTuple):
    """What is imported of a file."""

    limit: int | None = None
    """Maximum number of trajectories that are kept; None: all."""
    takes_unfinished: bool = False
    """Whether those count whose task was not completed."""
    takes_thoughts: bool = False
    """Whether answers hold the source's thoughts, in formats that have thoughts."""


def import_trajectories(
    source: Path, out: Path, *, config: RunConfig, images: Path | None, wishes: Wishes, tell: Tell = tell_nobody
) -> Tally:
    """Write the trajectories in the file ``source`` into the new folder ``out``, for runs of ``config``; gives the account.

    ``images``: folder of the screenshots. ``tell`` receives the read share, of 1. Raises `ConfigError` for an ``out`` that
    exists, for a format without images, and where nothing is left; `DiskFull`. Then there is no ``out``.
    """
    require_new(out)
    if not config.actor.prompt.shows_images:
        reason = f"prompts of {config.actor.prompt.format} show no images, and the trajectories have nothing else"
        raise ConfigError([Problem("actor.prompt.format", reason, "import for a vision-language model (docs/how-to/vision.md)")])
    folder = _image_folder(source, images)
    with written_whole(out) as aside:
        importer = _Import(config, folder, aside, wishes)
        digest = importer.read(source, tell)
        kept = importer.tally.kept
        if not kept["trajectories"]:
            reason = f"no trajectory of {source} is left\n{importer.tally.table()}"
            raise ConfigError([Problem("SOURCE", reason, "the table names what was left out and why (docs/how-to/export.md)")])
        head = ImportHead(
            version=FORMAT_VERSION,
            format=FORMAT,
            source=source.name,
            source_digest=digest,
            model=config.model.name,
            prompts=prompts_digest(config),
            num_episodes=kept["trajectories"],
            num_steps=kept["steps"],
            num_images=importer.num_images,
            left_out=importer.tally.as_dict()["left_out"],
        )
        (aside / HEAD_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(head), indent=1))
    return importer.tally


def _image_folder(source: Path, images: Path | None) -> Path:
    """Where the screenshots of ``source`` are. Raises `ConfigError`."""
    if images is not None:
        if not images.is_dir():
            raise ConfigError(
                [Problem("--images", f"there is no folder {str(images)!r:.200}", "give the folder of the screenshots")]
            )
        return images
    return next(folder for name in _IMAGE_FOLDERS if (folder := source.parent / name).is_dir())


class _Unusable(Exception):
    """A step that cannot be cloned, and after which nothing of its trajectory can; the text is the reason."""


@dataclass
class _Import:
    """One import at work."""

    config: RunConfig
    images: Path
    out: Path
    wishes: Wishes
    tally: Tally = field(default_factory=Tally)
    _known: set[str] = field(default_factory=set)
    """Tasks that were kept."""
    _stored: set[str] = field(default_factory=set)
    """Names of the screenshots in the new folder."""

    def __post_init__(self) -> None:
        from computerrl.actor.prompts.builder import FolderTokenizer, builder_of_run, unreadable

        folder = model_folder(self.config.model.name)
        self._builder = builder_of_run(self.config, folder, FolderTokenizer(folder), read=unreadable)
        self._pictures = Pictures()

    @property
    def num_images(self) -> int:
        return len(self._stored)

    def read(self, source: Path, tell: Tell) -> str:
        """Import the trajectories in ``source``; gives the digest of the part that was read."""
        from computerrl.learner.supervised.imported import EPISODES_PER_FILE, write_episodes

        (self.out / IMAGES_FOLDER).mkdir()
        digest = hashlib.blake2b(digest_size=16)
        waiting: list[KeptEpisode] = []
        num_files, num_read_bytes = 0, 0
        num_bytes = max(1, source.stat().st_size)
        for line in _lines(source):
            digest.update(line)
            num_read_bytes += len(line)
            if (episode := self._episode(line)) is not None:
                waiting.append(episode)
            if len(waiting) == EPISODES_PER_FILE:
                write_episodes(self.out, waiting, number=num_files)
                waiting, num_files = [], num_files + 1
            kept = self.tally.kept["trajectories"]
            tell(max(num_read_bytes / num_bytes, kept / self.wishes.limit if self.wishes.limit else 0.0), 1.0)
            if kept == self.wishes.limit:
                break
        if waiting:
            write_episodes(self.out, waiting, number=num_files)
        return digest.hexdigest()

    def _episode(self, line: bytes) -> KeptEpisode | None:
        """The episode in ``line``; None where nothing of it is kept, which is counted."""
        from computerrl.learner.supervised.pool import KeptEpisode

        try:
            found = read_line(line)
        except ValueError as error:
            self.tally.leave_out(f"no trajectory of this format: {error}", trajectories=1)
            return None
        reason = self._refusal(found)
        steps = [] if reason else self._steps(found)
        if not steps:
            # Where steps were left out, each was counted with its reason.
            self.tally.leave_out(reason or "no step is left", trajectories=1, steps=len(found.traj) if reason else 0)
            return None
        self._known.add(found.task_id)
        self.tally.keep(len(steps))
        name = f"{_FAMILY}/{found.task_id}"
        return KeptEpisode(_FAMILY, name, name, tuple(steps))

    def _refusal(self, found: Trajectory) -> str:
        """Why the trajectory is left out whole; empty: it is not."""
        if found.task_completed is False and not self.wishes.takes_unfinished:
            return "task not completed"
        return "a task that is there already" if found.task_id in self._known else ""

    def _steps(self, found: Trajectory) -> list[Step]:
        """The steps of ``found`` to clone; what is left out is counted."""
        from computerrl.actor.prompts.formats.base import PastAction
        from computerrl.learner.supervised.pool import bare_step

        kept: list[Step] = []
        past: list[PastAction] = []
        pointer: Pointer | None = None
        for number, step in enumerate(found.traj):
            try:
                screen = self._screen(step)
                action, pointer = action_of(step.value.code, pointer, width=screen.screen_width, height=screen.screen_height)
                completion = self._completion(step, action, screen)
                prompt = self._prompt(found.instruction, screen, past)
            except (_Unusable, NoAction, PictureError) as error:
                is_picture = isinstance(error, PictureError)
                reason = "a screenshot of a size that the model does not take" if is_picture else str(error)
                self.tally.leave_out(reason, steps=1)
                self.tally.leave_out("after a step that was left out", steps=len(found.traj) - number - 1)
                break
            past.append(PastAction(completion, screenshot=screen.screenshot))
            tokens = self._builder.encode_action(completion)
            if reason := self._why_not_imitated(step, num_tokens=len(tokens)):
                self.tally.leave_out(reason, steps=1)
                continue
            for ref in prompt.images:
                self._store(ref)
            kept.append(bare_step(prompt.tokens, tokens, prompt.images))
        return kept

    def _screen(self, step: TrajectoryStep) -> Observation:
        """The screen of ``step``, of which nothing but its screenshot is known. Raises `_Unusable`."""
        path = Path(step.image)
        if path.is_absolute() or ".." in path.parts:
            raise _Unusable("a screenshot outside the folder of screenshots")
        try:
            ref = self._pictures.ref(self.images / path)
        except PictureError:
            # Not a method of the path, which raises an error for a name that no file can have.
            is_there = os.path.exists(self.images / path)
            raise _Unusable("a screenshot that cannot be read" if is_there else "a screenshot that is missing") from None
        if ref.num_bytes > MAX_IMAGE_BYTES:
            raise _Unusable(f"a screenshot of more than {MAX_IMAGE_BYTES >> 20} MiB")
        return Observation("", "", (), ref, ref.width, ref.height, "none", 0.0, "")

    def _completion(self, step: TrajectoryStep, action: Action, screen: Observation) -> str:
        """The policy's answer that means ``action``. Raises `_Unusable`, and `PictureError` for a size that the model does not
        take."""
        from computerrl.actor.prompts.formats.base import Unsayable

        thought = (step.value.thought or "").strip() if self.wishes.takes_thoughts else ""
        try:
            return self._builder.render(render_action(action), screen, thought=thought)
        except (ActionSyntaxError, LookupError, Unsayable):
            raise _Unusable(f"{action.name} with arguments that {self.config.actor.prompt.format} cannot say") from None

    def _prompt(self, instruction: str, screen: Observation, past: Sequence[PastAction]) -> Prompt:
        """Raises `_Unusable` where the screen does not fit the prompt, and `PictureError` for a size that the model does not
        take."""
        prompt = self._builder.build(instruction, screen, past)
        if not prompt.images or prompt.images[-1] != screen.screenshot:
            raise _Unusable(f"a screenshot that does not fit {self.config.actor.prompt.max_prompt_tokens} tokens of prompt")
        return prompt

    def _why_not_imitated(self, step: TrajectoryStep, *, num_tokens: int) -> str:
        """Why ``step`` stays in the past of later steps and is not cloned itself; empty: it is cloned."""
        if step.value.last_step_correct is False:
            return "marked as not correct"
        if step.value.last_step_redundant:
            return "marked as redundant"
        most = self.config.actor.max_new_tokens
        return f"an answer of more than {most} tokens (actor.max_new_tokens)" if num_tokens > most else ""

    def _store(self, ref: ScreenshotRef) -> None:
        if ref.content_hash not in self._stored:
            self._stored.add(ref.content_hash)
            (self.out / IMAGES_FOLDER / ref.content_hash).write_bytes(self._pictures.read(ref))


def _lines(source: Path) -> Iterator[bytes]:
    """The lines of ``source`` that are not blank, each cut behind the longest that is read. Raises `ConfigError`."""
    try:
        with source.open("rb") as file:
            while line := file.readline(MAX_LINE_BYTES + 2):
                if line.strip():
                    yield line
    except OSError as error:
        raise ConfigError(
            [Problem("SOURCE", f"{str(source)!r:.200} cannot be read: {error.strerror}", "give a .jsonl file")]
        ) from error
