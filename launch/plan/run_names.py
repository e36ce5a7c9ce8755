"""Which run folder a command means: a new one, the one to resume, or the one a person names.

`computerrl train` never touches an existing run: when `runs/quickstart` is there, the new run is `runs/quickstart-2`, and
`runs/latest` points at it. `--resume` continues the newest of that name. Reads and names folders; only `claim` makes one.
Imports no library: a command that is given a wrong name ends before it imports what does its work.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from computerrl.common.errors import ConfigError, Problem, ResumeError
from computerrl.common.host import Dtype
from computerrl.common.models.hub import cached_folder, is_hub_name, snapshot_at

if TYPE_CHECKING:
    from computerrl.common.config import RunConfig

CONFIG_FILE, REPORT_FILE, LOCK_FILE = "config.yaml", "report.json", ".lock"

MAY_CHANGE = re.compile(
    r"""name | run_dir | supervisor\..* | cluster\..* | .*bind_address | .*num_threads | .*_deadline_s
    | broker\.(?!eta$).* | desktop\.(num_desktops|memory_per_desktop_mb|image|lease_time_limit_s|settle_.*)
    | actor\.(num_actors|num_episodes|inference|num_engines)
    | learner\.(checkpoint_every_updates|num_checkpoints_kept|weight_.*|device)
    | learner\.(num_ranks|rank_timeout_s|activation_checkpointing|context_parallel_size)
    | learner\.optimizer\.offload
    | learner\.recipe\.(max_updates|max_run_s|max_rl_s|target_success)""",
    re.VERBOSE,
)
"""Fields that a resumed run may have changed: they say where, how fast and how long, not what is learned."""


def runs_named(run_dir: Path, name: str) -> list[Path]:
    """Run folders of ``name``, oldest first: `name`, `name-2`, `name-3`, ..."""
    pattern = re.compile(rf"{re.escape(name)}(?:-(\d+))?")
    found = []
    for folder in run_dir.iterdir() if run_dir.is_dir() else ():
        match = pattern.fullmatch(folder.name)
        if match and folder.is_dir():
            found.append((int(match[1] or 1), folder))
    return [folder for _, folder in sorted(found)]


def claim(config: RunConfig) -> RunConfig:
    """``config`` under an unused name, with its folder made. Other users cannot read the folder, which gets prompts,
    screenshots and logs. Two callers at once get two names. Raises `ConfigError`."""
    run_dir = Path(config.run_dir)
    try:
        return _claim(config, run_dir)
    except OSError as error:
        reason = f"no run folder can be made in {run_dir.absolute()}: {error.strerror}"
        raise ConfigError([Problem("run_dir", reason, "choose a folder that you can write to: run_dir=FOLDER")]) from None


def _claim(config: RunConfig, run_dir: Path) -> RunConfig:
    run_dir.mkdir(parents=True, exist_ok=True)
    there = runs_named(run_dir, config.name)
    counter = int(there[-1].name.rpartition("-")[2]) if there and there[-1].name != config.name else len(there)
    while True:
        counter += 1
        name = config.name if counter == 1 else f"{config.name}-{counter}"
        try:
            (run_dir / name).mkdir(mode=0o700)
        except FileExistsError:
            continue
        return with_pinned_model(config.model_copy(update={"name": name}))


def with_pinned_model(config: RunConfig) -> RunConfig:
    """``config`` with the folder in the hub's cache in place of a model's name on the hub. The path names the revision, which the
    run keeps when a newer one is fetched."""
    folder = cached_folder(config.model.name) if is_hub_name(config.model.name) else None
    return config if folder is None else _with_model(config, name=str(folder))


def find_resumable(config: RunConfig) -> RunConfig:
    """``config`` under the name of the newest run of that name. Raises `ResumeError` when there is none or it does not fit."""
    there = [folder for folder in runs_named(Path(config.run_dir), config.name) if (folder / CONFIG_FILE).is_file()]
    if not there:
        raise ResumeError(f"there is no run {config.name!r} in {config.run_dir}\n    -> leave out --resume to start one")
    folder = there[-1]
    config = with_recorded_model(config, folder)
    different = changed_fields(read_resolved(folder), config.model_dump(mode="json"))
    forbidden = [line for field, line in different.items() if not MAY_CHANGE.fullmatch(field)]
    if forbidden:
        raise ResumeError(
            f"{folder} was started with another configuration; these fields differ:\n"
            + "\n".join(f"    {line}" for line in forbidden)
            + "\n    -> set them back, or leave --resume out to start a new run"
        )
    if is_finished(folder) and not any(field.startswith("learner.recipe.") for field in different):
        raise ResumeError(
            f"{folder} has finished: nothing is left to do\n"
            f"    -> see {folder}/report.html; start a new run without --resume, or raise learner.recipe.max_updates"
        )
    return config.model_copy(update={"name": folder.name})


def with_recorded_model(config: RunConfig, folder: Path) -> RunConfig:
    """``config`` with the number type that the run in ``folder`` was started with, where ``config`` sets none, and with the run's
    revision of a model that ``config`` names as on the hub."""
    recorded = read_resolved(folder)["model"]
    pinned = snapshot_at(Path(str(recorded["name"])))
    if pinned is not None and pinned.name == config.model.name and is_hub_name(config.model.name):
        config = _with_model(config, name=recorded["name"])
    given = "model" in config.model_fields_set and "dtype" in config.model.model_fields_set
    if given or recorded.get("dtype") not in get_args(Dtype):
        return config
    return _with_model(config, dtype=recorded["dtype"])


def _with_model(config: RunConfig, **fields: str) -> RunConfig:
    return config.model_copy(update={"model": config.model.model_copy(update=fields)})


_READ_OF_RUNS = ("model.name", "desktop.driver", "learner.max_age", "learner.recipe", "actor.num_actors")
"""Fields of a run's configuration that reports, pages and evaluations of it read, one at least of each section."""


def read_resolved(folder: Path) -> dict[str, Any]:
    """The configuration a run was started with. Raises `ResumeError` when it cannot be read, or another version wrote it."""
    import yaml

    try:
        tree = yaml.safe_load((folder / CONFIG_FILE).read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ResumeError(f"{folder / CONFIG_FILE} cannot be read: {error}\n    -> start a new run") from None
    except RecursionError:
        raise ResumeError(f"{folder / CONFIG_FILE} is nested too deeply\n    -> start a new run") from None
    if not isinstance(tree, dict):
        raise ResumeError(f"{folder / CONFIG_FILE} contains no configuration\n    -> start a new run")
    for field in _READ_OF_RUNS:
        section, _, name = field.partition(".")
        if not isinstance(tree.get(section), dict) or name not in tree[section]:
            raise ResumeError(
                f"{folder} was made by another version: its configuration has no {field}\n"
                f"    -> start a new run, or use the version named in {folder / 'versions.json'}"
            )
    return tree


def changed_fields(before: dict[str, Any], now: dict[str, Any], *, prefix: str = "") -> dict[str, str]:
    """Dotted field -> `field: before -> now` for every value that differs."""
    changed: dict[str, str] = {}
    for key in sorted(before.keys() | now.keys()):
        field, old, new = f"{prefix}{key}", before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            changed.update(changed_fields(old, new, prefix=f"{field}."))
        elif old != new:
            changed[field] = f"{field}: was {old!r}, is {new!r} now"
    return changed


def is_finished(folder: Path) -> bool:
    """The run's recipe was played to its end."""
    try:
        return bool(json.loads((folder / REPORT_FILE).read_text())["finished"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def find_run(text: str) -> Path:
    """The run folder a person means: a path, a name below runs/, or `latest`. Raises `ConfigError`."""
    for folder in (Path(text), Path("runs") / text):
        if os.path.isfile(folder / CONFIG_FILE):  # False for a name that no file can have, too.
            return folder
    names = sorted(path.parent.name for path in Path("runs").glob(f"*/{CONFIG_FILE}"))
    step = f"use one of {', '.join(names)}" if names else "start one with `computerrl train CONFIG`"
    raise ConfigError([Problem("RUN", f"{text!r} is not a run folder (it has no {CONFIG_FILE})", step)])


def find_runs(run_dir: Path) -> list[Path]:
    """The run folders in ``run_dir``. Raises `ConfigError` when there is none."""
    found = [path.parent for path in run_dir.glob(f"*/{CONFIG_FILE}") if not path.parent.is_symlink()]  # not `latest`
    if not found:
        raise ConfigError([Problem("FOLDER", f"there is no run in {run_dir}", "start one with `computerrl train CONFIG`")])
    return sorted(found)


def find_checkpoint(text: str) -> tuple[Path, Path | None]:
    """(run folder, checkpoint folder) a person means: a folder of some run's checkpoints/, or a run as in `find_run` and None.

    Raises `ConfigError`, for a run without checkpoints, too.
    """
    path = Path(os.path.realpath(text))  # checkpoints/latest is a link.
    run = path.parent.parent
    if path.parent.name == "checkpoints" and os.path.isdir(path) and (run / CONFIG_FILE).is_file():
        return run, path
    run = find_run(text)
    if not _has_checkpoint(run):
        others = sorted(filter(_has_checkpoint, Path("runs").glob("*")), key=lambda folder: folder.stat().st_mtime)
        step = f"use {others[-1]}, which has one" if others else "wait until the run has written one"
        raise ConfigError([Problem("CHECKPOINT", f"{run} has no checkpoint", step)])
    return run, None


def _has_checkpoint(run: Path) -> bool:
    return (run / CONFIG_FILE).is_file() and any((run / "checkpoints").glob("checkpoint-*"))


def point_latest(folder: Path) -> None:
    """`runs/latest` -> this run."""
    link = folder.parent / "latest"
    if link.exists() and not link.is_symlink():
        return  # a run of this name
    temporary = folder.parent / f".latest.{os.getpid()}"
    temporary.symlink_to(folder.name)
    temporary.replace(link)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the run: two supervisors on one folder would train everything twice. Raises `ResumeError` when it is held."""
    with (folder / LOCK_FILE).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ResumeError(
                f"{folder} is being run by process {file.read().strip() or 'unknown'}\n"
                "    -> stop that one first (Ctrl-C, or kill PID)"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def new_attempt(folder: Path) -> Path:
    """The log folder of this attempt: `logs/1`, `logs/2`, ..., with `logs/latest` pointing at it."""
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    number = 1 + max((int(path.name) for path in logs.iterdir() if path.name.isdigit()), default=0)
    (logs / str(number)).mkdir()
    point_latest(logs / str(number))
    return logs / str(number)
