"""The wire format: what goes in comes out, bytes stay as they are, and nothing but messages comes out of other bytes."""

from __future__ import annotations

import struct

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from computerrl.common.errors import DecodeError
from computerrl.common.messages import (
    DEFAULT_SIZE_LIMIT,
    SCHEMA_VERSION,
    GroupRequest,
    Message,
    Step,
    StepTiming,
    Trajectory,
)
from computerrl.common.messages.base import Wire
from computerrl.common.wire import codec
from tests.conftest import CheckGolden
from tests.support.data.broker_data import examples


def frames_of(message: Message) -> list[bytes]:
    return codec.encode(message, sender="actor-0:i1", message_id=5, cause_id=4)


def same(left: object, right: object) -> bool:
    if isinstance(left, np.ndarray):
        return isinstance(right, np.ndarray) and left.dtype == right.dtype and np.array_equal(left, right)
    if isinstance(left, Wire):
        names = left.__struct_fields__
        return type(left) is type(right) and all(same(getattr(left, name), getattr(right, name)) for name in names)
    if isinstance(left, tuple):
        return isinstance(right, tuple) and len(left) == len(right) and all(map(same, left, right))
    return left == right


@pytest.mark.parametrize("message", examples(), ids=lambda message: type(message).__name__)
def test_decode_of_encoded_gives_the_same_message(message: Message) -> None:
    envelope = codec.decode(frames_of(message))
    assert same(envelope.message, message)
    assert (envelope.sender, envelope.message_id, envelope.cause_id) == ("actor-0:i1", 5, 4)


@pytest.mark.parametrize("message", examples(), ids=lambda message: type(message).__name__)
def test_encoded_bytes_are_the_golden_ones(message: Message, check_golden: CheckGolden) -> None:
    frames = frames_of(message)
    lengths = struct.pack(f"<I{len(frames)}I", len(frames), *map(len, frames))
    check_golden(f"codec/{type(message).__name__}.bin", lengths + b"".join(frames))


def test_arrays_travel_as_raw_bytes_one_after_the_other() -> None:
    trajectory = next(message for message in examples() if isinstance(message, Trajectory))
    _, arrays = frames_of(trajectory)
    names = ("prompt_tokens", "action_tokens", "behavior_logprobs", "policy_versions")
    assert arrays == b"".join(getattr(one, name).tobytes() for one in trajectory.steps for name in names)


def test_message_whose_arrays_are_empty_arrives() -> None:
    base = next(message for message in examples() if isinstance(message, Trajectory))
    none, timing = np.zeros(0, dtype=np.int32), StepTiming(0, 0, 0)
    empty = Step(none, none, none.astype(np.float32), none, "", True, "", None, "none", timing)
    envelope = codec.decode(frames_of(replace(base, steps=(empty, empty))))
    assert same(envelope.message, replace(base, steps=(empty, empty)))


def test_big_endian_arrays_arrive_as_numbers_not_as_bytes() -> None:
    base = next(message for message in examples() if isinstance(message, Trajectory))
    swapped = np.arange(3, dtype=">i4")
    step = Step(swapped, swapped, np.zeros(3), swapped, "", True, "", None, "none", StepTiming(0, 0, 0))
    envelope = codec.decode(frames_of(replace(base, steps=(step,))))
    assert isinstance(envelope.message, Trajectory)
    assert envelope.message.steps[0].prompt_tokens.tolist() == [0, 1, 2]


def test_encode_of_no_message_raises_type_error() -> None:
    with pytest.raises(TypeError, match="StepTiming"):
        codec.encode(StepTiming(0, 0, 0), sender="x", message_id=1)  # type: ignore[arg-type]


def changed_header(**changes: object) -> list[bytes]:
    header = msgpack.unpackb(frames_of(GroupRequest(1))[0])
    return [msgpack.packb({**header, **changes})]


def named_arrays(*arrays: tuple[int, int]) -> list[bytes]:
    """A body that names arrays by (extension type, length) where none belong."""
    return with_arguments([msgpack.ExtType(code, struct.pack("<I", length)) for code, length in arrays])


def with_arguments(value: object) -> list[bytes]:
    """A `StepRequest` whose action has ``value`` (bytes: msgpack already) among its arguments."""
    lease = {"desktop": 0, "token": 1}
    body = {"lease": lease, "action": {"name": "click", "args": {"target": "VALUE"}}}
    packed = value if isinstance(value, bytes) else msgpack.packb(value)
    return changed_header(kind="StepRequest", body=msgpack.packb(body).replace(msgpack.packb("VALUE"), packed))


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], "0 frames"),
        ([b""], "header: Input data was truncated"),
        ([b"\xc1"], "header: MessagePack data is malformed"),
        ([msgpack.packb([1])], "header: Expected `object`, got `array`"),
        ([msgpack.packb({})], "header: Object missing required field `kind`"),
        (changed_header(schema=SCHEMA_VERSION + 1), f"speaks {SCHEMA_VERSION}: run the same release"),
        (changed_header(kind="Nonsense"), "no such kind"),
        (changed_header(kind=["Ack"]), "got `array` - at `$.kind`"),
        (changed_header(id="five"), "got `str` - at `$.id`"),
        (changed_header(cause=True), "got `bool` - at `$.cause`"),
        (changed_header(body=7), "got `int` - at `$.body`"),
        (changed_header(body=b"\x81\xa2\xff\xff\x01"), "body: 'utf-8' codec can't decode"),
        (with_arguments(b"\x81\x80\x01"), "body: "),
        (with_arguments({1: 2}), "body: expected names as the keys of maps"),
        (changed_header(body=b"\xc1"), "body: MessagePack data is malformed"),
        (changed_header(body=msgpack.packb({"group_seq": "x"})), "body: Expected `int`, got `str` - at `$.group_seq`"),
        (changed_header(body=msgpack.packb({"group_seq": 1, "more": 2})), "body: Object contains unknown field `more`"),
        (named_arrays((1, 1)), "array of 1 numbers where 0 are left"),
        (named_arrays((9, 0)), "extension type 9"),
        (with_arguments(msgpack.ExtType(1, b"\0")), "4 bytes, not 1"),
        ([*changed_header(), b"12345678"], "2 numbers of frame 1 are in no array"),
        ([*named_arrays((1, 3)), b"12345678"], "array of 3 numbers where 2 are left"),
        ([*named_arrays((1, 1), (2, 2)), b"12345678"], "array of 2 numbers where 1 are left"),
        ([*named_arrays((1, 2)), b"12345"], "5 bytes, no whole number"),
        (named_arrays(*[(1, 0)] * 9), "body: expected numbers, texts, lists and maps"),
        ([*changed_header(), b"", b""], "3 frames"),
        (changed_header(more=[1] * 3), "header: Object contains unknown field `more`"),
        ([b"x" * (DEFAULT_SIZE_LIMIT.header_bytes + 1)], "too large"),
        ([msgpack.packb([[]] * 3)[:-1]], "header: Expected `object`"),
        ([b"\x91" * 60_000], "header: Expected `object`"),
    ],
)
def test_decode_of_malformed_frames_raises_decode_error_with_the_reason(frames: list[bytes], reason: str) -> None:
    with pytest.raises(DecodeError) as caught:
        codec.decode(frames)
    assert reason in caught.value.reason


def test_decode_error_names_kind_and_sender() -> None:
    with pytest.raises(DecodeError, match=r"GroupRequest.*actor-0:i1"):
        codec.decode(changed_header(body=msgpack.packb({})))


def test_peek_finds_the_id_of_frames_that_do_not_decode() -> None:
    assert codec.peek_message_id(changed_header(kind="Nonsense")) == 5
    assert codec.peek_message_id([b"\xc1"]) is None
    assert codec.peek_message_id(changed_header(id="five")) is None


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_decode_of_random_frames_raises_only_decode_error(frames: list[bytes]) -> None:
    with pytest.raises(DecodeError):
        codec.decode(frames)


@given(st.data())
def test_decode_of_flipped_bytes_raises_decode_error_or_gives_a_message(data: st.DataObject) -> None:
    frames = [bytearray(frame) for frame in frames_of(data.draw(st.sampled_from(examples())))]
    for _ in range(data.draw(st.integers(1, 6))):
        frame = data.draw(st.sampled_from([frame for frame in frames if frame]))
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        envelope = codec.decode([bytes(frame) for frame in frames])
    except DecodeError:
        return
    assert type(envelope.message).__name__ in {type(message).__name__ for message in examples()}


def test_decode_of_msgpack_nested_too_deep_raises_decode_error() -> None:
    deep: object = 1
    for _ in range(400):
        deep = {"x": deep}
    with pytest.raises(DecodeError):
        codec.decode(changed_header(body=msgpack.packb(deep)))
