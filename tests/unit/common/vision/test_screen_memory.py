"""What plans count for the screens of a run where its policy is sampled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from computerrl.common import memory_plan
from computerrl.common.config import RunConfig
from computerrl.common.sampling_limits import MAX_FEATURE_BYTES, MAX_PREPARED_BYTES, MAX_SENT, MAX_SERVED_BYTES, STORED_PER_LIVE
from computerrl.common.vision.memory import text_shape
from computerrl.common.vision.screen_memory import SamplingMemory, actor_images, engine_images, screen_of
from computerrl.launch.plan.resources import role_resources
from tests.support.data.vision_data import save_model

LONG_EPISODES = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "model", model_type="qwen3_vl")


def config(folder: Path, *, prompt: dict[str, Any] | None = None, **sections: Any) -> RunConfig:
    """A run in float32 with one screen of 64 tokens in a prompt."""
    actor = {**sections.pop("actor", {}), "prompt": {"format": "compact_vision", **(prompt or {})}}
    tree = {
        "model": {"name": str(folder), "dtype": "float32"},
        "tasks": {"max_steps": LONG_EPISODES},
        "desktop": {"screen_width": 320, "screen_height": 240},
        **sections,
    }
    return RunConfig.model_validate({**tree, "actor": actor})


def text_run(folder: Path, **sections: Any) -> RunConfig:
    return config(folder, prompt={"format": "compact"}, **sections)


SETTINGS: list[dict[str, Any]] = [
    {},
    {"actor": {"engine": "vllm", "older_policy_every": 2}},
    {"actor": {"inference": "central", "num_actors": 3}},
    {"mode": "serial", "desktop": {"driver": "scripted"}},
]


@pytest.mark.parametrize("sections", SETTINGS)
def test_runs_without_images_are_counted_none(folder: Path, sections: dict[str, Any]) -> None:
    run = text_run(folder, **sections)
    assert screen_of(run) is None
    assert engine_images(run) == actor_images(run) == SamplingMemory()
    assert memory_plan.central_actor_mb(run) == memory_plan.PROCESS_MB["actor/central"]
    if run.mode == "serial":
        assert memory_plan.memory_parts(run) == [("one process", 1, memory_plan.learner_mb(run, "full"))]


@pytest.mark.parametrize("sections", SETTINGS)
def test_images_are_added_where_they_are_held(folder: Path, sections: dict[str, Any]) -> None:
    run, without = config(folder, **sections), text_run(folder, **sections)
    images_mb, actor_mb = engine_images(run).total >> 20, actor_images(run).total >> 20
    assert images_mb > 100
    assert memory_plan.engine_mb(run) == memory_plan.engine_mb(without) + images_mb
    parts, plain = memory_plan.memory_parts(run), memory_plan.memory_parts(without)
    if run.mode == "serial":
        assert parts[1:] == [("images of its engine", 1, images_mb)]
        return
    added = {what: each_mb - each for (what, _, each_mb), (_, _, each) in zip(parts, plain, strict=True)}
    central = run.actor.inference == "central"
    assert added["engine" if central else "actor"] == images_mb
    assert not central or added["actors"] == actor_mb
    margin = run.cluster.memory_margin
    needs = {role: found.memory_mb - role_resources(without)[role].memory_mb for role, found in role_resources(run).items()}
    assert needs["actor"] == pytest.approx((actor_mb if central else images_mb) * margin, abs=1)
    assert needs["engine"] == pytest.approx(images_mb * margin, abs=1)


def test_transformers_engine_has_rows_for_whole_prompts_and_full_caches(folder: Path) -> None:
    run = config(folder, actor={"num_episodes": 5, "max_new_tokens": 20}, prompt={"images": 2, "max_prompt_tokens": 300})
    screen, found = screen_of(run), engine_images(run)
    assert screen is not None and screen.text.num_deep == 2
    # Keys and values of 2 heads of 8 numbers in 3 layers.
    assert found.kv == (1 + STORED_PER_LIVE) * 6 * 320 * (2 * 3 * 2 * 8 * 4)
    # A vector of 32 numbers for a token, and two that enter higher layers.
    assert screen.feature_bytes == screen.num_tokens * 3 * 32 * 4
    assert 0 <= MAX_FEATURE_BYTES + 10 * screen.feature_bytes - found.features < screen.feature_bytes
    assert 0 <= MAX_PREPARED_BYTES + 10 * screen.prepared_bytes - found.prepared < screen.prepared_bytes
    assert found.encoded == 5 * (LONG_EPISODES + 1) * screen.encoded_bytes


@pytest.mark.parametrize(
    ("prompt", "tasks", "num_shown"),
    [
        ({"images": 3, "max_prompt_tokens": 1000}, {"max_steps": 9}, 3),
        ({"images": 3, "max_prompt_tokens": 150}, {"max_steps": 9}, 2),
        ({"images": 3, "max_prompt_tokens": 1000}, {"max_steps": 1}, 1),
    ],
)
def test_prompt_shows_as_many_screens_as_its_budget_and_its_episode_have(
    folder: Path, prompt: dict[str, Any], tasks: dict[str, Any], num_shown: int
) -> None:
    run = config(folder, prompt=prompt, tasks=tasks)
    screen, found = screen_of(run), engine_images(run)
    assert screen is not None and screen.num_tokens <= 75
    kept = MAX_FEATURE_BYTES // screen.feature_bytes * screen.feature_bytes
    assert found.features - kept == run.actor.num_episodes * num_shown * screen.feature_bytes
    assert found.tower == screen.pass_bytes(num_shown * screen.num_tokens)


def test_older_policy_has_rows_and_features_of_its_own_and_no_requests(folder: Path) -> None:
    one, two = (engine_images(config(folder, actor={"older_policy_every": every})) for every in (None, 2))
    screen = screen_of(config(folder))
    assert screen is not None
    assert (two.kv, two.tower, two.names) == (2 * one.kv, 2 * one.tower, 2 * one.names)
    assert two.features - one.features == MAX_FEATURE_BYTES // screen.feature_bytes * screen.feature_bytes
    assert (two.prepared, two.encoded) == (one.prepared, one.encoded)


def test_vllm_keeps_features_of_a_step_s_tokens_and_keys_in_its_own_share(folder: Path) -> None:
    of_vllm = engine_images(config(folder, actor={"engine": "vllm"}))
    longer = engine_images(config(folder, actor={"engine": "vllm", "max_num_batched_tokens": 2 * 16_384}))
    assert of_vllm.kv == 0 and of_vllm.features == 16_384 * 3 * 32 * 4
    assert longer.features == 2 * of_vllm.features


def test_engine_process_keeps_encoded_images_and_its_actors_those_of_their_episodes(folder: Path) -> None:
    run = config(folder, actor={"inference": "central", "num_actors": 3, "num_episodes": 2})
    screen = screen_of(run)
    assert screen is not None
    assert engine_images(run).encoded == MAX_SERVED_BYTES
    assert actor_images(run) == SamplingMemory(encoded=(2 * (LONG_EPISODES + 1) + MAX_SENT) * screen.encoded_bytes)


def test_server_s_actors_keep_no_features(folder: Path) -> None:
    served = {"engine": "endpoint", "endpoint": {"url": "http://127.0.0.1:1/v1", "mode": "chat"}}
    found = engine_images(config(folder, actor=served))
    assert found.total == found.encoded > 0


def test_gpu_has_no_part_in_what_the_host_keeps(folder: Path) -> None:
    run, without = config(folder), text_run(folder)
    found = engine_images(run)
    assert found.on_device == found.kv + found.features + found.tower < found.total
    assert memory_plan.engine_mb(run, on_card=True) - memory_plan.engine_mb(without) == found.on_device >> 20
    card = {"total_mb": 80_000, "free_mb": 80_000, "num_cards": 1}
    for actor in ({}, {"engine": "vllm"}):
        with_images, plain = config(folder, actor=actor), text_run(folder, actor=actor)
        taken = memory_plan.card_room_mb(plain, **card) - memory_plan.card_room_mb(with_images, **card)
        assert taken == pytest.approx(engine_images(with_images).on_device >> 20, abs=1)


def test_language_model_without_known_sizes_counts_as_nothing() -> None:
    assert text_shape({"model_type": "qwen2_vl"}) is None
    # As Qwen2.5-VL's files have it: the sizes of the language model stand beside `vision_config`.
    flat = {"hidden_size": 2048, "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 2}
    found = text_shape({**flat, "vision_config": {}})
    assert found is not None and (found.head_dim, found.num_deep) == (128, 0)
    assert found.kv_bytes(1, element_bytes=2) == 2 * 36 * 2 * 128 * 2
