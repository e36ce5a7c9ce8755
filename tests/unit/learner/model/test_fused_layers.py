"""Layers in fewer operations: the numbers of the model's own ones."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from computerrl.common.config import ModelConfig, RunConfig
from computerrl.learner.model.attention_varlen import VarlenLayout
from computerrl.learner.model.batching import make_packs
from computerrl.learner.model.fused import fuse
from computerrl.learner.model.policy import Policy, load_policy
from tests.support.data.tensors import assert_near
from tests.unit.learner.model.test_attention_varlen import CPU, slow_kernel
from tests.unit.learner.model.test_batching_packs import branching_samples


def policy_of(dtype: str = "float32") -> Policy:
    return load_policy(RunConfig(model=ModelConfig.model_validate({"name": "tiny-random", "dtype": dtype})))


def outputs_and_gradients(policy: Policy) -> list[torch.Tensor]:
    (pack,) = make_packs(branching_samples(), max_tokens=4096)
    logprobs_U = policy.forward(pack, temperature=0.7).logprobs_U
    (logprobs_U * torch.linspace(-1, 1, len(logprobs_U))).sum().backward()
    return [logprobs_U.detach(), *(policy.weights.gradients()[name] for name in sorted(policy.weights.masters))]


def test_fused_layers_give_the_outputs_and_gradients_of_the_model() -> None:
    plain, fused = policy_of(), policy_of()
    names = fuse(fused._model, attends=True)
    assert any(name.endswith("RMSNorm") for name in names) and any(name.endswith("Attention") for name in names)
    for ours, expected in zip(outputs_and_gradients(fused), outputs_and_gradients(plain), strict=True):
        assert_near(ours, expected, part=3e-5)


def test_fused_layers_in_bfloat16_are_as_near_to_float32_as_the_model() -> None:
    exact, plain, fused = policy_of(), policy_of("bfloat16"), policy_of("bfloat16")
    assert fuse(fused._model, attends=True)
    of_exact, of_plain, of_fused = (
        torch.cat([tensor.flatten() for tensor in outputs_and_gradients(policy)]) for policy in (exact, plain, fused)
    )
    assert (of_fused - of_exact).norm() < 1.2 * (of_plain - of_exact).norm()


class CountKernels(TorchDispatchMode):
    """Operations that compute: each is at least one kernel on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.num_kernels = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num_kernels += not op.is_view and op.namespace == "aten"
        return op(*args, **(kwargs or {}))


def test_fused_layers_need_fewer_kernels() -> None:
    def kernel(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, scale: float) -> torch.Tensor:
        return query + key.mean() + value.mean()

    (pack,) = make_packs(branching_samples(), max_tokens=4096)
    counts = []
    for fused in (False, True):
        policy = policy_of("bfloat16")
        if fused:
            fuse(policy._model, attends=True)
        layer, layout = policy._layers[0], VarlenLayout.of(pack, device=CPU, kernel=kernel)
        hidden = torch.randn(1, pack.num_nodes, policy.hidden_size, dtype=torch.bfloat16, requires_grad=True)
        positions = torch.from_numpy(pack.depth_N)[None]
        rotary = policy._base.rotary_emb(hidden, position_ids=positions)
        with CountKernels() as counted:
            out = layer(hidden, attention_mask=layout, position_ids=positions, position_embeddings=rotary, use_cache=False)
            out.sum().backward()
        counts.append(counted.num_kernels)
    assert counts[1] < counts[0]


def test_fused_norm_that_gives_other_numbers_is_not_taken() -> None:
    policy = policy_of()

    class OtherRMSNorm(type(policy._base.norm)):  # type: ignore[misc]
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return super().forward(hidden) * 2

    policy._base.norm.__class__ = OtherRMSNorm
    names = fuse(policy._model, attends=False)
    assert names == [type(policy._layers[0].input_layernorm).__name__]
    assert "forward" not in vars(policy._base.norm)


def test_fused_attention_of_another_making_is_not_taken() -> None:
    policy = policy_of()
    for layer in policy._layers:
        del layer.self_attn.scaling
    assert not any(name.endswith("Attention") for name in fuse(policy._model, attends=True))


def test_varlen_layout_under_fused_attention_equals_blocks() -> None:
    (pack,) = make_packs(branching_samples(), max_tokens=4096)
    policy = policy_of()
    fuse(policy._model, attends=True)
    blocks = policy.tensors(pack)
    varlen = dataclasses.replace(blocks, layout=VarlenLayout.of(pack, device=CPU, kernel=slow_kernel))
    found = [policy.forward(pack, temperature=1.0, tensors=one).logprobs_U.detach() for one in (blocks, varlen)]
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-5)
