"""The stored trajectories of a run, read one at a time: records, texts and screenshots. Changes nothing in the run.

Reads through `launch.web.episodes`, as the replay does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from computerrl.common.config import RunConfig, load_config
from computerrl.common.errors import ConfigError, Problem
from computerrl.common.messages import ScreenshotRef
from computerrl.common.models.folder import model_folder
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.launch.watch.run_state import Record
from computerrl.launch.web.episodes import Episodes

if TYPE_CHECKING:
    from computerrl.actor.prompts.builder import PromptBuilder
    from computerrl.actor.prompts.tokenizer import FolderTokenizer


@dataclass(frozen=True, slots=True)
class Selection:
    """Which trajectories of a run are exported; an empty tuple takes all."""

    kinds: tuple[str, ...] = ()
    """Kinds of orders: `training`, `evaluation`, `demonstration`."""
    families: tuple[str, ...] = ()
    is_solved: bool = False
    """Successful ones alone."""

    def refusal(self, row: Record) -> str:
        """The reason why the trajectory of ``row`` is left out; empty where it is taken."""
        if self.kinds and row.get("kind") not in self.kinds:
            return "other kind"
        if self.families and row.get("family") not in self.families:
            return "other family"
        return "not solved" if self.is_solved and not row.get("success") else ""


class StoredRun:
    """Trajectories and screenshots of one run."""

    def __init__(self, folder: Path) -> None:
        """Raises `ConfigError` for a run without trajectories, or whose model's tokenizer is not on this machine."""
        self.run = RunFolder(folder)
        self.name = folder.resolve().name
        self.config: RunConfig = load_config(self.run.resolved_config)
        self.model = model_folder(self.config.model.name)
        self._episodes = Episodes(self.run, model=self.config.model.name)
        self._episodes.refresh()
        if not self._episodes.rows:
            raise ConfigError([Problem("RUN", f"{folder} has no stored trajectory", "give a run that has played episodes")])
        if not (self.model / "tokenizer.json").is_file():
            reason = f"the tokenizer of {self.name} is not in {str(self.model)!r}: texts of prompts cannot be restored"
            raise ConfigError([Problem("model.name", reason, "put the model folder back, with its tokenizer.json")])

    def check(self, selection: Selection) -> None:
        """Raise `ConfigError` for kinds or families that no stored trajectory has."""
        problems = []
        for option, field, wanted in (("--kind", "kind", selection.kinds), ("--family", "family", selection.families)):
            known = sorted({str(row[field]) for row in self.rows.values()})
            problems += [
                Problem(option, f"no stored trajectory of {self.name} is of {name!r:.80}", f"use {', '.join(known)}")
                for name in wanted
                if name not in known
            ]
        if problems:
            raise ConfigError(problems)

    @property
    def rows(self) -> Mapping[str, Record]:
        """A few fields of every trajectory, by its id."""
        return self._episodes.rows

    def read(self, name: str) -> Record:
        """Everything about trajectory ``name``, with texts in place of tokens."""
        return self._episodes.get(name)

    def samples(self, name: str) -> Sequence[Record]:
        """The tokens of each step of trajectory ``name``, as `learner.accounts.records` wrote them; empty where they are lost."""
        return self._episodes.sample(name).get("steps") or ()

    def refs(self, name: str) -> dict[str, ScreenshotRef]:
        """Content hash -> place of every screenshot of trajectory ``name``."""
        return self._episodes.refs(name)

    def screenshot(self, ref: ScreenshotRef, *, name: str) -> bytes:
        """The encoded bytes of a screenshot of trajectory ``name``. Raises `ConfigError` where it cannot be read."""
        from computerrl.env_server.client import read_screenshot

        try:
            return read_screenshot(self.run.trajectories, ref)
        except (OSError, ValueError) as error:
            reason = f"a screenshot of {name} cannot be read: {error}"
            step = f"copy the whole of {self.run.trajectories} here; --no-screenshots exports jsonl and parquet without them"
            raise ConfigError([Problem("screenshots", reason, step)]) from None

    @cached_property
    def tokenizer(self) -> FolderTokenizer:
        """The tokenizer of the run's model."""
        from computerrl.actor.prompts.tokenizer import FolderTokenizer

        return FolderTokenizer(self.model)

    @cached_property
    def builder(self) -> PromptBuilder:
        """The builder of the run's prompts, which reads completions as its actors did."""
        from computerrl.actor.prompts.builder import builder_of_run, unreadable

        return builder_of_run(self.config, self.model, self.tokenizer, read=unreadable)
