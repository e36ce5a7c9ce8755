"""The stored episodes of a run: which there are, and everything about one. Reads files; a run that is under way adds to them."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from computerrl.common.errors import ConfigError, Problem
from computerrl.common.messages import ScreenshotRef
from computerrl.common.models.folder import model_folder
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.launch.watch.run_state import Record

PAGE_ROWS = 200
"""Rows of a list at a time."""
_LIGHT = (
    "trajectory_id", "group_id", "order_id", "kind", "family", "seed", "instruction", "reward", "success", "end_reason",
    "shown_by", "outcome", "age_max", "min_policy_version", "max_policy_version", "started_at", "duration_s",
)  # fmt: skip
_ID = re.compile(rb'^\{"trajectory_id":"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Wanted:
    """A filter of episodes; empty fields take all."""

    kind: str = ""
    family: str = ""
    success: str = ""
    """`yes` or `no`."""
    outcome: str = ""
    min_age: int | None = None
    """Of its oldest step when it was trained; episodes in no batch have none."""
    text: str = ""
    """Part of its id or its instruction."""

    def takes(self, row: Record) -> bool:
        """Is ``row`` one of them?"""
        age = row.get("age_max")
        return (
            self.kind in ("", row.get("kind"))
            and self.family in ("", row.get("family"))
            and self.success in ("", "yes" if row.get("success") else "no")
            and self.outcome in ("", row.get("outcome"))
            and (self.min_age is None or (age is not None and age >= self.min_age))
            and self.text.lower() in f"{row['trajectory_id']} {row.get('instruction', '')}".lower()
        )


class _Lines:
    """Where each trajectory's newest line lies in a growing file; a file that became shorter is read again."""

    def __init__(self, path: Path, *, on_line: Callable[[bytes], str | None]) -> None:
        """``on_line`` gives a whole line's trajectory, None for what is none."""
        self._path = path
        self._on_line = on_line
        self._end = 0
        self.places: dict[str, tuple[int, int]] = {}

    def refresh(self) -> bool:
        """Take in what was added; True when the file was begun anew."""
        try:
            size = self._path.stat().st_size
            anew = size < self._end
            if anew:
                self._end, self.places = 0, {}
            with self._path.open("rb") as file:
                file.seek(self._end)
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # it is being written
                    name = self._on_line(line)
                    if name is not None:
                        self.places[name] = (self._end, len(line))
                    self._end += len(line)
        except FileNotFoundError:
            return False
        return anew

    def read(self, name: str) -> Record | None:
        """The line of trajectory ``name``."""
        if name not in self.places:
            return None
        start, length = self.places[name]
        with self._path.open("rb") as file:
            file.seek(start)
            return _parsed(file.read(length))


def _parsed(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("trajectory_id"), str) else None


class Episodes:
    """All that a run has stored. Not thread-safe."""

    def __init__(self, run: RunFolder, *, model: str) -> None:
        """``model``: whose tokens they are."""
        self._run = run
        self._model = model
        self.rows: dict[str, Record] = {}
        self._episodes = _Lines(run.episodes_path, on_line=self._take)
        self._samples = _Lines(run.samples_path, on_line=_id_of)

    def refresh(self) -> None:
        """Take in what was added since the last call."""
        if self._episodes.refresh():
            self.rows = {name: row for name, row in self.rows.items() if name in self._episodes.places}
        self._samples.refresh()

    def _take(self, line: bytes) -> str | None:
        record = _parsed(line)
        if record is None:
            return None
        row = {name: record.get(name) for name in _LIGHT}
        row["num_steps"] = len(record.get("steps") or ())
        row["group_id"] = row["group_id"] or record["trajectory_id"].rpartition("/")[0]
        self.rows[record["trajectory_id"]] = row
        return str(record["trajectory_id"])

    def list(self, wanted: Wanted, *, start: int = 0) -> dict[str, Any]:
        """The newest first: `PAGE_ROWS` rows from ``start`` on, how many there are, and what can be chosen."""
        found = [row for row in reversed(self.rows.values()) if wanted.takes(row)]
        choices = {
            name: sorted({str(row[name]) for row in self.rows.values() if row.get(name) is not None})
            for name in ("kind", "family", "outcome")
        }
        return {"rows": found[start : start + PAGE_ROWS], "total": len(found), "of": len(self.rows), "choices": choices}

    def get(self, name: str) -> Record:
        """Everything about one episode, tokens as texts. Raises `ConfigError`."""
        record = self._episodes.read(name)
        if record is None:
            raise ConfigError([Problem("EPISODE", f"there is no {name!r}", "computerrl replay RUN lists all episodes")])
        samples = self.sample(name)
        told, advantages = samples.get("steps") or [], samples.get("advantages") or []
        steps = []
        for index, step in enumerate(record.get("steps") or []):
            sample = told[index] if index < len(told) else {}
            steps.append({**step, **self._texts(sample), "advantage": advantages[index] if index < len(advantages) else None})
        group = record.get("group_id") or name.rpartition("/")[0]
        others = sorted(other for other, row in self.rows.items() if row["group_id"] == group)
        return {**record, "group_id": group, "steps": steps, "group": others}

    def sample(self, name: str) -> Record:
        """The tokens of an episode as the learner wrote them; empty where they are lost."""
        return self._samples.read(name) or {}

    def refs(self, name: str) -> dict[str, ScreenshotRef]:
        """Content hash -> place of every screenshot of an episode."""
        record = self._episodes.read(name) or {}
        trees = [*(step.get("screenshot") for step in record.get("steps") or []), record.get("final_screenshot")]
        found = {}
        for tree in filter(None, trees):
            with suppress(TypeError):  # Another version wrote it.
                found[tree["content_hash"]] = ScreenshotRef(**tree)
        return found

    def ref(self, name: str, content_hash: str) -> ScreenshotRef | None:
        """Where a screenshot of an episode lies."""
        return self.refs(name).get(content_hash)

    def _texts(self, sample: Record) -> dict[str, Any]:
        if not sample:
            return {"prompt": None, "tokens": []}
        versions, logprobs = sample["versions"], sample["logprobs"]
        tokens = [
            {
                "text": self._decode([token]),
                "logprob": logprobs[place] if place < len(logprobs) else None,
                "version": versions[place] if place < len(versions) else None,
            }
            for place, token in enumerate(sample["tokens"])
        ]
        return {"prompt": self._prompt(sample), "tokens": tokens}

    def _prompt(self, sample: Record) -> Sequence[str | Record]:
        """A prompt as texts and images in its order."""
        images = sample.get("images") or []
        parts: list[str | Record] = []
        begin, tokens = 0, prompt_tokens(sample["prompt"])
        for place, token in enumerate([*tokens, -1]):
            if token < 0:
                parts += [self._decode(tokens[begin:place])] if place > begin else []
                parts += [images[-1 - token]] if place < len(tokens) else []
                begin = place + 1
        return parts

    def _decode(self, tokens: Sequence[int]) -> str:
        if self._tokenizer is None:
            return " ".join(map(str, tokens))
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))

    @cached_property
    def _tokenizer(self) -> Any:
        """None where the model is not on this machine: numbers are shown then."""
        from tokenizers import Tokenizer

        path = model_folder(self._model) / "tokenizer.json"
        return Tokenizer.from_file(str(path)) if path.is_file() else None


def prompt_tokens(packed: str) -> list[int]:
    """The tokens of a sample's `prompt`. -1 is its first image, -2 the second."""
    found: list[int] = np.frombuffer(zlib.decompress(base64.b64decode(packed)), dtype="<i4").tolist()
    return found


def _id_of(line: bytes) -> str | None:
    found = _ID.match(line)
    return None if found is None else str(json.loads(b'"' + found[1] + b'"'))
