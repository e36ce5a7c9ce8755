"""Names on the command line: wrong ones are refused before anything heavy is imported, near ones are proposed. Help pages."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from computerrl.common.errors import ConfigError
from computerrl.launch.commands.main import cli
from computerrl.launch.commands.options import split_words
from computerrl.launch.plan.config_files import config_names, find_config, is_override

ROOT = Path(__file__).resolve().parents[4]
NAMES = config_names([ROOT])

WRONG_NAMES = [
    ["train", "nope.yaml"],
    ["train", "quikstart"],
    ["train"],
    ["train", "quickstart", "quickstart"],
    ["plan", "nope"],
    ["submit", "nope", "--site", "x"],
    ["up", "nope", "--hosts", "hosts.yaml"],
    ["simulate", "nope"],
    ["submit", "--workers-for", "nope", "--site", "x"],
    ["doctor", "nope"],
    ["broker", "nope"],
    ["env-server", "nope"],
    ["serve-desktops", "nope"],
    ["actor", "nope"],
    ["engine", "nope"],
    ["learner", "nope"],
    ["eval", "nope"],
    ["eval", "org/model"],
    ["eval", "x", "--config", "nope"],
    ["export", "nope", "out"],
    ["record", "nope", "out"],
    ["runs", "nope"],
    ["status", "nope"],
    ["dashboard", "nope"],
    ["replay", "nope"],
    ["report", "nope"],
    ["compare", "nope", "nope"],
    ["trace", "nope"],
    ["export-trajectories", "nope", "out"],
    ["import-trajectories", "--config", "nope", "tasks.jsonl", "out"],
    ["phase", "sft", "nope"],
    ["journal", "ls", "nope"],
    ["journal", "cat", "nope"],
    ["journal", "verify", "nope"],
    ["join", "nope"],
    ["cancel", "nope"],
    ["logs", "nope"],
    ["simulate", "--from-run", "nope"],
    ["bench", "nope"],
    ["bench", "gpu_check"],
    ["study", "nope"],
    ["tasks", "synthesize", "nope", "out"],
    ["tain"],
    ["train", "quickstart", "--learner.max_age=2"],
]
HEAVY = (
    "torch",
    "transformers",
    "zmq",
    "numpy",
    "pydantic",
    "yaml",
    "structlog",
    "rich",
    "msgspec",
    "aiohttp",
    "jinja2",
    "plotly",
)
FOR_FIELDS = ("pydantic", "yaml")
"""What checking a field needs."""

PROGRAM = """
import json, sys
import click
from computerrl.launch.commands.main import cli
from computerrl.common.errors import ComputerRLError
rows, words, heavy = [], json.loads(sys.argv[1]), json.loads(sys.argv[2])
for args in words:
    try:
        cli.main(args=args, prog_name="computerrl", standalone_mode=False)
        said = ""
    except (click.ClickException, ComputerRLError) as error:
        said = error.format_message() if isinstance(error, click.ClickException) else str(error)
    rows.append([args, said, sorted(set(heavy) & set(sys.modules))])
print(json.dumps(rows), file=sys.stderr)
"""


def played(commands: list[list[str]], heavy: tuple[str, ...], *, cwd: Path) -> list[tuple[list[str], str, list[str]]]:
    """(command, its error, heavy modules that are imported after it), one process for all commands."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands), json.dumps(heavy)],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(cwd)},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [tuple(row) for row in json.loads(done.stderr.splitlines()[-1])]


def test_every_wrong_name_is_refused_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    for command, said, imported in played(WRONG_NAMES, HEAVY, cwd=tmp_path):
        assert said, command
        assert imported == [], command


def test_every_command_that_takes_a_name_is_in_the_table() -> None:
    takes_none = {"setup", "desktop", "tasks", "job", "bundle", "completion"}
    takes_a_field = {"config"}  # Below.
    assert {row[0] for row in WRONG_NAMES} | takes_none | takes_a_field >= set(cli.commands)


def test_wrong_field_is_refused_before_anything_but_the_configuration_is_imported(tmp_path: Path) -> None:
    heavy = tuple(name for name in HEAVY if name not in FOR_FIELDS)
    wrong = [["train", "quickstart", "lerner.max_age=1"], ["config", "lerner"]]
    right = [["train", "quickstart", "--print-config"], ["config", "learner"]]
    for index, (command, said, imported) in enumerate(played([*wrong, *right], heavy, cwd=tmp_path)):
        assert ("did you mean 'learner'?" in said) if index < len(wrong) else (said == ""), command
        assert imported == [], command


@pytest.mark.parametrize("name", NAMES)
def test_config_is_found_by_name_and_by_path_from_any_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = ROOT / "configs" / f"{name}.yaml"
    for text in (name, f"configs/{name}.yaml", f"{name}.yaml", str(path)):
        assert find_config(text) == path


def test_config_in_the_current_folder_goes_before_the_installed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "quickstart.yaml").write_text("name: mine\n")
    assert find_config("quickstart").resolve() == tmp_path / "configs" / "quickstart.yaml"
    (tmp_path / "quickstart").write_text("name: nearest\n")
    assert find_config("quickstart") == Path("quickstart")


@given(name=st.sampled_from(NAMES), data=st.data())
def test_config_misspelt_by_a_letter_is_answered_with_a_name_that_exists(name: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(name) - 1))
    wrong = name[:place] + name[place + 1 :]
    if wrong in NAMES:
        return
    with pytest.raises(ConfigError) as raised:
        find_config(wrong)
    (problem,) = raised.value.problems
    proposed = problem.next_step.removeprefix("did you mean configs/").removesuffix(".yaml?")
    assert proposed in NAMES or len(wrong) < 4, problem


def test_config_that_is_like_none_is_answered_with_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="quickstart, serial, smoke"):
        find_config("zzzzz")
    with pytest.raises(ConfigError, match="is a folder"):
        find_config(str(tmp_path))
    with pytest.raises(ConfigError, match="source tree"):
        find_config("quickstart", roots=[tmp_path])


@pytest.mark.parametrize(
    ("words", "named", "expected"),
    [
        (("x.yaml",), None, (["x.yaml"], [])),
        (("x.yaml", "a.b=1", "c="), None, (["x.yaml"], ["a.b=1", "c="])),
        (("a.b=1", "x.yaml"), None, (["x.yaml"], ["a.b=1"])),
        (("a.b={c: 1}",), "x.yaml", (["x.yaml"], ["a.b={c: 1}"])),
        (("tasks.curriculum.weights.calc-set-cell=2",), None, ([], ["tasks.curriculum.weights.calc-set-cell=2"])),
        ((), None, ([], [])),
        (("runs/a=b/config.yaml",), None, (["runs/a=b/config.yaml"], [])),
        (("x.yaml", "a=1", "y.yaml"), None, (["x.yaml", "y.yaml"], ["a=1"])),
        (("y.yaml",), "x.yaml", (["x.yaml", "y.yaml"], [])),
    ],
)
def test_words_of_a_command_line_are_told_apart(
    words: tuple[str, ...], named: str | None, expected: tuple[list[str], list[str]]
) -> None:
    assert split_words(words, named) == expected
    assert all(map(is_override, expected[1]))


@pytest.mark.parametrize(("words", "named"), [(("a", "b", "a"), None), (("a",), "a")])
def test_configuration_that_is_given_twice_is_an_error(words: tuple[str, ...], named: str | None) -> None:
    with pytest.raises(click.UsageError, match="'a' is given twice"):
        split_words(words, named)


@pytest.mark.parametrize("value", ["[{name: x}]", "{a: [1, 2]}", "[[1, 2], [3, 4]]"])
@pytest.mark.parametrize(("before", "named"), [(("smoke",), None), ((), "smoke")])
def test_value_that_the_shell_has_split_is_answered_with_quotes(before: tuple[str, ...], named: str | None, value: str) -> None:
    with pytest.raises(click.UsageError) as raised:
        split_words((*before, *f"a.b={value}".split()), named)
    assert f"'a.b={value}'" in raised.value.message


def test_ways_to_name_a_configuration_and_to_set_fields_are_one() -> None:
    ways = [
        ["smoke", "learner.max_age=2", "seed=5"],
        ["--config", "smoke", "learner.max_age=2", "--set", "seed=5"],
        ["configs/smoke.yaml", "--set", "seed=5", "--set", "learner.max_age=2"],
    ]
    shown = [CliRunner().invoke(cli, ["train", *words, "--print-config"]) for words in ways]
    trees = {answer.stdout.partition("\n")[2] for answer in shown}
    assert len(trees) == 1 and "max_age: 2" in trees.pop() and {answer.exit_code for answer in shown} == {0}


def all_commands(group: click.Group, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from all_commands(command, (*prefix, name))
        yield (*prefix, name), command


@pytest.mark.parametrize("name", [(), *(name for name, _ in all_commands(cli))], ids=lambda name: " ".join(name) or "computerrl")
def test_help_page_fits_80_columns_and_teaches_by_an_example(name: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(cli, [*name, "--help"], prog_name="computerrl", terminal_width=80, env={"COLUMNS": "80"}).output
    assert "Usage" in shown
    assert [line for line in shown.splitlines() if len(line) > 80] == []
    assert [line for line in shown.splitlines()[1:] if re.search(r"\w\.\.\.$", line)] == [], "cut"
    assert f"computerrl {' '.join(name)}" in shown.partition("\n")[2], "an example"


@pytest.mark.parametrize("name", [name for name, _ in all_commands(cli)], ids=" ".join)
def test_each_command_and_option_says_in_plain_words_what_it_does(name: tuple[str, ...]) -> None:
    command = dict(all_commands(cli))[name]
    options = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
    about = command.get_short_help_str(200)
    texts = [about, command.help or about, *(option.help or "" for option in options)]
    for text in texts:
        assert re.match(r"[A-Z0-9]", text) and not re.search(r"\b(whoever|somebody|nobody|his)\b", text, re.IGNORECASE), text


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("computerrl tra", {"train", "trace"}),
        ("computerrl train quicks", {"quickstart"}),
        ("computerrl train --config quicks", {"quickstart"}),
        ("computerrl train --res", {"--resume"}),
        ("computerrl status th", {"the-run"}),
        ("computerrl submit quickstart --site one-p", {"one-partition"}),
        ("computerrl train no-such", {"no-such"}),
        ("computerrl completion z", {"zsh"}),
    ],
)
def test_shell_completes_what_a_command_takes(
    words: str, offered: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs/the-run").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    env = {"_COMPUTERRL_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    said = CliRunner().invoke(cli, [], prog_name="computerrl", env=env).output
    assert {line.partition(",")[2] for line in said.splitlines()} == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_of_the_shell(shell: str) -> None:
    shown = CliRunner().invoke(cli, ["completion", shell])
    assert shown.exit_code == 0 and f"_COMPUTERRL_COMPLETE={shell}_complete" in shown.output
