"""`computerrl export-trajectories`: writes a folder with the stored trajectories of a run, whole or not at all.

One trajectory is in memory at a time. The folder has another name until everything is written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from computerrl.common.errors import ConfigError, Problem
from computerrl.common.messages import ScreenshotRef
from computerrl.common.vision.encoded import image_type
from computerrl.launch.export.agentnet import NoCode, code_of
from computerrl.launch.export.conversations import Conversations, NoChat
from computerrl.launch.export.new_folder import require_new, written_whole
from computerrl.launch.export.parquet import StepTable, require_pyarrow
from computerrl.launch.export.records import step_rows, trajectory_tree
from computerrl.launch.export.stored import Selection, StoredRun
from computerrl.launch.export.tally import Tally
from computerrl.launch.progress import Tell, tell_nobody, tracked
from computerrl.launch.watch.run_state import Record

Format = Literal["jsonl", "parquet", "agentnet", "sft"]
FORMATS: tuple[Format, ...] = get_args(Format)
WITHOUT_SCREENSHOTS: tuple[Format, ...] = ("jsonl", "parquet")
"""Formats that may leave the screenshots out."""

ACCOUNT_FILE = "export.json"
"""In every export: the run, the format, and the counts of what was kept and left out."""
_ENDINGS = {"image/png": "png", "image/jpeg": "jpg", "image/webp": "webp"}


def export_trajectories(
    run: Path, out: Path, *, kind: Format, selection: Selection, has_screenshots: bool = True, tell: Tell = tell_nobody
) -> Tally:
    """Write the trajectories of ``run`` that ``selection`` takes into the new folder ``out``; gives the account.

    ``tell`` receives the number of trajectories that were looked at and the number of all.

    Raises `ConfigError` for an ``out`` that exists, a run or selection without trajectories, and a screenshot that cannot be
    read; `SetupError` for a missing pyarrow; `DiskFull`. Then there is no ``out``.
    """
    if kind == "parquet":
        require_pyarrow()
    require_new(out)
    stored = StoredRun(run)
    stored.check(selection)
    with written_whole(out) as aside:
        selection = replace(selection, is_solved=selection.is_solved or kind == "sft")
        export = _Export(stored, aside, selection, has_screenshots, tell)
        _WRITERS[kind](export)
        account = {"run": stored.name, "format": kind, **export.tally.as_dict()}
        (aside / ACCOUNT_FILE).write_text(json.dumps(account, indent=2) + "\n", encoding="utf-8")
        if not export.tally.kept["trajectories"]:
            reason = f"no trajectory of {stored.name} is left for {kind}\n{export.tally.table()}"
            raise ConfigError([Problem("RUN", reason, "choose other trajectories or another format")])
    return export.tally


@dataclass
class _Export:
    """One export at work."""

    stored: StoredRun
    folder: Path
    selection: Selection
    has_screenshots: bool
    tell: Tell

    def __post_init__(self) -> None:
        self.tally = Tally()

    def records(self) -> Iterator[Record]:
        """The chosen trajectories, in the order in which they were stored. Others are counted."""
        from computerrl.learner.poison import POISONS

        for name, row in tracked(self.stored.rows.items(), self.tell, total=len(self.stored.rows)):
            reason = self.selection.refusal(row)
            if not reason and row.get("outcome") in POISONS:
                reason = f"refused by the learner: {row['outcome']}"
            if not reason and not row["num_steps"]:
                reason = "without steps"
            if reason:
                self.tally.leave_out(reason, trajectories=1, steps=row["num_steps"])
            else:
                yield self.stored.read(name)

    def save_image(self, ref: ScreenshotRef, *, name: str, below: str) -> str:
        """Store a screenshot of trajectory ``name`` in the folder ``below``, once; gives its file name."""
        folder = self.folder / below
        folder.mkdir(parents=True, exist_ok=True)
        data = self.stored.screenshot(ref, name=name)
        file = folder / f"{ref.content_hash}.{_ENDINGS[image_type(data)]}"
        if not file.exists():
            file.write_bytes(data)
        return file.name

    def write_lines(self, path: Path, trees: Iterable[Any]) -> None:
        """``trees`` as JSON, one a line."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as file:
            for tree in trees:
                file.write(json.dumps(tree, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n")

    def trees(self, below: str) -> Iterator[dict[str, Any]]:
        """Each trajectory as `launch.export.records` has it, its screenshots stored in the folder ``below`` and named relative to
        the export."""
        for record in self.records():
            name = record["trajectory_id"]
            paths: dict[str, str] = {}
            if self.has_screenshots:
                for ref in self.stored.refs(name).values():
                    paths[ref.content_hash] = f"{below}/{self.save_image(ref, name=name, below=below)}"
            self.tally.keep(len(record["steps"]))
            yield trajectory_tree(record, path_of=paths.get if self.has_screenshots else None)


def _write_jsonl(export: _Export) -> None:
    export.write_lines(export.folder / "trajectories.jsonl", export.trees("screenshots"))


def _write_parquet(export: _Export) -> None:
    with StepTable(export.folder / "steps.parquet") as table:
        for record in export.records():
            name = record["trajectory_id"]
            refs = export.stored.refs(name)
            tree = trajectory_tree(record, path_of=(lambda content_hash: content_hash) if export.has_screenshots else None)
            for row in step_rows(tree):
                ref = refs.get(row["screenshot"] or "")
                data = None if ref is None else export.stored.screenshot(ref, name=name)
                row["screenshot"] = (
                    None if data is None else {"bytes": data, "path": f"{row['screenshot']}.{_ENDINGS[image_type(data)]}"}
                )
                table.add(row)
            export.tally.keep(len(record["steps"]))


def _write_agentnet(export: _Export) -> None:
    export.write_lines(export.folder / "trajectories.jsonl", _agentnet_trees(export))


def _agentnet_trees(export: _Export) -> Iterator[dict[str, Any]]:
    for record in export.records():
        done = [step for step in record["steps"] if step.get("format_ok") and not step.get("action_error")]
        try:
            if not done:
                raise NoCode("no action that was done")
            codes = [_agentnet_code(export.stored, step) for step in done]
        except NoCode as error:
            export.tally.leave_out(str(error), trajectories=1, steps=len(record["steps"]))
            continue
        if len(done) < len(record["steps"]):
            export.tally.leave_out("action that was not done", steps=len(record["steps"]) - len(done))
        refs = export.stored.refs(record["trajectory_id"])
        traj = []
        for index, (step, (action, code)) in enumerate(zip(done, codes, strict=True)):
            image = export.save_image(refs[step["screenshot"]["content_hash"]], name=record["trajectory_id"], below="images")
            said = step["action_text"].strip()
            value = {"observation": "", "thought": "" if said == action else said, "action": action, "code": code}
            traj.append({"index": index, "image": image, "value": value})
        export.tally.keep(len(traj))
        yield {
            "task_id": record["trajectory_id"],
            "instruction": record["instruction"],
            "task_completed": bool(record["success"]),
            "traj": traj,
        }


def _agentnet_code(stored: StoredRun, step: Record) -> tuple[str, str]:
    """(the step's action as one call of ours, its code). Raises `NoCode`."""
    from computerrl.common.actions import ActionSyntaxError, render_action
    from computerrl.common.messages import Observation

    shot = step.get("screenshot")
    if shot is None:
        raise NoCode("no screenshot")
    width, height = shot["width"], shot["height"]
    observation = Observation("", "", (), ScreenshotRef(**shot), width, height, "none", 0.0, "")
    try:
        action = stored.builder.parse(step["action_text"], observation)
    except ActionSyntaxError:
        raise NoCode("action that cannot be read again") from None
    return render_action(action), code_of(action, step.get("places") or (), width=width, height=height)


def _write_sft(export: _Export) -> None:
    chats = Conversations(export.stored)
    place = export.folder / "train" / "metadata.jsonl" if chats.shows_images else export.folder / "train.jsonl"
    export.write_lines(place, _chats(export, chats))


def _chats(export: _Export, chats: Conversations) -> Iterator[dict[str, Any]]:
    for record in export.records():
        name = record["trajectory_id"]
        samples, refs, num_kept = export.stored.samples(name), export.stored.refs(name), 0
        for number, step in enumerate(record["steps"]):
            try:
                if not step.get("format_ok") or step.get("action_error"):
                    raise NoChat("action that was not done")
                if number >= len(samples):
                    raise NoChat("tokens not stored")
                chat, shown = chats.chat(samples[number], step["action_text"].strip(), refs)
            except NoChat as error:
                export.tally.leave_out(str(error), steps=1)
                continue
            num_kept += 1
            if chats.shows_images:
                below = "train/images"
                # The key that Hugging Face's `datasets` reads as the column `images`.
                chat["file_names"] = [f"images/{export.save_image(refs[one], name=name, below=below)}" for one in shown]
            yield {**chat, "trajectory_id": name, "step": number, "family": record["family"]}
        if num_kept:
            export.tally.keep(num_kept)
        else:
            export.tally.leave_out("no step left", trajectories=1)


_WRITERS: dict[Format, Callable[[_Export], None]] = {
    "jsonl": _write_jsonl,
    "parquet": _write_parquet,
    "agentnet": _write_agentnet,
    "sft": _write_sft,
}
