"""Reading YAML into a section: strict syntax, unknown keys with the closest valid name, all problems at once."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import ValidationError

from common.config.base import Section
from common.errors import ConfigError, Problem

Kind = TypeVar("Kind", bound=Section)


def read_section(path: Path, kind: type[Kind], *, overrides: Sequence[str] = ()) -> Kind:
    """A ``kind`` from the file ``path``, with ``overrides`` (``learner.optimizer.lr=1e-6``) applied.

    Raises `ConfigError` with every problem found: syntax, unknown keys with the closest valid name, wrong values.
    """
    tree = read_yaml(path)
    problems = [problem for override in overrides if (problem := apply_override(tree, override)) is not None]
    try:
        section = kind.model_validate(tree)
    except ValidationError as error:
        problems.extend(_problem(item, kind) for item in error.errors())
        raise ConfigError(problems) from None
    if problems:
        raise ConfigError(problems)
    return section


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML in which a key given twice is an error: the first one would be ignored silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=deep)
            if isinstance(key, str) and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", key_node.start_mark)
            seen.add(key if isinstance(key, str) else None)
        return super().construct_mapping(node, deep=deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in ``path``; raises `ConfigError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        step = "give the path of a YAML file, for example configs/quickstart.yaml"
        raise ConfigError([Problem(str(path), f"cannot be read: {error.strerror}", step)]) from None
    except UnicodeDecodeError as error:
        raise ConfigError([Problem(str(path), f"is not UTF-8 text: {error.reason}", "save it as UTF-8")]) from None
    try:
        tree = yaml.load(text, Loader=_StrictLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        reason = getattr(error, "problem", None) or str(error)
        lines = text.splitlines()
        # Behind the last line where something has no end.
        step = f"correct that line: {lines[mark.line].strip()!r:.100}" if mark and mark.line < len(lines) else "correct the end"
        raise ConfigError([Problem(str(path), f"YAML syntax, {where}{reason}", step)]) from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError([Problem(str(path), f"holds a {type(tree).__name__}, not a mapping", "write `key: value` lines")])
    return tree


def apply_override(tree: dict[str, Any], override: str) -> Problem | None:
    """Set one ``path.to.field=value`` in ``tree``; what is wrong with it, else None."""
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
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        return Problem(f"--set {path}", f"value {text!r} is not YAML: {error}", "quote the value")
    if isinstance(value, str):
        # YAML 1.1 reads 1e-6 (no dot) as text; people mean a number.
        try:
            value = float(value)
        except ValueError:
            pass
    node[last] = value
    return None


def _problem(item: Any, kind: type[Section]) -> Problem:
    path = ".".join(str(part) for part in item["loc"]) or "config"
    if item["type"] == "extra_forbidden":
        return Problem(path, "unknown key", _advice_on_key(kind, item["loc"]))
    message = item["msg"].removeprefix("Value error, ")
    return Problem(path, f"{message} (got {item['input']!r:.80})", "correct the value")


_NEAR = 0.8
"""Similarity from which a key elsewhere in the tree is proposed."""
_MAX_PROPOSED = 3


def _advice_on_key(kind: type[Section], loc: Sequence[int | str]) -> str:
    """The field that an unknown key at ``loc`` was probably meant to be: of that name in another section, of a similar name
    here, of a similar name in another section, or with the key's words in its description."""
    key, here = str(loc[-1]), [str(part) for part in loc[:-1]]
    fields = field_descriptions(kind)
    # Those below the section where the key was looked for first.
    near_first = sorted(fields, key=lambda path: (path.split(".")[: len(here)] != here, path.count(".")))
    by_name: dict[str, list[str]] = {}
    for path in near_first:
        by_name.setdefault(path.rpartition(".")[2], []).append(path)
    if key in by_name:
        return _proposal(by_name[key])
    valid = _field_names(kind, loc[:-1])
    close = difflib.get_close_matches(key, valid, n=1)
    afar = difflib.get_close_matches(key, by_name, n=1, cutoff=_NEAR)
    if close and not (afar and _similarity(key, afar[0]) > _similarity(key, close[0])):
        return f"did you mean {close[0]!r}?"
    if afar:
        return _proposal(by_name[afar[0]])
    words = key.replace("_", " ").lower()
    described = [path for path in near_first if len(words) > 3 and words in fields[path].lower()]
    if described:
        return _proposal(described)
    return f"valid here: {', '.join(sorted(valid))}" if valid else "remove it"


def _similarity(key: str, name: str) -> float:
    return difflib.SequenceMatcher(None, name, key).ratio()


def _proposal(paths: Sequence[str]) -> str:
    return f"did you mean {' or '.join(map(repr, paths[:_MAX_PROPOSED]))}?"


def field_descriptions(kind: type[Section], prefix: str = "") -> dict[str, str]:
    """Dotted path -> description of every field below ``kind``, sections included."""
    found: dict[str, str] = {}
    for name, field in kind.model_fields.items():
        found[f"{prefix}{name}"] = field.description or ""
        section = _section_in(field.annotation)
        if section is not None:
            found |= field_descriptions(section, f"{prefix}{name}.")
    return found


def _section_in(annotation: Any) -> type[Section] | None:
    """The section that ``annotation`` is or may be (`LoraConfig | None`)."""
    choices = [annotation, *get_args(annotation)]
    return next((one for one in choices if isinstance(one, type) and issubclass(one, Section)), None)


def _field_names(kind: type[Section], loc: Sequence[int | str]) -> list[str]:
    section: type[Section] | None = kind
    for part in loc:
        field = section.model_fields.get(str(part)) if section is not None else None
        section = None if field is None else _section_in(field.annotation)
    return [] if section is None else list(section.model_fields)
