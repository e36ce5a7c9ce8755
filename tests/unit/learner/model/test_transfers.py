"""Arrays to a device and figures back; the copy that a GPU gets, made on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from computerrl.learner.model import head
from computerrl.learner.model.transfers import fetch, in_one_copy, to_device

CPU = torch.device("cpu")


def test_arrays_in_one_copy_have_their_values_types_and_shapes() -> None:
    arrays = {
        "odd": np.array([True, False, True]),
        "long": np.arange(5),
        "none": np.zeros(0, dtype=np.int32),
        "wide": np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::-1],
        "short": np.array([7], dtype=np.int32),
    }
    found = in_one_copy(arrays, CPU, pinned=False)
    assert len({tensor.untyped_storage().data_ptr() for tensor in found.values()}) == 1
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name].numpy(), array, strict=True)
    np.testing.assert_array_equal(to_device({"long": arrays["long"]}, CPU)["long"].numpy(), arrays["long"], strict=True)


def test_fetched_values_are_in_order_whatever_their_types() -> None:
    large = torch.tensor([1e300], dtype=torch.float64)
    assert fetch([torch.tensor(0.5), torch.tensor(3), large, torch.tensor(2**40)]) == [0.5, 3.0, 1e300, 2.0**40]
    assert fetch([]) == []


def test_logprobs_and_gradients_are_the_same_by_any_number_of_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = torch.Generator().manual_seed(0)
    nodes, tokens = np.array([0, 0, 1, 3, 4, 6, 6, 6]), torch.randint(11, (8,), generator=rng)
    found = []
    for num_rows in (1, 3, 64):
        monkeypatch.setattr(head, "_CPU_ROWS", num_rows)
        rng.manual_seed(1)
        leaves = [torch.randn(shape, generator=rng, requires_grad=True) for shape in ((7, 5), (11, 5), (11,))]
        logprobs, entropy = head.action_logprobs(
            *leaves, torch.from_numpy(nodes), tokens, host_pair_node_U=nodes, temperature=0.7
        )
        found.append([logprobs.detach(), entropy, *torch.autograd.grad((logprobs * torch.arange(8)).sum(), leaves)])
    for other in found[1:]:
        for ours, expected in zip(other, found[0], strict=True):
            torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
