"""The output layer: log-probs and entropies of action tokens without ever holding all logits; and a value function.

Which states need logits is decided elsewhere.

Shape legend: Q states with logits, U (state, token) pairs, E hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from computerrl.learner.model.ranks import Ranks

_CPU_ROWS = 64
"""Rows of logits alive at once on a CPU: 64 x 49k float32 (12 MB) still profits from the last-level cache."""
_DEVICE_BYTES = 128 << 20
"""Logits in float32 alive at once on a GPU: each piece reads the whole output layer and launches some twenty kernels, so there
should be few; about four tensors of this size are there at the same time."""


def action_logprobs(
    states_QE: torch.Tensor,
    weight_VE: torch.Tensor,
    bias_V: torch.Tensor | None,
    pair_node_U: torch.Tensor,
    pair_token_U: torch.Tensor,
    *,
    host_pair_node_U: np.ndarray,
    temperature: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-probs [U], entropies [Q]) in float32 of softmax(states weight^T / temperature); pairs are sorted by node.

    ``host_pair_node_U``: the same as ``pair_node_U`` in the host's memory. Logits are made for a few states at a time and never
    kept: the gradient to the states needs only the expected output row sum_v p_v weight_v, which the forward pass makes on the
    way.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    num_rows = _rows_at_once(weight_VE)
    edges = np.searchsorted(host_pair_node_U, [*range(0, len(states_QE), num_rows), len(states_QE)]).tolist()
    return _ActionLogprobs.apply(states_QE, weight_VE, bias_V, pair_node_U, pair_token_U, temperature, num_rows, edges)


def _rows_at_once(weight_VE: torch.Tensor) -> int:
    return _CPU_ROWS if weight_VE.device.type == "cpu" else max(_CPU_ROWS, _DEVICE_BYTES // (4 * len(weight_VE)))


class _ActionLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        pair_node: torch.Tensor,
        pair_token: torch.Tensor,
        temperature: float,
        num_rows: int,
        edges: list[int],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        num_states = states.shape[0]
        logprobs = torch.empty(len(pair_node), dtype=torch.float32, device=states.device)
        entropy = torch.empty(num_states, dtype=torch.float32, device=states.device)
        best = torch.empty(num_states, dtype=torch.int64, device=states.device)
        # Expected output row minus the likeliest token's: small for a confident policy, so bfloat16 keeps its digits.
        mean_offset = torch.empty_like(states) if ctx.needs_input_grad[0] else None
        for i, start in enumerate(range(0, num_states, num_rows)):
            rows = slice(start, min(start + num_rows, num_states))
            pairs = slice(edges[i], edges[i + 1])
            logits = _logits(states[rows], weight, bias, temperature)
            probs = torch.softmax(logits, dim=-1)
            # log-sum-exp from the softmax: exp over the whole vocabulary is then paid once.
            top, at = logits.max(dim=-1, keepdim=True)
            log_norm = top - probs.gather(1, at).log()
            entropy[rows] = log_norm[:, 0] - (probs * logits).sum(dim=-1)
            local = pair_node[pairs] - start
            logprobs[pairs] = logits[local, pair_token[pairs]] - log_norm[local, 0]
            best[rows] = at[:, 0]
            if mean_offset is not None:
                probs.scatter_add_(1, at, torch.full_like(top, -1.0))
                mean_offset[rows] = torch.matmul(probs.to(weight.dtype), weight)
        ctx.save_for_backward(states, weight, bias, pair_node, pair_token, best, mean_offset)
        ctx.temperature, ctx.num_rows = temperature, num_rows
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        states, weight, bias, pair_node, pair_token, best, mean_offset = ctx.saved_tensors
        grad_pairs = (grads[0] / ctx.temperature).to(torch.float32)
        grad_states = grad_weight = grad_bias = None
        if mean_offset is not None:
            rows = weight.index_select(0, pair_token).float() - weight.index_select(0, best[pair_node]).float()
            rows -= mean_offset.index_select(0, pair_node).float()
            grad_states = torch.zeros(states.shape, dtype=torch.float32, device=states.device)
            grad_states.index_add_(0, pair_node, rows.mul_(grad_pairs[:, None]))
            grad_states = grad_states.to(states.dtype)
        if ctx.needs_input_grad[1] or (bias is not None and ctx.needs_input_grad[2]):
            grad_weight, grad_bias = _head_gradients(
                states, weight, bias, pair_node, pair_token, grad_pairs, temperature=ctx.temperature, num_rows=ctx.num_rows
            )
        return grad_states, grad_weight, grad_bias, None, None, None, None, None


def _logits(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, temperature: float) -> torch.Tensor:
    logits = torch.nn.functional.linear(states, weight, bias).float()
    return logits if temperature == 1.0 else logits.div_(temperature)


def _head_gradients(
    states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    pair_node: torch.Tensor,
    pair_token: torch.Tensor,
    grad_pairs: torch.Tensor,
    *,
    temperature: float,
    num_rows: int,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Gradients of a trained output layer; logits are made again, a few rows at a time."""
    grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
    grad_bias = None if bias is None else torch.zeros(bias.shape, dtype=torch.float32, device=bias.device)
    grad_nodes = torch.zeros(len(states), dtype=torch.float32, device=states.device).index_add_(0, pair_node, grad_pairs)
    for start in range(0, len(states), num_rows):
        rows = slice(start, start + num_rows)
        probs = torch.softmax(_logits(states[rows], weight, bias, temperature), dim=-1)
        grad_logits = probs.mul_(-grad_nodes[rows, None])
        if grad_bias is not None:
            grad_bias += grad_logits.sum(dim=0)
        grad_weight += torch.matmul(grad_logits.to(states.dtype).t(), states[rows])
    grad_weight.index_add_(0, pair_token, states.index_select(0, pair_node).float() * grad_pairs[:, None])
    if grad_bias is not None:
        grad_bias.index_add_(0, pair_token, grad_pairs)
        grad_bias = grad_bias.to(bias.dtype if bias is not None else torch.float32)
    return grad_weight.to(weight.dtype), grad_bias


class ValueHead:
    """A value function on top of the policy: one linear layer on the last hidden state, with an optimizer of its own.

    It reads what the policy's layers make of the context and sends no gradient into them (ours): so the policy trains as it would
    without it, and what actors get stays a plain language model. Starts at zero. No loss and no targets here.
    """

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
        """Clear the gradients of an optimizer step that is done or was skipped."""
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
        self.reset_optimizer()
        for name, parameter in (("weight", self._weight_E), ("bias", self._bias)):
            parameter.copy_(state[name])
            moments = {key: state[f"{key}/{name}"] for key in ("exp_avg", "exp_avg_sq", "step") if f"{key}/{name}" in state}
            if moments:
                self._optimizer.state[parameter] = {key: value.to(parameter.device, copy=True) for key, value in moments.items()}
