"""Arguments and options that several commands of `computerrl` have, and how its help lists them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

CONFIG = click.argument("config", type=click.Path(path_type=Path), metavar="CONFIG")
RUN = click.argument("run", default="latest", metavar="[RUN]")
SET = click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a field; may be given often.")


class SectionedGroup(click.Group):
    """A group whose help lists its commands under headings, in the order in which one meets them."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.sections: dict[str, list[str]] = {}

    def add_section(self, heading: str, commands: Iterable[click.Command]) -> None:
        """Add ``commands`` under ``heading``."""
        for command in commands:
            self.add_command(command)
            self.sections.setdefault(heading, []).append(command.name or "")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.commands))
        limit = formatter.width - formatter.indent_increment - width - 2
        for heading, names in self.sections.items():
            shown = [name for name in names if not self.commands[name].hidden]
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), self.commands[name].get_short_help_str(limit)) for name in shown])
