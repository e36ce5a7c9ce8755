"""Actors: how prompts are made and which engine samples."""

from typing import Literal

from pydantic import Field

from common.config.base import Section


class PromptConfig(Section):
    """How an episode becomes tokens. Read by actor."""

    max_elements: int = Field(14, ge=1)
    """Element rows in the prompt at most; content rows come before toolbars and menus."""
    max_toolbar_elements: int = Field(3, ge=0)
    """Of which toolbar, menu and status bar rows at most."""
    max_element_chars: int = Field(32, ge=4)
    """Longer element texts are cut."""
    window_title: bool = True
    """Name the active window's title beside its application."""
    history_steps: int = Field(4, ge=0)
    """Earlier actions shown, newest last."""
    max_prompt_tokens: int = Field(256, ge=32)
    """Rows are left out from the end until the prompt fits."""
    chat_template: bool = False
    """Wrap the prompt in the tokenizer's chat template (about 30 tokens more on SmolLM2)."""


class ActorConfig(Section):
    """One actor process. Read by actor and launch."""

    num_actors: int = Field(1, ge=1)
    """Actor processes."""
    num_episodes: int = Field(4, ge=1)
    """Episodes each actor plays at a time; normally the number of desktops it can lease."""
    engine: Literal["vllm", "transformers"] = "transformers"
    """Policy engine. On CPUs and for models of a few hundred million parameters transformers is the faster of the two here
    (`computerrl bench engines`); on GPUs and for larger models take vllm."""
    max_new_tokens: int = Field(32, ge=1)
    """Action tokens at most; a longer answer is cut and counts as badly formed."""
    max_invalid_actions: int = Field(2, ge=1)
    """An episode ends after this many answers in a row that are no action: a policy that rambles would cost the most."""
    require_done: bool = False
    """An episode succeeds only when the policy said `done()` or the task ended by itself (as AndroidWorld judges). False: the end
    state alone counts (as OSWorld judges), and a policy that never stops is rewarded for all its idle steps."""
    num_threads: int | None = Field(1, ge=1)
    """CPU threads of the engine; None: all cores. Several threads wait for each other after every matrix, which costs more than
    it gives while a learner or desktops use the same cores."""
    prompt: PromptConfig = PromptConfig()
