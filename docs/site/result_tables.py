"""Writes the tables of docs/results/*.md from their data: `make results`.

A table stands between `<!-- table: FILE -->` and `<!-- end -->`, with a line below it on where its figures come from. FILE, a
path below docs/results, is one of

    data/NAME.json             the data.json of a study, as `computerrl study NAME` wrote it
    figures/PAGE.json TABLE    figures that other commands measured: table -> command, machine, commit, date, note (each may be
                               missing) and rows, each with its columns; or what `computerrl bench --json` wrote

Pure but for reading those files and writing the pages.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from computerrl.benchmarks.studies._catalogue import table_of
from computerrl.benchmarks.studies._statistics import markdown
from computerrl.benchmarks.studies._study import machine_in_words, origin
from computerrl.launch.commands.measure import number

RESULTS = Path(__file__).resolve().parents[1] / "results"
WIDTH = 100
_MARK = re.compile(r"^(<!-- table: ([\w/.-]+)(?: (\w+))? -->\n).*?^(<!-- end -->)$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`]+`")
_JOINED = "\N{NO-BREAK SPACE}"


def written(page: str, folder: Path = RESULTS) -> str:
    """The Markdown ``page`` with its tables as the data below ``folder`` gives them."""
    return _MARK.sub(lambda mark: f"{mark[1]}\n{made(folder / mark[2], mark[3])}\n{mark[4]}", page)


def sources(page: str) -> list[tuple[str, str | None]]:
    """(file, table) of every mark of ``page``."""
    return [(mark[2], mark[3]) for mark in _MARK.finditer(page)]


def made(file: Path, table: str | None) -> str:
    """The table of ``file`` in Markdown, and the line on its origin."""
    data = json.loads(file.read_text(encoding="utf-8"))
    if "study" in data:
        text, source = table_of(data), origin(data)
    else:
        text, source = _figures(data if table is None else data[table])
    return f"{_wrapped(text.rstrip())}\n\n{_filled(source)}\n"


def _figures(data: Mapping[str, Any]) -> tuple[str, str]:
    """(table, origin) of measured figures; a column that no row fills is left out."""
    columns = list(dict.fromkeys(name for row in data["rows"] for name, value in row.items() if value is not None))
    rows = [[number(row.get(name)) for name in columns] for row in data["rows"]]
    return markdown(columns, rows), "; ".join(_about(data)) + "."


def _about(data: Mapping[str, Any]) -> Iterator[str]:
    if data.get("command"):
        yield f"`{data['command']}`"
    if data.get("machine"):
        yield data["machine"] if isinstance(data["machine"], str) else machine_in_words(data["machine"])
    if data.get("commit"):
        yield f"commit {data['commit'][:8]}" if re.fullmatch(r"\w{40}", data["commit"]) else f"commit {data['commit']}"
    if data.get("date"):
        yield str(data["date"])[:10]
    if data.get("note"):
        yield data["note"]


def _wrapped(text: str) -> str:
    """``text`` with the prose between its tables filled."""
    return "\n".join(line if line.startswith("|") else _filled(line) for line in text.splitlines())


def _filled(text: str) -> str:
    """``text`` in lines of at most `WIDTH` columns; code stays on one line."""
    joined = _CODE.sub(lambda code: code[0].replace(" ", _JOINED), text)
    lines = textwrap.wrap(joined, WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace(_JOINED, " ")


def main() -> None:
    """Write the pages whose tables differ from their data."""
    for path in sorted(RESULTS.glob("*.md")):
        page = path.read_text(encoding="utf-8")
        if (now := written(page)) != page:
            path.write_text(now, encoding="utf-8")
            print(f"written: {path}")


if __name__ == "__main__":
    main()
