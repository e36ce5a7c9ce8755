"""Run folders: names, resuming, locks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from computerrl.common.config import RunConfig
from computerrl.common.errors import ConfigError, ResumeError
from computerrl.common.host import fast_dtype
from computerrl.launch.plan.run_names import claim, find_resumable, find_run, locked, new_attempt, point_latest, runs_named


def config(tmp_path: Path, **sections: object) -> RunConfig:
    return RunConfig.model_validate({"name": "quick", "run_dir": str(tmp_path), **sections})


def start(run: RunConfig) -> Path:
    (run.folder / "config.yaml").write_text(yaml.safe_dump(run.model_dump(mode="json")))
    return run.folder


def test_claim_twice_gives_a_counter_and_leaves_the_first_alone(tmp_path: Path) -> None:
    names = [claim(config(tmp_path)).name for _ in range(3)]
    assert names == ["quick", "quick-2", "quick-3"]


def test_claim_makes_a_folder_that_others_cannot_look_into(tmp_path: Path) -> None:
    assert claim(config(tmp_path)).folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/none", "n" * 256])
def test_claim_where_no_folder_can_be_made_names_the_field_and_the_way_out(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"run_dir: no run folder can be made in .*\n.*run_dir=FOLDER"):
        claim(config(tmp_path, run_dir=str(tmp_path / place)))


def test_claim_counts_above_the_highest_when_one_was_removed(tmp_path: Path) -> None:
    for _ in range(3):
        claim(config(tmp_path))
    (tmp_path / "quick").rmdir()
    assert claim(config(tmp_path)).name == "quick-4"


def test_runs_named_does_not_mix_up_names_with_the_same_beginning(tmp_path: Path) -> None:
    for name in ("quick", "quick-2", "quick-10", "quickest", "quick-x"):
        (tmp_path / name).mkdir()
    assert [folder.name for folder in runs_named(tmp_path, "quick")] == ["quick", "quick-2", "quick-10"]


def test_resume_takes_the_newest_of_that_name(tmp_path: Path) -> None:
    for _ in range(2):
        start(claim(config(tmp_path)))
    assert find_resumable(config(tmp_path)).name == "quick-2"


def test_resume_without_a_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(ResumeError, match="no run 'quick'"):
        find_resumable(config(tmp_path))


def test_resume_of_another_config_names_the_fields_that_differ(tmp_path: Path) -> None:
    start(claim(config(tmp_path)))
    other = config(tmp_path, seed=7, learner={"group_size": 4}, supervisor={"stop_s": 1.0})
    with pytest.raises(ResumeError) as caught:
        find_resumable(other)
    text = str(caught.value)
    assert "learner.group_size: was 8, is 4 now" in text
    assert "seed: was 0, is 7 now" in text
    assert "stop_s" not in text


def test_resume_with_fields_that_decide_nothing_learned_is_allowed(tmp_path: Path) -> None:
    start(claim(config(tmp_path)))
    other = config(
        tmp_path,
        desktop={"num_desktops": 2},
        broker={"port": 5555, "bind_address": "127.0.0.1"},
        learner={"num_threads": 1, "num_ranks": 2, "activation_checkpointing": "full", "recipe": {"max_updates": 99}},
    )
    assert find_resumable(other).learner.recipe.max_updates == 99


def test_resume_keeps_the_compute_type_that_the_run_began_with(tmp_path: Path) -> None:
    other = "float32" if fast_dtype() == "bfloat16" else "bfloat16"
    start(claim(config(tmp_path, model={"name": "tiny-random", "dtype": other})))
    assert find_resumable(config(tmp_path, model={"name": "tiny-random"})).model.dtype == other
    with pytest.raises(ResumeError, match=r"model\.dtype"):
        find_resumable(config(tmp_path, model={"name": "tiny-random", "dtype": fast_dtype()}))


def test_resume_changed_staleness_bound_is_refused(tmp_path: Path) -> None:
    start(claim(config(tmp_path)))
    with pytest.raises(ResumeError, match=r"broker\.eta"):
        find_resumable(config(tmp_path, broker={"eta": 2}))


def test_resume_of_a_finished_run_is_refused_unless_it_shall_go_on(tmp_path: Path) -> None:
    folder = start(claim(config(tmp_path)))
    (folder / "report.json").write_text(json.dumps({"finished": True}))
    with pytest.raises(ResumeError, match="has finished"):
        find_resumable(config(tmp_path))
    assert find_resumable(config(tmp_path, learner={"recipe": {"max_updates": 99}})).name == "quick"


def test_locked_run_refuses_a_second_supervisor_and_names_the_first(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(ResumeError, match="is being run by process"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_attempts_are_numbered_and_latest_points_at_the_newest(tmp_path: Path) -> None:
    assert [new_attempt(tmp_path).name for _ in range(3)] == ["1", "2", "3"]
    assert (tmp_path / "logs" / "latest").resolve() == (tmp_path / "logs" / "3").resolve()


def test_latest_link_follows_and_never_replaces_a_folder(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        point_latest(tmp_path / name)
    assert (tmp_path / "latest").resolve().name == "b"
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").mkdir()
    point_latest(tmp_path / "a")
    assert not (tmp_path / "latest").is_symlink()


def test_find_run_unknown_lists_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    start(claim(RunConfig(name="quick", run_dir="runs")))
    assert find_run("quick") == Path("runs/quick")
    with pytest.raises(ConfigError, match="use one of quick"):
        find_run("quik")
