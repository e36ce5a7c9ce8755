"""Both outcomes of every pair: ours in this process, the published ones in another with its own packages."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from computerrl.env_server.tasks.osworld.metrics import metric
from computerrl.env_server.tasks.osworld.metrics.files import BrokenFile
from computerrl.env_server.tasks.osworld.metrics.matching import BadRule
from tests.oracle import books, decks, media, papers, plain_values, texts
from tests.oracle.pairs import Pair

FOLDER = Path(__file__).parent
MAKERS = (
    texts.texts,
    texts.settings,
    plain_values.values,
    books.books,
    papers.papers,
    decks.decks,
    media.pictures,
    media.pdfs,
    media.archives,
    media.sounds,
)
SAME_SCORE = 0.005
"""Scores nearer to each other than this are the same."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A score, or None where there is no verdict."""

    score: float | None

    def agrees(self, published: Outcome) -> bool:
        """A published evaluator that raises, and a task whose file or rule is at fault here, pay nothing."""
        return abs((self.score or 0.0) - (published.score or 0.0)) < SAME_SCORE


def make_pairs(folder: Path) -> list[Pair]:
    """All pairs, their files below ``folder``."""
    return [pair for maker in MAKERS for pair in maker(folder)]


def ours(pair: Pair) -> Outcome:
    """A file of the agent's that cannot be read scores 0; one of the task's, or a rule that means nothing, gives no verdict."""
    args = json.loads(json.dumps(pair.args))
    try:
        return Outcome(float(metric(pair.metric)(*args, **pair.options)))
    except BrokenFile as error:
        found = args[0] if isinstance(args[0], list) else [args[0]]
        return Outcome(0.0 if str(error.path) in found and str(error.path) not in args[1:] else None)
    except BadRule:
        return Outcome(None)


def published(python: Path, pairs: Sequence[Pair], folder: Path) -> Iterator[Outcome]:
    """What the published evaluators say, in the order of the pairs."""
    calls = "".join(json.dumps({"metric": p.metric, "args": p.args, "options": dict(p.options)}) + "\n" for p in pairs)
    answers = folder / "published.jsonl"
    environment = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "NUMBA_CACHE_DIR": str(folder), "HOME": str(folder)}
    program = [str(python), "-I", "-B", str(FOLDER / "published.py"), str(answers)]
    subprocess.run(program, input=calls.encode(), env=environment, check=True, timeout=7200)
    for line in answers.read_text(encoding="utf-8").splitlines():
        yield Outcome(json.loads(line).get("value"))


def table(pairs: Sequence[Pair], differing: Sequence[Pair]) -> str:
    """Metric, number of pairs that agree, number that differ."""
    every, other = Counter(pair.metric for pair in pairs), Counter(pair.metric for pair in differing)
    rows = [f"{name:48} {every[name] - other[name]:6} {other[name]:6}" for name in sorted(every)]
    return "\n".join([*rows, f"{f'{len(every)} metrics':48} {len(pairs) - len(differing):6} {len(differing):6}"])


def describe(pair: Pair) -> str:
    """One line without places and numbers, the same on every machine."""
    return f"{pair.metric}: {pair.kind}"


def without_published(pairs: Sequence[Pair]) -> list[str]:
    """Our metrics that no pair is about."""
    from computerrl.env_server.tasks.osworld.metrics import METRICS

    covered: Any = {pair.metric for pair in pairs}
    return sorted(set(METRICS) - covered)
