"""Drafts for exact speculative sampling: guesses of the next tokens of a completion, from earlier completions.

Completions of a policy repeat each other: rollouts of a group, an application's calls, names from the end of the prompt. A draft
repeats the tokens that followed the latest ones the last time, the longest known run of them first. It goes on while its
probability to be right as a whole is worth one more token in the pass. Probabilities are measured, by length of that run, on the
completions themselves, so an unpredictable policy gets no drafts. Pure bookkeeping: no model, no sampling.

Guesses change how many passes a completion takes, never what is sampled: see `transformers_engine`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

CONTEXT_TOKENS = 6
"""Longest run of latest tokens looked up: with rollouts of the quickstart, longer ones save no passes (2.9 tokens in each)."""

MIN_CHANCE = 0.2
"""A draft ends where its chance to be right up to there falls below this. On a CPU a token more costs 3 ms beside a pass of 50 to
80 ms for four requests (SmolLM2-135M in float32): it pays from a chance of about 0.2 on."""

MAX_CONTEXTS = 100_000
"""Remembered twice over, 10 to 30 MB: older ones are forgotten by halves."""

_MEMORY = 0.02
"""Weight of the latest guess in the measured chances."""


class Drafts:
    """What followed which tokens the last time. Not thread-safe."""

    def __init__(self) -> None:
        self._recent: dict[tuple[int, ...], int] = {}
        self._older: dict[tuple[int, ...], int] = {}
        self._chances = [0.5] * (CONTEXT_TOKENS + 1)
        """By number of tokens of the context."""

    def __len__(self) -> int:
        """Contexts remembered."""
        return len(self._recent) + len(self._older)

    def learn(self, prompt: Sequence[int] | np.ndarray, completion: Sequence[int]) -> None:
        """A completion is done: measure what the guess of each of its tokens would have been worth, and remember it."""
        known = [*map(int, prompt[-CONTEXT_TOKENS:]), *completion]
        positions = range(len(known) - len(completion), len(known))
        for position in positions:
            token, length = self._next(known[:position])
            if length:
                self._chances[length] += _MEMORY * ((token == known[position]) - self._chances[length])
        for position in positions:
            for begin in range(max(0, position - CONTEXT_TOKENS), position):
                self._recent[tuple(known[begin:position])] = known[position]
        if len(self._recent) > MAX_CONTEXTS:
            self._recent, self._older = {}, self._recent

    def propose(
        self, prompt: Sequence[int] | np.ndarray, completion: Sequence[int], *, limit: int, stop_tokens: frozenset[int]
    ) -> list[int]:
        """At most ``limit`` tokens that may follow; a stop token ends them."""
        known = [*map(int, prompt[-CONTEXT_TOKENS:]), *completion[-CONTEXT_TOKENS:]]
        draft: list[int] = []
        chance = 1.0
        while len(draft) < limit and not (draft and draft[-1] in stop_tokens):
            token, length = self._next(known)
            chance *= self._chances[length]
            if not length or chance < MIN_CHANCE:
                break
            draft.append(token)
            known.append(token)
        return draft

    def _next(self, known: Sequence[int]) -> tuple[int, int]:
        """(the guess after these tokens, number of tokens that it rests on); 0 tokens: none."""
        for length in range(min(CONTEXT_TOKENS, len(known)), 0, -1):
            context = tuple(known[-length:])
            token = self._recent.get(context)
            if token is None:
                token = self._older.get(context)
            if token is not None:
                return token, length
        return 0, 0
