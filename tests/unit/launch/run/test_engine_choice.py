"""`actor.engine: auto`: vLLM in a process with a GPU and vLLM's build for it, else transformers, with the reason."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from computerrl.common.config import load_config
from computerrl.common.models.engine_choice import choose_engine, planned_for
from computerrl.launch.plan.processes import Layout, make_plan

CONFIGS = Path(__file__).resolve().parents[4] / "configs"


@pytest.mark.parametrize(
    ("overrides", "has_gpu", "has_vllm", "engine", "reason"),
    [
        ([], True, True, "vllm", "a GPU is here"),
        ([], False, True, "transformers", "no GPU"),
        ([], True, False, "transformers", "not installed"),
        (["learner.device=cpu"], True, True, "transformers", "learner.device"),
        (["model.head_dtype=float32"], True, True, "transformers", "head_dtype"),
        (["actor.engine=transformers"], True, True, "transformers", "configured"),
        (["actor.engine=vllm"], False, False, "vllm", "configured"),
    ],
)
def test_engine_and_its_reason(overrides: list[str], has_gpu: bool, has_vllm: bool, engine: str, reason: str) -> None:
    config = load_config(CONFIGS / "quickstart.yaml", overrides=overrides)
    choice = choose_engine(config, has_gpu=has_gpu, has_vllm=has_vllm)
    assert choice.engine == engine and reason in choice.reason and choice.text.startswith(f"{engine}: ")


def test_serial_mode_is_one_process() -> None:
    config = load_config(CONFIGS / "serial.yaml", overrides=["actor.engine=auto"])
    assert choose_engine(config, has_gpu=True, has_vllm=True).engine == "transformers"


def test_a_plan_for_other_machines_asks_for_what_their_engines_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's processes take gigabytes more of the host than transformers'."""
    monkeypatch.setattr("computerrl.common.models.engine_choice._has_vllm", lambda: True)
    monkeypatch.setattr("computerrl.common.models.engine_choice.has_visible_gpu", lambda: False)
    config = load_config(CONFIGS / "quickstart.yaml")

    def actor_mb(layout: Layout) -> int:
        specs = make_plan(config, config_path=Path("config.yaml"), python="python", source_root=None, layout=layout)
        return next(spec.resources.memory_mb for spec in specs if spec.role == "actor")

    without = Layout(num_worker_nodes=1, learner_has_gpus=True)
    assert actor_mb(dataclasses.replace(without, worker_has_gpus=True)) > actor_mb(without) + 500
    planned = planned_for(config, has_gpu=True)
    assert planned.actor.engine == "vllm" and config.actor.engine == "auto"
