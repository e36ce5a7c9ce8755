"""What the site has beyond the Markdown of docs/: navigation, and the parts of pages that are made from the sources.

Pure but for reading files of the repository: text in, text out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from computerrl.common.actions.spec import ActionSpec, Param
from computerrl.common.actions.tables import TABLES
from computerrl.launch.commands.main import cli

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = {"CONTRIBUTING.md": "how-to/contributing.md", "CHANGELOG.md": "reference/changelog.md"}
"""Page beside docs/ -> the page of the site that holds it."""

_LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
_MARK = re.compile(r"^<!-- made: ([\w.-]+) -->$", re.MULTILINE)


def complete(text: str, name: str) -> str:
    """The Markdown ``text`` of the page ``name`` (a path below docs/, without ending) as the site shows it."""
    text = _MARK.sub(lambda mark: MADE[mark[1]](), text)
    if name == "index":
        text += navigation(text)
    return _relinked(text, f"docs/{name}")


def navigation(index: str) -> str:
    """Hidden tables of contents, one for each section of ``index``: the pages that the lists of the section name."""
    tables = []
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        pages = [page for page in re.findall(r"^- \[[^\]]+\]\(([^)#]+)\.md\)", body, re.MULTILINE) if not page.startswith("..")]
        tables.append("\n".join(["", "```{toctree}", ":hidden:", f":caption: {heading}", "", *pages, "```", ""]))
    return "".join(tables)


def _relinked(text: str, page: str) -> str:
    """``text`` with its links to pages beside docs/ turned to the pages of the site that hold them."""

    def turned(link: re.Match[str]) -> str:
        target = os.path.normpath(os.path.join(os.path.dirname(page), link[1]))
        if target not in OUTSIDE:
            return link[0]
        return f"]({os.path.relpath(f'docs/{OUTSIDE[target]}', os.path.dirname(page))}{link[2] or ''})"

    return _LINK.sub(turned, text)


def included(name: str) -> str:
    """The file ``name`` of the repository's top folder without its heading, with links from the page that holds it."""
    page = f"docs/{OUTSIDE[name]}"
    body = (ROOT / name).read_text(encoding="utf-8").partition("\n")[2]

    def moved(link: re.Match[str]) -> str:
        if link[1].startswith(("http:", "https:")):
            return link[0]
        return f"]({os.path.relpath(link[1], os.path.dirname(page))}{link[2] or ''})"

    return _LINK.sub(moved, body)


def commands() -> str:
    """Every command of `computerrl` that its help shows: usage, text, examples, arguments and options."""
    return "\n".join(line for heading, names in cli.sections.items() for line in _section(heading, names))


def _section(heading: str, names: list[str]) -> Iterator[str]:
    yield f"## {heading.rstrip(':')}\n"
    for name in names:
        yield from _command(cli.commands[name], f"computerrl {name}")


def _command(command: click.Command, path: str) -> Iterator[str]:
    if command.hidden:
        return
    context = click.Context(command, info_name=path)
    yield f"### {path}\n"
    yield f"```text\n{' '.join([path, *command.collect_usage_pieces(context)])}\n```\n"
    for paragraph in (command.help or "").split("\n\n"):
        lines = [line.strip() for line in paragraph.strip("\n").splitlines()]
        if lines[:1] == ["\b"]:
            yield "\n".join(["```text", *lines[1:], "```", ""])
        else:
            yield "\n".join([*lines, ""]).replace("<", "&lt;")
    options = [record for one in command.params if (record := one.get_help_record(context)) is not None and record[1]]
    if options:
        yield "| option | meaning |\n| --- | --- |"
        yield from (f"| `{words.replace('|', chr(92) + '|')}` | {_cell(meaning)} |" for words, meaning in options)
        yield ""
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from _command(inner, f"{path} {name}")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


APPLICATIONS = {
    "": "Mouse, keyboard, and the end of an episode",
    "calc": "LibreOffice Calc",
    "writer": "LibreOffice Writer",
    "impress": "LibreOffice Impress",
    "files": "Files",
    "editor": "Text editor",
    "apps": "All applications",
    "chrome": "Chromium",
    "vlc": "VLC",
    "code": "Visual Studio Code",
    "gimp": "GIMP",
}
"""Area of an action, the part of its name before the dot -> heading."""


def actions() -> str:
    """Every action that an agent has, application by application."""
    parts = []
    for table in TABLES:
        area = table[0].name.rpartition(".")[0]
        rows = (f"| `{_signature(spec)}` | {_cell(spec.help)} | {_values(spec)} |" for spec in table)
        parts.append(
            "\n".join([f"## {APPLICATIONS[area]}\n", "| action | what it does | values |", "| --- | --- | --- |", *rows, ""])
        )
    return "\n".join(parts)


def _signature(spec: ActionSpec) -> str:
    params = (one.name if one.default is ... else f"{one.name}={one.default!r}" for one in spec.params)
    return f"{spec.name}({', '.join(params)})".replace("|", "\\|")


def _values(spec: ActionSpec) -> str:
    return _cell("; ".join(f"{one.name}: {found}" for one in spec.params if (found := _value(one))))


def _value(param: Param) -> str:
    numbers = [one for one in param.choices if isinstance(one, int)]
    if numbers and len(numbers) == len(param.choices):
        return f"{min(numbers)} to {max(numbers)}"
    if param.choices:
        return ", ".join(f"`{one!r}`" for one in param.choices)
    return "a list" if list in param.kinds else ""


def api(*names: str) -> Callable[[], str]:
    """A maker of the documentation of ``names``, each `module:Class`, from their docstrings."""

    def make() -> str:
        blocks = (f".. autoclass:: {name.replace(':', '.')}\n" for name in names)
        return "\n".join(["```{eval-rst}", *blocks, "```"])

    return make


_ALGORITHMS = "computerrl.learner.algorithms"
MADE: dict[str, Callable[[], str]] = {
    "actions": actions,
    "commands": commands,
    **{name: (lambda name=name: included(name)) for name in OUTSIDE},
    "api.algorithms": api(
        *(f"{_ALGORITHMS}:{name}" for name in ("Algorithm", "TrainBatch", "LossBatch", "PolicyOutputs", "LossResult")),
        *(f"{_ALGORITHMS}:{name}" for name in ("PolicyAges", "StepTable", "GRPO")),
        *(
            f"{_ALGORITHMS}:{name}"
            for name in ("Refines", "LearnsValues", "SamplesDynamically", "ScalesLearningRate", "ChecksConfig")
        ),
    ),
    "api.rewards": api(*(f"computerrl.learner.rewards:{name}" for name in ("Reward", "RewardSetting", "RewardUnknown"))),
    "api.tasks": api(
        "computerrl.env_server.tasks.family:Family",
        "computerrl.env_server.driver:TaskInstance",
        "computerrl.env_server.driver:SetupStep",
        "computerrl.common.messages:Evaluation",
    ),
    "api.agents": api(*(f"computerrl.actor.agents.base:{name}" for name in ("Agent", "Conversation", "Sight", "Answer", "Call"))),
    "api.gym": api("computerrl.env_server.gym:DesktopEnv"),
}
"""Name of a mark -> the Markdown that stands there on the site."""
