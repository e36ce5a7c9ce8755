"""Buckets, manifests, checksums and digests of weights."""

import json
import math
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computerrl.common.errors import WeightError
from computerrl.common.weight_plan import (
    ALIGN_BYTES,
    PROBE_TOKENS,
    PROBE_TOLERANCE,
    Manifest,
    TensorSpec,
    check_probe,
    folder_digest,
    plan_buckets,
    probe_tokens,
    specs_digest,
)

SHAPES = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), min_size=0, max_size=30)


def specs_of(shapes: list[tuple[int, int]]) -> list[TensorSpec]:
    return [TensorSpec(f"layer.{i}", shape, ("bfloat16", "float32")[i % 2]) for i, shape in enumerate(shapes)]


@given(shapes=SHAPES, bucket_bytes=st.integers(64, 4000))
def test_plan_any_tensors_aligned_disjoint_and_inside_their_bucket(shapes: list[tuple[int, int]], bucket_bytes: int) -> None:
    plan = plan_buckets(specs_of(shapes), bucket_bytes=bucket_bytes)
    end = [0] * len(plan.bucket_bytes)
    for slot in plan.slots:
        assert slot.offset % ALIGN_BYTES == 0 and slot.offset >= end[slot.bucket]
        end[slot.bucket] = slot.offset + slot.spec.num_bytes
    assert tuple(end) == plan.bucket_bytes
    largest = max((spec.num_bytes for spec in specs_of(shapes)), default=0)
    assert all(size <= max(bucket_bytes, largest) for size in plan.bucket_bytes)


@given(shapes=SHAPES)
def test_manifest_as_json_comes_back_equal(shapes: list[tuple[int, int]]) -> None:
    plan = plan_buckets(specs_of(shapes), bucket_bytes=2000)
    manifest = Manifest(7, "digest", plan, tuple(range(len(plan.bucket_bytes))))
    assert Manifest.from_json(manifest.to_json()) == manifest


OUTSIDE = '{"policy_version":1,"model_digest":"d","buckets":[[8,1]],"tensors":[["w",[9],"float32",0,0]],"summed_by":"xxh3"}'
NO_BUCKET = '{"policy_version":1,"model_digest":"d","buckets":[],"tensors":[["w",[1],"float32",0,0]],"summed_by":"xxh3"}'
UNKNOWN_SUM = '{"policy_version":1,"model_digest":"d","buckets":[[8,1]],"tensors":[],"summed_by":"crc"}'


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"policy_version": 1}', OUTSIDE, NO_BUCKET, UNKNOWN_SUM])
def test_manifest_from_rubbish_is_a_weight_error(text: str) -> None:
    with pytest.raises(WeightError, match="manifest"):
        Manifest.from_json(text)


def test_another_checksum_names_bucket_and_version() -> None:
    manifest = Manifest(3, "d", plan_buckets([TensorSpec("w", (700,), "uint8")]), (5,))
    manifest.verify(0, 5)
    with pytest.raises(WeightError, match="bucket 0 of policy version 3"):
        manifest.verify(0, 4)


def test_specs_digest_order_does_not_matter_content_does() -> None:
    specs = specs_of([(2, 3), (4, 5)])
    assert specs_digest(specs) == specs_digest(specs[::-1])
    assert specs_digest(specs) != specs_digest([*specs[:1], TensorSpec("layer.1", (5, 4), "float32")])


def test_probe_tokens_are_in_every_vocabulary() -> None:
    assert len(PROBE_TOKENS) == 16 and all(0 <= token < 1000 for token in PROBE_TOKENS)
    assert probe_tokens(1000) == probe_tokens(49_152) == PROBE_TOKENS
    assert all(0 <= token < 261 for token in probe_tokens(261)) and len(probe_tokens(261)) == 16


def write_model(folder: Path, data: bytes) -> Path:
    folder.mkdir()
    header = json.dumps({"w": {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
    return folder


def test_folder_digest_same_shapes_other_values_differ(tmp_path: Path) -> None:
    first = write_model(tmp_path / "a", b"\0" * 5000)
    same = write_model(tmp_path / "b", b"\0" * 5000)
    tuned = write_model(tmp_path / "c", b"\1" * 5000)
    assert folder_digest(first) == folder_digest(same) != folder_digest(tuned)


def test_folder_digest_no_model_is_a_weight_error(tmp_path: Path) -> None:
    with pytest.raises(WeightError, match="no safetensors"):
        folder_digest(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(WeightError, match="no safetensors file"):
        folder_digest(tmp_path)


@pytest.mark.parametrize("dtype", PROBE_TOLERANCE)
@pytest.mark.parametrize("count", [12, 15])
def test_a_few_undecided_log_probs_are_no_other_weights(dtype: str, count: int) -> None:
    learner, near = [-10.0] * count, PROBE_TOLERANCE[dtype]
    few = count // 4
    assert check_probe(learner, [*learner[few:], *[-18.0] * few], dtype=dtype) == 0.0
    assert check_probe(learner, [one - 0.9 * near for one in learner], dtype=dtype) == pytest.approx(0.9 * near)
    for wrong in (
        [one - 1.1 * near for one in learner],
        [*learner[few + 1 :], *[-18.0 - count * near] * (few + 1)],
        [*learner[1:], math.nan],
        [*learner[1:], -math.inf],
    ):
        with pytest.raises(WeightError, match="probe log-probs differ"):
            check_probe(learner, wrong, dtype=dtype)
