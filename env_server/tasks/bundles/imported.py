"""The folder that an import writes: copies of the bundles, and an index with every bundle and what is wrong with it."""

from __future__ import annotations

import functools
import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from computerrl.common.errors import ConfigError, Problem
from computerrl.common.run_files.run_folder import write_atomically
from computerrl.env_server.driver import TaskInstance
from computerrl.env_server.tasks.bundles.checks import applications, refusals
from computerrl.env_server.tasks.bundles.format import TASK_FILES, Bundle, is_task_name, read_bundle
from computerrl.env_server.tasks.bundles.hub import Hub
from computerrl.env_server.tasks.bundles.task import BundleTask
from computerrl.env_server.tasks.family import BUNDLE_PREFIX, Family
from computerrl.env_server.tasks.osworld.abilities import TOOLS_IMAGE, Refusal
from computerrl.env_server.tasks.osworld.check import Checked, Report
from computerrl.env_server.tasks.osworld.families import our_apps

INDEX = "index.json"
_TASKS, _WEB_APPS = "tasks", "web_apps"
_VERSION: Final = 1
_FIELD = "tasks.imported"
_MAX_INDEX_BYTES = 256 << 20


class Reason(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One reason why a bundle is broken, see `Refusal`."""

    kind: str
    where: str
    reason: str


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One bundle of the imported folder."""

    path: str
    """Name of its folder there."""
    id: str
    instruction: str = ""
    apps: tuple[str, ...] = ()
    """Applications by our names, the main one first."""
    has_solution: bool = False
    played: bool = False
    """Whether a desktop has shown that it pays 0 untouched, and 1 after its own solution."""
    broken: tuple[Reason, ...] = ()
    """Every reason why it is not played; empty: it is."""
    digest: str = ""
    """`Bundle.digest`; empty where the bundle could not be read."""
    hub_digest: str = ""
    """`Hub.digest` of the web applications that it names; empty: none."""


class Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All bundles of the imported folder, in the order of their names."""

    version: int
    format: str
    tasks: tuple[Entry, ...]
    image: str = "full"
    """Image of the desktops that it was checked for."""


_DECODER = msgspec.json.Decoder(Index)


def import_bundles(
    folder: Path,
    out: Path,
    *,
    image: str,
    web_apps: Path | None = None,
    tell: Callable[[float, float | None], None] = lambda done, total: None,
) -> Index:
    """Read each folder in ``folder`` as a bundle, copy those that can be played on ``image`` into ``out``, and write the index.
    ``web_apps``: a CUA-Gym-Hub with the web applications that bundles name; those that are needed are copied, too.
    ``tell`` receives the number of bundles that were read and of all.

    Runs nothing. Raises `ConfigError` for a wrong ``folder`` or ``out``.
    """
    paths = _bundle_folders(folder)
    hub = None if web_apps is None else Hub.open(web_apps, field="--web-apps")
    _prepare(folder, out)
    # An import that ends early leaves a folder that the next one may replace.
    write_index(out, Index(_VERSION, "cua-gym", (), image))
    entries: list[Entry] = []
    digest = functools.cache(lambda names: hub.digest(names) if hub and names else "")
    ids: set[str] = set()
    names: set[str] = set()
    for number, path in enumerate(paths):
        tell(number, len(paths))
        entry, bundle = _entry(path, image, hub)
        if bundle is not None and entry.id in ids:
            reason = Reason("broken", "id", f"{entry.id} is the id of another bundle")
            entry, bundle = msgspec.structs.replace(entry, broken=(*entry.broken, reason), digest=""), None
        elif bundle is not None and not entry.broken:
            entry = msgspec.structs.replace(entry, hub_digest=digest(tuple(bundle.web_names)))
        entries.append(entry)
        ids |= {entry.id} if bundle is not None else set()
        if bundle is not None and not entry.broken:
            _copy(bundle, out / _TASKS / entry.id)
            names |= set(bundle.web_names)
    if hub is not None:
        hub.copy(sorted(names), out / _WEB_APPS)
    index = Index(_VERSION, "cua-gym", tuple(entries), image)
    write_index(out, index)
    return index


def write_index(out: Path, index: Index) -> None:
    """Replace the index of the imported folder ``out``."""
    write_atomically(out / INDEX, msgspec.json.format(msgspec.json.encode(index), indent=1))


def read_index(folder: Path) -> Index:
    """The index of an imported folder. Raises `ConfigError`."""
    step = "give the folder that `computerrl tasks import` wrote"
    try:
        with open(folder / INDEX, "rb") as file:
            index = _DECODER.decode(file.read(_MAX_INDEX_BYTES))
    except OSError as error:
        reason = f"{str(folder)!r:.200} holds no {INDEX} that can be read: {error.strerror}"
        raise ConfigError([Problem(_FIELD, reason, step)]) from error
    except msgspec.MsgspecError as error:
        raise ConfigError([Problem(_FIELD, f"{str(folder / INDEX)!r:.200} is no index: {error}", step)]) from error
    for entry in index.tasks:
        if not entry.broken and not is_task_name(entry.id):
            raise ConfigError([Problem(_FIELD, f"{str(folder / INDEX)!r:.200} names a task {entry.id!r:.120}", step)])
    if index.version != _VERSION:
        reason = f"{str(folder)!r:.200} was written by another version ({index.version}, this is {_VERSION})"
        raise ConfigError([Problem(_FIELD, reason, "import the bundles again")])
    return index


def report_of(index: Index) -> Report:
    """The index as a report."""
    return Report(tuple(_checked(entry) for entry in index.tasks))


def with_report(index: Index, report: Report) -> Index:
    """``index`` after a play: tasks with what ``report`` says is wrong with them."""
    by_path = {task.path: task for task in report.tasks}
    return msgspec.structs.replace(
        index,
        tasks=tuple(
            msgspec.structs.replace(entry, played=by_path[entry.path].runnable, broken=_reasons(by_path[entry.path].refusals))
            for entry in index.tasks
        ),
    )


@functools.cache
def families(folder: Path) -> Mapping[str, Family]:
    """A family for each bundle of an imported folder that is not broken, by name. Raises `ConfigError` when there is none."""
    index = read_index(folder)
    found = {BUNDLE_PREFIX + entry.id: _family(folder, entry, index.image) for entry in index.tasks if not entry.broken}
    if not found:
        reason = f"all {len(index.tasks)} bundles of {str(folder)!r:.200} are broken"
        raise ConfigError([Problem(_FIELD, reason, f"see the reasons in {INDEX}, and import them again")])
    return found


def refusal(folder: Path, name: str) -> str:
    """Why the bundle of that family's name is broken; empty when the folder has none."""
    for entry in read_index(folder).tasks:
        if BUNDLE_PREFIX + entry.id == name and entry.broken:
            return "; ".join(str(Refusal(one.kind, one.where, one.reason)) for one in entry.broken)  # type: ignore[arg-type]
    return ""


def _bundle_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise ConfigError([Problem("DIR", f"there is no folder {str(folder)!r:.200}", "give the folder with the bundles")])
    if any((folder / name).exists() for name in TASK_FILES):
        raise ConfigError([Problem("DIR", f"{str(folder)!r:.200} is a bundle itself", "give the folder above it")])
    found = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not found:
        raise ConfigError([Problem("DIR", f"{str(folder)!r:.200} holds no folders", "give the folder with the bundles")])
    return found


def _prepare(folder: Path, out: Path) -> None:
    """Make ``out``, and clear away what an earlier import wrote there."""
    inside = os.path.realpath(out)
    if os.path.commonpath([inside, os.path.realpath(folder)]) == os.path.realpath(folder):
        reason = f"{str(out)!r:.200} lies in the folder of the bundles"
        raise ConfigError([Problem("OUT", reason, "name a folder beside it")])
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not (out / INDEX).is_file() and any(out.iterdir()):
            reason = f"{str(out)!r:.200} holds other files"
            raise ConfigError([Problem("OUT", reason, "name a new folder, or one that an import wrote")])
        (out / INDEX).unlink(missing_ok=True)
        for name in (_TASKS, _WEB_APPS):
            shutil.rmtree(out / name, ignore_errors=True)
        (out / _TASKS).mkdir()
    except OSError as error:
        reason = f"{str(out)!r:.200} cannot be written: {error.strerror}"
        raise ConfigError([Problem("OUT", reason, "name a folder that can be written")]) from error


def _entry(path: Path, image: str, hub: Hub | None) -> tuple[Entry, Bundle | None]:
    """The entry of the bundle in ``path``; the bundle itself where it could be read."""
    try:
        if path.is_symlink():
            raise ConfigError([Problem(f"{path}: folder", "is a link", "put the folder itself there")])
        bundle = read_bundle(path)
    except ConfigError as error:
        wrong = [Reason("broken", one.field.removeprefix(f"{path}: "), one.reason) for one in error.problems]
        return Entry(_shown(path.name), _shown(path.name), broken=tuple(wrong)), None
    entry = Entry(
        _shown(path.name),
        bundle.id,
        bundle.instruction,
        tuple(our_apps(applications(bundle))),
        has_solution=bool(bundle.solution),
        broken=_reasons(refusals(bundle, path, image=image, hub=hub)),
        digest=bundle.digest,
    )
    return entry, bundle


def _shown(name: str) -> str:
    """A name as text that can be written and printed, whatever characters it has."""
    return name if name.isprintable() else ascii(name)


def _reasons(found: Iterator[Refusal] | list[Refusal] | tuple[Refusal, ...]) -> tuple[Reason, ...]:
    return tuple(Reason(one.kind, one.where, one.reason) for one in found)


def _copy(bundle: Bundle, place: Path) -> None:
    for name, data in bundle.files.items():
        file = place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def _checked(entry: Entry) -> Checked:
    found = tuple(Refusal(one.kind, one.where, one.reason) for one in entry.broken)  # type: ignore[arg-type]
    return Checked(entry.path, entry.id, found, entry.instruction, entry.has_solution)


def _family(folder: Path, entry: Entry, image: str) -> Family:
    hub = Hub(folder / _WEB_APPS) if entry.hub_digest else None
    task = BundleTask(folder / _TASKS / entry.id, entry.digest, hub, entry.hub_digest)

    def build(_: random.Random) -> TaskInstance:
        return task.as_instance(entry.instruction)

    return Family(
        BUNDLE_PREFIX + entry.id,
        entry.apps[0] if entry.apps else "",
        entry.instruction,
        build,
        drivers=frozenset({"apptainer"}),
        has_demonstrator=False,
        is_default=False,
        more_apps=frozenset(entry.apps[1:]),
        needs_tools=image == TOOLS_IMAGE,
    )
