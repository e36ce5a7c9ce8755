"""What a GPU would hold of a run: the parts add up, what does not fit says what to change, and the ready configurations fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from computerrl.common.config import RunConfig, load_config
from computerrl.common.memory_plan import PROCESS_MB, engine_card, learner_mb, learner_parts
from computerrl.launch.commands.main import cli
from computerrl.launch.plan.card import CardPlan, plan_cards

CONFIGS = Path(__file__).resolve().parents[4] / "configs" / "gpu"
GIB = 2**30
SHAPES: dict[str, tuple[dict[str, int], float]] = {
    "1.5B": ({"hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2}, 1.54e9),
    "8B": ({"hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8}, 8.19e9),
    "32B": ({"hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 40, "num_key_value_heads": 8}, 32.8e9),
}
READY = {"one-24gb": ("1.5B", 1, 24), "one-80gb": ("8B", 1, 80), "eight-80gb": ("8B", 8, 80), "four-nodes": ("32B", 8, 80)}


def model(folder: Path, size: str) -> Path:
    """A folder with the sizes of a model: its weights are holes in a file."""
    tree, num_parameters = SHAPES[size]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3", "vocab_size": 151_936, "dtype": "bfloat16", **tree}))
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(int(2 * num_parameters))
    return folder


def ready(name: str, folder: Path, *overrides: str) -> RunConfig:
    return load_config(CONFIGS / f"{name}.yaml", overrides=[f"model.name={model(folder / 'model', READY[name][0])}", *overrides])


def planned(name: str, folder: Path, *overrides: str) -> CardPlan:
    return plan_cards(ready(name, folder, *overrides), num_cards=READY[name][1], card_gb=READY[name][2])


def test_every_file_is_known_here() -> None:
    assert {file.stem for file in CONFIGS.glob("*.yaml")} == set(READY)


@pytest.mark.parametrize("name", READY)
def test_ready_configuration_fits_its_gpus(name: str, tmp_path: Path) -> None:
    plan = planned(name, tmp_path)
    assert plan.fits, plan.lines
    assert not any("does not fit" in line for line in plan.lines)


@pytest.mark.parametrize(
    ("name", "overrides", "reasons"),
    [
        ("eight-80gb", ["learner.num_ranks=1"], ["raise learner.num_ranks to", "set learner.lora"]),
        ("one-80gb", ["learner.lora=null"], ["raise learner.num_ranks", "give the engines GPUs of their own"]),
        ("one-80gb", ["actor.gpu_memory=0.95"], ["lower actor.gpu_memory"]),
        ("one-80gb", ["actor.gpu_memory=0.2"], ["raise actor.gpu_memory", "tensor_parallel_size"]),
        ("four-nodes", ["actor.tensor_parallel_size=1", "actor.gpu_memory=0.8"], ["tensor_parallel_size"]),
        ("eight-80gb", ["actor.num_engines=8", "actor.num_actors=8"], ["2 engines on a GPU"]),
    ],
)
def test_what_does_not_fit_says_what_to_change(name: str, overrides: list[str], reasons: list[str], tmp_path: Path) -> None:
    plan = planned(name, tmp_path, *overrides)
    said = " ".join(line for line in plan.lines if "does not fit" in line)
    assert not plan.fits and all(reason in said for reason in reasons), plan.lines


def test_number_of_ranks_that_is_named_fits(tmp_path: Path) -> None:
    config = ready("eight-80gb", tmp_path, "learner.num_ranks=1")
    line = next(line for line in plan_cards(config, num_cards=8, card_gb=80).lines if "learner.num_ranks" in line)
    number = int(line.partition("learner.num_ranks to ")[2].partition(",")[0])

    def fits(num_ranks: int) -> bool:
        of_it = config.model_copy(update={"learner": config.learner.model_copy(update={"num_ranks": num_ranks})})
        return "rank" not in "".join(one for one in plan_cards(of_it, num_cards=8, card_gb=80).lines if "not fit" in one)

    assert fits(number) and not fits(number - 1)


@pytest.mark.parametrize("wanted", ["none", "full"])
def test_a_configured_recomputation_is_planned_for(wanted: str, tmp_path: Path) -> None:
    plan = planned("one-24gb", tmp_path, f"learner.activation_checkpointing={wanted}")
    assert any(line.endswith(f"activation_checkpointing {wanted}") for line in plan.lines), plan.lines


def test_parts_add_up_to_the_plan(tmp_path: Path) -> None:
    config = ready("eight-80gb", tmp_path)
    parts = learner_parts(config, "full", on_card=True)
    assert PROCESS_MB["learner"] + int(sum(parts.values()) / 2**20) == learner_mb(config, "full", on_card=True)
    assert parts["weights"] == pytest.approx(2 * 8.19e9, rel=0.01)
    assert parts["masters, moments and gradient"] == pytest.approx(16 * 8.19e9 / 4, rel=0.01)


@pytest.mark.parametrize("again", ["none", "full"])
@pytest.mark.parametrize("num_sharing", [1, 2, 4])
def test_ranks_that_share_a_pack_keep_a_slice_and_what_layers_gather(num_sharing: int, again: str, tmp_path: Path) -> None:
    settings = ["learner.max_pack_tokens=32768", f"learner.activation_checkpointing={again}"]
    config = ready("eight-80gb", tmp_path, *settings)
    whole = learner_parts(config, "full", on_card=True)
    shared = config.model_copy(update={"learner": config.learner.model_copy(update={"context_parallel_size": num_sharing})})
    parts = learner_parts(shared, "full", on_card=True)
    # Keys and values of 8 heads of 128 numbers: two bytes each where layers keep them, four for the gradients of one layer.
    of_layer = 32768 * 2 * 8 * 128
    gathered = 0 if num_sharing == 1 else of_layer * (2 * (36 if again == "none" else 1) + 4)
    assert parts["activations"] == pytest.approx(whole["activations"] / num_sharing + gathered)
    assert {name: size for name, size in parts.items() if name != "activations"} == {
        name: size for name, size in whole.items() if name != "activations"
    }


def test_long_prompts_that_do_not_fit_are_answered_with_ranks_that_share_packs(tmp_path: Path) -> None:
    settings = ["learner.max_pack_tokens=262144", "learner.optimizer.offload=true"]
    plan = planned("eight-80gb", tmp_path, *settings)
    said = next(line for line in plan.lines if "does not fit" in line)
    assert "raise learner.context_parallel_size" in said and "learner.optimizer.offload" not in said
    more = planned_again(tmp_path, *settings, "learner.context_parallel_size=4")
    assert "rank" in more.lines[0] and not any("context_parallel_size" in line for line in more.lines), more.lines


def planned_again(folder: Path, *overrides: str) -> CardPlan:
    """Of `eight-80gb`, whose model is made already."""
    config = load_config(CONFIGS / "eight-80gb.yaml", overrides=[f"model.name={folder / 'model'}", *overrides])
    return plan_cards(config, num_cards=8, card_gb=80)


@pytest.mark.parametrize(("offload", "places"), [("false", "set learner.optimizer.offload"), ("true", "of the host's memory")])
def test_offloading_is_proposed_or_told_with_what_the_host_holds(offload: str, places: str, tmp_path: Path) -> None:
    plan = planned("eight-80gb", tmp_path, "learner.num_ranks=1", f"learner.optimizer.offload={offload}")
    assert any(places in line for line in plan.lines), plan.lines
    if offload == "true":
        # 16 bytes of each of 8.19 billion parameters.
        assert any(f"{16 * 8.19e9 / GIB:.1f} GiB" in line for line in plan.lines), plan.lines


@pytest.mark.parametrize("num_parts", [1, 2, 4, 8])
def test_an_engine_in_parts_has_a_part_of_weights_and_of_each_token_s_keys(num_parts: int, tmp_path: Path) -> None:
    config = ready("eight-80gb", tmp_path, f"actor.tensor_parallel_size={num_parts}")
    card = engine_card(config, card_bytes=80e9)
    assert card.weights_bytes == pytest.approx(2 * 8.19e9 / num_parts, rel=0.01)
    # 36 layers, keys and values of 8 heads of 128 numbers, two bytes each.
    token_bytes = 36 * 2 * 8 * 128 * 2 / num_parts
    assert card.num_cached_tokens == int(card.cache_bytes / token_bytes)
    assert card.weights_bytes + card.cache_bytes < 0.9 * 80e9


def test_plan_prints_it(tmp_path: Path) -> None:
    name: Any = model(tmp_path / "model", "8B")
    asked = ["plan", str(CONFIGS / "eight-80gb.yaml"), f"model.name={name}", "--gpus", "8", "--gpu-gb", "80"]
    result = CliRunner().invoke(cli, asked)
    assert result.exit_code == 0, result.output
    _, _, told = result.output.partition("# 8 GPUs of 80 GB a node, estimated\n")
    assert told.startswith("a learner's rank takes ") and "keys and values" in told
    assert "activation_checkpointing auto" in result.output and "the requested memory" not in result.output


@pytest.mark.parametrize("name", READY)
def test_plan_of_a_model_that_is_not_here_estimates_nothing_and_says_so(name: str, tmp_path: Path) -> None:
    asked = ["plan", str(CONFIGS / f"{name}.yaml"), f"model.name={tmp_path / 'nowhere'}", "--gpus", "8", "--gpu-gb", "80"]
    result = CliRunner().invoke(cli, asked)
    assert result.exit_code == 0 and "nowhere' is not on this machine" in result.output, result.output
    assert "not estimated" in result.output and "does not fit" not in result.output


@pytest.mark.parametrize("name", READY)
@pytest.mark.parametrize(("has_gpus", "num_workers"), [(False, 2), (True, 2), (False, 0)])
def test_engines_without_gpus_beside_a_learner_with_some_are_noted(
    name: str, has_gpus: bool, num_workers: int, tmp_path: Path
) -> None:
    site = tmp_path / "site.yaml"
    site.write_text(f"learner: {{has_gpus: true}}\nworker: {{has_gpus: {str(has_gpus).lower()}}}\n")
    folder = model(tmp_path / "model", READY[name][0])
    changes = [f"model.name={folder}", f"cluster.num_worker_nodes={num_workers}"]
    result = CliRunner().invoke(cli, ["plan", str(CONFIGS / f"{name}.yaml"), *changes, "--site", str(site)])
    assert result.exit_code == 0, result.output
    assert ("worker nodes have no GPUs" in result.output) == (not has_gpus and num_workers > 0)


@pytest.mark.parametrize("name", READY)
def test_plan_for_gpus_without_a_site_requests_them(name: str, tmp_path: Path) -> None:
    folder = model(tmp_path / "model", READY[name][0])
    asked = ["plan", str(CONFIGS / f"{name}.yaml"), f"model.name={folder}"]
    for options, is_wanted in (([], False), (["--gpu-gb", "80"], True)):
        result = CliRunner().invoke(cli, [*asked, *options])
        assert result.exit_code == 0 and ("--gres=gpu:" in result.output) == is_wanted, result.output
        assert ("the job requests no GPU" in result.output) != is_wanted, result.output
