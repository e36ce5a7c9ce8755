"""Running requests of the transformers engine, and the layout of their new tokens as one forward pass.

No model, no sampling: `decoders` run a pass, `transformers_engine` schedules requests and samples from the logits.

Shape legend: N new tokens of a pass, R rows of logits, G query heads per key/value head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from computerrl.actor.engines.base import GenerationRequest
from computerrl.actor.engines.images import PassImages, RequestImages, pieces_between
from computerrl.actor.engines.kv_cache import KVCache
from computerrl.common.vision.tower import joined


@dataclass(slots=True)
class RunningRequest:
    """A request with the tokens that have been sampled for it."""

    key: int
    request: GenerationRequest
    context: bytes
    """`memo.context_key` of prompt and completion."""
    row: int = -1
    """Row of the cache, -1 before the first pass."""
    num_cached: int = 0
    """Number of tokens of prompt and completion whose keys and values are in the row."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    draft: list[int] = field(default_factory=list)
    """Guess of the next tokens, computed by the pass under way."""
    images: RequestImages | None = None
    """Images of the prompt, whose tokens are numbers below 0 then."""
    is_mixed: bool = False
    """Whether older weights computed keys and values in the row. Distributions that rest on those belong to no version."""

    @property
    def num_known(self) -> int:
        """Number of tokens of prompt and completion."""
        return len(self.request.prompt_tokens) + len(self.tokens)

    @property
    def is_single(self) -> bool:
        """Whether the next pass computes one token of it."""
        return self.num_known - self.num_cached == 1 and not self.draft

    def rope(self, begin: int, end: int) -> np.ndarray:
        """[3, end - begin] rotary positions of tokens ``begin`` to ``end``."""
        return np.stack([np.arange(begin, end)] * 3) if self.images is None else self.images.rope(begin, end)

    def uncached(self) -> list[int]:
        """Known tokens that the row lacks, including those sampled from the memo; never empty."""
        num_prompt = len(self.request.prompt_tokens)
        if self.num_cached >= num_prompt:
            return self.tokens[self.num_cached - num_prompt :]
        return [*self.request.prompt_tokens[self.num_cached :].tolist(), *self.tokens]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Several new tokens of one request: of its prompt, or a guess of the next tokens of its completion."""

    row: int
    start: int
    """Index of its first token in the pass."""
    begin: int
    """Position of its first token in the request; the tokens before it are cached already."""
    end: int
    mask: torch.Tensor
    """[(end - begin) * G, end] additive, G rows per token."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass: first one new token of each decoding row, in row order, then the chunks."""

    tokens_N: torch.Tensor
    positions_N: torch.Tensor
    places: torch.Tensor
    """Places of the new tokens' keys and values, from `KVCache.places`."""
    decode_rows: torch.Tensor
    num_decode: int
    span: int
    """Number of rows, from row 0, in decode attention. Those that do not decode are computed and ignored."""
    num_cached: int
    """Length of the longest decoding request, its new token included."""
    decode_mask: torch.Tensor | None
    """[span, 1, 1, num_cached] additive."""
    chunks: tuple[Chunk, ...]
    logit_rows_R: torch.Tensor
    rope_3N: torch.Tensor | None = None
    """Rotary positions of models whose positions have three rows."""
    images: PassImages | None = None


_Span = tuple[int, RunningRequest, int, int]
"""Index in the pass of the first new token of a request, the request, and the positions of the new tokens, the end excluded."""


class PassMaker:
    """Lays out passes over the rows of one cache."""

    def __init__(self, cache: KVCache, *, group: int, device: str, has_rope_grid: bool = False) -> None:
        """``group``: number of query heads per key/value head (G). ``has_rope_grid``: rotary positions have three rows."""
        self._has_rope_grid = has_rope_grid
        self._cache = cache
        self._group = group
        self._device = device

    def of_requests(self, singles: Sequence[RunningRequest], several: Sequence[RunningRequest]) -> Pass:
        """The pass over requests with one new token each, in row order, and requests with several."""
        tokens = [running.uncached()[0] for running in singles]
        positions = [running.num_cached for running in singles]
        rows = [running.row for running in singles]
        logit_rows = list(range(len(singles)))
        chunks = []
        for running in several:
            new = [*running.uncached(), *running.draft]
            begin, end = running.num_cached, running.num_cached + len(new)
            chunks.append(self._chunk(row=running.row, start=len(tokens), begin=begin, end=end))
            tokens.extend(new)
            positions.extend(range(begin, end))
            rows.extend([running.row] * len(new))
            logit_rows.extend(range(len(tokens) - 1 - len(running.draft), len(tokens)))
        spans = [(i, one, one.num_cached, one.num_cached + 1) for i, one in enumerate(singles)]
        spans += [(chunk.start, one, chunk.begin, chunk.end) for chunk, one in zip(chunks, several, strict=True)]
        span = rows[len(singles) - 1] + 1 if singles else 0
        num_cached = max(positions[: len(singles)], default=0) + 1
        rows_N, positions_N = self._tensor(rows), self._tensor(positions)
        decode_rows = rows_N[: len(singles)]
        return Pass(
            tokens_N=self._tensor(tokens),
            positions_N=positions_N,
            places=self._cache.places(rows_N, positions_N),
            decode_rows=decode_rows,
            num_decode=len(singles),
            span=span,
            num_cached=num_cached,
            decode_mask=self._decode_mask(decode_rows, positions_N[: len(singles)], span, num_cached),
            chunks=tuple(chunks),
            logit_rows_R=self._tensor(logit_rows),
            rope_3N=self._rope(spans),
            images=self._images(spans),
        )

    def _rope(self, spans: Sequence[_Span]) -> torch.Tensor | None:
        if not self._has_rope_grid:
            return None
        return torch.from_numpy(np.concatenate([one.rope(begin, end) for _, one, begin, end in spans], axis=1)).to(self._device)

    def _images(self, spans: Sequence[_Span]) -> PassImages | None:
        nodes, features = [], []
        for start, one, begin, end in spans:
            if one.images is not None:
                offsets, rows = pieces_between(one.images, begin, end)
                if len(offsets):
                    nodes.append(start + offsets)
                    features.append(one.images.features.rows(rows))
        if not nodes:
            return None
        return PassImages(torch.from_numpy(np.concatenate(nodes)).to(self._device), joined(features))

    def of_sequence(self, tokens: np.ndarray, *, row: int, images: RequestImages | None = None) -> Pass:
        """The pass over a whole sequence in ``row``, with logits before every token but the first; after ``images``, before every
        token behind the last one."""
        positions_N = torch.arange(len(tokens), device=self._device)
        first = 1 if images is None else int(images.at_I[-1]) + 1
        rope_3N = images.rope(0, len(tokens)) if images is not None else np.stack([np.arange(len(tokens))] * 3)
        return Pass(
            tokens_N=torch.as_tensor(tokens, dtype=torch.long, device=self._device),
            positions_N=positions_N,
            places=self._cache.places(torch.full_like(positions_N, row), positions_N),
            decode_rows=self._tensor([]),
            num_decode=0,
            span=0,
            num_cached=0,
            decode_mask=None,
            chunks=(self._chunk(row=row, start=0, begin=0, end=len(tokens)),),
            logit_rows_R=positions_N[first - 1 : -1],
            rope_3N=torch.from_numpy(rope_3N).to(self._device) if self._has_rope_grid else None,
            images=None if images is None else PassImages(torch.from_numpy(images.at_I).to(self._device), images.features),
        )

    def _chunk(self, *, row: int, start: int, begin: int, end: int) -> Chunk:
        """A `Chunk` with its causal mask."""
        query = torch.arange(begin, end, device=self._device).repeat_interleave(self._group)
        seen = torch.arange(end, device=self._device)[None, :] <= query[:, None]
        mask = torch.zeros(seen.shape, dtype=self._cache.dtype, device=self._device).masked_fill_(~seen, float("-inf"))
        return Chunk(row=row, start=start, begin=begin, end=end, mask=mask)

    def _decode_mask(self, rows: torch.Tensor, positions: torch.Tensor, span: int, num_cached: int) -> torch.Tensor | None:
        if not span:
            return None
        # Rows in the span that do not decode see one position: an empty row would make NaN.
        last = torch.zeros(span, dtype=torch.long, device=self._device).index_copy_(0, rows, positions)
        hidden = torch.arange(num_cached, device=self._device)[None, :] > last[:, None]
        mask = torch.zeros(hidden.shape, dtype=self._cache.dtype, device=self._device)
        return mask.masked_fill_(hidden, float("-inf"))[:, None, None, :]

    def _tensor(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=self._device)
