"""A pack on the learner's device: the arrays that forward passes read, in one copy, and the layout of attention.

Shape legend: as in `learner.model.batching`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from computerrl.learner.model.attention import TrieLayout, layout_of
from computerrl.learner.model.batching import Pack
from computerrl.learner.model.parallel.context import ContextGroup, PackShare, SharedLayout
from computerrl.learner.model.transfers import to_device


@dataclass(frozen=True, slots=True)
class ImageTensors:
    """Tensors of `learner.model.batching.PackImages`."""

    nodes_V: torch.Tensor
    rows_V: torch.Tensor
    positions_3N: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class PackTensors:
    """Tensors of a `learner.model.batching.Pack`; made once, and kept when the pack is run more than once.

    Of a pack that several ranks share, the first five are those of this rank's slice.
    """

    layout: TrieLayout
    tokens_N: torch.Tensor
    depth_N: torch.Tensor
    logit_nodes_Q: torch.Tensor
    pair_node_U: torch.Tensor
    pair_token_U: torch.Tensor
    host_pair_node_U: np.ndarray
    """``pair_node_U`` in the host's memory."""
    token_pair_M: torch.Tensor
    token_state_M: torch.Tensor
    """Index into ``logit_nodes_Q`` of the state before each action token."""
    images: ImageTensors | None
    share: PackShare | None
    """None: this rank has the pack for itself."""

    @classmethod
    def of(
        cls, pack: Pack, *, device: torch.device, dtype: torch.dtype, head_size: int, context: ContextGroup | None = None
    ) -> PackTensors:
        """``dtype`` and ``head_size``: of attention. ``context``: the ranks that share the pack, which shows no images."""
        share = None if context is None else PackShare.of(pack, context)
        names = ("tokens_N", "depth_N", "logit_nodes_Q", "pair_node_U", "pair_token_U")
        arrays = {name: getattr(pack, name) for name in names} if share is None else share.local_arrays(pack)
        host_pair_node_U = arrays["pair_node_U"]
        arrays |= {"token_pair_M": pack.token_pair_M, "token_state_M": pack.pair_node_U[pack.token_pair_M]}
        images = None
        if pack.images is not None:
            shown = pack.images
            named = {"nodes_V": shown.nodes_V, "rows_V": shown.rows_V}
            if shown.positions_3N is not None:
                named["positions_3N"] = shown.positions_3N
            images = ImageTensors(**{"positions_3N": None} | to_device(named, device))
        queries = None if share is None else share.own_nodes
        layout = layout_of(pack, device=device, dtype=dtype, head_size=head_size, queries=queries)
        if share is not None:
            assert images is None, "refused with the configuration"
            layout = SharedLayout(layout, share)
        tensors = to_device(arrays, device)
        return cls(layout=layout, images=images, share=share, host_pair_node_U=host_pair_node_U, **tensors)

    def rope_positions(self, *, has_grid: bool) -> torch.Tensor:
        """[1, N] positions, or [3, 1, N] for a model that places the pieces of an image by row and column (``has_grid``)."""
        if not has_grid:
            return self.depth_N[None]
        if self.images is None or self.images.positions_3N is None:
            return self.depth_N.expand(3, 1, -1)
        return self.images.positions_3N[:, None]
