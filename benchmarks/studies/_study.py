"""The folder of a study: results that are kept as they come, and the files that are written of them.

    studies/NAME/cells/CELL.json   one result each, kept as soon as it is there; a result that is kept is not made again
    studies/NAME/data.json         all of them, a line each, with commit, processor and date; settings, machine, versions
    studies/NAME/data.csv          a line for each
    studies/NAME/table.md, plot.png, README.md   for people: the last holds the first two, and the limits of the study

A study is a question, cells (one run of one arm with one seed, for example) that answer it, and a way to draw them.
"""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from computerrl.benchmarks.studies._statistics import Record
from computerrl.common.clock import utc_now
from computerrl.common.errors import ConfigError, Problem, SetupError
from computerrl.common.run_files.run_folder import versions, write_atomically
from computerrl.launch.plan.machine import inspect_machine
from computerrl.launch.progress import Pace, Progress, duration


class Study:
    """The folder of one study."""

    def __init__(self, folder: Path, *, name: str, settings: Mapping[str, Any]) -> None:
        """``settings``: everything that results depend on, JSON-ready.

        Raises `ConfigError` when the folder holds results of other settings.
        """
        self.folder = folder.resolve()
        self.name = name
        self.settings = json.loads(json.dumps(settings))
        self._pace: Pace | None = None
        self._num_new = 0
        self._is_announced = False
        self._machine = inspect_machine().as_dict()
        self._versions = versions()
        self._cells = self.folder / "cells"
        try:
            self._cells.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SetupError(Problem(str(self._cells), f"cannot be made: {error.strerror}", "give another --out")) from None
        self._require_same_settings()

    def _require_same_settings(self) -> None:
        path = self.folder / "settings.json"
        if not path.exists():
            write_atomically(path, _json(self.settings))
            return
        before = json.loads(path.read_text(encoding="utf-8"))
        if before == self.settings:
            return
        differing = sorted(key for key in before.keys() | self.settings.keys() if before.get(key) != self.settings.get(key))
        reason = f"holds results of other settings ({', '.join(differing)})"
        raise ConfigError([Problem(str(self.folder), reason, "give another folder with --out, or remove this one")])

    def cell(self, key: str, make: Callable[[], Record], *, of: int, show: Callable[[Record], str] = lambda found: "") -> Record:
        """The result ``key``: the kept one, or else the result of ``make``, which is kept.

        ``of``: number of results of the study. ``show``: a result in a few words.
        """
        self.announce(of=of)
        kept = self.kept(key)
        if kept is not None:
            return kept
        began = time.monotonic()
        with self.progress(of=of):
            made = make()
        return self.keep(key, made, took_s=time.monotonic() - began, of=of, show=show)

    def announce(self, *, of: int) -> None:
        """Print once how many of the study's ``of`` results were there when it began, if any were."""
        num_kept = self._num_kept()
        if not self._is_announced and num_kept:
            print(f"begins with {num_kept} of {of} results: {self.folder}", flush=True)
        self._is_announced = True

    def progress(self, *, of: int) -> Progress:
        """Shows how many of the study's ``of`` results there are, while the next ones are made."""
        self.announce(of=of)
        if self._pace is None:
            self._pace = Pace(time.monotonic(), done=self._num_kept())
        self._pace.at(self._num_kept(), of, now=time.monotonic())
        return Progress(f"study {self.name}", unit="results", pace=self._pace)

    def _num_kept(self) -> int:
        return sum(1 for _ in self._cells.glob("*.json"))

    def kept(self, key: str) -> Record | None:
        """The result ``key``, None when there is none yet."""
        path = self.path(key)
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def keep(self, key: str, made: Record, *, took_s: float, of: int, show: Callable[[Record], str] = lambda found: "") -> Record:
        """Keep a result and print it. Commit, processor and date are kept with it: a study may go on elsewhere, or with newer
        code."""
        origin = {"commit": self._versions["commit"], "cpu": self._machine["cpu"], "date": utc_now()}
        found = {"cell": key, **made, "took_s": round(took_s, 1), **origin}
        write_atomically(self.path(key), _json(found))
        self._num_new += 1
        done, left = self._num_kept(), ""
        if self._pace is not None:
            self._pace.at(done, of, now=time.monotonic())
            left_s = self._pace.left_s(time.monotonic())
            left = f"; about {duration(left_s)} left" if left_s is not None else ""
        print(f"{done} of {of}: {key}: {show(found)} ({found['took_s']:.0f} s{left})", flush=True)
        return found

    def path(self, key: str) -> Path:
        """Where the result ``key`` is kept."""
        return self._cells / f"{key.replace('/', '_')}.json"

    def write(self, page: Page, cells: Sequence[Record], *, quick: bool, is_last: bool = True) -> None:
        """Write all files, for people and for programs, of all results. Print the table where there are new results, else a line
        if this is the study's last page (``is_last``)."""
        data = {
            "study": self.name,
            "quick": quick,
            "settings": self.settings,
            "machine": self._machine,
            "versions": self._versions,
            "cells": cells,
        }
        write_atomically(self.folder / "data.json", _with_lines(data, "cells"))
        _write_csv(self.folder / "data.csv", cells)
        (self.folder / "table.md").write_text(page.table, encoding="utf-8")
        page.draw(self.folder / "plot.png")
        (self.folder / "README.md").write_text(self._page(page, data), encoding="utf-8")
        if self._num_new:
            print(page.table)
        if self._num_new or is_last:
            print(f"{len(cells)} results: {self.folder / 'README.md'}", flush=True)
        self._num_new = 0

    def _page(self, page: Page, data: Mapping[str, Any]) -> str:
        machine, versions = data["machine"], data["versions"]
        hours = sum(float(cell["took_s"]) for cell in data["cells"]) / 3600
        origins = {(cell["commit"], cell["cpu"]) for cell in data["cells"]} - {(versions["commit"], machine["cpu"])}
        settings = "\n".join(f"- {key}: {json.dumps(value)}" for key, value in self.settings.items())
        command = f"computerrl study {self.name}{' --quick' if data['quick'] else ''}"
        return (
            "\n\n".join(
                [
                    f"# {page.title}",
                    *(
                        ["**This is the quick form: it shows that the study works, and answers nothing.**"]
                        if data["quick"]
                        else []
                    ),
                    page.question.strip(),
                    "## What came out",
                    page.table.strip(),
                    "![plot](plot.png)",
                    "## What this does not show",
                    "\n".join(f"- {line}" for line in page.limits),
                    "## How it was made",
                    f"`{command}`, {hours:.1f} hours in all. {machine_in_words(machine)}, {machine['system']}; "
                    + ", ".join(f"{name} {version}" for name, version in versions.items())
                    + "."
                    + "".join(f" Some results are of commit {commit} on {cpu}." for commit, cpu in sorted(origins)),
                    settings,
                    "All results, one by one, are in data.json and data.csv.",
                ]
            )
            + "\n"
        )


def restore(folder: Path, file: Path, *, name: str) -> None:
    """Put the results in ``file``, a data.json of study ``name``, into ``folder`` as if they had been made there; one that is
    there already stays. Raises `ConfigError` when ``file`` is not such a file."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        found = {"study": data["study"], "settings": data["settings"], "cells": {cell["cell"]: cell for cell in data["cells"]}}
    except OSError as error:
        raise ConfigError([Problem(str(file), f"cannot be read: {error.strerror}", "give the data.json of a study")]) from None
    except (ValueError, KeyError, TypeError):
        raise ConfigError([Problem(str(file), "is not the data.json of a study", "give one that a study wrote")]) from None
    if found["study"] != name:
        reason = f"holds results of study {found['study']}, not of {name}"
        raise ConfigError([Problem(str(file), reason, f"run `computerrl study {found['study']}`, or give another file")])
    study = Study(folder, name=name, settings=found["settings"])
    for key, cell in found["cells"].items():
        if study.kept(key) is None:
            write_atomically(study.path(key), _json(cell))


def origin(data: Mapping[str, Any]) -> str:
    """Command, hours, machine, commits and days of ``data``, as far as they are known."""
    cells = data["cells"]
    hours = sum(float(cell["took_s"]) for cell in cells) / 3600
    commits: dict[str, set[str]] = {}
    for cell in cells:
        commits.setdefault(cell["cpu"], set()).add(cell["commit"][:8])
    where = " and ".join(f"{', '.join(sorted(found))} on {cpu}" for cpu, found in sorted(commits.items()))
    days = sorted({cell["date"][:10] for cell in cells if "date" in cell})
    when = f"; {' to '.join(dict.fromkeys([days[0], days[-1]]))}" if days else ""
    machine = machine_in_words({**data["machine"], "cpu": ", ".join(sorted(commits))})
    return (
        f"`computerrl study {data['study']}`, {len(cells)} results in {hours:.1f} hours; {machine}; "
        f"commit{'s' if sum(map(len, commits.values())) > 1 else ''} {where}{when}."
    )


def machine_in_words(machine: Mapping[str, Any]) -> str:
    """A machine as `launch.plan.machine` describes it, in a few words."""
    gpus = ", ".join(machine["gpus"]) if machine["gpus"] else "no GPU"
    return f"{machine['num_cores']} cores ({machine['cpu']}), {machine['memory_mb'] / 1024:.0f} GB, {gpus}"


@dataclass(frozen=True, slots=True)
class Page:
    """The text of a study's README.md."""

    title: str
    question: str
    """The question, the method, and the published answers."""
    table: str
    """Markdown."""
    draw: Callable[[Path], None]
    """Writes the plot."""
    limits: Sequence[str]
    """Things that the study does not show, a line each."""


def _write_csv(path: Path, cells: Sequence[Record]) -> None:
    flat = [{name: value for name, value in cell.items() if not isinstance(value, list | dict)} for cell in cells]
    names = list(dict.fromkeys(name for cell in flat for name in cell))
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.DictWriter(file, names)
        lines.writeheader()
        lines.writerows(flat)


def _json(tree: Any) -> bytes:
    return (json.dumps(tree, indent=1) + "\n").encode()


def _with_lines(tree: Mapping[str, Any], name: str) -> bytes:
    """JSON with a line for each item of the list ``name``, so that a changed result is a changed line; floats to six digits."""
    head = json.dumps({key: value for key, value in tree.items() if key != name}, indent=1).removesuffix("\n}")
    items = ",\n".join(json.dumps(_rounded(item)) for item in tree[name])
    return f'{head},\n "{name}": [\n{items}\n ]\n}}\n'.encode()


def _rounded(tree: Any) -> Any:
    """``tree`` with floats to six digits."""
    if isinstance(tree, float):
        return float(f"{tree:.6g}")
    if isinstance(tree, Mapping):
        return {key: _rounded(value) for key, value in tree.items()}
    return [_rounded(value) for value in tree] if isinstance(tree, list | tuple) else tree
