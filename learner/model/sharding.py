"""A policy whose weights lie over several ranks: FSDP2, one group per decoder layer, float32 shards as masters.

    `TrainedWeights`   compute weights (bfloat16) + masters (float32), whole, on one device
    `ShardedWeights`   masters (float32), a slice per rank; FSDP2 gathers a layer in compute type when it runs, frees it
                       afterwards, and adds the gradients of all ranks up in float32 onto the slices

Offloaded masters are copies of a rank's slices in its host's memory. The slices on the device stay in float32, because FSDP2
keeps gradients in the type of its slices. Frozen layers are divided as well, in compute type. Gradients are summed and not
averaged: the weights of a batch's tokens are those of the whole batch on every rank. All ranks call a method here at the same
time, or it never returns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from computerrl.common.config import LoraConfig, RunConfig
from computerrl.common.memory_plan import Recomputation
from computerrl.learner.model.lora import Adapter
from computerrl.learner.model.policy import Policy, load_policy
from computerrl.learner.model.ranks import RankGroup
from computerrl.learner.model.trained_weights import TrainedWeights, check_shape
from computerrl.learner.model.vision import Vision


class _Root(torch.nn.Module):
    """FSDP2 gathers weights where a module is called: this one is called around every pass, so that embeddings and output
    layer, which belong to no layer, are there for all of it."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)


class ShardedPolicy(Policy):
    """See the module's docstring."""

    def __init__(
        self,
        model: Any,
        *,
        ranks: RankGroup,
        folder: Path,
        num_trained_layers: int | None,
        recomputation: Recomputation = "none",
        lora: LoraConfig | None = None,
        vision: Vision | None = None,
        float32_head: bool = False,
        trains_routers: bool = False,
        offload: bool = False,
    ) -> None:
        """``model``: whole, on the CPU; its layers go to ``ranks.device`` one by one, so that it need not fit there."""
        self._rank = ranks.rank
        self._dtype: torch.dtype = model.dtype
        self._mesh = init_device_mesh(ranks.device.type, (ranks.num_ranks,))
        super().__init__(
            model,
            folder=folder,
            num_trained_layers=num_trained_layers,
            recomputation=recomputation,
            lora=lora,
            vision=vision,
            float32_head=float32_head,
            trains_routers=trains_routers,
            offload=offload,
            context=ranks.context,
        )

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    def _make_weights(self, trained: dict[str, torch.nn.Parameter], adapters: Sequence[Adapter]) -> TrainedWeights:
        for parameter in trained.values():
            parameter.data = parameter.data.to(torch.float32)
        self._root = _Root(self._model)
        # reshard_after_forward also for the root: left whole after a pass without gradients, it would still be the old weights
        # in the pass after the next optimizer step.
        shard = partial(
            fully_shard,
            mesh=self._mesh,
            mp_policy=MixedPrecisionPolicy(self._dtype, reduce_dtype=torch.float32, cast_forward_inputs=False),
            reshard_after_forward=True,
        )
        for module in (*self._layers, self._base.norm, self._root):
            shard(module)
        for module in self._root.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        parameters = dict(self._model.named_parameters())
        slices = {name: parameters[name] for name in trained}
        masters = None
        if self._offload:
            host = init_device_mesh("cpu", (self._mesh.size(),))
            masters = {name: _copy_on(host, one) for name, one in slices.items()}
        return ShardedWeights(self._model, slices, adapters=adapters, dtype=self._dtype, rank=self._rank, host_masters=masters)

    def _within(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return self._root(work, *arguments)


class ShardedWeights(TrainedWeights):
    """See the module's docstring: passes gather the masters themselves, or the slices that offloaded masters are copied to."""

    def __init__(
        self,
        model: Any,
        slices: Mapping[str, torch.nn.Parameter],
        *,
        adapters: Sequence[Adapter],
        dtype: torch.dtype,
        rank: int,
        host_masters: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """``host_masters``: offloaded masters of ``slices``; None: ``slices`` are the masters."""
        masters, gathering = (slices, None) if host_masters is None else (host_masters, slices)
        super().__init__(model, slices, masters, adapters=adapters, dtype=dtype, gathering=gathering)
        self._rank = rank

    def gradients(self) -> dict[str, torch.Tensor]:
        return {name: _slice(gradient) for name, gradient in super().gradients().items()}

    def sync_compute_weights(self) -> None:
        """As `TrainedWeights.sync_compute_weights` of offloaded masters; else nothing: passes gather the masters."""
        if self._buffers is not None:
            super().sync_compute_weights()

    def copy(self) -> dict[str, torch.Tensor]:
        """As `TrainedWeights.copy`, a slice per rank."""
        return {name: one.detach().to(self._dtype, copy=True) for name, one in self.compute.items()}

    def of_base_model(self) -> dict[str, torch.Tensor]:
        """As `TrainedWeights.of_base_model` on rank 0; nothing on the others, which help to gather the tensors."""
        tensors = super().of_base_model()
        return tensors if self._rank == 0 else {}

    def shard(self, whole: torch.Tensor, *, like: torch.Tensor) -> torch.Tensor:
        assert isinstance(like, DTensor)
        check_shape(whole, like)
        # No source rank: every rank has the whole and cuts out its own slice.
        return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements, src_data_rank=None)

    @contextlib.contextmanager
    def replaced_by(self, tensors: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """See `TrainedWeights.replaced_by`; keeps a copy of this rank's slices meanwhile."""
        with torch.no_grad():
            own = {name: _slice(one).clone() for name, one in self.compute.items()}
            try:
                for name, one in self.compute.items():
                    _slice(one).copy_(_slice(tensors[name]))
                yield
            finally:
                for name, one in self.compute.items():
                    _slice(one).copy_(own[name])

    def _norm(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        norm = super()._norm(gradients)
        assert isinstance(norm, DTensor)
        return norm.full_tensor()

    def _whole(self, parameter: torch.Tensor) -> torch.Tensor:
        shard = parameter.detach().to(self._dtype)
        assert isinstance(shard, DTensor)
        full = shard.full_tensor()
        # Without adapters the others have no use for it: one tensor at a time is all they ever hold.
        return full if self._rank == 0 or self._adapters else torch.empty(0, dtype=self._dtype)

    def _own(self, tensor: torch.Tensor) -> torch.Tensor:
        return _slice(tensor)

    def _laid_out(self, own: torch.Tensor, *, like: torch.Tensor) -> torch.Tensor:
        assert isinstance(like, DTensor)
        return _divided(own, like.device_mesh, like=like)


def _copy_on(host: DeviceMesh, master: torch.Tensor) -> torch.Tensor:
    """A copy of ``master`` whose slices lie in the hosts' memory."""
    return _divided(_slice(master).to("cpu", copy=True), host, like=master)


def _divided(own: torch.Tensor, mesh: DeviceMesh, *, like: torch.Tensor) -> torch.Tensor:
    """The tensor over ``mesh`` of which this rank holds ``own``, divided as ``like`` is."""
    assert isinstance(like, DTensor)
    return DTensor.from_local(own, mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride())


def load_sharded_policy(config: RunConfig, ranks: RankGroup) -> ShardedPolicy:
    """`learner.model.policy.load_policy`, over ``ranks``; all of them call it."""
    policy = load_policy(config, make=partial(ShardedPolicy, ranks=ranks), ranks=ranks)
    assert isinstance(policy, ShardedPolicy)
    return policy


def _slice(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's slice of a tensor, as it lies in memory."""
    assert isinstance(tensor, DTensor)
    return tensor.detach().to_local()
