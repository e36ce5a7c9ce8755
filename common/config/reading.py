"""Reading YAML into a section: strict syntax, unknown keys with the closest valid name, all problems at once."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

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
        raise ConfigError([Problem(str(path), f"YAML syntax, {where}{reason}", "correct that line")]) from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError([Problem(str(path), f"holds a {type(tree).__name__}, not a mapping", "write `key: value` lines")])
    return tree


def apply_override(tree: dict[str, Any], override: str) -> Problem | None:
    """Set one ``path.to.field=value`` in ``tree``; what is wrong with it, else None."""
    path, equals, text = override.partition("=")
    if not equals or not path:
        return Problem(f"--set {override}", "is not of the form path.to.field=value", "write --set learner.max_age=2")
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
        valid = _field_names(kind, item["loc"][:-1])
        close = difflib.get_close_matches(str(item["loc"][-1]), valid, n=1)
        step = f"did you mean {close[0]!r}?" if close else f"valid here: {', '.join(sorted(valid))}"
        return Problem(path, "unknown key", step)
    message = item["msg"].removeprefix("Value error, ")
    return Problem(path, f"{message} (got {item['input']!r:.80})", "correct the value")


def _field_names(kind: type[Section], loc: Sequence[int | str]) -> list[str]:
    section: Any = kind
    for part in loc:
        field = section.model_fields.get(part) if hasattr(section, "model_fields") else None
        if field is None:
            return []
        section = field.annotation
    return list(getattr(section, "model_fields", {}))
