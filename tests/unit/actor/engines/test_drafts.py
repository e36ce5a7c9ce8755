"""Guesses of what a completion goes on with: from what followed before, as long as they are worth it."""

from __future__ import annotations

import numpy as np

from computerrl.actor.engines import drafts
from computerrl.actor.engines.drafts import CONTEXT_TOKENS, Drafts

END = 0
STOPS = frozenset({END})
PROMPT = [7, 8, 9]


def learned(*completions: list[int], times: int = 1) -> Drafts:
    made = Drafts()
    for _ in range(times):
        for completion in completions:
            made.learn(PROMPT, completion)
    return made


def guess(made: Drafts, completion: list[int], *, prompt: list[int] | np.ndarray = PROMPT, limit: int = 8) -> list[int]:
    return made.propose(prompt, completion, limit=limit, stop_tokens=STOPS)


def test_drafts_of_nothing_are_empty() -> None:
    assert guess(Drafts(), [1, 2]) == []


def test_drafts_repeat_what_followed_the_prompts_end() -> None:
    made = learned([1, 2, 3, END], times=50)
    assert guess(made, []) == [1, 2, 3, END]
    assert guess(made, [1, 2]) == [3, END]


def test_drafts_take_prompts_as_arrays_and_give_plain_integers() -> None:
    made = Drafts()
    for _ in range(50):
        made.learn(np.array(PROMPT, dtype=np.int32), [1, 2, END])
    draft = guess(made, [], prompt=np.array([5, *PROMPT], dtype=np.int32))
    assert draft == [1, 2, END] and all(type(token) is int for token in draft)


def test_drafts_prefer_what_followed_the_longest_known_run() -> None:
    made = learned([1, 2, 3, 4, END], [5, 3, 6, END], times=50)
    assert guess(made, [1, 2, 3])[0] == 4
    assert guess(made, [5, 3])[0] == 6
    assert guess(made, [9, 9, 3])[0] == 6, "of equal length the latest counts"


def test_drafts_end_with_a_stop_token_and_at_the_limit() -> None:
    made = learned([1, 2, END, 4, 5], times=50)
    assert guess(made, []) == [1, 2, END]
    assert guess(made, [], limit=1) == [1]
    assert guess(made, [], limit=0) == []
    assert guess(made, [], limit=-1) == []


def test_drafts_get_shorter_where_guesses_are_wrong() -> None:
    generator = np.random.default_rng(0)
    made = Drafts()
    for _ in range(300):
        made.learn(generator.integers(1, 5, 6).tolist(), generator.integers(1, 5, 8).tolist())
    # Four equally likely tokens: one guess is right in a quarter of all cases, a second one hardly ever.
    assert max(len(guess(made, [], prompt=generator.integers(1, 5, 6).tolist())) for _ in range(50)) <= 1


def test_drafts_of_a_policy_that_nobody_can_guess_are_empty() -> None:
    generator = np.random.default_rng(0)
    made = Drafts()
    for _ in range(300):
        made.learn(PROMPT, generator.integers(1, 1000, 8).tolist())
    assert guess(made, []) == []
    assert guess(made, generator.integers(1, 1000, 3).tolist()) == []


def test_drafts_forget_the_oldest_by_halves(monkeypatch) -> None:
    monkeypatch.setattr(drafts, "MAX_CONTEXTS", 200)
    made = Drafts()
    for token in range(10, 500):
        made.learn([token] * CONTEXT_TOKENS, [END])
        assert len(made) <= 2 * (200 + 2 * CONTEXT_TOKENS)
    assert guess(made, [499], prompt=[499] * CONTEXT_TOKENS) == [END]
    assert guess(made, [10], prompt=[10] * CONTEXT_TOKENS) == []
