"""Actors: how prompts are made and which engine samples."""

import re
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from computerrl.common.config.base import MAX_PROCESSES, Place, Section
from computerrl.common.errors import Problem

COMPUTERRL_PROMPT: Mapping[str, int] = {
    "max_elements": 300,
    "max_toolbar_elements": 300,
    "max_element_chars": 120,
    "max_prompt_tokens": 4096,
}
"""What a ComputerRL format takes where the configuration says nothing; 300 rows are the published number."""

COMPUTERRL_NEW_TOKENS = 256
"""The same for the answer: a thought, fences and a call."""

MIN_COMPUTERRL_NEW_TOKENS = 48
"""Tags, fences and the shortest call alone take about 30 tokens."""

VISION_PROBLEM = Problem(
    "actor.prompt.format",
    "'computerrl_vision' asks with pictures, and both engines take token ids only",
    "use computerrl_text (the screen as rows) or compact",
)


class PromptConfig(Section):
    """How an episode becomes tokens. Read by actor."""

    format: Literal["compact", "computerrl_text", "computerrl_vision"] = "compact"
    """How the policy is asked and how it answers, demonstrations included. `compact`: few tokens, numbered elements, one call.
    `computerrl_text`: the published prompt, with rows of centres and sizes, the calls listed, and a thought and a Python block
    for an answer; it always uses the chat template. `computerrl_vision`: the same with a screenshot; no engine takes pictures
    yet."""
    max_elements: int = Field(14, ge=1)
    """Element rows in the prompt at most; content rows come before toolbars and menus. 300 in a ComputerRL format that does not
    say otherwise; `desktop.max_elements` bounds them as well."""
    max_toolbar_elements: int = Field(3, ge=0)
    """Of which toolbar, menu and status bar rows at most; 300 in a ComputerRL format."""
    max_element_chars: int = Field(32, ge=4)
    """Longer element texts are cut; 120 in a ComputerRL format."""
    window_title: bool = True
    """Name the active window's title beside its application."""
    history_steps: int = Field(4, ge=0)
    """Earlier actions shown, newest last."""
    max_prompt_tokens: int = Field(256, ge=32)
    """Rows are left out from the end until the prompt fits; 4096 in a ComputerRL format, whose list of calls alone takes 800 to
    1,500 tokens."""
    chat_template: bool = False
    """Wrap the prompt in the tokenizer's chat template (about 30 tokens more on SmolLM2); ComputerRL formats always do."""

    @model_validator(mode="before")
    @classmethod
    def _fill_format(cls, given: Any) -> Any:
        """Numbers that nobody gave follow the format, so that the resolved configuration shows what is used."""
        if isinstance(given, dict) and str(given.get("format", "")).startswith("computerrl"):
            return {**COMPUTERRL_PROMPT, **given}
        return given


_PLACE = re.compile(r"(\[[0-9a-f:.]+(%[\w.-]+)?\]|[\w-]{1,63}(\.[\w-]{1,63})*\.?)(:\d*)?", re.ASCII | re.IGNORECASE)
"""Host and port in a URL: an IPv6 number in brackets, perhaps with its zone, an IPv4 number, or a name in ASCII."""
_MAX_PORT = 65535


class EndpointConfig(Section):
    """A server that holds the model to evaluate. Read by actor and launch."""

    url: str
    """Of an OpenAI-compatible server that knows vLLM's return_token_ids, up to and with /v1."""
    model: str | None = None
    """Its name there; None: the only one that is served."""
    key_file: Place | None = None
    """A file (mode 0600) with the key that the server wants; None: it wants none."""
    timeout_s: float = Field(300.0, gt=0)
    """For an answer."""

    @field_validator("url")
    @classmethod
    def _of_a_server(cls, url: str) -> str:
        place = urlsplit(url)  # Raises ValueError for brackets that do not close.
        if "@" in place.netloc:
            raise ValueError("should hold no user or key; put the key into a file and name that in key_file")
        if place.scheme not in ("http", "https") or not _PLACE.fullmatch(place.netloc) or not re.fullmatch(r"[!-~]+", url):
            raise ValueError("should be http:// or https:// and a host in ASCII, such as http://127.0.0.1:8000/v1")
        if "?" in url or "#" in url:
            raise ValueError("should end with /v1, without ? or #")
        if not 0 < int(place.netloc.rpartition("]")[2].partition(":")[2] or "1") <= _MAX_PORT:
            raise ValueError(f"should have a port from 1 to {_MAX_PORT}")
        return url.replace("%25", "%", 1) if "%25" in place.netloc else url  # As RFC 6874 writes the zone.


class ActorConfig(Section):
    """One actor process. Read by actor and launch."""

    num_actors: int = Field(1, ge=1, le=MAX_PROCESSES)
    """Actor processes."""
    num_episodes: int = Field(4, ge=1, le=MAX_PROCESSES)
    """Episodes each actor plays at a time; normally the number of desktops it can lease."""
    engine: Literal["vllm", "transformers", "endpoint"] = "transformers"
    """Policy engine. On CPUs and for models of a few hundred million parameters transformers is the faster of the two here
    (`computerrl bench engines`); on GPUs and for larger models take vllm. endpoint: a server is asked, and the run can only
    evaluate; `model.name` is then a folder with the model's config.json and tokenizer."""
    endpoint: EndpointConfig | None = None
    """The server, for engine endpoint."""
    inference: Literal["local", "central"] = "local"
    """Where answers are sampled. local: each actor has an engine of its own. central: `num_engines` processes have one each, and
    all actors, which then need neither weights nor a GPU, ask those; an actor goes on with another one when its own is gone."""
    num_engines: int = Field(1, ge=1, le=MAX_PROCESSES)
    """Engine processes, with inference central; at most one for each actor."""
    bind_address: str = "127.0.0.1"
    """Address that engine processes listen on, with inference central. Loopback unless other hosts have to reach it."""
    on_new_weights: Literal["continue", "resume"] = "continue"
    """What becomes of answers under way when new weights come; either way each token carries the version that sampled it, with
    its probability then. continue: they go on at once, on keys and values of their beginning that older weights computed. resume:
    the new weights read that beginning anew (prefill of prompt and answer so far), then go on; their tokens are what the new
    policy alone would say after it."""
    older_policy_every: int | None = Field(None, ge=2)
    """Cross-policy sampling: each action of a training rollout is sampled with equal odds by the present or by older weights,
    which are brought up to date when they are so many versions behind. Takes the memory and the threads of a second engine; the
    mode pace does not wait for its steps. None: by the present weights alone, as evaluations always are."""
    max_new_tokens: int = Field(32, ge=1)
    """Answer tokens at most; a longer answer is cut and counts as badly formed. 256 in a ComputerRL format that does not say
    otherwise."""
    max_draft_tokens: int = Field(8, ge=0)
    """Tokens of an answer that are guessed from earlier answers and computed in one pass with the one before them, at most; which
    tokens are sampled, and how likely each was, is as without. 0: none. Engine transformers only."""
    memo_mb: int = Field(256, ge=0)
    """Memory in MiB for next-token distributions that the present weights have computed already. Which tokens are sampled, and
    how likely each was, is as without. A distribution over 49,152 tokens takes 200 kB. 0: none. Engine transformers on CPUs
    only."""
    max_invalid_actions: int = Field(2, ge=1)
    """An episode ends after this many answers in a row that are no action: a policy that rambles would cost the most."""
    require_done: bool = False
    """An episode succeeds only when the policy said `done()` or the task ended by itself (as AndroidWorld judges). False: the end
    state alone counts (as OSWorld judges), and a policy that never stops is rewarded for all its idle steps."""
    num_threads: int | None = Field(1, ge=1)
    """CPU threads of the engine; None: all cores. Several threads wait for each other after every matrix, which costs more than
    it gives while a learner or desktops use the same cores."""
    gpu_memory: float = Field(0.4, gt=0, le=1)
    """Share of its GPU's memory that a vLLM engine takes for weights, keys and values. A learner or another engine on that GPU
    needs the rest; 0.9 where the engine is alone."""
    max_num_batched_tokens: int | None = Field(None, ge=1)
    """Tokens that one step of a vLLM engine computes, at most; prompts that are more are read over several steps. Memory for
    activations grows with it, and so does the longest wait between two tokens of an answer. None: 16,384, or fewer where all
    prompts of `num_live` answers are fewer."""
    enforce_eager: bool = False
    """A vLLM engine on a GPU compiles no code and captures no CUDA graphs: it starts sooner and samples more slowly. Without
    effect on CPUs, where neither is done."""
    prompt: PromptConfig = PromptConfig()

    @property
    def num_live(self) -> int:
        """Answers that an engine samples at a time, at most."""
        if self.inference == "local":
            return self.num_episodes
        return -(-self.num_actors // self.num_engines) * self.num_episodes

    @model_validator(mode="before")
    @classmethod
    def _fill_answer(cls, given: Any) -> Any:
        prompt = given.get("prompt") if isinstance(given, dict) else None
        if isinstance(prompt, dict) and str(prompt.get("format", "")).startswith("computerrl"):
            return {"max_new_tokens": COMPUTERRL_NEW_TOKENS, **given}
        return given
