"""A value function on top of the policy: one linear layer on the last hidden state, with an optimizer of its own.

It reads what the policy's layers make of the context and sends no gradient into them (ours): so the policy trains as it would
without it, and what actors get stays a plain language model. Starts at zero. No loss and no targets here.

Shape legend: Q states, E hidden size.
"""

from __future__ import annotations

import torch

from computerrl.learner.model.ranks import Ranks


class ValueHead:
    """Values of states, and how they are trained."""

    def __init__(self, hidden_size: int, *, lr: float, device: torch.device) -> None:
        self._weight_E = torch.zeros(hidden_size, device=device, requires_grad=True)
        self._bias = torch.zeros((), device=device, requires_grad=True)
        self._lr = lr
        self.reset_optimizer()

    def values(self, states_QE: torch.Tensor) -> torch.Tensor:
        """[Q] float32, with the head's graph. States are scaled to unit variance, whatever the model's norm made them."""
        states = torch.nn.functional.layer_norm(states_QE.detach().float(), states_QE.shape[-1:])
        return states @ self._weight_E / states_QE.shape[-1] ** 0.5 + self._bias

    def reset_optimizer(self) -> None:
        """Forget moments; what the head has learnt stays."""
        self._optimizer = torch.optim.AdamW([self._weight_E, self._bias], lr=self._lr, weight_decay=0.0)

    def clip_gradients(self, max_norm: float, ranks: Ranks) -> float:
        """Add up what gathered on all ``ranks``, and clip it; the norm before that."""
        for parameter in (self._weight_E, self._bias):
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            ranks.add_up(parameter.grad)
        return float(torch.nn.utils.clip_grad_norm_([self._weight_E, self._bias], max_norm))

    def gradients(self) -> dict[str, torch.Tensor]:
        """Name -> gradient, of those that have one."""
        named = {"value_head.weight": self._weight_E.grad, "value_head.bias": self._bias.grad}
        return {name: grad for name, grad in named.items() if grad is not None}

    def step(self) -> None:
        """One optimizer step."""
        self._optimizer.step()
        self.forget_gradients()

    def forget_gradients(self) -> None:
        """Those of an optimizer step that is done or was skipped."""
        self._optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Plain tensors; `load_state_dict` takes them back."""
        state = {"weight": self._weight_E.detach(), "bias": self._bias.detach()}
        for name, parameter in (("weight", self._weight_E), ("bias", self._bias)):
            for key, value in self._optimizer.state.get(parameter, {}).items():
                state[f"{key}/{name}"] = value
        return state

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Continue where `state_dict` was taken."""
        for name, parameter in (("weight", self._weight_E), ("bias", self._bias)):
            parameter.copy_(state[name])
            moments = {key: state[f"{key}/{name}"] for key in ("exp_avg", "exp_avg_sq", "step") if f"{key}/{name}" in state}
            if moments:
                self._optimizer.state[parameter] = {key: value.to(parameter.device, copy=True) for key, value in moments.items()}
