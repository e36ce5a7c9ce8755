"""Configuration: all problems at once, each naming its field and the next step."""

import os
from pathlib import Path

import pytest

from computerrl.common.config import ActorConfig, DesktopConfig, LearnerConfig, PromptConfig, RunConfig, load_config
from computerrl.common.config.reading import fields_below
from computerrl.common.errors import ConfigError


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return path


def problems(path: Path, *overrides: str) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides=overrides)
    assert all(problem.next_step for problem in caught.value.problems)
    return {problem.field: f"{problem.reason} {problem.next_step}" for problem in caught.value.problems}


def test_load_config_empty_file_gives_defaults(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "")) == RunConfig()


def test_load_config_several_mistakes_reports_all_of_them(tmp_path: Path) -> None:
    found = problems(
        write(tmp_path, "learner: {grup_size: 8, max_age: -1}\ndesktop: {driver: docker}\nactor: {num_actors: none}\n")
    )
    assert "group_size" in found["learner.grup_size"]
    assert "-1" in found["learner.max_age"]
    assert "apptainer" in found["desktop.driver"]
    assert "actor.num_actors" in found


def test_load_config_syntax_error_names_line_and_column(tmp_path: Path) -> None:
    path = write(tmp_path, "learner:\n  max_age: [1\n")
    assert "line 3" in problems(path)[str(path)]


def test_load_config_same_key_twice_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, "seed: 1\nseed: 2\n")
    assert "'seed'" in problems(path)[str(path)]


@pytest.mark.parametrize("text", ["- a\n- b\n", "just text", "5"])
def test_load_config_not_a_mapping_is_an_error(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text)
    assert "mapping" in problems(path)[str(path)]


def test_load_config_missing_file_names_it(tmp_path: Path) -> None:
    path = tmp_path / "nothing.yaml"
    assert "cannot be read" in problems(path)[str(path)]


def test_load_config_binary_file_names_it(tmp_path: Path) -> None:
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"\xff\xfe\x00\x80")
    assert "UTF-8" in problems(path)[str(path)]


def test_load_config_override_wins_over_file(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, "seed: 1\n"), overrides=["seed=7", "learner.optimizer.lr=1e-6", "name=abc"])
    assert (config.seed, config.learner.optimizer.lr, config.name) == (7, 1e-6, "abc")


@pytest.mark.parametrize("override", ["seed", "=5", "seed.deeper=1", "nothing.here=1", "seed=[1"])
def test_load_config_bad_override_is_an_error(tmp_path: Path, override: str) -> None:
    assert problems(write(tmp_path, "seed: 1\n"), override)


@pytest.mark.parametrize(
    "text", ["run #2", "a: b", "[x", "{x", "'s", "*x", "&x", "%x", "007", "1e5", "yes", "2026-11-26", "Übung 🙂", " x ", "a=b"]
)
def test_load_config_override_of_a_text_takes_it_as_it_is(tmp_path: Path, text: str) -> None:
    config = load_config(write(tmp_path, ""), overrides=[f"model.name={text}", f"tasks.recordings={text}"])
    assert (config.model.name, config.tasks.recordings) == (text, text)


def test_load_config_override_of_a_text_in_quotes_is_read_as_yaml(tmp_path: Path) -> None:
    overrides = ["model.name='my model'", 'tasks.osworld="a\tb"', "tasks.recordings=null"]
    config = load_config(write(tmp_path, "tasks: {recordings: here}"), overrides=overrides)
    assert (config.model.name, config.tasks.osworld, config.tasks.recordings) == ("my model", "a\tb", None)


@pytest.mark.parametrize("name", ["7", "2026-11-26", "yes", "1.5"])
def test_load_config_text_that_yaml_takes_for_something_else_is_answered_with_quotes(tmp_path: Path, name: str) -> None:
    assert "quotes" in problems(write(tmp_path, f"name: {name}"))["name"]
    assert load_config(write(tmp_path, f"name: '{name}'")).name == name


@pytest.mark.parametrize(
    ("name", "proposed"),
    [("my run", "my-run"), ("Übung", "bung"), ("../x", "x"), ("latest", "another name"), ("", "letters"), ("a/b", "a-b")],
)
def test_load_config_name_that_is_no_run_s_is_refused_with_one_that_is(tmp_path: Path, name: str, proposed: str) -> None:
    assert proposed in problems(write(tmp_path, ""), f"name={name}")["name"]


def test_load_config_home_is_meant_by_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    path = write(tmp_path, "tasks: {recordings: ~/shown}\nrun_dir: a~b\n")
    config = load_config(path, overrides=["tasks.osworld=~/tasks", "tasks.osworld_assets=~"])
    assert (config.tasks.recordings, config.tasks.osworld) == ("/home/somebody/shown", "/home/somebody/tasks")
    assert (config.tasks.osworld_assets, config.run_dir) == (None, "a~b"), "a tilde alone is YAML's null"
    assert load_config(path, overrides=["run_dir=~/runs"]).run_dir == "/home/somebody/runs"


@pytest.mark.parametrize("run_dir", ["a\nb", "a\tb", "a\x1b[31m", "a\r"])
def test_load_config_folder_that_cannot_be_shown_is_refused(tmp_path: Path, run_dir: str) -> None:
    assert "line breaks" in problems(write(tmp_path, ""), f"run_dir={run_dir}")["run_dir"]
    assert load_config(write(tmp_path, ""), overrides=["run_dir=a 'b' $(c) ; -d"]).run_dir == "a 'b' $(c) ; -d"


@pytest.mark.parametrize(
    "text",
    [
        "seed: 2026-99-99",
        "seed: !!int x",
        "seed: !!bool x",
        "seed: !!timestamp x",
        "seed: !!float ''",
        "seed: " + "1" * 5000,
        "seed: 0x" + "f" * 5000,
        "seed: " + "[" * 5000,
        "run_dir: &a [*a]",
        "learner: {algorithm: {options: &a {a: *a}}}",
        "1: 2",
        '"\\0": 1',
        'run_dir: "a\\0b"',
        'run_dir: "\\udce9"',
        "? [a]\n: 1",
    ],
)
def test_load_config_yaml_that_is_no_value_is_a_problem_of_the_file_or_the_field(tmp_path: Path, text: str) -> None:
    assert problems(write(tmp_path, text))


@pytest.mark.parametrize("text", ["seed: 010", "seed: 10", "seed: 0xa", "seed: 1_0", "seed: '10'", "seed: 10.0"])
def test_load_config_number_is_the_one_that_a_person_reads(tmp_path: Path, text: str) -> None:
    assert load_config(write(tmp_path, text)).seed == 10


@pytest.mark.parametrize("value", ["1:30", "true", "yes", "on", "1,5", "[1]", "{}", "~", "", "1e400", "0o12", "2026-01-01"])
def test_load_config_number_that_is_none_is_refused_by_its_field(tmp_path: Path, value: str) -> None:
    for field in ("tasks.max_steps", "broker.max_assignment_s", "seed", "tasks.family_weights.x"):
        found = problems(write(tmp_path, ""), f"{field}={value}")
        assert all(place.startswith(field) or field.startswith(place) for place in found), found


def test_load_config_truth_value_in_a_list_or_mapping_of_numbers_is_refused(tmp_path: Path) -> None:
    found = problems(write(tmp_path, "tasks: {demonstration_seeds: [false, 5], family_weights: {a: yes}, horizon: [[on, 2]]}"))
    assert set(found) == {"tasks.demonstration_seeds", "tasks.family_weights", "tasks.horizon"}


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("learner:\n", "leave it out"),
        ("learner: 5", "leave it out"),
        ("learner: []", "leave it out"),
        ("tasks: {families: calc-set-cell}", "[calc-set-cell]"),
        ("metrics: {wandb: 5}", "true or false"),
        ("learner: {rewards: []}", "at least 1 value"),
        ("learner: {rewards: [name]}", "fields as KEY: VALUE"),
        ("learner.max_age: 2", "into the section learner"),
        ("learner.optimizer.lr: 2", "into the section learner.optimizer"),
    ],
)
def test_load_config_value_of_another_shape_is_answered_with_the_right_one(tmp_path: Path, text: str, advice: str) -> None:
    (found,) = problems(write(tmp_path, text)).values()
    assert advice in found


def test_load_config_aliases_and_merges_are_read(tmp_path: Path) -> None:
    text = "learner: {group_size: &n 6}\nactor: {num_episodes: *n}\ndesktop: {<<: {num_desktops: 3}, num_desktops: 2}\n"
    config = load_config(write(tmp_path, text))
    assert (config.actor.num_episodes, config.desktop.num_desktops) == (6, 2)


def levels(text: str) -> str:
    """Nine mappings or lists, each of ten aliases of the one before."""
    return "".join(f"a{level}: &a{level} {text}\n".replace("?", f"*a{level - 1}") for level in range(1, 10))


NESTED, MERGED = levels(f"[{'?, ' * 10}]"), levels(f"{{<<: [{'?, ' * 10}]}}")
MAPPED = levels(f"{{{', '.join(f'{key}: ?' for key in 'bcdefghijk')}}}")


@pytest.mark.parametrize("use", ["", "seed: *a9", "tasks: {families: *a9}", "learner: *a9", "seed: !!int {a: *a9}", "? *a9\n: 1"])
@pytest.mark.parametrize("bomb", ["a0: &a0 [x]\n" + NESTED, "a0: &a0 {x: 1}\n" + MERGED, "a0: &a0 {x: 1}\n" + MAPPED])
def test_load_config_aliases_that_stand_for_more_than_memory_holds_are_refused(tmp_path: Path, bomb: str, use: str) -> None:
    path = write(tmp_path, bomb + use)
    assert "with all aliases" in problems(path)[str(path)]


def test_load_config_what_is_no_file_of_text_is_refused_at_once(tmp_path: Path) -> None:
    fifo, large, folder = tmp_path / "fifo", tmp_path / "large", tmp_path
    os.mkfifo(fifo)
    with large.open("wb") as file:
        file.truncate(1 << 40)
    for path, reason in ((fifo, "pipe"), (Path("/dev/zero"), "device"), (folder, "folder"), (large, "more than")):
        assert reason in problems(path)[str(path)]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "latin-1"])
def test_load_config_text_of_another_encoding_is_answered_with_utf_8(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes("name: ä\n".encode(encoding))
    assert "save" in problems(path)[str(path)] and "UTF-8" in problems(path)[str(path)]


@pytest.mark.parametrize("text", ["\ufeffseed: 3\n", "seed: 3\r\n", "seed: 3\rname: x", '{"seed": 3}', "%YAML 1.2\n---\nseed: 3"])
def test_load_config_file_of_another_editor_is_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(text.encode())
    assert load_config(path).seed == 3


@pytest.mark.parametrize(
    "endpoint",
    [
        "{url: 'http://user:secret@h/v1'}",
        "{url: 'http://user:sec/secret@h/v1'}",
        "{url: 'http://h/v1?key=secret'}",
        "{url: 'http://h/v1#secret'}",
        "{ulr: 'http://user:secret@h/v1'}",
        "['http://user:secret@h/v1']",
        "'http://secret@h/v1'",
        "{url: 'https://user:secret@[::1/v1'}",
        "{url: ['http://h/?secret']}",
    ],
)
def test_load_config_secrets_of_an_address_are_not_shown(tmp_path: Path, endpoint: str) -> None:
    found = problems(write(tmp_path, f"actor: {{engine: endpoint, endpoint: {endpoint}}}"))
    assert "secret" not in str(found) and "actor.endpoint" in str(found)


def test_load_config_impossible_combinations_are_all_reported(tmp_path: Path) -> None:
    found = problems(
        write(
            tmp_path,
            "desktop: {driver: scripted}\nbroker: {eta: 9}\nlearner: {max_age: 2, groups_per_batch: 2, num_minibatches: 3}\n",
        )
    )
    assert set(found) == {"desktop.driver", "broker.eta", "learner.num_minibatches"}


def test_load_config_staleness_that_contradicts_itself_shows_the_arithmetic_and_a_way_out(tmp_path: Path) -> None:
    text = "broker: {eta: 0, max_assignment_s: 20}\nlearner: {groups_per_batch: 3, staleness: {mode: pace}}\n"
    found = problems(write(tmp_path, text))
    assert set(found) == {"learner.staleness.mode", "learner.staleness.stall_budget_s"}
    assert "1 * 3 groups" in found["learner.staleness.mode"] and "broker.eta to 1" in found["learner.staleness.mode"]
    assert "30 s" in found["learner.staleness.stall_budget_s"] and "20 or less" in found["learner.staleness.stall_budget_s"]


def test_load_config_eta_0_with_actors_on_older_weights_is_an_error(tmp_path: Path) -> None:
    text = "broker: {{eta: {}}}\nlearner: {{publish_every_updates: 2}}\nactor: {{num_actors: 2, older_policy_every: 2}}\n"
    found = problems(write(tmp_path, text.format(0)))
    assert set(found) == {"learner.publish_every_updates", "actor.older_policy_every"}
    assert all("broker.eta to 1" in reason for reason in found.values())
    assert load_config(write(tmp_path, text.format(1))).broker.eta == 1


@pytest.mark.parametrize(
    ("actor", "refused"),
    [
        ("engine: vllm, max_draft_tokens: 4, older_policy_every: 3", True),
        ("max_draft_tokens: 4, older_policy_every: 3", True),
        ("engine: transformers, max_draft_tokens: 4, older_policy_every: 3", False),
        ("engine: vllm, max_draft_tokens: 4", False),
        ("engine: vllm, max_draft_tokens: 0, older_policy_every: 3", False),
        ("engine: vllm, older_policy_every: 3", False),
    ],
)
def test_guesses_of_two_vllm_engines_in_a_process_are_refused(tmp_path: Path, actor: str, refused: bool) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"actor: {{{actor}}}\n")
    if not refused:
        load_config(path)
        return
    with pytest.raises(ConfigError) as raised:
        load_config(path)
    assert [problem.field for problem in raised.value.problems] == ["actor.max_draft_tokens"]


@pytest.mark.parametrize(("mode", "fine"), [("admit", True), ("mask", False), ("pace", False)])
def test_load_config_eta_above_max_age_is_an_error_where_there_is_a_hard_bound(tmp_path: Path, mode: str, fine: bool) -> None:
    path = write(tmp_path, f"broker: {{eta: 3}}\nlearner: {{max_age: 2, staleness: {{mode: {mode}}}}}\n")
    if fine:
        assert load_config(path).learner.age_bound == float("inf")
    else:
        assert set(problems(path)) == {"broker.eta"}


def test_load_config_staleness_is_masked_up_to_max_age_when_nothing_is_said(tmp_path: Path) -> None:
    learner = load_config(write(tmp_path, "learner: {max_age: 3}\n")).learner
    assert (learner.staleness.mode, learner.age_bound) == ("mask", 3)


def test_load_config_prompt_format_fills_in_the_numbers_that_nobody_gave(tmp_path: Path) -> None:
    published = load_config(write(tmp_path, "actor: {prompt: {format: computerrl_text, max_elements: 9}}\n")).actor
    assert (published.prompt.max_elements, published.prompt.max_prompt_tokens, published.max_new_tokens) == (9, 4096, 256)
    compact = load_config(write(tmp_path, ""), overrides=["actor.prompt.format=compact"]).actor
    assert (compact.prompt.max_prompt_tokens, compact.max_new_tokens) == (256, 32)


@pytest.mark.parametrize(
    ("more", "field", "way_out"),
    [
        ("}\ndesktop: {observation: tree", "desktop.observation", "set it to both"),
        ("}\ndesktop: {observation: screenshot", "desktop.observation", "demonstrators name elements"),
        ("max_new_tokens: 24", "actor.max_new_tokens", "set it to at least 48"),
    ],
)
def test_load_config_format_with_images_where_they_cannot_be_used(tmp_path: Path, more: str, field: str, way_out: str) -> None:
    shown = "actor: {prompt: {format: computerrl_vision}, %s}\n"
    for engine in ("transformers", "vllm"):
        assert load_config(write(tmp_path, shown % f"engine: {engine}")).actor.prompt.shows_images
    found = problems(write(tmp_path, shown % more))
    assert set(found) == {field} and way_out in found[field]


@pytest.mark.parametrize("name", ["compact_vision", "computerrl_vision", "ui_tars", "qwen_computer_use"])
def test_load_config_format_with_images_stores_screenshots_without_loss(tmp_path: Path, name: str) -> None:
    shown = f"tasks: {{actions: gui}}\nactor: {{prompt: {{format: {name}}}}}\n"
    assert load_config(write(tmp_path, shown)).desktop.screenshot_format == "png"
    assert load_config(write(tmp_path, shown + "desktop: {num_desktops: 2}\n")).desktop.screenshot_format == "png"
    chosen = load_config(write(tmp_path, shown), overrides=["desktop.screenshot_format=webp"])
    assert chosen.desktop.screenshot_format == "webp"
    given = ActorConfig(prompt=PromptConfig.model_validate({"format": name}))
    assert RunConfig(actor=given, desktop=DesktopConfig(num_desktops=2)).desktop.screenshot_format == "png"
    assert RunConfig(actor=given, desktop=DesktopConfig(screenshot_format="webp")).desktop.screenshot_format == "webp"


def test_load_config_format_without_images_stores_screenshots_as_before(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "actor: {prompt: {format: computerrl_text}}\n")).desktop.screenshot_format == "webp"


@pytest.mark.parametrize("text", ["actor: [1]", "actor: {prompt: 3}", "actor: {prompt: {format: [1]}}", "actor: null"])
def test_load_config_prompt_that_is_no_section_is_an_error(tmp_path: Path, text: str) -> None:
    assert [field for field in problems(write(tmp_path, text)) if field.startswith("actor")]


@pytest.mark.parametrize("name", ["ui_tars", "qwen_computer_use"])
def test_load_config_format_without_calls_of_applications_needs_mouse_and_keyboard(tmp_path: Path, name: str) -> None:
    shown = f"actor: {{prompt: {{format: {name}}}}}\n"
    found = problems(write(tmp_path, shown))
    assert set(found) == {"tasks.actions"} and "set it to gui" in found["tasks.actions"]
    given = load_config(write(tmp_path, shown + "tasks: {actions: gui}\n")).actor
    assert (given.prompt.max_prompt_tokens, given.max_new_tokens, given.prompt.coordinates) == (4096, 256, "auto")


def test_load_config_stride_of_images_is_at_most_their_number(tmp_path: Path) -> None:
    assert "image_stride is 3" in str(problems(write(tmp_path, "actor: {prompt: {image_stride: 3}}\n")))


def test_load_config_prompt_format_whose_answers_would_be_cut_is_an_error_but_in_serial_mode(tmp_path: Path) -> None:
    text = "actor: {max_new_tokens: 24, prompt: {format: computerrl_text}}\n"
    assert set(problems(write(tmp_path, text))) == {"actor.max_new_tokens"}
    assert load_config(write(tmp_path, f"mode: serial\n{text}")).actor.max_new_tokens == 24


def test_load_config_step_with_fewer_tokens_than_answers_is_an_error(tmp_path: Path) -> None:
    found = problems(write(tmp_path, "actor: {num_episodes: 8, max_num_batched_tokens: 8}\n"))
    assert set(found) == {"actor.max_num_batched_tokens"} and "set it to 9 or more" in found["actor.max_num_batched_tokens"]
    assert load_config(write(tmp_path, "actor: {num_episodes: 8, max_num_batched_tokens: 9}\n")).actor.max_num_batched_tokens == 9


def test_load_config_ranks_in_serial_mode_are_an_error(tmp_path: Path) -> None:
    assert set(problems(write(tmp_path, "mode: serial\nlearner: {num_ranks: 2}\n"))) == {"learner.num_ranks"}
    assert load_config(write(tmp_path, "learner: {num_ranks: 2}\n")).learner.num_ranks == 2


@pytest.mark.parametrize(("num_ranks", "num_sharing"), [(1, 2), (4, 3), (2, 4), (4, 1), (4, 2), (4, 4)])
def test_load_config_ranks_that_share_packs_divide_the_ranks(tmp_path: Path, num_ranks: int, num_sharing: int) -> None:
    file = write(tmp_path, f"learner: {{num_ranks: {num_ranks}, context_parallel_size: {num_sharing}}}\n")
    if num_ranks % num_sharing:
        assert set(problems(file)) == {"learner.context_parallel_size"}
    else:
        assert load_config(file).learner.context_parallel_size == num_sharing


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("actor: {num_engines: 2}", "actor.num_engines"),
        ("actor: {inference: central, num_engines: 3, num_actors: 2}", "actor.num_engines"),
        ("mode: serial\nactor: {inference: central}", "actor.inference"),
        (
            "actor: {inference: central, engine: endpoint, endpoint: {url: 'http://127.0.0.1:1/v1'}}\n"
            "learner: {recipe: {max_updates: 0, demos_per_family: 0}}",
            "actor.inference",
        ),
    ],
)
def test_load_config_engine_processes_that_nobody_would_ask_are_an_error(tmp_path: Path, text: str, field: str) -> None:
    assert set(problems(write(tmp_path, text + "\n"))) == {field}
    assert load_config(write(tmp_path, "actor: {inference: central, num_engines: 2, num_actors: 2}\n")).actor.num_live == 4


def test_load_config_demonstrations_below_zero_or_of_families_not_named_are_an_error(tmp_path: Path) -> None:
    text = "tasks: {families: [a, b]}\nlearner: {recipe: {demos_of_family: {a: -1, c: 2}}}\n"
    assert set(problems(write(tmp_path, text))) == {"learner.recipe.demos_of_family.a"}
    text = "learner: {recipe: {demos_of_family: {a: 1}}}\n"
    assert set(problems(write(tmp_path, text))) == {"learner.recipe.demos_of_family"}


def test_load_config_demonstrations_of_failures_that_no_update_imitates_are_an_error(tmp_path: Path) -> None:
    text = "learner: {recipe: {demos_of_failures: 2, demo_replay_steps: %d}}\n"
    assert set(problems(write(tmp_path, text % 0))) == {"learner.recipe.demos_of_failures"}
    assert load_config(write(tmp_path, text % 8)).learner.recipe.demos_of_failures == 2


def test_load_config_horizon_that_falls_back_or_is_too_long_is_an_error(tmp_path: Path) -> None:
    found = problems(write(tmp_path, "tasks: {max_steps: 6, horizon: [[5, 2], [5, 9]]}\n"))
    assert set(found) == {"tasks.horizon"}


def test_load_config_family_weights_that_play_nothing_or_nobody_looks_at_are_errors(tmp_path: Path) -> None:
    text = "tasks: {families: [a, b], family_weights: {a: -1, c: 2, b: -0.5}, curriculum: {name: weighted}}\n"
    found = problems(write(tmp_path, text))
    assert set(found) == {f"tasks.family_weights.{family}" for family in "abc"}
    assert "among tasks.families" in found["tasks.family_weights.c"] and "-1" in found["tasks.family_weights.a"]
    text = "tasks: {families: [a, b], family_weights: {a: 0, b: 0}, curriculum: {name: success_band}}\n"
    assert "no group can be played" in problems(write(tmp_path, text))["tasks.family_weights"]
    text = "tasks: {families: [a, b], family_weights: {a: 2}}\n"
    assert "success_band" in problems(write(tmp_path, text))["tasks.curriculum.name"]
    text = "tasks: {families: [a, b], family_weights: {a: 0}, curriculum: {name: weighted}}\n"
    assert load_config(write(tmp_path, text)).tasks.family_weights == {"a": 0.0}


def test_load_config_family_named_twice_is_an_error(tmp_path: Path) -> None:
    assert "family_weights" in problems(write(tmp_path, "tasks: {families: [a, b, a]}\n"))["tasks.families"]


@pytest.mark.parametrize("rollouts", ["{min: 9}", "{max: 4}", "{min: 2, max: 7}"])
def test_load_config_rollouts_without_the_group_size_are_an_error(tmp_path: Path, rollouts: str) -> None:
    text = f"tasks: {{rollouts: {rollouts}}}\n"
    assert "group_size = 8" in problems(write(tmp_path, text))["tasks.rollouts"]
    assert load_config(write(tmp_path, "tasks: {rollouts: {min: 4, max: 16}}\n")).tasks.rollouts.max == 16


@pytest.mark.parametrize("values", ["{band: [0.9, 0.1]}", "{band: [0.5, 1.5]}", "{min_results: 9, num_recent: 8}"])
def test_load_config_impossible_curriculum_is_an_error(tmp_path: Path, values: str) -> None:
    assert "tasks.curriculum" in problems(write(tmp_path, f"tasks: {{curriculum: {values}}}\n"))


def test_load_config_overlapping_seed_ranges_are_an_error(tmp_path: Path) -> None:
    found = problems(write(tmp_path, "tasks: {training_seeds: [50, 200000]}\n"))
    assert "overlap" in found["tasks"]


def test_load_config_every_field_has_a_description() -> None:
    def missing(model: type, path: str) -> list[str]:
        out = []
        for name, field in model.model_fields.items():  # type: ignore[attr-defined]
            inner = field.annotation
            if hasattr(inner, "model_fields"):
                out += missing(inner, f"{path}{name}.")
            elif not field.description:
                out.append(path + name)
        return out

    assert missing(RunConfig, "") == []


def test_packs_hold_two_of_the_longest_samples_unless_told_otherwise() -> None:
    assert RunConfig().max_pack_tokens == 1024
    published = ActorConfig.model_validate({"prompt": {"format": "computerrl_text"}})
    assert RunConfig(actor=published).max_pack_tokens == 4096 + 256
    assert RunConfig(actor=published, learner=LearnerConfig(max_pack_tokens=512)).max_pack_tokens == 512


LEAVES = {path: path.rpartition(".")[2] for path in fields_below(RunConfig)}


@pytest.mark.parametrize("path", sorted(LEAVES))
def test_load_config_field_in_the_wrong_section_is_answered_with_the_right_one(tmp_path: Path, path: str) -> None:
    leaf = LEAVES[path]
    for section in ("", "learner.", "supervisor."):
        if f"{section}{leaf}" in LEAVES:
            continue
        with pytest.raises(ConfigError) as raised:
            load_config(write(tmp_path, ""), overrides=[f"{section}{leaf}=1"])
        (problem,) = [found for found in raised.value.problems if found.field == f"{section}{leaf}"]
        same = [other for other, name in LEAVES.items() if name == leaf]
        assert any(repr(other) in problem.next_step for other in same), problem
        if len(same) == 1:
            assert problem.next_step == f"did you mean {path!r}?"


@pytest.mark.parametrize(
    ("key", "proposed"),
    [
        ("learner.lr", "'learner.optimizer.lr'"),
        ("learner.learning_rate", "'learner.optimizer.lr'"),
        ("num_desktop", "'desktop.num_desktops'"),
        ("learner.max_agee", "'max_age'"),
        ("learner.lora.rnk", "'rank'"),
        ("learner.zzz", "valid here: activation_checkpointing, algorithm"),
    ],
)
def test_load_config_unknown_key_is_looked_for_in_the_whole_tree(tmp_path: Path, key: str, proposed: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(write(tmp_path, ""), overrides=[f"{key}=1"])
    assert proposed in "\n".join(problem.next_step for problem in raised.value.problems)


@pytest.mark.parametrize(("text", "shown"), [("name: x\nlearner:\n  a: 1\n b: 2\n", "'b: 2'"), ("learner: [1\n", "the end")])
def test_load_config_syntax_error_shows_the_line(tmp_path: Path, text: str, shown: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(write(tmp_path, text))
    assert shown in raised.value.problems[0].next_step
