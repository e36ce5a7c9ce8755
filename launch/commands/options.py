"""Arguments and options that several commands of `computerrl` have, and how its help lists them.

The types of arguments find what a person names, a run or a configuration, before a command imports anything.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from computerrl.launch.plan.config_files import EXAMPLE, find_config, find_site, is_override

if TYPE_CHECKING:
    from computerrl.common.config import RunConfig


class ConfigFile(click.ParamType):
    """The path of a configuration file, or a name in configs/."""

    name = "config"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The file. Raises `ConfigError`."""
        path = find_config(str(value))
        if str(path) != str(Path(value)):
            click.echo(f"configuration: {path}", err=True)
        return path


class Run(click.ParamType):
    """A run folder: a path, a name below runs/, or `latest`."""

    name = "run"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The folder. Raises `ConfigError`."""
        from computerrl.launch.plan.run_names import find_run

        return find_run(str(value))


class Number(click.FloatRange):
    """A number within bounds; NaN is within none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number. Refuses what is none."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is no number", param, ctx)
        return number


class OutFile(click.Path):
    """A file to write, in a folder that is there."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path. Refuses one that nothing can be written to before the work begins."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not os.path.isdir(path.parent):
            self.fail(f"there is no folder {str(path.parent)!r:.200}", param, ctx)
        return path


class Host(click.ParamType):
    """An address of this machine, as a number; written as in `bind_address`."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The number. Raises `ConfigError`."""
        from computerrl.common.errors import ConfigError, Problem, SetupError
        from computerrl.common.wire.addresses import own_address

        try:
            return own_address(str(value))
        except SetupError as error:
            raise ConfigError([Problem("--host", error.problem.reason, error.problem.next_step)]) from None


class Site(click.ParamType):
    """A site profile: a name in configs/sites/ or a path, which `common.config.load_site` checks."""

    name = "site"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The profile's path where it is known."""
        return find_site(str(value))


PRINT_CONFIG = click.option("--print-config", is_flag=True, help="Print the resolved configuration, too.")
RUN = click.argument("run", default="latest", type=Run(), metavar="[RUN]")
SET = click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a field; may be given often.")


def with_config(*, is_required: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command ``config``, the file of a run's configuration, and ``overrides``, the fields to set in it.

    A command line has CONFIG as its first word or after --config, KEY=VALUE as further words or after --set. Without
    ``is_required`` the command may get None for ``config``.
    """
    words = "CONFIG [KEY=VALUE]..." if is_required else "[CONFIG] [KEY=VALUE]..."

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @click.argument("words", nargs=-1, metavar=words)
        @SET
        @click.option("--config", "named", metavar="CONFIG", help="The same as CONFIG.")
        @functools.wraps(command)
        def run(words: tuple[str, ...], named: str | None, overrides: tuple[str, ...], **options: Any) -> Any:
            text, more = split_words(words, named)
            if text is None and is_required:
                raise click.UsageError(f"Missing argument 'CONFIG': a YAML file, for example {EXAMPLE}")
            config = None if text is None else ConfigFile().convert(text, None, None)
            return command(config=config, overrides=(*overrides, *more), **options)

        return run

    return decorate


def split_words(words: Sequence[str], named: str | None) -> tuple[str | None, list[str]]:
    """(CONFIG or None, overrides) of a command line. Raises `click.UsageError` for a second CONFIG."""
    overrides = [word for word in words if is_override(word)]
    files = [word for word in words if not is_override(word)] + ([] if named is None else [named])
    if len(files) > 1:
        raise click.UsageError(f"one CONFIG is enough, these are {len(files)}: {', '.join(files)}; a field is set with KEY=VALUE")
    return (files[0] if files else None), overrides


def print_resolved(config: RunConfig, *, path: Path) -> None:
    """Print ``config``, which was read from ``path``, as YAML that is a configuration again."""
    import yaml

    click.echo(f"# {path}, resolved\n{yaml.safe_dump(config.model_dump(mode='json'), sort_keys=False)}")


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
