"""The weights that training changes: compute parameters, which passes run with, and float32 masters, which the optimizer owns.

Weights that compute in float32 are their own masters. Gradients gather in the masters, summed over backward passes. How the
weights lie over several ranks is `learner.model.sharding`'s business.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from computerrl.learner.model.lora import Adapter


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
    ) -> None:
        """``adapters``: those whose parts are in ``compute``, if any. ``dtype``: the type that passes compute in."""
        self.compute = dict(compute)
        """Hugging Face name -> compute parameter of the model."""
        self.masters = dict(masters)
        """Hugging Face name -> float32 master; the optimizer reads the `.grad` of a master."""
        self._model = model
        self._adapters = tuple(adapters)
        self._dtype = dtype

    @classmethod
    def of(cls, model: Any, compute: Mapping[str, torch.nn.Parameter], *, adapters: Sequence[Adapter] = ()) -> TrainedWeights:
        """Make masters for the parameters ``compute`` of ``model``; after a backward pass gradients are moved into them."""
        masters = {name: parameter.detach().to(torch.float32) for name, parameter in compute.items()}
        for name, parameter in compute.items():
            parameter.register_post_accumulate_grad_hook(_gather_into(masters[name]))
        return cls(model, compute, masters, adapters=adapters, dtype=model.dtype)

    def clip_gradients(self, max_norm: float) -> float:
        """Scale the gradients of the masters down to the global norm ``max_norm``; returns the norm before. A norm that is not
        finite leaves them as they are, so that they can be looked at."""
        norm = self._norm([master.grad for master in self.masters.values() if master.grad is not None])
        value = float(norm)
        if math.isfinite(value):
            torch.nn.utils.clip_grads_with_norm_(list(self.masters.values()), max_norm, norm)
        return value

    @property
    def has_gradients(self) -> bool:
        """Has any backward pass reached a master since the gradients were cleared?"""
        return any(master.grad is not None for master in self.masters.values())

    def gradients(self) -> dict[str, torch.Tensor]:
        """Hugging Face name -> gradient, as far as this process holds it."""
        return {name: master.grad for name, master in self.masters.items() if master.grad is not None}

    def clear_gradients(self) -> None:
        """Forget the gradients of an optimizer step that is done or was skipped."""
        for master in self.masters.values():
            master.grad = None

    @torch.no_grad()
    def sync_compute_weights(self) -> None:
        """Copy the masters into the compute parameters, after an optimizer step or a restore."""
        if self._dtype != torch.float32:
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
