"""`computerrl eval --grounding`: sample one answer of a policy to each picture of a data set, and score where they point.

An evaluation has a folder like a run's, but neither desktops nor processes: the engine samples in this process. Each answer is
journalled when it comes, and so `--resume` continues an evaluation that was broken off.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from computerrl.common.errors import ComputerRLError, ConfigError, EndpointRefused, PictureError, Problem, ResumeError
from computerrl.launch.plan.run_names import claim, find_resumable, locked
from computerrl.launch.progress import Progress, tracked
from computerrl.launch.run.evaluate import (
    FIGURES_FILE,
    PAGE_FILE,
    Wish,
    evaluated_model,
    evaluation_config,
    find_evaluated,
    remove_weights,
    run_name,
    with_weights,
)

if TYPE_CHECKING:
    from computerrl.actor.grounding import PicturePolicy
    from computerrl.common.config import RunConfig
    from computerrl.common.metrics import JsonLines
    from computerrl.launch.grounding.entries import Dataset, Entry, LeftOut
    from computerrl.launch.grounding.figures import Answered
    from computerrl.launch.grounding.pictures import Pictures
    from computerrl.launch.run.evaluate import Evaluated

ANSWERS_FILE = "answers.jsonl"
DATASET_FILE = "dataset.json"
"""Name, files and digest of the data set, which a resumed evaluation is held to."""

_ONE_PICTURE = (
    # There is one picture and no earlier step. Nothing is known that the picture does not show.
    "actor.prompt.images=1",
    "actor.prompt.image_stride=1",
    "actor.prompt.history_steps=0",
    "actor.prompt.window_title=false",
    # The engine samples in this process, with the present weights.
    "actor.inference=local",
    "actor.num_engines=1",
    "actor.older_policy_every=null",
    # Neither a learner nor desktops use the cores.
    "actor.num_threads=null",
)


def evaluate_grounding(wish: Wish, *, as_json: bool = False) -> int:
    """Carry ``wish`` out, print the table (or JSON) and write both files; gives the exit code. Raises typed errors."""
    from computerrl.launch.grounding.figures import table_of
    from computerrl.launch.grounding.folders import read_dataset
    from computerrl.launch.plan.processes import QUIET_LIBRARIES

    assert wish.grounding is not None
    os.environ.update(QUIET_LIBRARIES)  # Before any of them is imported: the engine is in this process.
    _require_alone(wish)
    dataset = read_dataset(wish.grounding)
    found = find_evaluated(wish)
    of_what = f"{found.name.removeprefix('eval-')}-{wish.grounding.resolve().name.removesuffix('.json')}"
    found = replace(found, name=run_name(of_what))
    config = evaluation_config(replace(wish, overrides=(*_ONE_PICTURE, *wish.overrides)), found)
    _require_images(config)
    if wish.resume:
        config = find_resumable(config)
        _require_same(config.folder, dataset)
    evaluation = _prepare(config, dataset)
    with _held(config, found, dataset, resume=wish.resume) as config:
        figures = evaluation.carry_out(config)
    print(json.dumps(figures, indent=2) if as_json else table_of(figures))
    print(f"evaluation: {config.folder / PAGE_FILE}", file=sys.stderr if as_json else sys.stdout, flush=True)
    return 0


def _require_alone(wish: Wish) -> None:
    """Raise `ConfigError` for options that are about tasks."""
    given = {"--tasks": wish.families is not None, "--episodes": wish.episodes is not None, "--rollouts": wish.rollouts > 1}
    problems = [
        Problem(option, "is about tasks, and --grounding plays none: every entry gets one answer", f"leave out {option}")
        for option, is_given in given.items()
        if is_given
    ]
    if problems:
        raise ConfigError(problems)


def _require_images(config: RunConfig) -> None:
    prompt = config.actor.prompt
    if not prompt.shows_images:
        reason = f"prompts of {prompt.format} show no pictures"
        raise ConfigError([Problem("actor.prompt.format", reason, "evaluate a vision-language model (docs/how-to/vision.md)")])


# --- the folder of the evaluation ------------------------------------------------------------------------------------


@contextmanager
def _held(config: RunConfig, found: Evaluated, dataset: Dataset, *, resume: bool) -> Iterator[RunConfig]:
    """Hold the folder of the evaluation, a new one unless ``resume``, while the model's weights are in it."""
    from computerrl.launch.run import local

    if not resume:
        config = claim(config)
    with locked(config.folder), local.naming_full_disk(config.folder):
        if not resume:
            config = local.prepared(config, lambda claimed: with_weights(claimed, found))
            _write_json(config.folder / DATASET_FILE, _record(dataset))
        local.begin(config, is_latest=False)
        yield config
        remove_weights(config.folder)


def _record(dataset: Dataset) -> dict[str, Any]:
    return {"name": dataset.name, "files": list(dataset.files), "digest": dataset.digest, "num_entries": len(dataset.entries)}


def _require_same(folder: Path, dataset: Dataset) -> None:
    """Raise `ResumeError` where the evaluation in ``folder`` has finished, or was begun with another data set."""
    if (folder / FIGURES_FILE).exists():
        raise ResumeError(f"{folder} has finished: nothing is left to do\n    -> see {folder / PAGE_FILE}")
    try:
        before = json.loads((folder / DATASET_FILE).read_text())
    except (OSError, ValueError) as error:
        raise ResumeError(f"{folder / DATASET_FILE} cannot be read: {error}\n    -> leave --resume out to begin anew") from None
    if before != _record(dataset):
        step = "give the same data set, or leave --resume out to begin anew"
        raise ResumeError(f"{folder} was begun with other annotations than those there now\n    -> {step}")


def _write_json(path: Path, tree: Any) -> None:
    from computerrl.common.run_files.run_folder import write_atomically

    write_atomically(path, json.dumps(tree, indent=2).encode())


# --- playing ---------------------------------------------------------------------------------------------------------


def _prepare(config: RunConfig, dataset: Dataset) -> _Evaluation:
    """Make the prompts and check all pictures, before a folder is made. Raises typed errors where nothing can be played."""
    from computerrl.actor.grounding import PicturePolicy
    from computerrl.launch.grounding.pictures import Pictures, check_pictures
    from computerrl.launch.run import local, preflight

    with Progress(f"checking {dataset.name}", unit="entries") as shown:
        fitting, left_out = check_pictures(tracked(dataset.entries, shown, total=len(dataset.entries)))
    _require_some(fitting, left_out, dataset)
    preflight.require(config, preflight.CHECKS_WITHOUT_DESKTOPS)
    local.make_model(config)
    pictures = Pictures()
    policy = PicturePolicy(config, read=pictures.read)
    entries, refused = _that_fit(policy, config, fitting)
    left_out += refused
    _require_some(entries, left_out, dataset)
    if left_out:
        first = left_out[0]
        _tell(f"{len(left_out)} of {len(dataset.entries)} entries are left out, the first for {first.reason}: {first.detail}")
    return _Evaluation(dataset, policy, pictures, entries, left_out)


def _require_some(playable: Sequence[object], left_out: Sequence[LeftOut], dataset: Dataset) -> None:
    if not playable:
        reason = f"no entry of {dataset.name} can be played, the first for {left_out[0].reason}: {left_out[0].detail}"
        raise ConfigError([Problem("--grounding", reason, f"use {dataset.name} as it is published")])


def _that_fit(
    policy: PicturePolicy, config: RunConfig, fitting: Sequence[tuple[Entry, tuple[int, int]]]
) -> tuple[list[Entry], list[LeftOut]]:
    """Entries whose pictures the model takes, and the others. Raises `ConfigError` where a prompt is longer than the budget."""
    from computerrl.common.messages import ScreenshotRef
    from computerrl.launch.grounding.entries import LeftOut

    limit = config.actor.prompt.max_prompt_tokens
    entries: list[Entry] = []
    left_out: list[LeftOut] = []
    longest, num_longer = (0, 0, 0), 0
    for entry, (width, height) in fitting:
        try:
            num_tokens = policy.num_tokens(ScreenshotRef("none", "none", 0, 0, width, height), entry.instruction)
        except PictureError as error:
            left_out.append(LeftOut(entry.key, "picture_refused", str(error)))
            continue
        entries.append(entry)
        longest = max(longest, (num_tokens, width, height))
        num_longer += num_tokens > limit
    if num_longer:
        needed, width, height = longest
        reason = f"{limit}, but {num_longer} of {len(fitting)} prompts are longer"
        reason += f", up to {needed} tokens with a picture of {width} x {height}"
        step = f"use --set actor.prompt.max_prompt_tokens={needed}, or lower max_pixels in the model's preprocessor_config.json"
        raise ConfigError([Problem("actor.prompt.max_prompt_tokens", reason, step)])
    return entries, left_out


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """What is played, and what plays it."""

    dataset: Dataset
    policy: PicturePolicy
    pictures: Pictures
    entries: list[Entry]
    """Entries that are played, in the order of the data set."""
    left_out: list[LeftOut]

    def carry_out(self, config: RunConfig) -> dict[str, Any]:
        """Sample an answer to each entry that has none yet; returns the figures, which also go into the two files."""
        from computerrl.common.metrics import JsonLines

        known = _read_answers(config.folder, self.dataset)
        waiting = [entry for entry in self.entries if entry.key not in known]
        _tell(f"{self.dataset.name}: {len(waiting)} answers to sample, {len(self.entries) - len(waiting)} known")
        left_out = self.left_out
        if waiting:
            # Not closed after an error: answers under way may come until the process has ended.
            journal = JsonLines(config.folder / ANSWERS_FILE)
            with closing(self.policy):
                self.policy.start(config)
                left_out = left_out + self._play(waiting, journal, num_at_a_time=config.actor.num_episodes)
            journal.close()
        return _write_evaluation(config, self.dataset, left_out)

    def _play(self, entries: Sequence[Entry], journal: JsonLines, *, num_at_a_time: int) -> list[LeftOut]:
        """Journal an answer to each of ``entries``; returns the entries that could not be played."""
        left_out = []
        pool = ThreadPoolExecutor(num_at_a_time, thread_name_prefix="grounding")
        has_failed = Event()

        def ask(entry: Entry) -> LeftOut | None:
            if has_failed.is_set():
                return None  # The thread was free before this entry could be cancelled.
            try:
                return self._ask(entry, journal)
            except BaseException:
                has_failed.set()
                raise

        try:
            with Progress(self.dataset.name, unit="answers", total=len(entries)) as shown:
                asked = [pool.submit(ask, entry) for entry in entries]
                for future in tracked(as_completed(asked), shown, total=len(entries)):
                    if (lacking := future.result()) is not None:
                        left_out.append(lacking)
        except (ComputerRLError, KeyboardInterrupt):
            _tell("the answers so far are kept: the same command with --resume continues this evaluation")
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        return left_out

    def _ask(self, entry: Entry, journal: JsonLines) -> LeftOut | None:
        """Sample one answer and journal it; returns the reason where there is none."""
        from computerrl.launch.grounding.entries import LeftOut

        try:
            answer = self.policy.answer(self.pictures.ref(entry.picture), entry.instruction)
        except PictureError as error:
            return LeftOut(entry.key, "picture_mismatch" if error.mismatch else "picture_unreadable", str(error))
        except EndpointRefused as error:
            return LeftOut(entry.key, "request_refused", error.reason)
        journal.append({"key": entry.key, **asdict(answer)})
        return None


def _read_answers(folder: Path, dataset: Dataset) -> dict[str, Answered]:
    """Key of an entry -> its answer, as far as the journal in ``folder`` has it; a torn line has none. Raises `ResumeError` for a
    line that was not written here."""
    from computerrl.common.metrics import read_json_lines
    from computerrl.launch.grounding.figures import Answered

    entries = {entry.key: entry for entry in dataset.entries}
    found = {}
    for line in read_json_lines(folder / ANSWERS_FILE):
        try:
            point = tuple(line["point"]) if line["point"] is not None else None
            found[line["key"]] = Answered(entries[line["key"]], line["kind"], line["text"], point, line["reason"])
        except (KeyError, TypeError) as error:
            step = "remove that line, or leave --resume out to begin anew"
            raise ResumeError(f"{folder / ANSWERS_FILE} has a line that is no answer ({error!r})\n    -> {step}") from None
    return found


def _write_evaluation(config: RunConfig, dataset: Dataset, left_out: Sequence[LeftOut]) -> dict[str, Any]:
    from computerrl.common.run_files.run_folder import write_atomically
    from computerrl.launch.grounding.figures import grounding_figures
    from computerrl.launch.grounding.page import make_page

    known = _read_answers(config.folder, dataset)
    answers = [known[entry.key] for entry in dataset.entries if entry.key in known]
    endpoint = config.actor.endpoint
    figures = {
        "name": config.folder.name,
        "model": evaluated_model(config.folder) or config.model.name,
        "endpoint": None if endpoint is None else endpoint.url,
        "temperature": config.learner.recipe.eval_temperature,
        "dataset": _record(dataset),
        # The picture of an answer may have gone since.
        **grounding_figures(answers, [one for one in left_out if one.key not in known]),
    }
    write_atomically(config.folder / PAGE_FILE, make_page(figures, answers).encode())
    # Last: an evaluation with this file has finished.
    _write_json(config.folder / FIGURES_FILE, figures)
    return figures


def _tell(line: str) -> None:
    """A line of progress; stdout belongs to the figures."""
    print(line, file=sys.stderr, flush=True)
