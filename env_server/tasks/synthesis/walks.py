"""Random walks: their start states and actions by application, their differences, and the shortest walk to one. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from computerrl.common.actions import parse_action, render_action
from computerrl.common.messages import Action
from computerrl.env_server.tasks.forge.facts import Facts
from computerrl.env_server.tasks.forge.plan import facts_of
from computerrl.env_server.tasks.synthesis import calc, files, impress, writer
from computerrl.env_server.tasks.synthesis.changes import Change, UnsaidError
from computerrl.env_server.tasks.synthesis.start import Start

MAX_CHANGES = 3
"""Maximum number of changes that one instruction asks for."""
MAX_MOVES = 4
"""Maximum number of moves of a walk, an action or a few that belong together."""


@dataclass(frozen=True, slots=True)
class _Application:
    start: Callable[[random.Random], Start]
    changes: Callable[[Facts, Facts], list[Change]]


APPLICATIONS: Mapping[str, _Application] = {
    "calc": _Application(calc.start, calc.changes),
    "files": _Application(files.start, files.changes),
    "impress": _Application(impress.start, impress.changes),
    "writer": _Application(writer.start, writer.changes),
}
"""Applications that walks explore, by name."""


@dataclass(frozen=True, slots=True)
class State:
    """Content of the agent's folder."""

    files: Mapping[str, bytes]
    folders: frozenset[str] = field(default_factory=frozenset)
    """Paths of all folders."""


@dataclass(frozen=True, slots=True)
class Walk:
    """One random walk from one start state, both drawn from a seed."""

    app: str
    seed: int
    number: int
    start: Start
    actions: tuple[Action, ...]

    @property
    def before(self) -> State:
        """The start state."""
        above = {path[:index] for path in self.start.files for index, char in enumerate(path) if char == "/"}
        return State(self.start.files, frozenset({*self.start.folders, *above}))

    def rng(self) -> random.Random:
        """Randomness for the wording of its task."""
        return random.Random(f"wording:{self.app}:{self.seed}:{self.number}")


def draw_walk(app: str, *, seed: int, number: int) -> Walk:
    """Walk ``number`` of ``seed``: the same on every host."""
    rng = random.Random(f"walk:{app}:{seed}:{number}")
    start = APPLICATIONS[app].start(rng)
    moves = [start.draw(rng) for _ in range(rng.randint(1, MAX_MOVES))]
    return Walk(app, seed, number, start, tuple(parse_action(render_action(action)) for move in moves for action in move))


def changes_of(app: str, before: State, after: State) -> list[Change]:
    """What a walk has changed, one to `MAX_CHANGES` changes. Raises `UnsaidError` for other differences and those without words,
    and `UnreadableFile`."""
    if app == "files":
        found = APPLICATIONS[app].changes(_tree(before), _tree(after))
    else:
        (path,) = before.files
        if set(after.files) != {path} or after.folders != before.folders:
            raise UnsaidError("other files than the document changed")
        found = APPLICATIONS[app].changes(facts_of(path, before.files[path]), facts_of(path, after.files[path]))
    if not found:
        raise UnsaidError("nothing changed")
    if len(found) > MAX_CHANGES:
        raise UnsaidError(f"more than {MAX_CHANGES} changes")
    return found


def _tree(state: State) -> Facts:
    """Files and folders as facts: texts, and archives as texts by path."""
    return {**dict.fromkeys(state.folders, files.FOLDER), **{path: _content(path, data) for path, data in state.files.items()}}


def _content(path: str, data: bytes) -> object:
    facts = facts_of(path, data)
    if not path.endswith((".zip", ".gz")):
        return facts["content"]
    return {name: one.decode(errors="backslashreplace").rstrip("\n") for name, one in facts.items() if isinstance(one, bytes)}


def shortened(actions: Sequence[Action], leads_there: Callable[[Sequence[Action]], bool]) -> tuple[Action, ...]:
    """``actions`` without those whose removal, one at a time, still leads to the same difference: then every one is needed.

    ``leads_there`` plays a walk. The result was played without each of its actions, and failed each time."""
    kept = list(actions)
    is_shorter = True
    while is_shorter:
        is_shorter = False
        for index in reversed(range(len(kept))):
            shorter = kept[:index] + kept[index + 1 :]
            if leads_there(shorter):
                kept, is_shorter = shorter, True
    return tuple(kept)
