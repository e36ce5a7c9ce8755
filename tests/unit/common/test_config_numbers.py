"""Every number of the configuration: what no run can use is refused by the check, with the field's name."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from computerrl.common.config import HostList, RunConfig, SiteProfile, load_config
from computerrl.common.config.base import MAX_NUMBER, MAX_SECONDS, Section
from computerrl.common.errors import ConfigError
from computerrl.launch.plan.machine import inspect_machine
from computerrl.launch.plan.resources import plan_memory
from computerrl.launch.run.local import plan_for
from computerrl.launch.run.preflight import CHECKS

USELESS = (math.inf, -math.inf, math.nan, 1e308, -1e308, 2**31, -(2**31), 2**64, 10**30)
EXTREME = (0, -1, 1, 1e-300, 0.5, MAX_SECONDS, MAX_NUMBER, -MAX_NUMBER, True)


def numbers(tree: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Paths of fields below ``tree`` that are a number by default, and of the elements of their lists."""
    for name, value in tree.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict):
            yield from numbers(value, f"{path}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield path


def number_fields(kind: type[Section], prefix: str = "") -> Iterator[str]:
    """Paths of all fields below ``kind`` whose type mentions a number, alone, in a list or in a mapping."""
    for name, field in kind.model_fields.items():
        shown = str(field.annotation)
        sections = [one for one in (field.annotation, *getattr(field.annotation, "__args__", ())) if is_section(one)]
        if sections:
            yield from number_fields(sections[0], f"{prefix}{name}.")
        elif "int" in shown or "float" in shown:
            yield f"{prefix}{name}"


def is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section)


def tree_with(path: str, value: Any, kind: type[Section]) -> dict[str, Any]:
    """A tree for ``kind`` in which the number of ``path`` is ``value``, wherever in its field the number stands."""
    section: Any = kind
    *parents, last = path.split(".")
    lists = set()
    for parent in parents:
        annotation = section.model_fields[parent].annotation
        lists |= {parent} if str(annotation).startswith("tuple[") else set()
        section = next(one for one in (annotation, *getattr(annotation, "__args__", ())) if is_section(one))
    shown = str(section.model_fields[last].annotation)
    held: Any = {"calc-set-cell": value} if "dict[" in shown else [[value, value]] if "tuple[tuple" in shown else value
    held = [value, value] if shown.startswith("tuple[") and "tuple[tuple" not in shown else held
    for part in (last, *reversed(parents)):
        held = {part: [held] if part in lists else held}
    if path.startswith("actor.endpoint."):
        held["actor"]["endpoint"]["url"] = "http://127.0.0.1:1/v1"
    return held


RUN_FIELDS = sorted(number_fields(RunConfig))


def test_number_fields_are_those_of_the_tree() -> None:
    assert set(numbers(RunConfig().model_dump())) <= set(RUN_FIELDS)
    assert {"learner.optimizer.betas", "tasks.horizon", "tasks.family_weights", "tasks.training_seeds"} <= set(RUN_FIELDS)
    assert len(RUN_FIELDS) > 90


@pytest.mark.parametrize(
    ("kind", "path"),
    [(kind, path) for kind in (RunConfig, SiteProfile, HostList) for path in sorted(number_fields(kind))],
)
def test_number_that_is_infinite_or_absurd_is_refused_by_the_name_of_its_field(kind: type[Section], path: str) -> None:
    for value in USELESS:
        tree = tree_with(path, value, kind)
        with pytest.raises(ValueError, match=r"validation error") as caught:
            kind.model_validate({"learner": ["node-1"], **tree} if kind is HostList else tree)
        # pydantic's error is a ValueError; its places are the fields.
        errors = caught.value.errors()  # type: ignore[attr-defined]
        # Without the places of elements in lists of sections.
        places = [".".join(str(part) for part in item["loc"] if part != 0) for item in errors]
        assert any(place.startswith(path) for place in places), (value, places)


@given(st.sampled_from(RUN_FIELDS), st.sampled_from(EXTREME))
def test_number_that_is_accepted_can_be_planned_and_checked(path: str, value: float) -> None:
    """Extremes end as a plan or as a typed error that names a field; never as a traceback, and never after a long time."""
    try:
        config = RunConfig.model_validate({"desktop": {"driver": "local"}, **tree_with(path, value, RunConfig)})
        yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json")))
    except ValueError:
        return
    machine = inspect_machine()
    assert plan_for(config)
    assert plan_memory(config, machine).parts
    problems = [finding.problem for check in CHECKS for finding in check(config, machine)]
    assert all(problem.field and problem.next_step for problem in problems)


@pytest.mark.parametrize("value", ["inf", "-.inf", ".nan", "nan", "1e400", "1" + "0" * 400, "0x" + "f" * 5000])
def test_number_of_a_command_line_that_is_infinite_or_absurd_is_refused(tmp_path: Path, value: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("")
    for field in ("learner.optimizer.lr", "broker.max_assignment_s", "seed", "learner.algorithm.options.clip_high"):
        with pytest.raises(ConfigError, match=field.rpartition(".")[0] or field):
            load_config(path, overrides=[f"{field}={value}"])
