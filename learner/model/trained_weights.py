"""The weights that training changes: compute parameters, which passes run with, and float32 masters, which the optimizer owns.

Weights that compute in float32 are their own masters. Gradients gather in the masters, summed over backward passes. Offloaded
masters (`learner.optimizer.offload`) are copies in the host's memory: gradients gather on the device, and go to the masters once
an optimizer step. How the weights lie over several ranks is `learner.model.sharding`'s business.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from computerrl.learner.model.lora import Adapter
from computerrl.learner.model.transfers import HostBuffers


class TrainedWeights:
    """Trained parameters of a model, whole and on one device."""

    def __init__(
        self,
        model: Any,
        compute: Mapping[str, torch.nn.Parameter],
        masters: Mapping[str, torch.Tensor],
        *,
        adapters: Sequence[Adapter],
        dtype: torch.dtype,
        gathering: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """``adapters``: those whose parts are in ``compute``, if any. ``dtype``: the type that passes compute in.
        ``gathering``: of offloaded masters, name -> tensor of the device in whose `.grad` gradients gather; None: the masters are
        not offloaded."""
        self.compute = dict(compute)
        """Hugging Face name -> compute parameter of the model."""
        self.masters = dict(masters)
        """Hugging Face name -> float32 master; the optimizer reads the `.grad` of a master."""
        self._model = model
        self._adapters = tuple(adapters)
        self._dtype = dtype
        self._gathering = self.masters if gathering is None else dict(gathering)
        self._buffers = None if gathering is None else HostBuffers(model.device)

    @classmethod
    def of(
        cls,
        model: Any,
        compute: Mapping[str, torch.nn.Parameter],
        *,
        adapters: Sequence[Adapter] = (),
        offload: bool = False,
    ) -> TrainedWeights:
        """Make masters for the parameters ``compute`` of ``model``; after a backward pass gradients are moved into them, or where
        ``offload`` is true, gathered in float32 on the device."""
        gathering = None
        if offload:
            masters = {name: parameter.detach().to("cpu", torch.float32, copy=True) for name, parameter in compute.items()}
            # A tensor of the right shape without memory of its own: only its `.grad` is used.
            gathering = {name: one.detach().new_empty((), dtype=torch.float32).expand(one.shape) for name, one in compute.items()}
        else:
            masters = {name: parameter.detach().to(torch.float32) for name, parameter in compute.items()}
        for name, parameter in compute.items():
            parameter.register_post_accumulate_grad_hook(_gather_into((gathering or masters)[name]))
        return cls(model, compute, masters, adapters=adapters, dtype=model.dtype, gathering=gathering)

    def clip_gradients(self, max_norm: float) -> float:
        """Scale the gradients of the masters down to the global norm ``max_norm``; returns the norm before. A norm that is not
        finite leaves them as they are, so that they can be looked at."""
        self._fetch_gradients()
        norm = self._norm([master.grad for master in self.masters.values() if master.grad is not None])
        value = float(norm)
        if math.isfinite(value):
            torch.nn.utils.clip_grads_with_norm_(list(self.masters.values()), max_norm, norm)
        return value

    @property
    def has_gradients(self) -> bool:
        """Has any backward pass reached a master since the gradients were cleared?"""
        holders = (*self._gathering.values(), *self.masters.values())
        return any(tensor.grad is not None for tensor in holders)

    def gradients(self) -> dict[str, torch.Tensor]:
        """Hugging Face name -> gradient, as far as this process holds it; of offloaded masters after `clip_gradients`."""
        return {name: master.grad for name, master in self.masters.items() if master.grad is not None}

    def clear_gradients(self) -> None:
        """Forget the gradients of an optimizer step that is done or was skipped."""
        for tensor in (*self._gathering.values(), *self.masters.values()):
            tensor.grad = None

    def _fetch_gradients(self) -> None:
        """Copy the gradients of offloaded masters from the device, where their memory is free again."""
        if self._buffers is None:
            return
        gathered = {name: tensor.grad for name, tensor in self._gathering.items() if tensor.grad is not None}
        for name, gradient in self._buffers.fetch({name: self._own(grad) for name, grad in gathered.items()}).items():
            self.masters[name].grad = self._laid_out(gradient, like=self.masters[name])
            self._gathering[name].grad = None

    @torch.no_grad()
    def sync_compute_weights(self) -> None:
        """Copy the masters into the compute parameters, after an optimizer step or a restore."""
        if self._buffers is not None:
            masters = {name: self._own(master) for name, master in self.masters.items()}
            self._buffers.send(masters, into={name: self._own(parameter) for name, parameter in self.compute.items()})
        elif self._dtype != torch.float32:
            torch._foreach_copy_(list(self.compute.values()), list(self.masters.values()))

    def copy(self) -> dict[str, torch.Tensor]:
        """Hugging Face name -> copy in compute dtype, as `replaced_by` takes them."""
        return {name: parameter.detach().clone() for name, parameter in self.compute.items()}

    @contextlib.contextmanager
    def replaced_by(self, tensors: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Run with ``tensors`` (a reference policy) in place of the trained weights; no gradients inside."""
        own = {name: parameter.data for name, parameter in self.compute.items()}
        try:
            for name, parameter in self.compute.items():
                parameter.data = tensors[name]
            with torch.no_grad():
                yield
        finally:
            for name, parameter in self.compute.items():
                parameter.data = own[name]

    def of_base_model(self) -> dict[str, torch.Tensor]:
        """The base model's name -> tensor that training changes, whole, in compute dtype; without copying, but merged where there
        are adapters."""
        trained = {name: self._whole(parameter) for name, parameter in self.compute.items()}
        for adapter in self._adapters:
            down, up = trained.pop(adapter.down), trained.pop(adapter.up)
            trained[adapter.weight] = adapter.merged(self._whole(self._model.get_parameter(adapter.base)), down, up)
        return trained

    def shard(self, whole: torch.Tensor, *, like: torch.Tensor) -> torch.Tensor:
        """A copy of the share of ``whole`` that this process holds, on its device, laid out as the master ``like``. Raises
        `ValueError` for another shape."""
        check_shape(whole, like)
        return whole.to(like.device, copy=True)

    def _norm(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.nn.utils.get_total_norm(gradients)

    def _whole(self, parameter: torch.Tensor) -> torch.Tensor:
        return parameter.detach()

    def _own(self, tensor: torch.Tensor) -> torch.Tensor:
        """The part of ``tensor`` that this process holds, as it lies in memory."""
        return tensor.detach()

    def _laid_out(self, own: torch.Tensor, *, like: torch.Tensor) -> torch.Tensor:
        """The tensor that lies as ``like`` does, of which this process holds ``own``."""
        return own


def check_shape(whole: torch.Tensor, like: torch.Tensor) -> None:
    """Raise `ValueError` when a tensor of a state has another shape than the master it is for."""
    if whole.shape != like.shape:
        raise ValueError(f"a tensor is {list(whole.shape)} in the state, and {list(like.shape)} here: it is of another model")


def _gather_into(master: torch.Tensor) -> Any:
    def gather(parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        assert gradient is not None
        if master.grad is None:
            master.grad = gradient.to(torch.float32)
        else:
            master.grad.add_(gradient)
        parameter.grad = None

    return gather
