"""Reading YAML into a section: strict syntax, unknown keys with the closest valid name, all problems at once."""

from __future__ import annotations

import datetime
import difflib
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from computerrl.common.config.base import Section
from computerrl.common.errors import ConfigError, Problem

Kind = TypeVar("Kind", bound=Section)


def read_section(path: Path, kind: type[Kind], *, overrides: Sequence[str] = ()) -> Kind:
    """A ``kind`` from the file ``path``, with ``overrides`` (``learner.optimizer.lr=1e-6``) applied.

    Raises `ConfigError` with every problem found: syntax, unknown keys with the closest valid name, wrong values.
    """
    tree = read_yaml(path)
    problems = [problem for override in overrides if (problem := apply_override(tree, override, kind)) is not None]
    try:
        section = kind.model_validate(tree)
    except ValidationError as error:
        problems.extend(_problem(item, kind) for item in _causes(error))
        raise ConfigError(problems) from None
    if problems:
        raise ConfigError(problems)
    return section


def overrides_of(path: Path, kind: type[Section]) -> list[str]:
    """The fields that the file ``path`` sets, as overrides of another one: each value that is no section replaces a whole value,
    a list or the options of an algorithm too. Raises `ConfigError` for whatever is wrong with the file alone."""
    read_section(path, kind)
    return [f"{'.'.join(place)}={_as_text(value)}" for place, value in _leaves(read_yaml(path), kind, ())]


def _leaves(tree: dict[str, Any], kind: type[Section], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in tree.items():
        place = (*above, key)
        section = _section_at(kind, place)
        if isinstance(value, dict) and section is not None:
            # The options of what an earlier file has named are of no use to another.
            begins_anew = "name" in value and "options" in section.model_fields
            yield from _leaves({"options": {}, **value} if begins_anew else value, kind, place)
        else:
            yield place, value


def _as_text(value: Any) -> str:
    """``value`` in one line of YAML, as `apply_override` reads it."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return yaml.safe_dump(value, default_flow_style=True, width=2**31, allow_unicode=True).removesuffix("...\n").strip()


_MAX_BITS = 64
"""Maximum number of bits of an integer. Python does not even print an integer of 4,300 digits."""
_MAX_FILE_BYTES = 1 << 20
"""Maximum size of a file in bytes. A list of 10,000 hosts takes half of it."""
_MAX_CHARS = 4 << 20
"""Maximum number of characters of all values, aliases written out. A few nested aliases can stand for more than memory holds."""

_INT, _FLOAT, _TEXT, _MERGE, _VALUE = (f"tag:yaml.org,2002:{name}" for name in ("int", "float", "str", "merge", "value"))
_BASE_8_OR_60 = re.compile(r"[-+]?0[0-9_]+|.*:.*")
"""Texts that YAML 1.1 reads as numbers in base 8 or 60: 010 is 8, 1:30 is 90. In YAML 1.2 and here they are texts."""


class _BlankMissing(yaml.constructor.ConstructorError):
    """A key without a value that contains a colon: YAML reads `{name:x}` as the key `name:x`."""

    def __init__(self, keys: Sequence[str], mark: yaml.Mark) -> None:
        super().__init__(None, None, f"{keys[0]!r} is a key without a value: the colon needs a blank after it", mark)
        self.keys = keys

    def corrected(self, text: str) -> str:
        """``text`` with a blank after the first colon of each of these keys."""
        for key in self.keys:
            text = text.replace(key, key.replace(":", ": ", 1))
        return text


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML in which a repeated key is an error: the first one would be ignored silently. A value that is not of the type
    that it looks like (`2026-99-99`, `!!int x`) is a `YAMLError` too. So are values that contain themselves, and too many."""

    def resolve(self, kind: type[yaml.Node], value: str, implicit: Any) -> str:
        tag = str(super().resolve(kind, value, implicit))
        is_text = tag == _VALUE or (tag in (_INT, _FLOAT) and _BASE_8_OR_60.fullmatch(value))
        return _TEXT if is_text and implicit[0] else tag

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None:
            _count_chars(node, {})
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep=deep)
        except (ValueError, LookupError, AttributeError, TypeError) as error:
            reason = f"{node.value!r:.60} is not valid: {error}"
            raise yaml.constructor.ConstructorError(None, None, reason, node.start_mark) from None
        if isinstance(value, int) and value.bit_length() > _MAX_BITS:
            reason = f"an integer of {value.bit_length()} bits is too large (at most {_MAX_BITS})"
            raise yaml.constructor.ConstructorError(None, None, reason, node.start_mark)
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        closed = [key.value for key, value in node.value if _is_plain(key) and ":" in key.value and _is_plain(value, text="")]
        if closed:
            raise _BlankMissing(closed, node.start_mark)
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self.construct_object(key_node, deep=deep)
            if isinstance(key, str) and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", key_node.start_mark)
            seen.add(key if isinstance(key, str) else None)
        return super().construct_mapping(node, deep=deep)


def _is_plain(node: yaml.Node, *, text: str | None = None) -> bool:
    """Whether ``node`` is a scalar without quotes, and with ``text`` that one."""
    return isinstance(node, yaml.ScalarNode) and node.style is None and text in (None, node.value)


def _count_chars(node: yaml.Node, known: dict[int, int | None]) -> int:
    """Number of characters of ``node`` with all aliases written out. ``known`` has the numbers of earlier nodes; None marks one
    that is being counted. Raises `YAMLError` for more than `_MAX_CHARS`."""
    if id(node) in known:
        num_chars = known[id(node)]
        if num_chars is None:
            raise yaml.composer.ComposerError(None, None, "a list or mapping is part of itself", node.start_mark)
        return num_chars
    known[id(node)] = None
    if isinstance(node, yaml.ScalarNode):
        num_chars = 1 + len(node.value)
    else:
        inner = itertools.chain(*node.value) if isinstance(node, yaml.MappingNode) else node.value
        num_chars = 1 + sum(_count_chars(one, known) for one in inner)
    if num_chars > _MAX_CHARS:
        raise yaml.composer.ComposerError(None, None, f"more than {_MAX_CHARS:,} characters with all aliases", node.start_mark)
    known[id(node)] = num_chars
    return num_chars


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in the file ``path``. Raises `ConfigError`."""
    text = _read_text(path)
    try:
        tree = yaml.load(text, Loader=_StrictLoader)
    except RecursionError:
        raise ConfigError([Problem(str(path), "YAML syntax: is nested too deeply", "correct the file")]) from None
    except yaml.reader.ReaderError as error:
        line = 1 + text.count("\n", 0, error.position)
        reason = f"line {line} contains the character U+{error.character:04X}, which YAML does not allow"
        raise ConfigError([Problem(str(path), reason, "remove it, and save the file as UTF-8 text")]) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        lines = text.splitlines()
        # The mark is behind the last line when a list or a quote is not closed.
        step = f"correct that line: {lines[mark.line].strip()!r:.100}" if mark and mark.line < len(lines) else "correct the end"
        raise ConfigError([Problem(str(path), f"YAML syntax, {where}{_reason(error)}", step)]) from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError([Problem(str(path), f"contains a {type(tree).__name__}, not a mapping", "write `key: value` lines")])
    return tree


def _read_text(path: Path) -> str:
    """The text of the file ``path``. Raises `ConfigError`, also for pipes and devices, which may block or have no end."""
    step = "give the path of a YAML file, for example configs/quickstart.yaml"
    try:
        if path.exists() and not path.is_file():
            raise ConfigError([Problem(str(path), f"is a {'folder' if path.is_dir() else 'pipe or device'}, not a file", step)])
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError([Problem(str(path), f"cannot be read: {error.strerror}", step)]) from None
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigError([Problem(str(path), f"has more than {_MAX_FILE_BYTES:,} bytes", step)])
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError([Problem(str(path), f"is not UTF-8 text: {error.reason}", "save it as UTF-8")]) from None


def _reason(error: yaml.YAMLError) -> str:
    return str(getattr(error, "problem", None) or getattr(error, "reason", None) or error)


def apply_override(tree: dict[str, Any], override: str, kind: type[Section]) -> Problem | None:
    """Set one ``path.to.field=value`` in ``tree``, which becomes a ``kind``. Returns the problem, or None."""
    path, equals, text = override.partition("=")
    if not equals or not path:
        return Problem(f"--set {override}", "is not of the form path.to.field=value", "write it as learner.max_age=2")
    node = tree
    *parents, last = path.split(".")
    for parent in parents:
        child = node.setdefault(parent, {})
        if not isinstance(child, dict):
            return Problem(f"--set {path}", f"{parent!r} is a value, not a section", "check the field's path")
        node = child
    try:
        node[last] = _read_value(text, _annotation(kind, path.split(".")))
    except _BlankMissing as error:
        return Problem(f"--set {path}", str(error.problem), f"write '{path}={error.corrected(text)}', with the quotes")
    except (yaml.YAMLError, RecursionError) as error:
        reason = "is nested too deeply" if isinstance(error, RecursionError) else _reason(error)
        return Problem(f"--set {path}", f"value {text!r:.200} is not YAML: {reason}", "put quotes around the value")
    return None


def _read_value(text: str, annotation: Any) -> Any:
    """The value of ``text`` from a command line, for a field of the type ``annotation``.

    A text field takes it unchanged, because folder names may contain ` #`, `: ` and brackets, and a run's name may be 007. Quotes
    around the whole text are YAML's. `null` sets a field to None where the field allows None. All other fields read it as YAML.
    """
    choices = _choices(annotation)
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    if str in choices and not is_quoted:
        return None if type(None) in choices and text in _EMPTY else text
    value = yaml.load(text, Loader=_StrictLoader)
    if isinstance(value, str) and not is_quoted:
        # YAML 1.1 reads 1e-6 (no dot) as text, but a number is meant.
        try:
            return float(value)
        except ValueError:
            return value
    return value


_EMPTY = ("", "~", "null", "Null", "NULL")
"""YAML's words for None."""


def _annotation(kind: type[Section], path: Sequence[str]) -> Any:
    """Type of the field at ``path`` below ``kind``; None where there is no such field."""
    *parents, last = path
    section = _section_at(kind, parents)
    field = section.model_fields.get(last) if section is not None else None
    return None if field is None else field.annotation


def _causes(error: ValidationError) -> list[Any]:
    """Errors without their consequences: a list whose items are invalid counts as too short as well."""
    errors = error.errors()
    places = [item["loc"] for item in errors]
    return [
        item
        for item in errors
        if item["type"] != "too_short" or not any(place[: len(item["loc"])] == item["loc"] != place for place in places)
    ]


def _problem(item: Any, kind: type[Section]) -> Problem:
    path = ".".join(str(part) for part in item["loc"]) or "config"
    if item["type"] == "extra_forbidden":
        return Problem(path, "unknown key", _advice_on_key(kind, item["loc"]))
    message = item["msg"].removeprefix("Value error, ")
    given = item["input"]
    step = "correct the value"
    if item["type"] == "string_type" and isinstance(given, int | float | datetime.date):
        step = "put quotes around it: without them YAML reads a number, a date or a truth value"
    elif item["type"] == "tuple_type":
        message = "should be a list"
        step = f"write it as [{given}]" if isinstance(given, str | int | float) else "write it as [FIRST, SECOND]"
    elif item["type"] == "too_short":
        least = item["ctx"]["min_length"]
        message, step = f"should have at least {least} value{'' if least == 1 else 's'}", "add one, or leave the field out"
    elif item["type"] in ("model_type", "dict_type"):
        message, step = "should be a section or mapping", "write its fields as KEY: VALUE lines below it, or leave it out"
    elif item["type"] in ("bool_type", "bool_parsing"):
        message = "should be true or false"
    return Problem(path, f"{message} (got {_shown(given)})", step)


_SECRETS = re.compile(r"(?<=://)[^\s'\"]*@|(?<=://)([^\s'\"@?#]*)[?#][^\s'\"]*")


def _shown(given: Any) -> str:
    """The beginning of ``given`` without passwords and keys of an address, which are before @ and from ? or # on."""
    return _SECRETS.sub(r"\1...", repr(given))[:80]


_NEAR = 0.8
"""Minimum similarity of a key of another section that is proposed."""
_MAX_PROPOSED = 3


def _advice_on_key(kind: type[Section], loc: Sequence[int | str]) -> str:
    """The next step for an unknown key at ``loc``: the field that was probably meant. In this order: a field of that name in
    another section, of a similar name in this section, of a similar name in another one, with the key's words in its string."""
    key, here = str(loc[-1]), [str(part) for part in loc[:-1]]
    fields = fields_below(kind)
    # Fields below the section of the key go first.
    near_first = sorted(fields, key=lambda path: (path.split(".")[: len(here)] != here, path.count(".")))
    by_name: dict[str, list[str]] = {}
    for path in near_first:
        by_name.setdefault(path.rpartition(".")[2], []).append(path)
    if key in by_name:
        return _proposal(by_name[key])
    if key in fields:  # A dotted path, as on a command line.
        section, _, name = key.rpartition(".")
        return f"write {name} into the section {section}"
    valid = _field_names(kind, loc[:-1])
    close = difflib.get_close_matches(key, valid, n=1)
    afar = difflib.get_close_matches(key, by_name, n=1, cutoff=_NEAR)
    if close and not (afar and _similarity(key, afar[0]) > _similarity(key, close[0])):
        return f"did you mean {close[0]!r}?"
    if afar:
        return _proposal(by_name[afar[0]])
    words = key.replace("_", " ").lower()
    described = [path for path in near_first if len(words) > 3 and words in (fields[path].description or "").lower()]
    if described:
        return _proposal(described)
    return f"valid here: {', '.join(sorted(valid))}" if valid else "remove it"


def _similarity(key: str, name: str) -> float:
    return difflib.SequenceMatcher(None, name, key).ratio()


def _proposal(paths: Sequence[str]) -> str:
    return f"did you mean {' or '.join(map(repr, paths[:_MAX_PROPOSED]))}?"


def fields_below(kind: type[Section], prefix: str = "") -> dict[str, FieldInfo]:
    """Dotted path -> field of every field below ``kind``, sections included, in the order of the classes."""
    found: dict[str, FieldInfo] = {}
    for name, field in kind.model_fields.items():
        found[f"{prefix}{name}"] = field
        section = section_in(field.annotation)
        if section is not None:
            found |= fields_below(section, f"{prefix}{name}.")
    return found


def _choices(annotation: Any) -> tuple[Any, ...]:
    """The types that ``annotation`` allows: those of a union, or itself."""
    allowed = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return tuple(get_args(one)[0] if get_origin(one) is Annotated else one for one in allowed)


def section_in(annotation: Any) -> type[Section] | None:
    """The section that ``annotation`` is or may be (`LoraConfig | None`)."""
    return next((one for one in _choices(annotation) if isinstance(one, type) and issubclass(one, Section)), None)


def _section_at(kind: type[Section], loc: Sequence[int | str]) -> type[Section] | None:
    """The section at ``loc`` below ``kind``; None where there is none."""
    section: type[Section] | None = kind
    for part in loc:
        field = section.model_fields.get(str(part)) if section is not None else None
        section = None if field is None else section_in(field.annotation)
    return section


def _field_names(kind: type[Section], loc: Sequence[int | str]) -> list[str]:
    section = _section_at(kind, loc)
    return [] if section is None else list(section.model_fields)
