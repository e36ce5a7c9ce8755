"""Foreign tasks that pay for doing nothing: each is judged right after its set-up, before an agent gets it.

A task file may ask for what is so already, or compare too little. Its verdict on an untouched desktop is kept in the host's cache
under all that it follows from, so that it costs once: task file and assets, image, screen, and our own sources. Whatever pays
more than nothing is refused. Our own families are played untouched by the tests.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from computerrl.common import log
from computerrl.common.config import DesktopConfig
from computerrl.common.errors import TaskFailed
from computerrl.common.messages import Evaluation, TaskRef
from computerrl.common.models.folder import cache_folder
from computerrl.common.run_files.run_folder import write_atomically
from computerrl.env_server.driver import TaskInstance
from computerrl.env_server.image.find import image_id
from computerrl.env_server.judging.judge import LONGEST_S
from computerrl.env_server.tasks.family import NO_VERDICT, is_foreign

PAYS: Final = "pays untouched"
"""Beginning of the text of the `TaskFailed` that refuses a task."""


class Finding(msgspec.Struct, frozen=True):
    """The verdict on an untouched desktop, as the cache keeps it."""

    task: str
    """Name of the family."""
    reward: float


_DECODER = msgspec.json.Decoder(Finding)


class Untouched:
    """What foreign tasks pay for doing nothing, on desktops of one configuration. From any number of threads at once."""

    def __init__(self, config: DesktopConfig, *, folder: Path | None = None) -> None:
        self._config = config
        self._folder = folder or cache_folder() / "untouched"
        self._found: dict[str, Finding] = {}
        """By key; also those that the disk would not take."""

    def refuse_or_try(self, task: TaskRef, instance: TaskInstance, judge_untouched: Callable[[], Evaluation]) -> None:
        """Raise `TaskFailed` for a task that pays untouched, or whose reward script gives no verdict then.

        ``judge_untouched`` sets it up and judges it, and leaves the desktop in any state; called where the verdict is not known.
        """
        if instance.digest is None:
            return
        found = self.known(instance.digest())
        if found is None:
            verdict = judge_untouched()
            if verdict.detail.startswith(NO_VERDICT):  # not kept: the host may have been busy
                raise TaskFailed(verdict.detail)
            found = Finding(task.family, verdict.reward)
            self.keep(instance.digest(), found)
        if found.reward > 0.0:
            raise TaskFailed(f"{PAYS}: score {found.reward:.3g} for doing nothing")

    def known(self, digest: str, *, solved: bool = False) -> Finding | None:
        """The kept verdict on the task with this digest, untouched or ``solved`` by its own solution; None: there is none."""
        key = self._key(digest, solved)
        found = self._found.get(key) or self._read(key)
        if found is not None:
            self._found[key] = found
        return found

    def keep(self, digest: str, finding: Finding, *, solved: bool = False) -> None:
        """Keep a verdict for this process and, where the disk takes it, for later ones."""
        key = self._key(digest, solved)
        self._found[key] = finding
        self._write(key, finding)

    def _key(self, digest: str, solved: bool) -> str:
        config = self._config
        surroundings = [image_id(config), str(config.screen_width), str(config.screen_height), digest, _sources()]
        return hashlib.sha256("\0".join(surroundings + ["solved"] * solved).encode()).hexdigest()

    def _read(self, key: str) -> Finding | None:
        try:
            return _DECODER.decode((self._folder / f"{key}.json").read_bytes())
        except (OSError, msgspec.MsgspecError):
            return None  # judged anew: a cache may be lost

    def _write(self, key: str, finding: Finding) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._folder / f"{key}.json", msgspec.json.encode(finding))
        except OSError as error:
            log.get_logger().warning("untouched.not_kept", task=finding.task, reason=str(error))


def reset_limit_s(config: DesktopConfig, task: TaskRef) -> float:
    """Time in seconds that a reset may take: the first one of a foreign task sets it up twice and judges between."""
    return 3 * config.reset_deadline_s + LONGEST_S if is_foreign(task.family) else config.reset_deadline_s


@functools.cache
def _sources() -> str:
    """Digest of everything that sets tasks up and judges them."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(os.fsencode(path.relative_to(root)) + b"\0" + path.read_bytes())
    return digest.hexdigest()
