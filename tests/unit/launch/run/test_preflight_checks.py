"""What is found out before anything starts."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from computerrl.common import memory_plan
from computerrl.common.config import RunConfig
from computerrl.common.errors import ConfigError, SetupError
from computerrl.launch.plan.machine import Machine, inspect_machine
from computerrl.launch.run import preflight
from computerrl.launch.run.preflight import Finding, PreflightFailed

MACHINE = Machine("Debian", "6.1", "cpu", 2, 24_000, 20_000, ())


def config(**sections: object) -> RunConfig:
    return RunConfig.model_validate(sections)


def test_memory_enough_finds_nothing() -> None:
    assert preflight.check_memory(config(), MACHINE) == []


def test_memory_too_many_desktops_shows_the_arithmetic_and_how_many_fit() -> None:
    [finding] = preflight.check_memory(config(desktop={"num_desktops": 40, "memory_per_desktop_mb": 1000}), MACHINE)
    assert finding.error is ConfigError
    assert finding.problem.field == "desktop.num_desktops"
    assert "40 desktops x 1000 MiB" in finding.problem.reason
    assert "20000 MiB" in finding.problem.reason
    fit = int(finding.problem.next_step.split()[2])
    assert preflight.check_memory(config(desktop={"num_desktops": fit, "memory_per_desktop_mb": 1000}), MACHINE) == []


def test_memory_of_an_actor_holds_packed_matrices_on_a_cpu_and_two_engines_for_cross_policy_sampling() -> None:
    def actor_mb(**sections: object) -> int:
        return next(mb for what, _, mb in memory_plan.memory_parts(config(**sections)) if what == "actor")

    weights_mb = memory_plan.model_size("smollm2-135m")[0] * 4 // 2**20
    base = actor_mb(model={"dtype": "float32"})
    assert base - actor_mb(model={"dtype": "float32"}, learner={"device": "cuda"}) == pytest.approx(weights_mb, abs=2)
    older = actor_mb(model={"dtype": "float32"}, actor={"older_policy_every": 2})
    assert older - base == pytest.approx(2 * weights_mb, abs=2)


@pytest.mark.parametrize(
    ("tree", "refused"),
    [
        ({"sliding_window": 128}, True),
        ({"sliding_window": 4096}, False),
        ({"sliding_window": None}, False),
        ({"sliding_window": 128, "use_sliding_window": False}, False),
        ({"text_config": {"sliding_window": 128}}, True),
        ({"sliding_window": 128, "layer_types": ["full_attention", "sliding_attention"]}, True),
        ({"sliding_window": 128, "layer_types": ["full_attention", "full_attention"]}, False),
    ],
)
def test_model_that_sees_less_than_its_prompts_is_refused(tmp_path: Path, tree: dict, refused: bool) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tree))
    findings = preflight.check_model(config(model={"name": str(tmp_path)}), MACHINE)
    assert refused == any("tokens back" in finding.problem.reason for finding in findings)


_ORIGINAL = "original_max_position_embeddings"
LLAMA3_ROPE = {"rope_type": "llama3", "factor": 8.0, _ORIGINAL: 100}


@pytest.mark.parametrize(
    ("tree", "context"),
    [
        ({"max_position_embeddings": 200}, 200),
        ({"max_position_embeddings": 288}, None),
        ({}, None),
        ({"n_positions": 64}, 64),
        ({"max_position_embeddings": 256, "text_config": {"max_position_embeddings": 100}}, 100),
        ({"n_ctx": 64}, 64),
        ({"max_position_embeddings": 100, "rope_scaling": {"type": "linear", "factor": 2.0}}, 200),
        ({"max_position_embeddings": 100, "rope_scaling": {"rope_type": "dynamic", "factor": 4}}, None),
        ({"max_position_embeddings": 100, "rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, 200),
        ({"max_position_embeddings": 400, "rope_scaling": {"type": "yarn", "factor": 4, _ORIGINAL: 50}}, None),
        ({"max_position_embeddings": 100, "rope_scaling": {"type": "yarn", "factor": 4, _ORIGINAL: 50}}, 200),
        ({"max_position_embeddings": 200, "rope_scaling": LLAMA3_ROPE}, 200),
        ({"max_position_embeddings": 200, "rope_scaling": {"type": "longrope", "factor": 8.0}}, 200),
        ({"max_position_embeddings": 200, "rope_scaling": None}, 200),
        ({"max_position_embeddings": 100, "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0}}}, None),
        ({"max_position_embeddings": 24}, 24),
    ],
)
def test_context_that_prompt_and_answer_do_not_fit_is_refused_with_both_numbers(
    tmp_path: Path, tree: dict, context: int | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tree))
    # No property of the model: many folders say something else here.
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 16}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"max_length": 20}))
    findings = preflight.check_model(config(model={"name": str(tmp_path)}), MACHINE)
    found = [finding.problem for finding in findings if finding.problem.field == "actor.prompt.max_prompt_tokens"]
    assert bool(found) == (context is not None)
    if found:
        assert f"a context of {context} tokens" in found[0].reason and "256 + 32 = 288" in found[0].reason
        assert found[0].next_step.startswith("set it to " if context > 32 else "use a model with a longer context")


def test_built_in_model_is_held_to_its_context_before_it_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COMPUTERRL_CACHE", str(tmp_path))
    sections = {"model": {"name": "tiny-random"}, "actor": {"prompt": {"format": "computerrl_text"}}}
    problems = [finding.problem for finding in preflight.check_model(config(**sections), MACHINE)]
    assert any("a context of 2048 tokens" in problem.reason for problem in problems)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (name, content)
        for name in ("config.json", "tokenizer.json", "model.safetensors", "generation_config.json", "chat_template.jinja")
        for content in ("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "/annex/objects/SHA256E-s9--0\n")
    ],
)
def test_pointer_to_a_file_is_named_as_one(tmp_path: Path, name: str, content: str) -> None:
    for file, text in (("config.json", '{"model_type": "llama"}'), ("tokenizer.json", "{}"), ("model.safetensors", "x")):
        (tmp_path / file).write_text(text)
    (tmp_path / name).write_text(content)
    [finding] = preflight.check_model(config(model={"name": str(tmp_path)}), MACHINE)
    assert f"{name} in " in finding.problem.reason and "pointer, not the file itself" in finding.problem.reason


def test_memory_no_room_for_one_desktop_says_so() -> None:
    [finding] = preflight.check_memory(config(), replace(MACHINE, available_memory_mb=1000))
    assert "more memory" in finding.problem.next_step


def test_addresses_port_held_by_another_process_names_the_port() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        [finding] = preflight.check_addresses(config(broker={"port": port}), MACHINE)
    assert finding.problem.field == "broker.port"
    assert str(port) in finding.problem.reason


def test_addresses_not_of_this_machine_names_the_section() -> None:
    [finding] = preflight.check_addresses(config(desktop={"bind_address": "192.0.2.77"}), MACHINE)
    assert finding.problem.field == "desktop.bind_address"


def test_model_folder_that_is_no_model_names_all_that_is_missing(tmp_path: Path) -> None:
    findings = preflight.check_model(config(model={"name": str(tmp_path)}), MACHINE)
    assert {finding.problem.field for finding in findings} == {"model.name"}
    assert len(findings) == 3


def test_model_size_of_a_folder_comes_from_its_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 24, "dtype": "bfloat16"}')
    (tmp_path / "model.safetensors").write_bytes(bytes(4_000))
    assert memory_plan.model_size(str(tmp_path)) == (2_000, 24)
    (tmp_path / "config.json").write_text('{"text_config": {"num_hidden_layers": 28}, "dtype": "bfloat16"}')
    assert memory_plan.model_size(str(tmp_path)) == (2_000, 28)


def test_families_unknown_are_found() -> None:
    [finding] = preflight.check_families(config(tasks={"families": ["web-clik-button"]}), MACHINE)
    assert finding.error is ConfigError
    assert "web-clik-button" in finding.problem.reason


def test_packages_lora_without_peft_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    there = preflight.importlib.util.find_spec
    monkeypatch.setattr(preflight.importlib.util, "find_spec", lambda name: None if name == "peft" else there(name))
    [finding] = preflight.check_packages(config(learner={"lora": {"rank": 4}}), MACHINE)
    assert finding.error is SetupError and "pip install peft" in finding.problem.next_step
    assert preflight.check_packages(config(), MACHINE) == []


def test_algorithm_unknown_or_with_unknown_options_is_found() -> None:
    [finding] = preflight.check_algorithm(config(learner={"algorithm": {"name": "gpro"}}), MACHINE)
    assert finding.error is ConfigError and "gpro" in finding.problem.reason and "grpo" in finding.problem.next_step
    [finding] = preflight.check_algorithm(config(learner={"algorithm": {"options": {"eps_hi": 0.3}}}), MACHINE)
    assert finding.problem.field == "learner.algorithm.options.eps_hi"


def test_rewards_that_cannot_be_made_or_are_not_read_are_found() -> None:
    [finding] = preflight.check_algorithm(config(learner={"rewards": [{"name": "stpe"}]}), MACHINE)
    assert "did you mean 'step'" in str(finding.problem)
    learner = {"rewards": [{"name": "step"}], "algorithm": {"name": "ui_s1"}}
    [finding] = preflight.check_algorithm(config(learner=learner), MACHINE)
    assert finding.problem.field == "learner.rewards"


def test_algorithm_that_plays_beside_demonstrators_needs_them_for_all_families() -> None:
    learner = {"algorithm": {"name": "ui_s1"}, "recipe": {"demos_per_family": 0}}
    assert not preflight.check_algorithm(config(learner=learner, tasks={"families": ["web-click-button"]}), MACHINE)
    families = {"families": ["web-click-button", "web-tic-tac-toe"]}
    [finding] = preflight.check_algorithm(config(learner=learner, tasks=families), MACHINE)
    assert finding.problem.field == "tasks.families" and "web-tic-tac-toe" in finding.problem.reason
    assert "web-click-button" not in finding.problem.reason


def test_families_that_earn_no_grounding_reward_are_named() -> None:
    learner = {"algorithm": {"name": "grounding"}, "recipe": {"demos_per_family": 0}}
    families = {"families": ["web-click-button", "web-tic-tac-toe"]}
    note = preflight.unpaid_families(config(learner=learner, tasks=families))
    assert note is not None and "web-tic-tac-toe" in note and "web-click-button" not in note
    assert preflight.unpaid_families(config(learner=learner, tasks={"families": ["web-click-button"]})) is None
    learner["algorithm"] = {"name": "grounding", "options": {"grounding_weight": 0}}
    assert preflight.unpaid_families(config(learner=learner, tasks=families)) is None


def test_families_without_milestones_are_named_where_these_are_paid() -> None:
    families = {"families": ["web-click-button", "forge-files-pack"]}
    rewards = [{"name": "evaluator"}, {"name": "milestones"}]
    note = preflight.families_without_milestones(config(learner={"rewards": rewards}, tasks=families))
    assert note is not None and "web-click-button" in note and "forge-files-pack" not in note
    assert preflight.families_without_milestones(config(tasks=families)) is None


def test_device_cuda_without_driver_is_found() -> None:
    findings = preflight.check_device(config(learner={"device": "cuda", "weight_backend": "nccl"}), MACHINE)
    assert [finding.problem.field for finding in findings] == ["learner.device", "learner.weight_backend"]


def test_device_gpu_beside_a_cpu_build_of_torch_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = replace(MACHINE, gpus=("a",))
    monkeypatch.setattr(preflight, "has_visible_gpu", lambda: True)
    monkeypatch.setattr(preflight, "torch_cuda", lambda: None)
    [finding] = preflight.check_device(config(), machine)
    assert finding.problem.field == "learner.device" and "make setup DEVICE=cuda" in finding.problem.next_step
    assert preflight.check_device(config(learner={"device": "cpu"}), machine) == []
    monkeypatch.setattr(preflight, "torch_cuda", lambda: "13.0")
    assert preflight.check_device(config(), machine) == []


def test_device_more_ranks_than_gpus_is_found_unless_they_compute_on_the_cpu() -> None:
    machine = replace(MACHINE, gpus=("a", "b"))
    [finding] = preflight.check_device(config(learner={"num_ranks": 3}), machine)
    assert finding.problem.field == "learner.num_ranks" and "2 or less" in finding.problem.next_step
    assert preflight.check_device(config(learner={"num_ranks": 3, "device": "cpu"}), machine) == []


def test_memory_of_ranks_is_counted_for_each_and_divides_the_optimizer() -> None:
    [alone] = [part for part in memory_plan.memory_parts(config()) if part[0] == "learner"]
    [ranks] = [part for part in memory_plan.memory_parts(config(learner={"num_ranks": 4})) if part[0] == "learner ranks"]
    assert ranks[1] == 4 and ranks[2] <= alone[2]


def test_desktops_missing_image_says_how_to_build_one(tmp_path: Path) -> None:
    findings = preflight.check_desktops(config(desktop={"image": str(tmp_path / "nothing.sif")}), MACHINE)
    assert any(finding.problem.field == "desktop.image" and finding.error is SetupError for finding in findings)


def test_desktops_missing_apptainer_and_image_are_both_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPUTERRL_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    findings = preflight.check_desktops(config(), MACHINE)
    assert [finding.problem.field for finding in findings] == ["Apptainer", "desktop.image"]


def test_desktops_other_driver_needs_no_apptainer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert preflight.check_desktops(config(desktop={"driver": "local"}), MACHINE) == []


def test_preflight_several_findings_raises_all_with_the_configs_exit_code_first() -> None:
    machine = replace(MACHINE, available_memory_mb=100)
    with pytest.raises(PreflightFailed) as caught:
        preflight.run_preflight(config(broker={"bind_address": "192.0.2.77"}), machine=machine)
    fields = [finding.problem.field for finding in caught.value.findings]
    assert "broker.bind_address" in fields
    assert "desktop.num_desktops" in fields
    assert caught.value.exit_code == ConfigError.exit_code
    assert isinstance(caught.value.findings[0], Finding)


def test_inspect_machine_reports_something_of_everything() -> None:
    machine = inspect_machine()
    assert machine.num_cores >= 1
    assert 0 < machine.available_memory_mb <= machine.memory_mb
    assert machine.system
