"""What a forged task is: files before, files wanted, a scripted solution and a near miss; and the family that draws them.

The checker compares the facts of the saved files with those of the wanted ones (`facts`). Nothing heavy is imported before an
instance is made: openpyxl and its kin take a second.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from computerrl.common.actions import calls_application
from computerrl.common.errors import TaskFailed
from computerrl.common.messages import Action, Evaluation, Observation
from computerrl.env_server.driver import Getter, SetupStep, TaskInstance
from computerrl.env_server.tasks.family import DONE, Family
from computerrl.env_server.tasks.forge.book_facts import book_facts
from computerrl.env_server.tasks.forge.deck_facts import deck_facts
from computerrl.env_server.tasks.forge.facts import Check, Facts, UnreadableFile, differences, reading
from computerrl.env_server.tasks.forge.paper_facts import paper_facts
from computerrl.env_server.tasks.reading import limits
from computerrl.env_server.tasks.reading.limits import within
from computerrl.env_server.tasks.reading.packages import unpacked

Move = Action | Callable[[Observation], Action]
"""One step of a script; a function where it depends on what is on screen."""

REAL_DRIVERS = frozenset({"apptainer", "local"})
_MAX_DETAILS = 4


@dataclass(frozen=True, slots=True)
class Forged:
    """One instance with all that tests need."""

    instruction: str
    files: Mapping[str, bytes]
    """Before, by path; put into the agent's folder."""
    wanted: Callable[[], Mapping[str, bytes | None]]
    """Files that differ from before when the task is solved; None: gone."""
    nearly: Callable[[], Mapping[str, bytes | None]]
    """The same after a near miss; for tests without a desktop."""
    solution: Sequence[Move]
    near_miss: Sequence[Move]
    """A script that does nearly the right thing: a wrong argument, or a step left out."""
    by_hand: Sequence[Move] | None = None
    """The solution with mouse and keyboard alone, where ``solution`` calls applications."""
    opened: Sequence[str] = ()
    """What is opened, the last one in front: files or folders; pages (.html) in the browser."""
    folders: Sequence[str] = ()
    """Empty folders that are there before."""
    checks: Mapping[str, Check] = field(default_factory=dict)
    """Facts of which several values are right, by pattern; see `facts.differences`."""
    is_listing_exact: bool = False
    """No other file or folder may be there in the end."""
    result: object = None
    """What the page must say in the end, where the task is a page."""
    near_result: object = None
    """What it says after the near miss."""

    def task(self) -> TaskInstance:
        """What drivers and actors play."""
        setup = [SetupStep("make_folder", {"path": path}) for path in self.folders]
        setup += [SetupStep("put_file", {"path": path, "data": data}) for path, data in self.files.items()]
        setup += [SetupStep("web_file" if path.endswith(".html") else "open", {"path": path}) for path in self.opened]
        return TaskInstance(
            self.instruction,
            tuple(setup),
            self.evaluate,
            self.play(self.solution),
            calls_applications=any(isinstance(move, Action) and calls_application(move.name) for move in self.solution),
            demonstrate_by_hand=None if self.by_hand is None else self.play(self.by_hand),
        )

    def play(self, script: Sequence[Move]) -> Callable[[str, Observation, Sequence[Action], Getter], Action]:
        """A demonstrator that carries out ``script``."""

        def demonstrate(said: str, observation: Observation, actions: Sequence[Action], get: Getter) -> Action:
            if len(actions) >= len(script):
                return DONE
            move = script[len(actions)]
            return move if isinstance(move, Action) else move(observation)

        return demonstrate

    def evaluate(self, get: Getter) -> Evaluation:
        """Success when all files are as wanted."""
        wrong: list[str] = []
        wanted = {**self.files, **self.wanted()}
        for path, data in wanted.items():
            wrong += [f"{path}: {text}" for text in self._compare(path, data, get("file_bytes", path=path))]
        if self.is_listing_exact:
            wrong += self._compare_listing(wanted, get("folder_listing"))
        if self.result is not None:
            wrong += differences({"page": self.result}, {"page": get("web_result")})
        detail = "; ".join(wrong[:_MAX_DETAILS]) + (
            f"; and {len(wrong) - _MAX_DETAILS} more" if len(wrong) > _MAX_DETAILS else ""
        )
        return Evaluation(reward=float(not wrong), success=not wrong, detail=detail[:400] or "as wanted")

    def _compare(self, path: str, wanted: bytes | None, found: bytes | None) -> list[str]:
        if wanted == found:
            return []
        if wanted is None or found is None:
            return ["must be gone" if wanted is None else "is gone"]
        try:
            expected = facts_of(path, wanted)
        except UnreadableFile as error:
            raise TaskFailed(f"the task's own file {path} cannot be read: {error}") from error
        try:
            actual = facts_of(path, found)
        except UnreadableFile as error:
            return [str(error)]
        return differences(expected, actual, checks=self.checks)

    def _compare_listing(self, wanted: Mapping[str, bytes | None], found: Sequence[str]) -> list[str]:
        paths = {path for path, data in wanted.items() if data is not None}
        above = {f"{path[:index]}/" for path in paths for index, char in enumerate(path) if char == "/"}
        expected = paths | above | {f"{folder}/" for folder in self.folders}
        return [f"{path}: {'missing' if path in expected else 'not asked for'}" for path in sorted(expected ^ set(found))]


def facts_of(path: str, data: bytes) -> Facts:
    """Facts of a file by its ending. Raises `UnreadableFile`."""
    ending = path.rpartition(".")[2].lower()
    if ending in _READERS:
        return _READERS[ending](data)
    if ending in ("zip", "gz"):
        with reading("archive"):
            return _without_common_folder(unpacked(data))
    with reading("text"):
        within("bytes of text", len(data), limits.MAX_TEXT_BYTES)
    # An editor may end a text with a line break of its own.
    return {"content": data.decode("utf-8", errors="backslashreplace").replace("\r\n", "\n").rstrip("\n")}


def _without_common_folder(files: Mapping[str, bytes]) -> Facts:
    """A folder's archive may hold the folder or what is in it."""
    tops = {path.partition("/")[0] for path in files}
    is_one_folder = len(tops) == 1 and all("/" in path for path in files)
    return {path.partition("/")[2] if is_one_folder else path: data for path, data in files.items()}


_READERS: Mapping[str, Callable[[bytes], Facts]] = {"xlsx": book_facts, "docx": paper_facts, "pptx": deck_facts}


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgeFamily(Family):
    """A family whose seed also decides how hard an instance is."""

    forge: Callable[[random.Random, int], Forged]
    """(randomness, level) -> instance."""
    levels: tuple[int, ...] = (1, 2, 3)
    """Levels an instance may have: more entries, more changes, more that must stay as it is."""

    def level(self, seed: int) -> int:
        """The level of ``seed``'s instance."""
        return self.levels[random.Random(f"{self.name}:level:{seed}").randrange(len(self.levels))]

    def forged(self, seed: int) -> Forged:
        """The instance of ``seed`` with its near miss."""
        return self.forge(random.Random(f"{self.name}:{seed}"), self.level(seed))

    def make(self, seed: int) -> TaskInstance:
        """See `Family`."""
        return self.forged(seed).task()


def forge_family(
    name: str, app: str, description: str, forge: Callable[[random.Random, int], Forged], *, levels: tuple[int, ...] = (1, 2, 3)
) -> ForgeFamily:
    """A family by name (without `forge-`); Writer and Impress need the image `full`."""
    return ForgeFamily(
        name=f"forge-{name}",
        app=app,
        description=description,
        build=lambda rng: forge(rng, levels[0]).task(),
        drivers=REAL_DRIVERS,
        is_default=False,
        forge=forge,
        levels=levels,
    )


def call(name: str, **args: Any) -> Action:
    """An API call."""
    return Action(name=name, args=args)


def key(keys: str) -> Action:
    """Keys pressed together."""
    return Action(name="key", args={"keys": keys})


def typed(text: str, *, enter: bool = False) -> Action:
    """Text typed where the focus is."""
    return Action(name="type", args={"text": text, "enter": enter})


SAVE_BY_KEYS = key("ctrl+s")
