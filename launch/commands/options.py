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
from click.shell_completion import CompletionItem

from computerrl.launch.plan.config_files import EXAMPLE, config_names, find_config, find_site, is_override, site_names

if TYPE_CHECKING:
    from computerrl.common.config import RunConfig
    from computerrl.launch.commands.measure import Kind


def _items(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """What a shell offers: those of ``names`` that begin as typed; files where none does."""
    found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


class ConfigFile(click.ParamType):
    """The path of a configuration file, or a name in configs/."""

    name = "config"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Names in configs/, or files."""
        return _items(config_names(), incomplete)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The file. Raises `ConfigError`."""
        path = find_config(str(value))
        if str(path) != str(Path(value)):
            click.echo(f"configuration: {path}", err=True)
        return path


class Run(click.ParamType):
    """A run folder: a path, a name below runs/, or `latest`."""

    name = "run"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Names below runs/, or files."""
        runs = sorted(os.listdir("runs")) if os.path.isdir("runs") else []
        return _items(runs, incomplete)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The folder. Raises `ConfigError`."""
        from computerrl.launch.plan.run_names import find_run

        return find_run(str(value))


class RunOrRecording(Run):
    """A run folder, or the file of a demonstration that a person recorded."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The folder or the file. Raises `ConfigError`."""
        if str(value).endswith(".json") and os.path.isfile(value):
            return Path(value)
        return super().convert(value, param, ctx)


class Number(click.FloatRange):
    """A number within bounds. NaN is out of all bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number. Refuses NaN."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number

    def _describe_range(self) -> str:
        """The bounds for the help page; empty without bounds, where click would show `x<=None`."""
        return "" if self.min is None and self.max is None else super()._describe_range()


class OutFile(click.Path):
    """A file to write, in a folder that exists."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path. Refuses one in a folder that does not exist, before the work begins."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not os.path.isdir(path.parent):
            self.fail(f"there is no folder {str(path.parent)!r:.200}; make it first", param, ctx)
        return path


class Host(click.ParamType):
    """An IP address of this machine, written as in `bind_address`."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The IP address. Raises `ConfigError`."""
        from computerrl.common.errors import ConfigError, Problem, SetupError
        from computerrl.common.wire.addresses import own_address

        try:
            return own_address(str(value))
        except SetupError as error:
            raise ConfigError([Problem("--host", error.problem.reason, error.problem.next_step)]) from None


class Site(click.ParamType):
    """A site profile: a name in configs/sites/ or a path. `common.config.load_site` checks it."""

    name = "site"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Names in configs/sites/, or files."""
        return _items(site_names(), incomplete)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The path of the profile where the name is known, else ``value``."""
        return find_site(str(value))


PRINT_CONFIG = click.option("--print-config", is_flag=True, help="Also print all values of the configuration.")
RUN = click.argument("run", default="latest", type=Run(), metavar="[RUN]")
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
SET = click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Set a field; may be repeated.")


def with_config(*, is_required: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator that passes a command ``config``, the file of a run's configuration, and ``overrides``, the fields to set.

    A command line has CONFIG as words or after --config, and KEY=VALUE as words or after --set. What later files set overrides
    the earlier ones, KEY=VALUE all of them. Without ``is_required``, ``config`` may be None.
    """
    words = "CONFIG... [KEY=VALUE]..." if is_required else "[CONFIG]... [KEY=VALUE]..."

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @click.argument("words", nargs=-1, metavar=words, shell_complete=ConfigFile().shell_complete)
        @SET
        @click.option(
            "--config", "named", metavar="CONFIG", shell_complete=ConfigFile().shell_complete, help="CONFIG, as an option."
        )
        @functools.wraps(command)
        def run(words: tuple[str, ...], named: str | None, overrides: tuple[str, ...], **options: Any) -> Any:
            files, more = split_words(words, named)
            if not files and is_required:
                raise click.UsageError(f"Missing argument 'CONFIG': give a YAML file, for example {EXAMPLE}")
            paths = [ConfigFile().convert(text, None, None) for text in files]
            set_by_files = _set_by(paths[1:])
            config = paths[0] if paths else None
            return command(config=config, overrides=(*set_by_files, *overrides, *more), **options)

        return run

    return decorate


def split_words(words: Sequence[str], named: str | None) -> tuple[list[str], list[str]]:
    """(CONFIGs, overrides) of a command line. Raises `click.UsageError` for a CONFIG that is given twice, and for a value that
    the shell has split at its blanks."""
    overrides = [word for word in words if is_override(word)]
    files = ([] if named is None else [named]) + [word for word in words if not is_override(word)]
    cut = next((word for word in overrides if _is_open(word, "[]") or _is_open(word, "{}")), None)
    if cut is not None and len(files) > 1:
        whole = " ".join(words[words.index(cut) :])
        raise click.UsageError(f"{cut!r} lacks a closing bracket; put quotes around a value with blanks: '{whole}'")
    twice = next((text for text in files if files.count(text) > 1), None)
    if twice is not None:
        raise click.UsageError(f"CONFIG {twice!r} is given twice")
    return files, overrides


def _set_by(files: Sequence[Path]) -> list[str]:
    """What ``files`` set, as overrides, the last one's last. Raises `ConfigError`."""
    if not files:
        return []
    from computerrl.common.config import RunConfig
    from computerrl.common.config.reading import overrides_of

    return [override for path in files for override in overrides_of(path, RunConfig)]


def _is_open(word: str, brackets: str) -> bool:
    return word.count(brackets[0]) > word.count(brackets[1])


def print_resolved(config: RunConfig, *, path: Path) -> None:
    """Print ``config``, which was read from ``path``, as YAML that can be read as a configuration again."""
    import yaml

    click.echo(f"# {path}, resolved\n{yaml.safe_dump(config.model_dump(mode='json'), sort_keys=False)}")


class MeasuringCommand(click.Command):
    """A command that takes the name of a benchmark or of a study; with a name, its help has the text of that one as well."""

    def __init__(self, *args: Any, kind: Kind, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.kind = kind

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["words"] = list(args)
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from computerrl.launch.commands.measure import texts

        found = texts(self.kind)
        for name in filter(found.__contains__, ctx.meta["words"]):
            with formatter.section(f"The {self.kind} {name}"):
                formatter.write_text(found[name])


class SectionedGroup(click.Group):
    """A group whose help lists its commands under headings, in the order in which a newcomer needs them."""

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
