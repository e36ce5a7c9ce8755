"""`computerrl config`: the manual of the configuration, made from its classes. docs/reference/config.md is its `--markdown`."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from computerrl.launch.commands.options import AS_JSON

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from computerrl.common.config.base import Section

_TEXT_WIDTH, _MARKDOWN_WIDTH = 80, 100
_UNITS = {"s": "seconds", "mb": "MiB", "bytes": "bytes", "tokens": "tokens", "chars": "characters"}
"""Word at the end of a field's name, or before `_per_`, -> the unit that it stands for."""
_MIN_SIMILARITY = 0.75
"""Minimum similarity of a dotted path that is proposed."""
_TYPES: Mapping[Any, str] = {int: "integer", float: "number", str: "text", bool: "true or false", Any: "any value"}
_INTRODUCTION = """# Configuration

Every field of a run's configuration, of a site profile and of a host list. `computerrl config
SECTION` prints one section of this page. `computerrl config --markdown >
docs/reference/config.md` makes the page.

A configuration is a YAML file; those in `configs/` are complete examples. A field that the file
does not have takes its default. None is written `null`. `KEY=VALUE` on a command line sets a field
by its dotted path: `computerrl train quickstart learner.max_age=2`. `computerrl train quickstart
--print-config` prints all values of a run.
"""


@click.command("config", short_help="Print the fields of the configuration.")
@click.argument("section", required=False, metavar="[SECTION]")
@click.option("--markdown", is_flag=True, help="Print Markdown, as in docs/reference/config.md.")
@AS_JSON
def show_config(section: str | None, *, markdown: bool, as_json: bool) -> None:
    """Print each field of the configuration with its type, default, unit and meaning.

    SECTION is the dotted path of a section or of one field. Without SECTION, all sections are printed. `run` has the
    fields that are in no section, `site` those of a site profile, and `hosts` those of a host list. None is written null.

    \b
    computerrl config learner.recipe
    computerrl config learner.max_age
    computerrl config | less
    """
    if markdown and as_json:
        raise click.UsageError("give --markdown or --json, not both")
    if as_json:
        click.echo(json.dumps(fields(section), indent=2))
        return
    click.echo(manual(section, markdown=markdown), nl=False)


@dataclass(frozen=True, slots=True)
class _Part:
    """One section of a file."""

    name: str
    """Name of the section on the command line."""
    prefix: str
    """Text before the names of its fields in dotted paths of its file."""
    kind: type[Section]
    text: str
    fields: Mapping[str, FieldInfo]
    """The fields to show."""

    def full_name(self, field: str) -> str:
        """The name of ``field`` on the command line."""
        return field if self.name == "run" else f"{self.name}.{field}"


def manual(section: str | None = None, *, markdown: bool = False) -> str:
    """The text that the command prints. Raises `ConfigError` for a ``section`` that does not exist."""
    parts = _parts()
    chosen = parts if section is None else _choose(section, parts)
    shown: dict[type[Section], str] = {}
    pages = [_INTRODUCTION] if markdown and section is None else []
    for part in chosen:
        pages.append("\n".join(_lines(part, same_as=shown.get(part.kind), markdown=markdown)) + "\n")
        shown.setdefault(part.kind, part.name)
    return "\n".join(pages)


def fields(section: str | None = None) -> list[dict[str, Any]]:
    """The fields that the command prints, as JSON has them; one without `default` is required, or depends on the machine. Raises
    `ConfigError` for a ``section`` that does not exist."""
    parts = _parts()
    return [
        {
            "field": part.full_name(name),
            "type": _type_name(field.annotation),
            "limits": list(_limits(field.metadata)),
            "unit": _unit(name),
            "is_required": field.is_required(),
            **({} if field.is_required() or field.default_factory is not None else {"default": _json_value(field.default)}),
            "description": " ".join((field.description or "").split()),
        }
        for part in (parts if section is None else _choose(section, parts))
        for name, field in part.fields.items()
    ]


def _parts() -> list[_Part]:
    """All sections, in the order of the classes."""
    from computerrl.common.config import HostList, RunConfig, SiteProfile
    from computerrl.common.config.reading import fields_below, section_in

    def own_fields(kind: type[Section]) -> dict[str, FieldInfo]:
        return {name: field for name, field in kind.model_fields.items() if section_in(field.annotation) is None}

    found = []
    files: Mapping[str, type[Section]] = {"run": RunConfig, "site": SiteProfile, "hosts": HostList}
    for file, kind in files.items():
        found.append(_Part(file, "", kind, kind.__doc__ or "", own_fields(kind)))
        for path, field in fields_below(kind).items():
            section = section_in(field.annotation)
            if section is not None:
                name = path if file == "run" else f"{file}.{path}"
                without = (field.description or "").partition("None:")[2]
                optional = f" None (the default):{without}" if field.default is None else ""
                found.append(_Part(name, f"{path}.", section, f"{section.__doc__}{optional}", own_fields(section)))
    return found


def _choose(section: str, parts: Sequence[_Part]) -> list[_Part]:
    """The part ``section`` and those inside it, or the part of one field. Raises `ConfigError` with the nearest name."""
    import difflib

    from computerrl.common.errors import ConfigError, Problem

    inside = [part for part in parts if part.name == section or part.name.startswith(f"{section}.")]
    if inside:
        return inside
    full_names = {part.full_name(field): (part, field) for part in parts for field in part.fields}
    if section in full_names:
        part, field = full_names[section]
        return [replace(part, fields={field: part.fields[field]})]
    sections = [part.name for part in parts]
    last_words = {name.rpartition(".")[2]: name for name in reversed([*sections, *full_names])}
    near = (
        difflib.get_close_matches(section, sections, n=1, cutoff=_MIN_SIMILARITY)
        or difflib.get_close_matches(section, full_names, n=1, cutoff=_MIN_SIMILARITY)
        or [last_words[word] for word in difflib.get_close_matches(section.rpartition(".")[2], last_words, n=1)]
    )
    known = ", ".join(name for name in sections if "." not in name)
    step = f"did you mean {near[0]!r}? The sections are {known}" if near else f"use one of {known}"
    raise ConfigError([Problem("SECTION", f"there is no section or field {section!r}", step)])


def _lines(part: _Part, *, same_as: str | None, markdown: bool) -> Iterator[str]:
    """The lines of ``part``. ``same_as``: an earlier section of the same class, whose fields are not repeated."""
    width = _MARKDOWN_WIDTH if markdown else _TEXT_WIDTH
    yield f"## {part.name}\n" if markdown else f"[{part.name}]"
    yield from textwrap.wrap(" ".join(part.text.split()), width, break_on_hyphens=False)
    if same_as is not None:
        yield f"Its fields are those of {same_as}."
        return
    if markdown:
        yield ""
    for name, field in part.fields.items():
        facts = "; ".join(_facts(name, field))
        text = " ".join((field.description or "").split())
        if markdown:
            yield from textwrap.wrap(
                f"- **`{part.prefix}{name}`** ({facts}): {text}", width, subsequent_indent="  ", break_on_hyphens=False
            )
            continue
        yield f"\n{part.prefix}{name}"
        yield from textwrap.wrap(facts, width, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
        yield from textwrap.wrap(text, width, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)


def _facts(name: str, field: FieldInfo) -> Iterator[str]:
    """Type with its limits, unit and default of a field."""
    yield ", ".join([_type_name(field.annotation), *_limits(field.metadata)])
    if unit := _unit(name):
        yield f"unit {unit}"
    if field.is_required():
        yield "required"
    elif field.default_factory is not None:
        yield "default {}" if field.default_factory is dict else "default depends on the machine"
    else:
        yield f"default {_value(field.default)}"


def _unit(name: str) -> str | None:
    """The unit that the name of a field tells; None where it tells none."""
    words = (name.rpartition("_")[2], name.partition("_per_")[0].rpartition("_")[2])
    return next((_UNITS[word] for word in words if word in _UNITS), None)


def _type_name(annotation: Any) -> str:
    """The type ``annotation`` in words of YAML."""
    from types import UnionType
    from typing import Annotated, Literal, Union, get_args, get_origin

    from computerrl.common.config.base import Section

    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_name(inner[0])
    if origin is Literal:
        return " | ".join(map(str, inner))
    if origin in (Union, UnionType):
        return " or ".join("null" if one is type(None) else _type_name(one) for one in inner)
    if origin is dict:
        return f"mapping of {_type_name(inner[0])} to {_type_name(inner[1])}"
    if origin is tuple and inner[-1] is Ellipsis:
        return f"list of {_type_name(inner[0])}"
    if origin is tuple:
        return f"[{', '.join(map(_type_name, inner))}]"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return f"{{{', '.join(annotation.model_fields)}}}"
    return _TYPES[annotation]


def _limits(metadata: Sequence[Any]) -> Iterator[str]:
    """The limits of a number."""
    for rule, words in (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below")):
        for limit in metadata:
            if getattr(limit, rule, None) is not None:
                yield f"{words} {_value(getattr(limit, rule))}"


def _json_value(value: Any) -> Any:
    """``value`` as JSON has it."""
    from computerrl.common.metrics import json_ready

    if isinstance(value, list | tuple):
        return [_json_value(one) for one in value]
    return json_ready(value.model_dump() if hasattr(value, "model_dump") else value)  # The latter: a section.


def _value(value: Any) -> str:
    """``value`` as YAML has it."""
    if hasattr(value, "model_dump"):  # A section.
        value = value.model_dump()
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {_value(one)}' for name, one in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)
