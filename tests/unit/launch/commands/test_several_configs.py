"""Several configurations on a command line: what later files set overrides the earlier ones, field by field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from computerrl.common.config import RunConfig, load_config
from computerrl.common.config.reading import overrides_of
from computerrl.common.errors import ConfigError
from computerrl.launch.commands.main import cli
from computerrl.launch.plan.machine import inspect_machine
from computerrl.launch.run.preflight import check_algorithm

ROOT = Path(__file__).parents[4]
BASE = """
name: base
tasks: {families: [calc-set-cell, editor-type-save], family_weights: {calc-set-cell: 2}, curriculum: {name: weighted}}
learner: {group_size: 4, optimizer: {lr: 1.0e-5}, algorithm: {name: grpo, options: {kl_beta: 0.5}}}
"""


def merged(folder: Path, *texts: str, overrides: tuple[str, ...] = ()) -> RunConfig:
    paths = [folder / f"{place}.yaml" for place in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    later = [override for path in paths[1:] for override in overrides_of(path, RunConfig)]
    return load_config(paths[0], overrides=[*later, *overrides])


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        (["learner: {group_size: 8}"], {"learner.group_size": 8, "learner.optimizer.lr": 1e-5, "name": "base"}),
        (["name: later", "learner: {optimizer: {lr: 3e-6}}"], {"name": "later", "learner.optimizer.lr": 3e-6}),
        (["learner: {group_size: 8}", "learner: {group_size: 16}"], {"learner.group_size": 16}),
        # Lists and mappings of free names are values, which are replaced whole.
        (["tasks: {families: [files-move], family_weights: {files-move: 3}}"], {"tasks.families": ["files-move"]}),
        (["learner: {algorithm: {name: dapo}}"], {"learner.algorithm.options": {}, "learner.group_size": 4}),
        (
            ["learner: {algorithm: {options: {kl_beta: 0.1}}}"],
            {"learner.algorithm": {"name": "grpo", "options": {"kl_beta": 0.1}}},
        ),
        (["learner: {rewards: [{name: length, weight: 1.0e-3}]}"], {"learner.rewards.0.weight": 1e-3}),
        (["tasks: {recordings: null}"], {"tasks.recordings": None}),
        (["name: '007'", "model: {name: 'a: b # c'}"], {"name": "007", "model.name": "a: b # c"}),
        ([""], {"name": "base"}),
    ],
)
def test_later_files_override_field_by_field(tmp_path: Path, later: list[str], expected: dict[str, Any]) -> None:
    tree = merged(tmp_path, BASE, *later).model_dump(mode="json")
    for path, value in expected.items():
        node: Any = tree
        for part in path.split("."):
            node = node[int(part)] if isinstance(node, list) else node[part]
        assert node == value, path


def test_fields_of_the_command_line_override_all_files(tmp_path: Path) -> None:
    config = merged(tmp_path, BASE, "learner: {group_size: 8}", overrides=("learner.group_size=12",))
    assert config.learner.group_size == 12


@pytest.mark.parametrize(
    ("text", "named"),
    [("learner: {group_sise: 8}", "learner.group_sise"), ("learner: {group_size: x}", "learner.group_size"), ("a: [", "1.yaml")],
)
def test_what_is_wrong_with_a_later_file_is_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(ConfigError) as raised:
        merged(tmp_path, BASE, text)
    assert raised.value.problems[0].field.endswith(named)


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "configs" / "algorithms").glob("*.yaml")))
def test_every_algorithm_goes_behind_the_quickstart(name: str) -> None:
    """Any configuration of an algorithm gives the quickstart its algorithm with its options, and nothing of another's."""
    path = ROOT / "configs" / "algorithms" / f"{name}.yaml"
    quickstart = ROOT / "configs" / "quickstart.yaml"
    config, own, first = (
        load_config(quickstart, overrides=overrides_of(path, RunConfig)),
        load_config(path),
        load_config(quickstart),
    )
    names_one = "algorithm" in (yaml.safe_load(path.read_text()).get("learner") or {})
    assert config.name == own.name
    assert config.learner.algorithm == (own if names_one else first).learner.algorithm
    assert config.tasks.families == (own.tasks.families or first.tasks.families)
    fields = [finding.problem.field for finding in check_algorithm(config, inspect_machine())]
    # A teacher is the person's own.
    assert not [field for field in fields if field.startswith("learner.algorithm") and not field.endswith(".teacher")]


def test_command_line_takes_several_files(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nlearner: {group_size: 6}\n")
    done = run("config", "--help")
    assert done.exit_code == 0
    done = run("train", "smoke", str(path), "learner.max_age=3", "--dry-run", "--print-config")
    assert done.exit_code == 0, done.output
    assert "name: mine" in done.output and "group_size: 6" in done.output and "max_age: 3" in done.output
    twice = run("train", "smoke", "smoke", "--dry-run")
    assert twice.exit_code == 2 and "given twice" in twice.output
    missing = run("train", "smoke", "algorithms/dapoo", "--dry-run")
    assert missing.exit_code != 0


def test_written_override_is_read_as_it_was(tmp_path: Path) -> None:
    tree = {
        "model": {"name": "x: y"},
        "tasks": {"families": ["a", "b: c"], "family_weights": {"a": 2}},
        "learner": {"optimizer": {"lr": 1e-6}},
    }
    path = tmp_path / "a.yaml"
    path.write_text(yaml.safe_dump(tree))
    found = dict(override.split("=", 1) for override in overrides_of(path, RunConfig))
    assert {name: yaml.safe_load(text) for name, text in found.items()} == {
        "model.name": "x: y",
        "tasks.families": ["a", "b: c"],
        "tasks.family_weights": {"a": 2},
        "learner.optimizer.lr": 1e-6,
    }
    assert json.loads(found["model.name"]) == "x: y"
