"""Checkpoints that are whole or not there: a folder of safetensors and JSON, checksummed, renamed into place.

    checkpoints/
      checkpoint-000007/   <section>.safetensors ...   state.json   files.json (size and CRC-32 of the others)
                           (<section>-00000-of-00002.safetensors ... where several ranks have written one: see `shards`)
      latest -> checkpoint-000007

A checkpoint costs the training thread a copy of the tensors; a background thread writes, syncs and renames. Sections that equal
those of the newest checkpoint are not written again: the new one takes them over (hard links) together with its place. No
pickle: tensors are in safetensors, everything else is in JSON. A damaged newest checkpoint is logged and the one before is used,
so the broker may only forget the groups that the oldest kept checkpoint covers (`CheckpointStore.covered_cursor`). The process
that loads takes the folder over: a learner that was suspended and replaced can write nothing into it when it wakes up. The
contents of the tensors do not matter here.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import threading
import time
import zlib
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from computerrl.common import log
from computerrl.common.errors import DiskFull, ResumeError, Superseded
from computerrl.learner.checkpoints.shards import ShardFiles, save_tensors, section_of

TRAINER = "trainer"
"""Section of a checkpoint with the trainer's state."""
_PREFIX = "checkpoint-"
_FORMAT = 2
"""Number of the layout, raised when it changes; a checkpoint of another format is refused."""


class StagedSection(Protocol):
    """Tensors that write themselves: copied already, and not all of them in this process."""

    def write(self, folder: Path, *, section: str) -> None:
        """Write and sync one or more files named after ``section``; in the background thread. Raises OSError."""
        ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that was read from disk."""

    number: int
    sections: dict[str, Mapping[str, torch.Tensor]]
    """Tensors by section. A section written in shards is a `learner.checkpoints.shards.ShardFiles`, which reads lazily."""
    state: dict[str, Any]


class CheckpointStore:
    """The checkpoints of a run."""

    def __init__(self, folder: Path, *, num_kept: int) -> None:
        self._folder = folder
        self.num_kept = num_kept
        """Number of the newest checkpoints that stay."""
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._cursors: dict[int, int] = {}
        """Number -> group cursor of every checkpoint that is whole on disk."""
        self._next_number = 0
        self._token = secrets.token_hex(4)
        self.last_write_s = 0.0
        """Time that the newest checkpoint took that was written whole."""
        folder.mkdir(parents=True, exist_ok=True)
        self._handle = _open(folder)

    # --- writing -----------------------------------------------------------------------------------------------------

    def save(
        self,
        sections: Mapping[str, Mapping[str, torch.Tensor] | StagedSection],
        state: Mapping[str, Any],
        *,
        cursor: int,
        sync_first: Sequence[Path] = (),
        unchanged: Collection[str] = (),
        keep: int | None = None,
    ) -> int:
        """Copy everything and write it in the background; waits for the one before. Returns its number.

        ``cursor``: the first group the state does not cover. ``sync_first``: files whose lengths ``state`` mentions.
        ``unchanged``: sections that are those of the newest checkpoint, which this one replaces; needs `has_newest`.
        ``keep``: number of an older checkpoint that stays, however many newer ones there are.
        Raises `DiskFull`, `Superseded` (another store has loaded since) or OSError of an earlier write.
        """
        self.wait()
        copies = {name: _copies(section) for name, section in sections.items()}
        text = json.dumps({"format": _FORMAT, "cursor": cursor, "state": state})
        number, self._next_number = self._next_number, self._next_number + 1
        self._thread = threading.Thread(
            target=self._write,
            args=(number, copies, text, cursor, tuple(sync_first), tuple(unchanged), keep),
            name="checkpoint",
            daemon=True,
        )
        self._thread.start()
        return number

    def has_newest(self) -> bool:
        """Did this process save a checkpoint, and is the newest still on disk?"""
        self.wait()
        return bool(self._cursors) and self._path(max(self._cursors)).is_dir()

    @property
    def next_number(self) -> int:
        """The number that the next `save` will return."""
        return self._next_number

    def read(self, number: int) -> Checkpoint:
        """A checkpoint of this run that is still kept. Raises `ResumeError`."""
        return read_checkpoint(self._path(number))

    def wait(self) -> None:
        """Wait until the checkpoint being written is on disk. Raises the error of the write."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    @property
    def busy(self) -> bool:
        """One is being written."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def covered_cursor(self) -> int:
        """Groups below this are covered by every kept checkpoint, so that none of them will be asked for again."""
        return min(self._cursors.values(), default=0)

    def _write(
        self,
        number: int,
        sections: dict[str, dict[str, torch.Tensor] | StagedSection],
        text: str,
        cursor: int,
        sync_first: tuple[Path, ...],
        unchanged: tuple[str, ...],
        keep: int | None,
    ) -> None:
        started = time.monotonic()
        final = self._path(number)
        # Other ranks know the draft by its path, which after a take-over is another learner's: its name is this one's alone.
        draft = self._own / f".{number:06d}-{self._token}.incomplete"
        try:
            for path in sync_first:
                _sync(path)
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir()
            replaced = max(self._cursors) if unchanged else None
            checksums = {} if replaced is None else _share(self._path(replaced), draft, unchanged)
            for name, section in sections.items():
                if isinstance(section, dict):
                    save_tensors(section, draft / f"{name}.safetensors")
                else:
                    section.write(draft, section=name)
            (draft / "state.json").write_text(text, encoding="utf-8")
            written = [path for path in sorted(draft.iterdir()) if path.name not in checksums]
            with ThreadPoolExecutor(max_workers=1) as pool:  # The disk writes while the processor reads.
                syncs = [pool.submit(_sync, path) for path in written]
                checksums |= {path.name: [path.stat().st_size, _crc_of(path)] for path in written}
                for sync in syncs:
                    sync.result()
            (draft / "files.json").write_text(json.dumps(checksums), encoding="utf-8")
            _sync(draft / "files.json")
            _sync(draft)
            draft.rename(final)
            self._point_latest_at(final)
            self._cursors[number] = cursor
            self._prune(replaced, keep)
            if replaced is None:
                self.last_write_s = time.monotonic() - started
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            self._error = self._failure(error)
        except Exception as error:  # noqa: BLE001
            # Thread boundary: the next `wait` raises it in the training thread.
            self._error = error

    def _failure(self, error: OSError) -> Exception:
        if error.errno == errno.ENOSPC:
            return DiskFull(f"no space for a checkpoint in {self._folder}: free some, then resume the run")
        if error.errno == errno.ENOENT and self._folder.is_dir() and not self._folder.samefile(self._own):
            return Superseded(f"a newer learner has taken over {self._folder}: this one must end")
        return error

    def _point_latest_at(self, target: Path) -> None:
        draft = self._own / ".latest"
        draft.unlink(missing_ok=True)
        draft.symlink_to(target.name)
        draft.replace(self._own / "latest")
        _sync(self._own)

    def _prune(self, replaced: int | None, keep: int | None) -> None:
        # Two that share a file do not protect each other from its damage: each of those that are kept has its own.
        others = [number for number in sorted(self._cursors) if number != replaced]
        for number in {*others[: -self.num_kept], *([] if replaced is None else [replaced])} - {keep}:
            shutil.rmtree(self._path(number), ignore_errors=True)
            del self._cursors[number]

    # --- reading -----------------------------------------------------------------------------------------------------

    def load(self) -> Checkpoint | None:
        """The newest whole checkpoint; None when there never was one. Damaged ones are set aside and named in the log.

        From now on only this store can write into the folder. Raises `ResumeError` when there are checkpoints and none is whole.
        """
        self._take_over()
        found = sorted(self._folder.glob(f"{_PREFIX}[0-9]*"), reverse=True)
        found = [path for path in found if path.suffix != ".damaged"]
        newest: Checkpoint | None = None
        for path in found:
            number = int(path.name.removeprefix(_PREFIX))
            self._next_number = max(self._next_number, number + 1)
            problem = _problem_of(path)
            if problem:
                log.get_logger().error("checkpoint.damaged", path=str(path), problem=problem)
                path.rename(path.with_name(path.name + ".damaged"))
                continue
            tree = json.loads((path / "state.json").read_text(encoding="utf-8"))
            self._cursors[number] = int(tree["cursor"])
            if newest is None:
                newest = _read(path)
        if found and newest is None:
            raise ResumeError(f"every checkpoint in {self._folder} is damaged: start the run anew, without --resume")
        return newest

    def close(self) -> None:
        """Wait like `wait`, and let go of the folder."""
        try:
            self.wait()
        finally:
            os.close(self._handle)

    # --- whose folder it is ------------------------------------------------------------------------------------------

    def _path(self, number: int) -> Path:
        return self._own / f"{_PREFIX}{number:06d}"

    @property
    def _own(self) -> Path:
        """The folder as this store opened it, whatever bears its name now."""
        return Path(f"/proc/self/fd/{self._handle}")

    def _take_over(self) -> None:
        """Move all checkpoints into a new folder of the same name; the old one, which others may have open, goes.

        Killed at any point, the next one does the rest: until all is moved nobody has trained on.
        """
        os.close(self._handle)
        old = self._folder.with_name(f".{self._folder.name}-before")
        if not old.exists():
            self._folder.rename(old)
        self._folder.mkdir(exist_ok=True)
        for path in sorted(old.iterdir()):
            if not path.name.startswith("."):  # Drafts are half a checkpoint.
                path.rename(self._folder / path.name)
        _sync(self._folder)
        shutil.rmtree(old)
        _sync(self._folder.parent)
        self._handle = _open(self._folder)


def read_checkpoint(path: Path) -> Checkpoint:
    """One checkpoint, for looking at: changes nothing, and may be done while its run goes on. Raises `ResumeError`."""
    problem = _problem_of(path)
    if problem:
        raise ResumeError(f"{path} is no whole checkpoint: {problem}")
    return _read(path)


def newest_checkpoint(folder: Path) -> Path:
    """The newest whole one of a run's ``folder`` of checkpoints. Changes nothing. Raises `ResumeError` when there is none."""
    for path in sorted(folder.glob(f"{_PREFIX}[0-9]*"), reverse=True):
        if path.suffix != ".damaged" and not _problem_of(path):
            return path
    raise ResumeError(f"there is no whole checkpoint in {folder}: the run has not come that far")


def _read(path: Path) -> Checkpoint:
    tree = json.loads((path / "state.json").read_text(encoding="utf-8"))
    files = sorted(path.glob("*.safetensors"))
    sections: dict[str, Mapping[str, torch.Tensor]] = {file.stem: load_file(file) for file in files if not section_of(file)}
    for name in sorted({section for section in map(section_of, files) if section}):
        sections[name] = ShardFiles([file for file in files if section_of(file) == name])
    return Checkpoint(int(path.name.removeprefix(_PREFIX)), sections, tree["state"])


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _problem_of(path: Path) -> str:
    """The fault of a checkpoint folder, in words; empty when it is whole."""
    try:
        files = json.loads((path / "files.json").read_text(encoding="utf-8"))
        for name, (num_bytes, crc) in files.items():
            file = path / name
            if file.stat().st_size != num_bytes:
                return f"{name} has {file.stat().st_size} bytes instead of {num_bytes}"
            if _crc_of(file) != crc:
                return f"{name} does not match its checksum"
        tree = json.loads((path / "state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        return f"{type(error).__name__}: {error}"
    if tree.get("format") != _FORMAT:
        return f"format {tree.get('format')}, this version reads {_FORMAT}"
    return ""


# --- nested state as tensors and JSON --------------------------------------------------------------------------------


def split_state(state: Any) -> tuple[dict[str, torch.Tensor], Any]:
    """A nested state (dicts, lists, tuples, tensors, plain values) as flat tensors and a JSON-ready rest."""
    tensors: dict[str, torch.Tensor] = {}

    def walk(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            name = f"t{len(tensors):05d}"
            tensors[name] = value
            return {"$tensor": name}
        if isinstance(value, Mapping):
            if all(isinstance(key, str) and not key.startswith("$") for key in value):
                return {key: walk(item) for key, item in value.items()}
            return {"$items": [[key, walk(item)] for key, item in value.items()]}
        if isinstance(value, tuple):
            return {"$tuple": [walk(item) for item in value]}
        if isinstance(value, list):
            return [walk(item) for item in value]
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise TypeError(f"a checkpoint cannot hold a {type(value).__name__}")

    rest = walk(state)
    return tensors, rest


def join_state(tensors: Mapping[str, torch.Tensor], rest: Any) -> Any:
    """Back from `split_state`."""
    if isinstance(rest, list):
        return [join_state(tensors, item) for item in rest]
    if not isinstance(rest, dict):
        return rest
    if "$tensor" in rest:
        return tensors[rest["$tensor"]]
    if "$items" in rest:
        return {key: join_state(tensors, item) for key, item in rest["$items"]}
    if "$tuple" in rest:
        return tuple(join_state(tensors, item) for item in rest["$tuple"])
    return {key: join_state(tensors, item) for key, item in rest.items()}


def trainer_state(checkpoint: Checkpoint) -> Any:
    """The trainer's state as `pack_run` got it; one of several ranks as a mapping that reads when asked."""
    found = checkpoint.sections[TRAINER]
    return found if isinstance(found, ShardFiles) else join_state(found, checkpoint.state[TRAINER])


def _copies(section: Mapping[str, torch.Tensor] | StagedSection) -> dict[str, torch.Tensor] | StagedSection:
    if isinstance(section, Mapping):
        return {name: _copy(tensor) for name, tensor in section.items()}
    return section


def _share(source: Path, draft: Path, sections: Collection[str]) -> dict[str, list[int]]:
    """Link the files of ``sections`` of the checkpoint ``source`` into ``draft``; their entries of files.json."""
    entries = json.loads((source / "files.json").read_text(encoding="utf-8"))
    shared: dict[str, list[int]] = {
        name: entry for name, entry in entries.items() if (section_of(Path(name)) or Path(name).stem) in sections
    }
    for name in shared:
        try:
            os.link(source / name, draft / name)
        except OSError:
            # Not every file system has links. A disk that is full says so here.
            shutil.copyfile(source / name, draft / name)
            _sync(draft / name)
    return shared


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy on the CPU that nothing else refers to."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def _crc_of(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            crc = zlib.crc32(chunk, crc)
    return crc


def _sync(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
