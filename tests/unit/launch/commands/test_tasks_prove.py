"""`computerrl tasks prove`, and families of one's own that a configuration names as `module:NAME`; desktops are imitated."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from computerrl.common.config import TasksConfig
from computerrl.common.errors import ConfigError, TaskFailed
from computerrl.common.messages import TaskRef
from computerrl.env_server.tasks import families_of, task_instance
from computerrl.launch.commands.tasks import prove_families

ROOT = Path(__file__).resolve().parents[4]
SERIAL = ROOT / "configs" / "serial.yaml"
EXAMPLE = (ROOT / "examples" / "sorted_words.py").read_text(encoding="utf-8")
TYPED = "(type_text(wanted), SAVE, DONE)"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])


def module(name: str, source: str) -> str:
    Path(f"{name}.py").write_text(source, encoding="utf-8")
    return f"{name}:SORTED_WORDS"


def prove(*names: str, num_seeds: int = 2) -> int:
    return prove_families(names, num_seeds=num_seeds, config_file=SERIAL, image=None, as_json=True)


def test_families_that_are_right_are_proven(capsys: pytest.CaptureFixture[str]) -> None:
    name = module("right_words", EXAMPLE)
    assert prove(name, "calc-set-cell") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["family"] for row in rows] == ["calc-set-cell"] * 2 + [name] * 2
    assert all(row["untouched"] == 0 and row["demonstrated"] == 1 and row["num_actions"] for row in rows)


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ("return verdict(wanted, found", "return verdict('', '' if found == '' else found", "pays 1 untouched"),
        (TYPED, "(SAVE, SAVE, DONE)", "score 0 after its demonstration: expected"),
        (TYPED, "(SAVE, SAVE, SAVE)", "score 0 after its demonstration: expected"),
    ],
)
def test_family_that_pays_untouched_or_is_not_solved_is_not_proven(
    was: str, now: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert was in EXAMPLE
    name = module(f"wrong_words_{abs(hash(now))}", EXAMPLE.replace(was, now))
    assert prove(name, num_seeds=1) == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert said in row["reason"] and not row["is_proven"]


def test_family_without_a_demonstrator_is_played_untouched_alone(capsys: pytest.CaptureFixture[str]) -> None:
    name = module("silent_words", EXAMPLE.replace('save it", build)', 'save it", build, has_demonstrator=False)'))
    assert prove(name, num_seeds=1) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["untouched"] == 0 and row["demonstrated"] is None


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("SORTED_WORDS = 7\n", "is of type int, not a Family"),
        ("import nowhere_at_all\n", "cannot be imported"),
        ("SORTED = 7\n", "cannot be imported"),
        ("SORTED_WORDS = undefined\n", "raises NameError"),
        ("def (\n", "raises SyntaxError"),
    ],
)
def test_name_that_leads_to_no_family_is_a_problem_with_a_next_step(source: str, said: str) -> None:
    name = module(f"broken_{abs(hash(source))}", source)
    with pytest.raises(ConfigError) as raised:
        families_of(TasksConfig(families=(name,)))
    (problem,) = raised.value.problems
    assert problem.field == "tasks.families" and said in problem.reason and problem.next_step


def test_family_of_one_s_own_is_known_only_where_it_is_named() -> None:
    name = module("named_words", EXAMPLE)
    ref = TaskRef(name, 100_003, "training")
    made = task_instance(ref, tasks=TasksConfig(families=(name,)))
    assert made.instruction == task_instance(ref, tasks=TasksConfig(families=(name,))).instruction
    with pytest.raises(TaskFailed, match="unknown task family"):
        task_instance(ref, tasks=TasksConfig())


def test_family_of_one_s_own_is_played_through_gymnasium() -> None:
    from computerrl.env_server.gym import DesktopEnv

    env = DesktopEnv(module("gym_words", EXAMPLE), driver="scripted")
    observation, _ = env.reset(seed=7)
    words = observation["instruction"].removeprefix("Type the words ").partition(" in alphabetical")[0].split(", ")
    for action in (f'type("{" ".join(sorted(words))}")', 'key("ctrl+s")'):
        assert not env.step(action)[4]["action_error"]
    assert env.step("done()")[1] == 1.0
    env.close()
