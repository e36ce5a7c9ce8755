"""`bench gpu` on a CPU: each part with tiny sizes, gloo in NCCL's place, a slow kernel in flash attention's; and how it ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from computerrl.benchmarks.gpu import _checks, gpu
from computerrl.benchmarks.gpu._battery import Part, run_stages
from computerrl.benchmarks.gpu._rows import Row, gap_row
from computerrl.benchmarks.gpu._sizes import FULL, QUICK, TINY, Sizes
from computerrl.launch.commands.main import cli
from computerrl.launch.commands.measure import complete
from computerrl.learner.model.attention_varlen import VarlenLayout
from computerrl.learner.model.batching import make_packs
from tests.support.processes.battery_parts import dying, hanging, passing, raising
from tests.unit.learner.model.test_attention_varlen import CPU, slow_kernel
from tests.unit.learner.model.test_batching_packs import branching_samples

SIZES = replace(TINY, attention_kernel=slow_kernel)
LIMIT_S = 3000.0
PARTS = {
    "attention": ["attention varlen", "attention blocks"],
    "gradient": ["gradient of a step"],
    "ranks": [f"1 rank over gloo{way}: {what}" for way in ("", ", masters offloaded") for what in ("loss", "weights")],
    "loop": ["the whole loop"],
    "learner": ["sampled tokens/s", "computed tokens", "memory peak", "memory plan", "one layer"],
    "transformers": ["start", "2 episodes", "3 episodes", "host memory", "output layer in bfloat16", "output layer in float32"],
}
SERVED = PARTS["transformers"]


def rows_of(*parts: str, num_gpus: int = 1, sizes: Sizes = SIZES) -> list[Row]:
    stages = gpu.chosen(gpu.make_stages(num_gpus), parts, quick=False)
    return [complete(row) for row in gpu.play(stages, sizes, limit_s=LIMIT_S, num_gpus=num_gpus)]


def assert_measured(rows: list[Row], names: list[str]) -> None:
    """One row for each of ``names``, in order, with a figure and nothing failed."""
    assert len(rows) == len(names), rows
    for row, name in zip(rows, names, strict=True):
        assert name in row["name"] and row["state"] in ("passed", None), row


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", PARTS)
def test_part_with_tiny_sizes_measures_what_it_should(part: str) -> None:
    rows = rows_of(part)
    assert_measured(rows, PARTS[part])
    assert all(row["value"] is not None for row in rows)
    if part == "learner":
        assert [row["peer_value"] is not None for row in rows] == [True] * 5


@pytest.mark.timeout(1800)
def test_vllm_parts_name_vllm_alone_as_the_peer_of_start_and_speed() -> None:
    alone, served = ["start", "2 episodes", "3 episodes"], rows_of("vllm-alone", "vllm")
    assert_measured(served, [*alone, *SERVED])
    peers = {row["name"]: row["peer_value"] for row in served[3:] if row["peer"]}
    assert list(peers.values()) == [row["value"] for row in served[:3]]
    assert [row["target"] == 0.95 * row["peer_value"] for row in served[4:6]] == [True, True]


@pytest.mark.release
@pytest.mark.timeout(1800)
def test_pictures_are_measured() -> None:
    assert_measured(rows_of("pictures"), ["action tokens/s", "update of all weights", "log-prob gap"])


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", ["broadcasts", "ranks-2", pytest.param("split", marks=pytest.mark.release)])
def test_part_of_several_gpus_passes_over_processes_of_a_cpu(part: str) -> None:
    # In float32 a probe tells other weights from rounding, also where the model is as small as this.
    rows = rows_of(part, num_gpus=2, sizes=replace(SIZES, dtype="float32"))
    assert {"passed"} <= {row["state"] for row in rows} <= {"passed", None}
    assert part != "ranks-2" or sum("packs shared" in row["name"] or "offloaded" in row["name"] for row in rows) == 4


# --- what fails --------------------------------------------------------------------------------------------------------------


def test_attention_that_is_wrong_fails() -> None:
    (pack,) = make_packs(branching_samples(), max_tokens=4096)

    def of_others(query: torch.Tensor, key: torch.Tensor, *rest: object, **options: object) -> torch.Tensor:
        """Keys in another order."""
        return slow_kernel(query, key.flip(0), *rest, **options)  # type: ignore[arg-type]

    wrong = VarlenLayout.of(pack, device=CPU, kernel=of_others)
    rows = list(_checks.attention_checks(pack, lambda _: wrong, device="cpu", dtype=torch.float32))
    assert [row["state"] for row in rows] == ["failed", "passed"] and "within the limit" in rows[0]["reason"]


def test_gradient_that_is_wrong_fails() -> None:
    right = {"weight": torch.ones(100)}
    states = [
        _checks.gradient_check(right, {"weight": torch.full((100,), value)}, dtype="bfloat16")["state"]
        for value in (1.1, 1.2, torch.nan)
    ]
    assert states == ["passed", "failed", "failed"]


def test_gap_misses_its_goal_and_fails_far_beyond_it() -> None:
    states = [gap_row("gap", np.full(10, value), goal=0.02)["state"] for value in (0.01, 0.09, 0.11, np.nan)]
    assert states == ["passed", "passed", "failed", "failed"]


def play(*stages: tuple[Part, ...], limit_s: float = LIMIT_S, part_limit_s: float = LIMIT_S) -> list[tuple[Any, ...]]:
    found = run_stages(stages, replace(TINY, part_limit_s=part_limit_s), limit_s=limit_s, num_gpus=1)
    return [(row["name"], row["state"], row.get("reason", "")) for row in found]


def test_part_that_fails_or_cannot_run_leaves_a_row_with_the_reason_and_the_others_go_on() -> None:
    lacking = Part("lacking", passing, needs=("os", "no_such_package"))
    several = Part("several", passing, num_gpus=2)
    first = (Part("raising", raising), Part("dying", dying))
    rows = play(first, (lacking, several), (Part("passing", passing),))
    assert sorted(rows[:3]) == [
        ("before", "failed", "3 is not within the limit of 2"),
        ("dying", "failed", "its process ended with code -9; its output is above"),
        ("raising", "failed", "ValueError: of no use here"),
    ]
    assert rows[3:] == [
        ("lacking", "not run", "no_such_package not installed"),
        ("several", "not run", "it needs 2 GPUs, there is 1"),
        ("first", "passed", ""),
        ("second", "passed", ""),
    ]


def test_part_that_hangs_is_ended_with_its_processes_and_failed() -> None:
    found = run_stages([(Part("hanging", hanging),)], replace(TINY, part_limit_s=60.0), limit_s=LIMIT_S, num_gpus=1)
    child, hung = list(found)
    assert hung["name"] == "hanging" and hung["state"] == "failed" and "hangs" in hung["reason"]
    stat = Path(f"/proc/{child['value']:.0f}/stat")
    # Gone, or a zombie that nobody has reaped yet.
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_time_limit_leaves_the_rest_not_run() -> None:
    rows = play((Part("passing", passing),), limit_s=0.0)
    assert rows == [("passing", "not run", "the time limit is over; --part passing runs it alone")]


# --- the command -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [[], ["--quick"], ["--gpus", "2", "--part", "ranks-2"]])
def test_without_a_gpu_the_command_ends_with_code_2_and_the_next_step(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    ended = CliRunner().invoke(cli, ["bench", "gpu", *words])
    assert getattr(ended.exception, "exit_code", None) == 2
    assert "torch sees no GPU" in str(ended.exception) and "make setup" in str(ended.exception)


def test_unknown_part_and_option_of_another_benchmark_are_refused() -> None:
    unknown = CliRunner().invoke(cli, ["bench", "gpu", "--part", "ranks-2"])
    assert "use some of models, attention" in str(unknown.exception)
    foreign = CliRunner().invoke(cli, ["bench", "broker", "--gpus", "2"])
    assert "--gpus: the benchmark broker has no such option" in str(foreign.exception)


def test_quick_battery_leaves_out_what_is_slow() -> None:
    assert QUICK.vllm.is_eager and not FULL.vllm.is_eager and len(QUICK.learner) < len(FULL.learner)
    names = [
        {part.name for stage in gpu.chosen(gpu.make_stages(1), (), quick=quick) for part in stage} for quick in (True, False)
    ]
    assert names[1] - names[0] == {"vllm-alone", "pictures"}
