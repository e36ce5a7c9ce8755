"""What `bench gpu_check` does on a GPU, done on the CPU: gloo in NCCL's place, a slow kernel in flash attention's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from computerrl.benchmarks.engines import _images
from computerrl.benchmarks.learner import gpu_check
from computerrl.benchmarks.learner._process import apart
from computerrl.common.errors import ConfigError
from computerrl.learner.model.attention_varlen import VarlenLayout
from computerrl.learner.model.batching import make_packs
from tests.support.data.trainer_data import random_groups
from tests.unit.learner.model.test_attention_varlen import CPU, slow_kernel
from tests.unit.learner.model.test_batching_packs import branching_samples


def test_attention_that_is_right_is_timed_and_a_wrong_one_ends_the_check() -> None:
    (pack,) = make_packs(branching_samples(), max_tokens=4096)
    right = VarlenLayout.of(pack, device=CPU, kernel=slow_kernel)
    rows = gpu_check.attention_rows(pack, device="cpu", fast=lambda _: right, dtype=torch.float32)
    assert [row["value"] < 1e-5 for row in rows[:2]] == [True, True]
    assert rows[2]["peer_value"] > 0

    def of_others(query: torch.Tensor, key: torch.Tensor, *rest: object, **options: object) -> torch.Tensor:
        """Keys in another order."""
        return slow_kernel(query, key.flip(0), *rest, **options)  # type: ignore[arg-type]

    wrong = VarlenLayout.of(pack, device=CPU, kernel=of_others)
    with pytest.raises(AssertionError, match="attention varlen"):
        gpu_check.attention_rows(pack, device="cpu", fast=lambda _: wrong, dtype=torch.float32)


@pytest.mark.release
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_updates_over_ranks_are_those_of_one_process(num_ranks: int) -> None:
    loss, weights = gpu_check.ranks_rows(random_groups(), model="tiny-random", device="cpu", num_ranks=num_ranks)
    assert loss["value"] < 1e-5
    assert weights["value"] < 1e-2


@pytest.mark.release
@pytest.mark.timeout(1200)
def test_vllm_after_images_is_measured_and_a_gap_ends_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    gap, tokens, update = _images.image_rows(_images.TINY, tmp_path / "right", device="cpu", dtype="float32", rounds=1)
    assert gap["value"] < 1e-4 and tokens["value"] > 0 and update["value"] > 0
    served = _images.learner_logprobs
    monkeypatch.setattr(_images, "apart", lambda call, *given: _off(apart(call, *given), of=call is served))
    with pytest.raises(AssertionError, match="after images are"):
        _images.image_rows(_images.TINY, tmp_path / "wrong", device="cpu", dtype="float32", rounds=1)


def _off(result: Any, *, of: bool) -> Any:
    return [logprobs + 0.1 for logprobs in result] if of else result


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="no GPU"):
        gpu_check.run(quick=True)
