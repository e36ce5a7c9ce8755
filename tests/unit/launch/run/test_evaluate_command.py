"""`computerrl eval`: what it asks a run for, and what it makes of the episodes."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from computerrl.common.config import RunConfig
from computerrl.common.errors import ConfigError
from computerrl.common.models.folder import is_model_folder
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.launch.commands.main import cli
from computerrl.launch.plan.run_names import claim, find_resumable
from computerrl.launch.run import evaluate
from computerrl.launch.run.evaluate import Wish, evaluation_config, find_evaluated, remove_weights, with_weights, write_evaluation
from computerrl.learner.model_store import ensure_model
from computerrl.learner.recipe.recipe import first_phase, phase_after
from tests.unit.learner.checkpoints.test_export_folder import make_run

MODEL = str(ensure_model("tiny-random"))
QUICKSTART = Path(__file__).resolve().parents[4] / "configs" / "quickstart.yaml"


def wish(**fields: object) -> Wish:
    return Wish(MODEL, config=QUICKSTART, **fields)  # type: ignore[arg-type]


def config_of(asked: Wish) -> RunConfig:
    return evaluation_config(asked, find_evaluated(asked))


def test_evaluation_is_a_run_that_evaluates_and_does_nothing_else() -> None:
    config = config_of(wish(families=("files-move",), episodes=3, overrides=("desktop.num_desktops=2",)))
    assert config.model.name == MODEL and config.name == "eval-tiny-random"
    phase = first_phase(config, temperature=1.0)
    (order,) = phase.orders
    assert (order.kind, order.num_per_family, order.group_size, order.temperature) == ("evaluation", 3, 1, 0.0)
    assert order.to_message(config, config.tasks.families, policy_version=0).families == ("files-move",)
    assert phase_after(phase, config, temperature=1.0).kind == "done"
    assert config.desktop.num_desktops == 2


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("my model", "eval-my-model"),
        ("mod\u00e8le", "eval-mod-le"),
        ("run #2", "eval-run-2"),
        ("step: 3", "eval-step-3"),
        ("a=b", "eval-a-b"),
        ("[x]", "eval--x-"),
        ("'q' \"q\"", "eval--q-q-"),
        ("{a: 1}", "eval--a-1-"),
        ("~", "eval--"),
        ("null", "eval-null"),
        ("a\\b", "eval-a-b"),
    ],
)
def test_folder_of_any_name_is_evaluated_as_it_is(tmp_path: Path, folder: str, name: str) -> None:
    place = tmp_path / "part # of: the path" / folder
    shutil.copytree(MODEL, place)
    config = config_of(Wish(str(place), config=QUICKSTART, endpoint="http://127.0.0.1:1/a=b/v1"))
    assert (config.model.name, config.name) == (str(place), name)
    assert config.actor.endpoint is not None and config.actor.endpoint.url == "http://127.0.0.1:1/a=b/v1"


def test_evaluation_of_a_run_that_has_a_budget_plays_every_episode() -> None:
    config = config_of(wish(episodes=20))
    assert config.learner.recipe.max_run_s is None and config.learner.recipe.eval_episodes_per_family == 20


def test_evaluation_with_several_rollouts_samples_them() -> None:
    (order,) = first_phase(config_of(wish(rollouts=8)), temperature=1.0).orders
    assert (order.group_size, order.temperature) == (8, 1.0)
    assert first_phase(config_of(wish(rollouts=8, temperature=0.5)), temperature=1.0).orders[0].temperature == 0.5


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (wish(rollouts=2, temperature=0.0), "--temperature"),
        (Wish(MODEL), "--config"),
        (Wish("no-such-run"), "CHECKPOINT"),
    ],
)
def test_evaluation_that_cannot_be_is_refused_by_name(asked: Wish, field: str) -> None:
    with pytest.raises(ConfigError) as raised:
        config_of(asked)
    assert any(problem.field.startswith(field) for problem in raised.value.problems)


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in sorted(folder.rglob("*"))}


def test_checkpoint_is_evaluated_from_the_evaluation_s_own_folder_and_its_run_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run, _ = make_run(tmp_path / "runs")
    before = contents(run)
    asked = Wish("trained", episodes=1)
    found = find_evaluated(asked)
    config = claim(evaluation_config(asked, found))
    assert config.name == f"eval-trained-{found.checkpoint.name}" and config.model.name == "tiny-random"  # type: ignore[union-attr]
    ready = with_weights(config, found)
    model = Path(ready.model.name)
    assert model.parent == config.folder.resolve() and is_model_folder(model)
    RunFolder(config.folder).create(ready)
    again = evaluation_config(replace(asked, resume=True), found)
    assert again.model.name == str(model), "--resume goes on with the weights that are there"
    assert find_resumable(again).name == config.name
    remove_weights(config.folder)
    assert (model / "tokenizer.json").is_file() and not list(model.glob("*.safetensors"))
    RunFolder(config.folder).episodes_path.write_text("")
    assert write_evaluation(config.folder)["model"] == f"trained/{found.checkpoint.name}"  # type: ignore[union-attr]
    assert contents(run) == before


def test_run_without_a_checkpoint_is_answered_with_one_that_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, number in (("old", 1), ("new", None)):
        folder = RunFolder(tmp_path / "runs" / name)
        folder.create(RunConfig(name=name))
        if number is not None:
            (folder.checkpoints / f"checkpoint-{number:06}").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"runs/new has no checkpoint\n    -> use runs/old, which has one"):
        find_evaluated(Wish("new"))


def test_model_folder_that_lacks_something_is_told_what(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ConfigError, match=r"holds no model\.safetensors"):
        find_evaluated(Wish(str(tmp_path)))


def episode(family: str, seed: int, index: int, *, success: bool, kind: str = "evaluation") -> str:
    return json.dumps(
        {"trajectory_id": f"eval-before/{family}{seed}/{index}", "kind": kind, "family": family, "seed": seed, "success": success}
    )


def test_figures_and_page_are_of_each_evaluated_trajectory_once(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "eval-x")
    run.create(RunConfig.model_validate({"name": "eval-x", "learner": {"recipe": {"eval_rollouts_per_task": 2}}}))
    lines = [
        episode("<b>", 1, 0, success=True),
        episode("<b>", 1, 1, success=False),
        episode("<b>", 1, 1, success=False),
        episode("move", 4, 0, success=True),
        episode("move", 4, 1, success=True),
        episode("move", 4, 2, success=True, kind="demonstration"),
    ]
    run.episodes_path.write_text("\n".join(lines) + "\n")
    figures = write_evaluation(run.folder)
    assert json.loads((run.folder / "evaluation.json").read_text()) == figures
    assert figures["all"]["num_rollouts"] == 4 and figures["all"]["pass@1"]["mean"] == 0.75
    assert figures["families"]["<b>"]["pass@2"]["mean"] == 1.0
    page = (run.folder / "evaluation.html").read_text()
    assert "75%" in page.replace(" ", "") and "pass@2" in page and "&lt;b&gt;" in page and "<b>" not in page.partition("<svg")[2]
    assert "move" in evaluate.table_of(figures) and "0.750 [" in evaluate.table_of(figures)


def task_file(folder: Path, name: str, evaluator: dict[str, object]) -> None:
    task = {"id": name, "instruction": "Do it.", "related_apps": ["libreoffice_calc"], "config": [], "evaluator": evaluator}
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(task))


def test_share_of_tasks_that_cannot_be_done_stands_beside_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("computerrl.env_server.tasks.osworld.families.missing_readers", list)
    tasks = tmp_path / "tasks"
    task_file(tasks, "impossible", {"func": "infeasible"})
    result = {"type": "vm_command_line", "command": ["cat", "/home/user/answer.txt"]}
    expected = {"type": "rule", "rules": {"expected": "x"}}
    for name in ("one", "two"):
        task_file(tasks, name, {"func": "exact_match", "result": result, "expected": expected})
    run = RunFolder(tmp_path / "eval-x")
    run.create(RunConfig.model_validate({"name": "eval-x", "tasks": {"osworld": str(tasks)}}))
    played = [("impossible", True), ("one", True), ("two", False)]
    lines = [episode(f"osworld-{name}", 5, 0, success=success) for name, success in played]
    run.episodes_path.write_text("\n".join(lines) + "\n")
    figures = write_evaluation(run.folder)
    assert figures["impossible"] == {"num_tasks": 1, "always_fail": pytest.approx(1 / 3)}
    assert "1 of 3 tasks cannot be done: an agent that always answers fail scores 0.333" in evaluate.table_of(figures)
    assert "always answers that it cannot be done: 1 of the tasks cannot" in (run.folder / "evaluation.html").read_text()
    run.episodes_path.write_text("\n".join(lines[1:]) + "\n")
    assert write_evaluation(run.folder)["impossible"] is None
    assert "cannot be done" not in evaluate.table_of(figures | {"impossible": None})


def test_help_teaches() -> None:
    shown = CliRunner().invoke(cli, ["eval", "--help"]).output
    assert "computerrl eval latest" in shown and "--rollouts" in shown and "pass@K" in shown
