"""Speculative decoding in vLLM: tokens that are guessed from the prompt and the completion so far (prompt lookup) and computed in
one step. vLLM accepts and rejects guesses so that the distribution of samples stays the model's (arXiv 2211.17192).
"""

from __future__ import annotations

from typing import Any

import torch

from computerrl.common.errors import ConfigError, Problem

_LOOKUP = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
"""Numbers of tokens, the last ones, whose earlier place is looked for; what follows there is the guess."""


def draft_options(num_tokens: int) -> dict[str, Any]:
    """vLLM's options for at most ``num_tokens`` guesses a step; empty for none."""
    return {"speculative_config": {"method": "ngram", "num_speculative_tokens": num_tokens, **_LOOKUP}} if num_tokens else {}


def mend_drafts_on_cpus() -> None:
    """Replace the one function of vLLM 0.32's CPU build that spoils guesses above temperature 0.

    `expand_batch_to_tokens` writes its result, of temperatures a float tensor, into an integer copy that is thrown away, and
    logits are then divided by what was in memory. Raises `ConfigError` where vLLM has no such function.
    """
    from vllm.v1.sample import rejection_sampler

    if not hasattr(rejection_sampler, "expand_batch_to_tokens"):
        reason = "guesses are not tried with the installed vLLM's CPU build"
        raise ConfigError([Problem("actor.max_draft_tokens", reason, "set it to 0, or install the version of constraints.txt")])
    rejection_sampler.expand_batch_to_tokens = _expanded


def _expanded(
    x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> torch.Tensor:
    """[num_tokens] ``x`` of the request of each token; ``cu_num_tokens`` [requests] counts the tokens up to the end of each."""
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    replaced = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    return torch.repeat_interleave(replaced, counts, output_size=num_tokens)
