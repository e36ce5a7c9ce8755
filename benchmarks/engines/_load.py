"""Random prompts for an engine, and episodes that play them: each asks from its own thread, a step after the answer to the one
before, with a prompt that shares its beginning with the step before, as actors do."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Answers = list[tuple[np.ndarray, np.ndarray, np.ndarray]]
"""(prompt, action, log-probs) of sampled answers."""


@dataclass(frozen=True, slots=True)
class Load:
    """Shape of the episodes; numbers of tokens."""

    num_steps: int
    num_prompt_tokens: int
    """Of the first step."""
    num_new_per_step: int
    """A later step's prompt has this many more than the one before."""
    num_action_tokens: int

    @property
    def max_tokens(self) -> int:
        """The longest prompt with its answer."""
        return self.num_prompt_tokens + (self.num_steps - 1) * self.num_new_per_step + self.num_action_tokens

    def num_tokens(self, num_episodes: int) -> int:
        """Sampled by ``num_episodes``."""
        return num_episodes * self.num_steps * self.num_action_tokens

    def prompts(self, seed: int, num_episodes: int, vocabulary: int = 40_000) -> list[list[np.ndarray]]:
        """Of each episode the prompts of its steps, of the first ``vocabulary`` tokens."""
        rng = np.random.default_rng(seed)
        found = []
        for _ in range(num_episodes):
            prompts = [rng.integers(100, vocabulary, self.num_prompt_tokens).astype(np.int32)]
            while len(prompts) < self.num_steps:
                new = rng.integers(100, vocabulary, self.num_new_per_step).astype(np.int32)
                last = prompts[-1]
                prompts.append(np.concatenate([last[:-5], new, last[-5:]]))
            found.append(prompts)
        return found

    def play(self, engine: Any, prompts: Sequence[Sequence[np.ndarray]]) -> Answers:
        """The answers of ``engine``. An episode whose engine fails raises here, once all have ended."""
        from computerrl.actor.engines.base import GenerationRequest

        said: list[Answers] = [[] for _ in prompts]
        errors: list[Exception] = []

        def episode(number: int) -> None:
            try:
                for prompt in prompts[number]:
                    done = engine.submit(GenerationRequest(prompt, 1.0, self.num_action_tokens, frozenset())).result()
                    said[number].append((prompt, done.tokens, done.logprobs))
            except Exception as error:  # noqa: BLE001 - a thread's end; raised by the caller's thread below
                errors.append(error)

        threads = [threading.Thread(target=episode, args=(number,)) for number in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return [answer for each in said for answer in each]
