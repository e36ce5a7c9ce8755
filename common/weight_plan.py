"""How weights travel: which tensor lies where in which bucket, what each bucket's bytes must sum to, and the fixed probe.

The learner packs its trained tensors into a few large flat buckets (small messages pay latency) and describes them in a
`Manifest`; a receiver checks every bucket against the manifest before any byte reaches an engine, and afterwards
compares the engine's log-probs of `PROBE_TOKENS` with the learner's. Only names, shapes, bytes and sums live here: no
torch, no sockets.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from computerrl.common.errors import WeightError

if TYPE_CHECKING:
    import numpy as np

# fmt: off
PROBE_TOKENS: tuple[int, ...] = (
    504, 253, 28, 284, 260, 30, 338, 105, 42, 198, 617, 719, 88, 933, 411, 57,
)
# fmt: on
"""16 token ids; generation stands still for as long as they take. Learner and engines score the same sequence: entry i of the 15
(or, with the engine's own start token, 16) log-probs is that of token i + 1 given all before it."""


def probe_tokens(vocabulary: int) -> tuple[int, ...]:
    """`PROBE_TOKENS` for a model that knows ``vocabulary`` tokens: byte- and character-level ones have a few hundred."""
    return tuple(token % vocabulary for token in PROBE_TOKENS)


PROBE_TOLERANCE = {"float32": 0.01, "bfloat16": 0.25, "float16": 0.25}
"""Largest difference of probe log-probs as `check_probe` takes it, by the engine's type. Two correct bf16 implementations of one
model differ by 0.01 to 0.1 here (logits near 20 are rounded to 1/16), in float32 by less than 0.001; a layer left at old values,
swapped tensors or another base model differ by 0.5 and more. Exactness is the checksums' business, not this one's."""

BUCKET_BYTES = 64 * 1024 * 1024
"""Bucket size: large enough to hide gloo's latency (16 MiB take a tenth longer), small enough that checksumming overlaps the next
transfer."""

ALIGN_BYTES = 64
"""Tensors start at multiples of this, so that a view of any dtype is aligned."""

DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8, "int64": 8, "int32": 4, "int8": 1, "uint8": 1}
"""Element sizes by torch's dtype name."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, shape and dtype of one tensor."""

    name: str
    """Hugging Face name."""
    shape: tuple[int, ...]
    dtype: str
    """torch's name without `torch.`, e.g. `bfloat16`."""

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one tensor lies."""

    spec: TensorSpec
    bucket: int
    offset: int
    """Bytes from the start of its bucket."""


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """The layout of all tensors; the same for every version of a run."""

    slots: tuple[Slot, ...]
    bucket_bytes: tuple[int, ...]
    """Size of each bucket."""

    @property
    def total_bytes(self) -> int:
        return sum(self.bucket_bytes)


SummedBy = Literal["xxh3", "words"]
"""Checksums: `xxh3` on the host, `words` on the device that holds the bytes (`learner.weight_bytes.checksum`)."""


def _summed_by(name: object) -> SummedBy:
    if name == "xxh3" or name == "words":
        return name
    raise ValueError(f"an unknown checksum {name!r}")


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version's layout and checksums; travels as JSON inside a `WeightUpdate`."""

    policy_version: int
    model_digest: str
    """Of the base model both sides must hold."""
    plan: WeightPlan
    checksums: tuple[int, ...]
    """Of each bucket's bytes, by `summed_by`."""
    summed_by: SummedBy = "xxh3"

    def to_json(self) -> str:
        """The text form."""
        tensors = [[s.spec.name, list(s.spec.shape), s.spec.dtype, s.bucket, s.offset] for s in self.plan.slots]
        fields = {
            "policy_version": self.policy_version,
            "model_digest": self.model_digest,
            "buckets": list(zip(self.plan.bucket_bytes, self.checksums, strict=True)),
            "summed_by": self.summed_by,
            "tensors": tensors,
        }
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Read back; raises `WeightError` when ``text`` is no manifest or a tensor would not lie inside its bucket."""
        try:
            fields: Any = json.loads(text)
            bucket_bytes = tuple(int(num_bytes) for num_bytes, _ in fields["buckets"])
            slots = tuple(
                Slot(TensorSpec(str(name), tuple(int(n) for n in shape), str(dtype)), int(bucket), int(offset))
                for name, shape, dtype, bucket, offset in fields["tensors"]
            )
            manifest = cls(
                policy_version=int(fields["policy_version"]),
                model_digest=str(fields["model_digest"]),
                plan=WeightPlan(slots, bucket_bytes),
                checksums=tuple(int(value) for _, value in fields["buckets"]),
                summed_by=_summed_by(fields["summed_by"]),
            )
            fits = all(s.offset >= 0 and s.offset + s.spec.num_bytes <= bucket_bytes[s.bucket] for s in slots)
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise WeightError(f"not a weight manifest: {error!r}") from None
        if not fits:
            raise WeightError("not a weight manifest: a tensor lies outside its bucket")
        return manifest

    @property
    def content(self) -> str:
        """Digest of names, places, types and checksums: equal for equal weights, whatever version they are called."""
        return hashlib.blake2b(repr((self.plan, self.checksums)).encode(), digest_size=16).hexdigest()

    def verify(self, bucket: int, found: int) -> None:
        """Raise `WeightError` unless ``found``, the checksum of the bytes that arrived, is that of ``bucket``."""
        expected = self.checksums[bucket]
        if found != expected:
            raise WeightError(
                f"bucket {bucket} of policy version {self.policy_version} arrived damaged: "
                f"checksum {found:016x}, the learner sent {expected:016x}"
            )


def plan_buckets(specs: Sequence[TensorSpec], *, bucket_bytes: int = BUCKET_BYTES) -> WeightPlan:
    """Put tensors into buckets of about ``bucket_bytes``, in the order given; a larger tensor gets a bucket of its own."""
    slots: list[Slot] = []
    sizes: list[int] = []
    for spec in specs:
        start = -(-sizes[-1] // ALIGN_BYTES) * ALIGN_BYTES if sizes else 0
        if not sizes or start + spec.num_bytes > bucket_bytes:
            sizes.append(0)
            start = 0
        slots.append(Slot(spec, len(sizes) - 1, start))
        sizes[-1] = start + spec.num_bytes
    return WeightPlan(tuple(slots), tuple(sizes))


def check_probe(expected: Sequence[float] | np.ndarray, found: Sequence[float] | np.ndarray, *, dtype: str) -> float:
    """`probe_difference` of an engine's log-probs of `PROBE_TOKENS` and the learner's. Raises `WeightError` when it is more than
    the rounding of ``dtype``. An engine with a start token scores one token more; the last ones are the same in both."""
    count = min(len(expected), len(found))
    if count == 0:
        raise WeightError(f"no probe log-probs to compare (learner {len(expected)}, engine {len(found)})")
    difference = probe_difference(expected[-count:], found[-count:])
    if not difference <= PROBE_TOLERANCE[dtype]:
        what = f"{difference:.3f} (mean of the smaller three quarters; at most {PROBE_TOLERANCE[dtype]})"
        raise WeightError(f"the engine's probe log-probs differ from the learner's by {what}")
    return difference


def probe_difference(expected: Sequence[float] | np.ndarray, found: Sequence[float] | np.ndarray) -> float:
    """Mean absolute difference of equally many log-probs, without the largest quarter; no number where one of them is none.

    Where attention is undecided between two tokens, rounding decides, and a single log-prob may differ by many nats.
    """
    differences = [abs(float(ours) - float(theirs)) for ours, theirs in zip(expected, found, strict=True)]
    if all(map(math.isfinite, differences)):
        differences = sorted(differences)[: len(differences) - len(differences) // 4]
    return sum(differences) / len(differences)


def specs_digest(specs: Iterable[TensorSpec]) -> str:
    """Digest of names, shapes and dtypes in any order: equal exactly when two models have the same tensors."""
    digest = hashlib.blake2b(digest_size=16)
    for spec in sorted(specs, key=lambda spec: spec.name):
        digest.update(f"{spec.name}|{','.join(map(str, spec.shape))}|{spec.dtype}\n".encode())
    return digest.hexdigest()


def base_digest(folder: Path, *, served_at: str | None) -> str:
    """What learner and actors must agree on: `folder_digest`, or where the weights are elsewhere, that place."""
    if served_at is None:
        return folder_digest(folder)
    return hashlib.blake2b(f"served at {served_at}".encode(), digest_size=16).hexdigest()


def folder_digest(folder: Path) -> str:
    """Digest of the model in ``folder``: every tensor's name, shape and dtype, and samples of the bytes.

    Reads safetensors headers and `_SAMPLE_BYTES` at a few places of each file, so it takes milliseconds at any size. Learner and
    actors compare it before weights flow: what travels are the trained tensors alone, so the rest must be equal already.
    """
    specs: list[TensorSpec] = []
    samples = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.glob("*.safetensors")):
        header, start = _read_header(path)
        for name, entry in header.items():
            if name != "__metadata__":
                specs.append(TensorSpec(name, tuple(entry["shape"]), str(entry["dtype"])))
        num_bytes = path.stat().st_size - start
        with path.open("rb") as file:
            for i in range(_NUM_SAMPLES):
                file.seek(start + max(0, num_bytes - _SAMPLE_BYTES) * i // (_NUM_SAMPLES - 1))
                samples.update(file.read(_SAMPLE_BYTES))
    if not specs:
        raise WeightError(f"{folder} holds no safetensors file")
    return hashlib.blake2b((specs_digest(specs) + samples.hexdigest()).encode(), digest_size=16).hexdigest()


_NUM_SAMPLES = 16
_SAMPLE_BYTES = 64 * 1024
"""16 samples of 64 KiB per file: enough to tell a fine-tuned model from its base, little enough for a cold disk."""


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if not 0 < size < 100_000_000:
            raise WeightError(f"{path} is no safetensors file")
        try:
            header = json.loads(file.read(size))
        except ValueError:
            raise WeightError(f"{path} is no safetensors file") from None
    return header, 8 + size
