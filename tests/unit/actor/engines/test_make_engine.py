"""Engines that cannot be made say which model and why."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from computerrl.actor.engines import make_engine
from computerrl.actor.engines.vllm_parts.known import (
    CLIENT_METHODS,
    ENGINE_OPTIONS,
    OUTPUT_FIELDS,
    REQUEST_FIELDS,
    require_known_vllm,
)
from computerrl.common.config import ModelConfig, RunConfig
from computerrl.common.errors import ConfigError
from computerrl.learner.model_store import ensure_model


@pytest.mark.parametrize(
    ("broken", "reason"),
    [({"model_type": "no-such-architecture"}, "no-such-architecture"), ({"hidden_size": "wide"}, "hidden_size")],
)
def test_model_that_the_library_cannot_load_is_a_problem_of_the_configuration(
    tmp_path: Path, broken: dict[str, object], reason: str
) -> None:
    for file in ensure_model("tiny-random").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tree = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(tree | broken))
    config = RunConfig(run_dir=str(tmp_path), model=ModelConfig(name=str(tmp_path), dtype="float32"))
    with pytest.raises(ConfigError) as raised:
        make_engine(config, tmp_path, decode=lambda _: "")
    (problem,) = raised.value.problems
    assert problem.field == "model.name" and reason in problem.reason and "actor.engine" in problem.next_step


def test_prompts_beyond_the_context_are_refused_by_every_engine(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": 100}))
    for engine in (
        {"engine": "transformers"},
        {"engine": "vllm"},
        {"engine": "endpoint", "endpoint": {"url": "http://[::1]:9/v1"}},
    ):
        config = RunConfig.model_validate({"run_dir": str(tmp_path), "model": {"name": str(tmp_path)}, "actor": engine})
        with pytest.raises(ConfigError, match=r"max_prompt_tokens: .* has a context of 100 tokens, and .* 256 \+ 32 = 288"):
            make_engine(config, tmp_path, decode=lambda _: "")


def test_vllm_that_lacks_what_the_adapter_builds_on_is_named() -> None:
    known = dataclasses.make_dataclass("EngineArgs", [(name, object) for name in ENGINE_OPTIONS])
    client = type("InprocClient", (), dict.fromkeys(CLIENT_METHODS))
    request = type("EngineCoreRequest", (), {"__struct_fields__": REQUEST_FIELDS})
    output = type("EngineCoreOutput", (), {"__struct_fields__": OUTPUT_FIELDS})
    require_known_vllm(known, client, request, output)
    newer = dataclasses.make_dataclass("EngineArgs", [(name, object) for name in ENGINE_OPTIONS if name != "logprobs_mode"])
    del client.collective_rpc  # type: ignore[attr-defined]
    output.__struct_fields__ = OUTPUT_FIELDS[1:]  # type: ignore[attr-defined]
    lacking = r"EngineArgs\.logprobs_mode, InprocClient\.collective_rpc, EngineCoreOutput\.finish_reason"
    with pytest.raises(ConfigError, match=lacking):
        require_known_vllm(newer, client, request, output)
