"""A mapping in one line whose colons lack their blanks, which YAML reads as keys without values."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from computerrl.common.config import load_config
from computerrl.common.errors import ConfigError, Problem

OVERRIDES = {
    "learner.rewards=[{name:length}]": "learner.rewards=[{name: length}]",
    "learner.rewards=[{name:my.module:Reward,weight:0.5}]": "learner.rewards=[{name: my.module:Reward,weight: 0.5}]",
    "learner.rewards=[{name: evaluator}, {name:step, weight: 2}]": "learner.rewards=[{name: evaluator}, {name: step, weight: 2}]",
    "desktop={num_desktops:3}": "desktop={num_desktops: 3}",
    "tasks.family_weights={calc-set-cell:2}": "tasks.family_weights={calc-set-cell: 2}",
    "learner={optimizer: {lr:1.0e-6}}": "learner={optimizer: {lr: 1.0e-6}}",
}


def problem_of(path: Path, *overrides: str) -> Problem:
    with pytest.raises(ConfigError) as raised:
        load_config(path, overrides=overrides)
    (problem,) = raised.value.problems
    return problem


@pytest.mark.parametrize(("given", "meant"), OVERRIDES.items())
def test_override_without_blanks_is_answered_with_the_whole_word_to_write(tmp_path: Path, given: str, meant: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("")
    problem = problem_of(path, given)
    assert problem.field == f"--set {given.partition('=')[0]}" and "blank" in problem.reason
    assert f"'{meant}'" in problem.next_step


@pytest.mark.parametrize("given", OVERRIDES)
def test_file_without_blanks_is_answered_with_the_line(tmp_path: Path, given: str) -> None:
    path = tmp_path / "config.yaml"
    *sections, last = re.sub("=.*", "", given).split(".")
    value = given.partition("=")[2]
    heads = "".join(f"{'  ' * i}{name}:\n" for i, name in enumerate(sections))
    path.write_text(f"{heads}{'  ' * len(sections)}{last}: {value}\n")
    problem = problem_of(path)
    assert f"line {len(sections) + 1}" in problem.reason and "blank" in problem.reason and value in problem.next_step


@pytest.mark.parametrize("value", ["{calc-set-cell: 2, words:SORTED: 3}", "{'words:SORTED': 3, calc-set-cell: 2}"])
def test_colons_within_names_are_left_alone(tmp_path: Path, value: str) -> None:
    path = tmp_path / "config.yaml"
    families = "families: [calc-set-cell, words:SORTED]"
    path.write_text(f"tasks: {{{families}, family_weights: {value}, curriculum: {{name: weighted}}}}")
    assert load_config(path).tasks.family_weights["words:SORTED"] == 3
