"""A section of a checkpoint in shards, one file per rank: torch.distributed.checkpoint over safetensors, without pickle.

    trainer-00000-of-00002.safetensors    rank 0's slices of every tensor, and what is not divided
    trainer-00001-of-00002.safetensors    rank 1's slices; each header says where in the whole they belong

DCP plans: which slices a rank has, and which bytes of which files a reader needs, on however many ranks it may be. Storing is
done here, because DCP's own ways pickle: its `.metadata` file (the headers take its place), and its exchange of plans between
ranks (`no_dist`: each writes what it has, and whoever reads looks at all headers). A checkpoint is whole or not there thanks to
`learner.checkpoints.checkpoint`, which calls this from its background thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import create_default_local_save_plan
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future

# DCP says each time that it does not coordinate, which is what is asked for. (A filter for good: writing is done in a thread.)
warnings.filterwarnings("ignore", message="torch.distributed is disabled")

_NAME = re.compile(r"(?P<section>.+)-(?P<rank>\d{5})-of-(?P<num_ranks>\d{5})\.safetensors")
_HEADER = "shards"
"""Key of the safetensors header; its value is JSON: name in the file -> {name, dtype, size, offsets}."""

_DTYPES = {str(dtype): dtype for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8)}


_OS_ERROR = re.compile(r"\(os error (\d+)\)")


def save_tensors(tensors: dict[str, torch.Tensor], path: Path, *, metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file. Raises OSError: safetensors hides its number (28, no space left) in an error of its own."""
    try:
        save_file(tensors, path, metadata=metadata)
    except SafetensorError as error:
        found = _OS_ERROR.search(str(error))
        if found is None:
            raise
        raise OSError(int(found[1]), str(error)) from error


def shard_path(folder: Path, section: str, *, rank: int, num_ranks: int) -> Path:
    """Path of a rank's file of ``section``."""
    return folder / f"{section}-{rank:05d}-of-{num_ranks:05d}.safetensors"


def section_of(path: Path) -> str | None:
    """The section ``path`` is a shard of; None: it is not a shard."""
    match = _NAME.fullmatch(path.name)
    return match["section"] if match else None


class StagedShards:
    """This rank's slices of a state, copied to the CPU: training may go on while they are written."""

    def __init__(self, state: Mapping[str, torch.Tensor], *, rank: int, num_ranks: int) -> None:
        self._rank = rank
        self._num_ranks = num_ranks
        own = {name: tensor.detach() for name, tensor in state.items() if rank == 0 or isinstance(tensor, DTensor)}
        plan = create_default_local_save_plan(own, is_coordinator=rank == 0)
        # A tensor with fewer rows than ranks leaves some with nothing.
        self._planner = _Planner([item for item in plan.items if _num_elements(item)], {n: _own_slice(t) for n, t in own.items()})

    def write(self, folder: Path, *, section: str) -> Path:
        """Write and sync this rank's file into ``folder``, which must exist. Raises OSError."""
        path = shard_path(folder, section, rank=self._rank, num_ranks=self._num_ranks)
        with _own_errors():
            dcp.save({}, storage_writer=_Writer(path), planner=self._planner, no_dist=True)
        return path


class ShardFiles(Mapping[str, torch.Tensor]):
    """A written section: the whole of a tensor by name, or what one rank needs of it."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """``paths``: all of its files. Reads their headers. Raises `ValueError` when one is missing."""
        self.paths = tuple(sorted(paths))
        matches = [_NAME.fullmatch(path.name) for path in self.paths]
        ranks = [int(match["rank"]) for match in matches if match]
        if not matches or not matches[0] or ranks != list(range(int(matches[0]["num_ranks"]))):
            raise ValueError(f"a shard is missing: there are only {', '.join(path.name for path in self.paths)}")
        self._reader = _Reader(self.paths)
        self._specs = self._reader.read_metadata().state_dict_metadata

    def shard(self, name: str, *, like: torch.Tensor) -> torch.Tensor:
        """A new tensor that lies as ``like`` does, filled with what of ``name`` belongs there; only that is read."""
        spec = self._spec(name)
        if spec.size != like.shape:
            raise ValueError(f"{name} is {list(spec.size)} in the checkpoint, and {list(like.shape)} here")
        return self._fill(name, torch.empty_like(like, dtype=spec.properties.dtype, requires_grad=False))

    def __getitem__(self, name: str) -> torch.Tensor:
        spec = self._spec(name)
        return self._fill(name, torch.empty(spec.size, dtype=spec.properties.dtype))

    def __contains__(self, name: object) -> bool:
        return name in self._specs  # Mapping's own would read the tensor.

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    def _spec(self, name: str) -> TensorStorageMetadata:
        spec = self._specs[name]
        assert isinstance(spec, TensorStorageMetadata)
        return spec

    def _fill(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        with _own_errors():
            dcp.load({name: tensor}, storage_reader=self._reader, no_dist=True)
        return tensor


@contextlib.contextmanager
def _own_errors() -> Iterator[None]:
    """DCP wraps what its parts raise in a BaseException, one per rank; here it is only this one's."""
    try:
        yield
    except CheckpointException as error:
        [(cause, _)] = error.failures.values()
        raise cause from None


def _num_elements(item: WriteItem) -> int:
    assert item.tensor_data is not None  # A state is tensors alone.
    return item.tensor_data.chunk.sizes.numel()


def _own_slice(tensor: torch.Tensor) -> torch.Tensor:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.to("cpu", copy=True).contiguous()


class _Planner(SavePlanner):
    """A plan that was made when the state was copied."""

    def __init__(self, items: list[WriteItem], slices: Mapping[str, torch.Tensor]) -> None:
        self._plan = SavePlan(items)
        self._slices = slices

    def set_up_planner(self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False) -> None:
        """Nothing: see the class."""

    def create_local_plan(self) -> SavePlan:
        return self._plan

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        return all_plans, Metadata({})

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor:
        return self._slices[write_item.index.fqn]


class _Writer(StorageWriter):
    """One safetensors file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing: one writer writes one file."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing: `StagedShards.write` gives the path."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        tensors: dict[str, torch.Tensor] = {}
        shards: dict[str, dict[str, Any]] = {}
        results: list[WriteResult] = []
        for number, item in enumerate(plan.items):
            tensor = planner.resolve_data(item)
            assert isinstance(tensor, torch.Tensor) and item.tensor_data is not None
            tensors[f"t{number:05d}"] = tensor
            shards[f"t{number:05d}"] = {
                "name": item.index.fqn,
                "dtype": str(tensor.dtype),
                "size": list(item.tensor_data.size),
                "offsets": list(item.tensor_data.chunk.offsets),
            }
            results.append(WriteResult(index=item.index, size_in_bytes=tensor.nbytes, storage_data=None))
        save_tensors(tensors, self._path, metadata={_HEADER: json.dumps(shards)})
        with self._path.open("rb") as file:
            os.fsync(file.fileno())
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Nothing: the header of the file is all there is."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False  # Not to be found by a path alone.


class _Reader(StorageReader):
    """All files of a section."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._places: dict[MetadataIndex, tuple[Path, str]] = {}
        self._metadata = Metadata({})
        for path in paths:
            with safe_open(path, framework="pt") as file:
                for key, shard in json.loads(file.metadata()[_HEADER]).items():
                    self._add(path, key, shard, torch.Size(file.get_slice(key).get_shape()))

    def _add(self, path: Path, key: str, shard: Mapping[str, Any], sizes: torch.Size) -> None:
        name, offsets = shard["name"], torch.Size(shard["offsets"])
        found = self._metadata.state_dict_metadata.setdefault(
            name, TensorStorageMetadata(TensorProperties(dtype=_DTYPES[shard["dtype"]]), torch.Size(shard["size"]), [])
        )
        assert isinstance(found, TensorStorageMetadata)
        found.chunks.append(ChunkStorageMetadata(offsets, sizes))
        self._places[MetadataIndex(name, offsets)] = (path, key)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing: the files do not change."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self._metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing: the headers are read."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in plan.items:
            path, key = self._places[MetadataIndex(item.storage_index.fqn, item.storage_index.offset)]
            with safe_open(path, framework="pt") as file:
                if item.lengths:
                    where = tuple(
                        slice(start, start + length) for start, length in zip(item.storage_offsets, item.lengths, strict=True)
                    )
                    read = file.get_slice(key)[where]
                else:
                    read = file.get_tensor(key)
            target = planner.resolve_tensor(item).detach()
            target.copy_(read)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False
