"""`computerrl config` prints all fields of the configuration, and docs/reference/config.md is what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from computerrl.common.config import HostList, RunConfig, SiteProfile
from computerrl.common.config.reading import fields_below, section_in
from computerrl.common.errors import ConfigError
from computerrl.launch.commands.config import manual
from computerrl.launch.commands.main import cli

ROOT = Path(__file__).resolve().parents[4]


def test_page_in_docs_is_the_one_that_the_command_makes() -> None:
    assert (ROOT / "docs" / "reference" / "config.md").read_text(encoding="utf-8") == manual(markdown=True), (
        "make it anew: computerrl config --markdown > docs/reference/config.md"
    )


@pytest.mark.parametrize("markdown", [False, True])
def test_every_field_is_printed_with_its_string(markdown: bool) -> None:
    words = " ".join(manual(markdown=markdown).split())
    shown: dict[object, str] = {}
    for kind in (RunConfig, SiteProfile, HostList):
        kind_of: dict[str, object] = {}
        for path, field in fields_below(kind).items():
            section, inside = section_in(field.annotation), path.rpartition(".")[0]
            if section is not None:
                kind_of[path] = section
                shown.setdefault(section, path)
                continue
            assert " ".join((field.description or "-").split()) in words, path
            first = shown.get(kind_of.get(inside), inside)
            if kind is RunConfig:
                assert (path if first == inside else f"those of {first}.") in words


def test_json_has_every_field_with_type_limits_unit_and_default() -> None:
    rows = {row["field"]: row for row in json.loads(CliRunner().invoke(cli, ["config", "--json"]).stdout)}
    assert rows["actor.memo_mb"]["unit"] == "MiB" and rows["actor.memo_mb"]["limits"] == ["at least 0"]
    assert rows["seed"]["default"] == 0 and "default" not in rows["model.dtype"] and not rows["model.dtype"]["is_required"]
    paths = {path for path, field in fields_below(RunConfig).items() if section_in(field.annotation) is None}
    assert paths <= set(rows) and all(row["description"] and row["type"] for row in rows.values())
    alone = json.loads(CliRunner().invoke(cli, ["config", "learner.max_age", "--json"]).stdout)
    assert alone == [rows["learner.max_age"]]
    assert CliRunner().invoke(cli, ["config", "--json", "--markdown"]).exit_code == 2


def test_text_is_readable_at_80_columns_and_markdown_at_100() -> None:
    assert max(map(len, manual().splitlines())) <= 80
    assert max(map(len, manual(markdown=True).splitlines())) <= 100


def test_section_is_printed_with_those_inside_it() -> None:
    text = CliRunner().invoke(cli, ["config", "actor"]).output
    assert "[actor]" in text and "[actor.prompt]" in text and "broker" not in text.partition("[actor.prompt]")[0].split("\n")
    assert "actor.num_episodes\n    integer, at least 1, at most 10000; default 4\n    Number of episodes" in text
    assert "[learner" not in text


@pytest.mark.parametrize(
    ("path", "facts"),
    [
        ("seed", "integer, at least 0; default 0"),
        ("actor.memo_mb", "integer, at least 0; unit MiB; default 256"),
        ("broker.peer_timeout_s", "number, above 0; unit seconds; default 15"),
        ("model.dtype", "bfloat16 | float32; default depends on the machine"),
        ("tasks.curriculum.band", "[number, number]; default [0.1, 0.9]"),
        ("tasks.family_weights", "mapping of text to number; default {}"),
        ("actor.endpoint.url", "text; required"),
        ("learner.recipe.target_success", "number or null, above 0, at most 1; default null"),
        ("desktop.apps", "list of calc | chromium | files | editor; default [calc, chromium, files, editor]"),
        ("site.learner.memory_mb_per_node", "integer or null, at least 1; unit MiB; default null"),
        ("hosts.learner", "list of text; required"),
    ],
)
def test_field_is_printed_alone_with_type_unit_and_default(path: str, facts: str) -> None:
    text = manual(path)
    name = path.removeprefix("site.").removeprefix("hosts.")
    assert f"\n{name}\n    {facts}" in text.replace("\n    editor]", " editor]")
    assert text.count("; default") + text.count("; required") == 1


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("actor.promt", "actor.prompt"),
        ("lerner", "learner"),
        ("max_age", "learner.max_age"),
        ("learner.max_agee", "learner.max_age"),
        ("site.lerner", "site.learner"),
        ("prompt", "actor.prompt"),
    ],
)
def test_unknown_section_is_answered_with_the_nearest(given: str, near: str) -> None:
    with pytest.raises(ConfigError) as raised:
        manual(given)
    (problem,) = raised.value.problems
    assert problem.field == "SECTION" and problem.next_step.startswith(f"did you mean {near!r}?")
    assert "learner" in problem.next_step.partition("?")[2]


def test_section_that_is_like_none_is_answered_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="use one of run, model, tasks"):
        manual("zzz")


def test_fields_of_one_class_are_printed_once() -> None:
    text = manual("site")
    assert text.count("Features that the nodes must have") == 1
    assert "Its fields are those of site.learner." in text
    assert "Features that the nodes must have" in manual("site.worker")
