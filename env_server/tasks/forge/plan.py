"""What a forged task is: files before, files wanted, a scripted solution and a near miss; and the family that draws them.

The checker compares the facts of the saved files with those of the wanted ones (`facts`). Nothing heavy is imported before an
instance is made: openpyxl and its kin take a second.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    added_folders: Sequence[str] = ()
    """Folders that must be there in the end although no wanted file is in them, besides ``folders``."""
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
            counts_facts=True,
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
        """Success when all files are as wanted; the progress follows from how many facts differ, now and at the start."""
        wrong = self._differences(get)
        if not wrong.texts:
            return Evaluation(reward=1.0, success=True, detail="as wanted", progress=1.0)
        num_facts = self._differences(self._start).num_facts
        left_out = len(wrong.texts) - _MAX_DETAILS
        detail = "; ".join(wrong.texts[:_MAX_DETAILS]) + (f"; and {left_out} more" if left_out > 0 else "")
        # A file that is lost holds no fact any more, whatever it held.
        progress = 0.0 if wrong.is_lost or not num_facts else max(0.0, 1.0 - wrong.num_facts / num_facts)
        return Evaluation(reward=0.0, success=False, detail=detail[:400], progress=progress)

    def _start(self, kind: str, path: str = "") -> Any:
        """What a getter finds before the first action."""
        if kind == "folder_listing":
            return sorted(_with_folders_above(self.files) | {f"{folder}/" for folder in self.folders})
        return self.files.get(path) if kind == "file_bytes" else None

    def _differences(self, get: Callable[..., Any]) -> _Differences:
        """Between what is wanted and what ``get`` finds."""
        texts: list[str] = []
        paths = _Paths()
        num_facts, is_lost = 0, False
        wanted = {**self.files, **self.wanted()}
        for path, data in wanted.items():
            found = get("file_bytes", path=path)
            wrong, is_whole = self._compare(path, data, found)
            texts += [f"{path}: {text}" for text in wrong]
            if data is None or found is None:
                paths.add(len(wrong), is_missing=found is None)
            else:
                num_facts += len(wrong)
            is_lost |= is_whole and path in self.files
        num_facts += paths.num_facts
        if self.is_listing_exact:
            paths = _Paths()
            for path, is_missing in self._compare_listing(wanted, get("folder_listing")):
                texts.append(f"{path}: {'missing' if is_missing else 'not asked for'}")
                paths.add(1, is_missing=is_missing)
            num_facts += paths.num_facts
        if self.result is not None:
            of_page = differences(_page_facts(self.result), _page_facts(get("web_result")))
            texts, num_facts = texts + of_page, num_facts + len(of_page)
        return _Differences(texts, num_facts, is_lost)

    def _compare(self, path: str, wanted: bytes | None, found: bytes | None) -> tuple[list[str], bool]:
        """What differs in a file, and whether it is missing or unreadable as a whole."""
        if wanted == found:
            return [], False
        if wanted is None or found is None:
            return ["must be gone" if wanted is None else "is gone"], found is None
        try:
            expected = facts_of(path, wanted)
        except UnreadableFile as error:
            raise TaskFailed(f"the task's own file {path} cannot be read: {error}") from error
        try:
            actual = facts_of(path, found)
        except UnreadableFile as error:
            return [str(error)], True
        return differences(expected, actual, checks=self.checks), False

    def _compare_listing(self, wanted: Mapping[str, bytes | None], found: Sequence[str]) -> list[tuple[str, bool]]:
        """Paths that are there or not, unlike what is wanted, each with whether it is missing."""
        paths = [path for path, data in wanted.items() if data is not None]
        expected = _with_folders_above(paths) | {f"{folder}/" for folder in (*self.folders, *self.added_folders)}
        return [(path, path in expected) for path in sorted(expected ^ set(found))]


@dataclass(frozen=True, slots=True)
class _Differences:
    """Between what is wanted and what there is."""

    texts: Sequence[str]
    """For people."""
    num_facts: int
    """Number of facts that are not as wanted."""
    is_lost: bool
    """Whether a file that was there at the start, and is wanted, is missing or unreadable."""


@dataclass(slots=True)
class _Paths:
    """Paths that should not be there, and paths that are missing. Deleting what is to be moved, or copying it, mends one kind and
    not the other: so the larger number counts."""

    num_missing: int = 0
    num_extra: int = 0

    def add(self, number: int, *, is_missing: bool) -> None:
        """Count ``number`` more."""
        if is_missing:
            self.num_missing += number
        else:
            self.num_extra += number

    @property
    def num_facts(self) -> int:
        return max(self.num_missing, self.num_extra)


def _with_folders_above(paths: Iterable[str]) -> set[str]:
    """``paths`` and all folders that they are in."""
    names = set(paths)
    return names | {f"{path[:index]}/" for path in names for index, char in enumerate(path) if char == "/"}


def _page_facts(result: object) -> Facts:
    """Each field of what a page says; a fact of its own where it is no table."""
    return {f"page {name}": value for name, value in result.items()} if isinstance(result, dict) else {"page": result}


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
        counts_facts=True,
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
