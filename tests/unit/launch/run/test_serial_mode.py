"""The whole loop in one process: imitated desktops, a tiny untrained model, in-memory transport."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from computerrl.common.config import RunConfig, load_config
from computerrl.common.metrics import read_json_lines
from computerrl.launch.run.local import play
from computerrl.launch.run.serial import run_serial
from tests.support.data.image_prompts import make_folder
from tests.support.tiers import one_in

CONFIG = Path(__file__).resolve().parents[4] / "configs" / "serial.yaml"
FAMILIES = ["calc-set-cell", "web-click-button"]
SMALL = (f"tasks.families={json.dumps(FAMILIES)}", "learner.num_threads=1", "actor.num_threads=1")


@pytest.fixture
def small(tmp_path: Path) -> RunConfig:
    from computerrl.common.run_files.run_folder import RunFolder

    config = load_config(CONFIG, overrides=[*SMALL, f"run_dir={tmp_path}"])
    RunFolder(config.folder).create(config)
    return config


def test_serial_run_walks_the_whole_recipe_and_loses_nothing(small: RunConfig) -> None:
    state = run_serial(small)
    phases = [record["phase"] for record in state.phases]
    assert phases == ["demonstrations", "eval-before", "bc", "eval-after-bc", "rl-1", "eval-after-rl", "done"]
    assert len(state.updates) == 2
    assert state.summary is not None
    assert state.summary["num_trajectories_lost"] == 0
    assert set(state.evaluations[0]["families"]) == set(FAMILIES)
    assert state.status is not None
    assert state.status.policy_version == state.updates[-1]["policy_version"]
    episodes = read_json_lines(small.folder / "trajectories" / "episodes.jsonl")
    demonstrations = [episode for episode in episodes if episode["kind"] == "demonstration"]
    assert demonstrations, "the demonstrators were recorded"
    assert all(episode["success"] for episode in demonstrations), "and solve their tasks"


FORMS_OF_IMAGES = ("compact_vision", "computerrl_vision", "ui_tars", "qwen_computer_use")


@pytest.mark.parametrize(
    ("form", "family"), one_in(5, [(form, family) for family in ("idefics3", "qwen3_vl") for form in FORMS_OF_IMAGES])
)
def test_serial_run_on_images_walks_the_whole_recipe_in_every_format(tmp_path: Path, form: str, family: str) -> None:
    """Probes with an image compare engine and learner at each load: a run in which they differ ends."""
    from computerrl.common.run_files.run_folder import RunFolder

    model = make_folder(tmp_path / "model", family, text={"max_position_embeddings": 8192})
    overrides = [
        f"model.name={model}",
        f"run_dir={tmp_path}",
        "tasks.families=[web-click-button]",
        "tasks.actions=gui",
        "desktop.screen_width=320",
        "desktop.screen_height=240",
        f"actor.prompt={{format: {form}, images: 1, max_prompt_tokens: 7000}}",
        "actor.max_new_tokens=60",
        "actor.num_threads=1",
        "learner.num_threads=1",
    ]
    config = load_config(CONFIG, overrides=overrides)
    RunFolder(config.folder).create(config)
    state = run_serial(config)
    assert state.summary is not None and state.summary["num_trajectories_lost"] == 0
    assert state.sft_steps, "a demonstration said in the format was cloned"
    episodes = read_json_lines(config.folder / "trajectories" / "episodes.jsonl")
    assert all(one["success"] for one in episodes if one["kind"] == "demonstration")
    kept = read_json_lines(config.folder / "trajectories" / "samples.jsonl")
    assert all(step["images"] and step["tokens"] for one in kept for step in one["steps"])


@pytest.mark.release
def test_serial_run_with_a_curriculum_trains_groups_of_other_sizes_and_loses_nothing(tmp_path: Path) -> None:
    from computerrl.common.run_files.run_folder import RunFolder

    overrides = [
        *SMALL,
        f"run_dir={tmp_path}",
        "broker.eta=0",
        "learner.recipe.max_updates=3",
        "learner.recipe.demos_per_family=0",
        "learner.recipe.eval_episodes_per_family=0",
        "tasks.rollouts={min: 2, max: 4}",
        "tasks.curriculum={name: success_band, min_results: 2}",
        "tasks.family_weights={calc-set-cell: 3}",
    ]
    config = load_config(CONFIG, overrides=overrides)
    RunFolder(config.folder).create(config)
    state = run_serial(config)
    assert state.summary is not None and state.summary["num_trajectories_lost"] == 0 and len(state.updates) == 3
    # The untrained model always fails: both families grow from the 2 rollouts of the unknown to the maximum.
    ledger = read_json_lines(config.folder / "ledger.jsonl")
    sizes = Counter(line["group_seq"] for line in ledger if line["outcome"] != "phase_closed")
    assert set(sizes.values()) == {2, 4}
    assert sum(sum(record["rollouts_by_family"].values()) for record in state.updates) == sum(sizes.values())


@pytest.mark.release
def test_serial_run_in_the_published_format_clones_demonstrations_said_in_it(tmp_path: Path) -> None:
    from computerrl.actor.prompts.formats import make_format
    from computerrl.common.run_files.run_folder import RunFolder
    from tests.support.data.actor_data import make_observation

    families = ["calc-set-cell", "calc-type-cell", "editor-type-save", "web-click-button"]
    overrides = [
        *SMALL,
        f"tasks.families={json.dumps(families)}",
        f"run_dir={tmp_path}",
        "actor.prompt.format=computerrl_text",
        "actor.prompt.max_prompt_tokens=1792",
        "learner.recipe.max_updates=1",
        "learner.recipe.eval_before_episodes_per_family=0",
    ]
    config = load_config(CONFIG, overrides=overrides)
    RunFolder(config.folder).create(config)
    state = run_serial(config)
    assert state.summary is not None and state.summary["num_trajectories_lost"] == 0 and len(state.updates) == 1
    episodes = read_json_lines(config.folder / "trajectories" / "episodes.jsonl")
    demonstrations = [episode for episode in episodes if episode["kind"] == "demonstration"]
    assert len(demonstrations) == len(families) and all(episode["success"] for episode in demonstrations)
    answers = [step["action_text"] for episode in demonstrations for step in episode["steps"]]
    assert all(answer.startswith("<think>\n") and answer.endswith("\n```") for answer in answers)
    names = {make_format(config.actor.prompt).parse(answer, make_observation()).name for answer in answers}
    assert names == {"calc.set_cell", "click", "type", "key", "done"}


def test_serial_train_writes_the_report_and_refuses_to_resume_what_is_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from computerrl.common.errors import ResumeError

    recipe = ["learner.recipe.max_updates=1", "learner.recipe.eval_before_episodes_per_family=0"]
    overrides = [*SMALL, f"run_dir={tmp_path}", *recipe]
    assert play(load_config(CONFIG, overrides=overrides), resume=False)[0] == 0
    report = json.loads((tmp_path / "serial" / "report.json").read_text())
    assert report["finished"] is True
    assert (report["driver"], report["num_updates"], report["num_trajectories_lost"]) == ("scripted", 1, 0)
    assert (tmp_path / "latest" / "report.html").is_file()
    assert "phase=rl-1" in capsys.readouterr().out
    with pytest.raises(ResumeError, match="has finished"):
        play(load_config(CONFIG, overrides=overrides), resume=True)


def test_serial_run_trains_on_what_a_person_recorded(tmp_path: Path) -> None:
    """A recording of another seed than the scripted ones, with a step that no scripted demonstrator takes."""
    from computerrl.common.messages import TaskRef
    from computerrl.common.run_files.recordings import FORMAT_VERSION, RecordedStep, Recording, write_recording
    from computerrl.env_server.tasks import FAMILIES as ALL
    from tests.support.data.actor_data import make_observation

    instance = ALL["calc-set-cell"].make(50)
    wanted = instance.demonstrate("", make_observation(), (), lambda kind: None).args
    texts = ("wait()", f'calc.set_cell("{wanted["cell"]}", "{wanted["value"]}")', "done()")
    steps = tuple(RecordedStep(text, {}, make_observation(), "") for text in texts)
    task = TaskRef("calc-set-cell", 50, "demonstration")
    write_recording(tmp_path / "demos", Recording(FORMAT_VERSION, task, instance.instruction or "", steps, 1.0, "scripted"))
    overrides = [
        *SMALL,
        f"run_dir={tmp_path}",
        f"tasks.recordings={tmp_path}/demos",
        "learner.recipe.eval_episodes_per_family=0",
        "learner.recipe.max_updates=0",
    ]
    assert play(load_config(CONFIG, overrides=overrides), resume=False)[0] == 0
    episodes = read_json_lines(tmp_path / "serial" / "trajectories" / "episodes.jsonl")
    recorded = [episode for episode in episodes if (episode["family"], episode["seed"]) == ("calc-set-cell", 50)]
    assert len(episodes) == 3 and len(recorded) == 1 and recorded[0]["success"]
    assert [step["action_text"] for step in recorded[0]["steps"]] == list(texts)
    assert any(line["event"] == "sft" for line in read_json_lines(tmp_path / "serial" / "metrics.jsonl"))


@pytest.mark.parametrize("family", ["qwen3_vl", "idefics3"])
def test_serial_run_on_images_alone_trains_on_the_screens_that_were_shown(tmp_path: Path, family: str) -> None:
    from computerrl.common.run_files.run_folder import RunFolder
    from tests.support.data.image_prompts import make_folder

    overrides = [
        *SMALL,
        f"run_dir={tmp_path}",
        f"model.name={make_folder(tmp_path / 'model', family)}",
        "actor.prompt={format: compact_vision, images: 2, max_prompt_tokens: 400}",
        # Log-probs of engine and learner are compared: images that one of them misses would end the run.
        "learner.max_logprob_gap=0.001",
    ]
    config = load_config(CONFIG, overrides=overrides)
    RunFolder(config.folder).create(config)
    state = run_serial(config)
    assert state.summary is not None and state.summary["num_trajectories_lost"] == 0 and len(state.updates) == 2
    ledger = read_json_lines(config.folder / "ledger.jsonl")
    assert ledger and not [line for line in ledger if str(line["outcome"]).startswith("picture_")]
    assert {"trained", "demonstrated", "evaluated"} >= {line["outcome"] for line in ledger} - {"no_signal", "phase_closed"}


@pytest.mark.parametrize("name", one_in(2, ["ui_tars", "qwen_computer_use"]))
def test_serial_run_in_the_calls_of_others_clones_points_and_stores_png(tmp_path: Path, name: str) -> None:
    from computerrl.actor.prompts.formats import make_format
    from computerrl.common.run_files.run_folder import RunFolder
    from tests.support.data.actor_data import make_observation
    from tests.support.data.image_prompts import make_folder

    overrides = [
        *SMALL,
        'tasks.families=["calc-type-cell", "web-click-button"]',
        "tasks.actions=gui",
        f"run_dir={tmp_path}",
        f"model.name={make_folder(tmp_path / 'model', 'qwen2_5_vl')}",
        f"actor.prompt={{format: {name}, max_prompt_tokens: 1900, history_steps: 1, window_title: false}}",
        "actor.max_new_tokens=48",
        "learner.recipe.max_updates=1",
        "learner.recipe.eval_before_episodes_per_family=0",
        "learner.max_logprob_gap=0.001",
    ]
    config = load_config(CONFIG, overrides=overrides)
    assert config.desktop.screenshot_format == "png"
    RunFolder(config.folder).create(config)
    state = run_serial(config)
    assert state.summary is not None and state.summary["num_trajectories_lost"] == 0 and len(state.updates) == 1
    episodes = read_json_lines(config.folder / "trajectories" / "episodes.jsonl")
    demonstrations = [episode for episode in episodes if episode["kind"] == "demonstration"]
    assert demonstrations and all(episode["success"] for episode in demonstrations)
    # Qwen2.5-VL speaks pixels of its resized image, at most 64 pieces of 28 x 28.
    form = make_format(config.actor.prompt, extents=lambda width, height: (252, 196))
    answers = [step["action_text"] for episode in demonstrations for step in episode["steps"]]
    assert {form.parse(answer, make_observation()).name for answer in answers} == {"click", "type", "done"}
    (line,) = [line for line in read_json_lines(config.folder / "metrics.jsonl") if line["event"] == "demonstrations"]
    assert line["off_demonstration"] == {} and line["success"] == 1.0
    stored = next((config.folder / "trajectories").glob("segment-*.bin"))
    assert stored.read_bytes().startswith(b"\x89PNG")
