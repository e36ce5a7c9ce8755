"""Settings of the actors: prompts and policy engines."""

import re
from collections.abc import Mapping
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from computerrl.common.config.base import MAX_PROCESSES, Place, Section

IMAGE_FORMATS = frozenset({"compact_vision", "computerrl_vision", "ui_tars", "qwen_computer_use"})
"""Values of `actor.prompt.format` whose prompts show screenshots."""

LONG_FORMATS = frozenset({"computerrl_text", "computerrl_vision", "ui_tars", "qwen_computer_use"})
"""Values of `actor.prompt.format` with a system text and turns of a chat. They have defaults of their own."""

BY_HAND_FORMATS = frozenset({"ui_tars", "qwen_computer_use"})
"""Values of `actor.prompt.format` without calls of applications."""

Coordinates = Literal["auto", "thousand", "pixels"]

LONG_PROMPT: Mapping[str, int] = {
    "max_elements": 300,
    "max_toolbar_elements": 300,
    "max_element_chars": 120,
    "max_prompt_tokens": 4096,
}
"""Defaults of the prompt's settings in a long format. 300 rows are the published number of ComputerRL."""

LONG_NEW_TOKENS = 256
"""Default of `actor.max_new_tokens` in a long format, for a thought and a call."""

MIN_LONG_NEW_TOKENS = 48
"""Minimum of `actor.max_new_tokens` in a long format. Tags, fences and the shortest call alone take about 30 tokens."""


class PromptConfig(Section):
    """Settings of the prompt: how an observation becomes tokens. Read by the actors."""

    format: Literal["compact", "compact_vision", "computerrl_text", "computerrl_vision", "ui_tars", "qwen_computer_use"] = (
        "compact"
    )
    """Format of prompt and completion, demonstrations included. `compact`: few tokens, numbered elements, one call as the
    completion. `computerrl_text`: the published prompt. It shows rows with centres and sizes, lists the calls, and expects a
    thought and a Python block; it always uses the chat template. `computerrl_vision`: the same prompt with a screenshot.
    `compact_vision`: the task and the screenshot, and one call with coordinates as the completion. `ui_tars`: a screenshot, and
    the thought and call of the UI-TARS models. `qwen_computer_use`: a screenshot, and the tool call of Qwen's function
    `computer_use`. The last two have no calls of applications and need `tasks.actions: gui`. All but the compact ones are long:
    they have a system text and show earlier steps as turns of a chat. Formats with images need a vision-language model
    (docs/how-to/vision.md); the engine `endpoint` then evaluates in mode `chat`."""
    coordinates: Coordinates = "auto"
    """Coordinates in the completions of a format that shows images. `thousand`: 0 to 1000 over the whole screen. `pixels`: pixels
    of the screenshot as the model's image processor resizes it. `auto`: those of the model's family, which are pixels for
    Qwen2.5-VL and thousandths for all others."""
    images: int = Field(1, ge=1)
    """Maximum number of screenshots in a prompt of a format that shows images: the screen of now and earlier ones. Earlier ones
    are left out, from the oldest, where `max_prompt_tokens` does not allow for them."""
    image_stride: int = Field(1, ge=1)
    """Number of the oldest screenshots that are left out at a time, once an episode has more than `images`. Above 1, more prompts
    of an episode begin alike, which engines compute once. It is at most `images`."""
    max_elements: int = Field(14, ge=1)
    """Maximum number of element rows in a prompt. Content rows go before toolbars and menus. The default is 300 in a long
    format. `desktop.max_elements` limits the rows of the observation before this limit applies."""
    max_toolbar_elements: int = Field(3, ge=0)
    """Maximum number of toolbar, menu and status-bar rows among `max_elements`. The default is 300 in a long format."""
    max_element_chars: int = Field(32, ge=4)
    """Maximum number of characters of an element's text; a longer text is cut. The default is 120 in a long format."""
    window_title: bool = True
    """Whether the prompt shows the active window's title beside the name of its application. False in a format that shows images:
    no text tells what is on the screen. Application and title are both left out, the calls listed are those of the desktop,
    thoughts of demonstrations name no element, and of an action that a desktop refused it is only told that it was not done."""
    history_steps: int = Field(4, ge=0)
    """Number of earlier actions that a prompt shows, the newest last."""
    max_prompt_tokens: int = Field(256, ge=32)
    """Maximum number of tokens of a prompt. Rows are left out from the end until the prompt fits. The default is 4096 in a
    long format, such as `computerrl_text`, whose list of calls alone takes 800 to 1,500 tokens."""
    chat_template: bool = False
    """Whether prompts are wrapped in the tokenizer's chat template, which takes about 30 more tokens on SmolLM2. Long
    formats always are."""

    @property
    def shows_images(self) -> bool:
        """Whether prompts of this format show screenshots."""
        return self.format in IMAGE_FORMATS

    @model_validator(mode="after")
    def _check_stride(self) -> Self:
        if self.image_stride > self.images:
            raise ValueError(f"image_stride is {self.image_stride}, more than images ({self.images}): set it to at most that")
        return self

    @model_validator(mode="before")
    @classmethod
    def _fill_format(cls, given: Any) -> Any:
        """Fill in the format's defaults for fields not given, so that the resolved configuration shows the values in use."""
        if isinstance(given, dict) and str(given.get("format")) in LONG_FORMATS:
            return {**LONG_PROMPT, **given}
        return given


_PLACE = re.compile(r"(\[[0-9a-f:.]+(%[\w.-]+)?\]|[\w-]{1,63}(\.[\w-]{1,63})*\.?)(:\d*)?", re.ASCII | re.IGNORECASE)
"""Host and port in a URL. The host is an IPv6 address in brackets, perhaps with its zone, an IPv4 address, or a name in ASCII."""
_MAX_PORT = 65535


class EndpointConfig(Section):
    """A server that holds the model to evaluate. Read by the actors and by launch."""

    url: str
    """Address of an OpenAI-compatible server, up to and with `/v1`."""
    mode: Literal["tokens", "chat"] = "tokens"
    """Form of prompts and completions. `tokens`: token ids in both directions, with log-probs; the server must support vLLM's
    option `return_token_ids`, and prompts show no images. `chat`: the turns of the conversation, with screenshots as
    `image_url`, and text as the reply (`/v1/chat/completions`). The server then writes the prompt with its own chat template."""
    image_format: Literal["stored", "png"] = "stored"
    """Format of screenshots that are sent in mode `chat`. `stored`: the stored bytes, whose format is
    `desktop.screenshot_format`. `png`: a PNG of the stored image, for servers that take no WebP."""
    model: str | None = None
    """Name of the model on the server. None: the only model that it serves."""
    key_file: Place | None = None
    """Path of a file (mode 0600) with the server's API key. None: the key is in `key_variable`, or the server needs none."""
    key_variable: str | None = Field(None, pattern=r"[A-Za-z_][A-Za-z0-9_]*")
    """Name of the environment variable that holds the server's API key. `computerrl eval --agent` sets OPENAI_API_KEY or
    ANTHROPIC_API_KEY where the environment has it and no file is named. None: no variable."""
    timeout_s: float = Field(300.0, gt=0)
    """Time limit for one completion in seconds."""

    @field_validator("url")
    @classmethod
    def _of_a_server(cls, url: str) -> str:
        place = urlsplit(url)  # Raises ValueError for brackets that do not close.
        if "@" in place.netloc:
            raise ValueError("should contain no user name or key; write the key into a file and name the file in key_file")
        if place.scheme not in ("http", "https") or not _PLACE.fullmatch(place.netloc) or not re.fullmatch(r"[!-~]+", url):
            raise ValueError("should be http:// or https:// followed by a host in ASCII, such as http://127.0.0.1:8000/v1")
        if "?" in url or "#" in url:
            raise ValueError("should end with /v1, without ? or #")
        if not 0 < int(place.netloc.rpartition("]")[2].partition(":")[2] or "1") <= _MAX_PORT:
            raise ValueError(f"should have a port from 1 to {_MAX_PORT}")
        return url.replace("%25", "%", 1) if "%25" in place.netloc else url  # As RFC 6874 writes the zone.


SERVICES: Mapping[str, str] = {"openai": "OPENAI", "anthropic": "ANTHROPIC"}
"""Kinds of agents that talk to a model's server -> beginning of the names of its environment variables."""


class AgentConfig(Section):
    """An agent that plays in place of the prompts: with a model of its own (engine `agent`), or with the policy of the run as its
    model, which is trained thereby (engines `transformers` and `vllm`). Read by the actors and by launch."""

    kind: str = Field(pattern=r"openai|anthropic|program|[A-Za-z_][\w.]*:[A-Za-z_]\w*")
    """Kind of the agent. `openai`: a model behind OpenAI's interface. `anthropic`: a model behind Anthropic's, with its
    computer-use tool. `module:Class`: a Python class with `predict(instruction, observation) -> action text`. `program`: the
    program of `command`, which acts by requests (docs/how-to/agents.md)."""
    command: tuple[str, ...] = ()
    """List of program and arguments of kind `program`, started for each episode without a shell."""
    demonstrate: str | None = Field(None, pattern=r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
    """Function `module:name` of an agent that is trained: (messages, action) -> what the policy should answer to the messages
    that the agent has sent, so that the agent does the demonstrator's action. None: the run has no demonstrations."""
    interface: Literal["chat", "responses"] = "chat"
    """Interface of kind `openai`. `chat`: chat completions, which most servers have. `responses`: OpenAI's Responses."""
    answers: Literal["tools", "text"] = "tools"
    """Form of the answers of kind `openai`. `tools`: each action is a function that the model may call. `text`: prompts and
    answers in `actor.prompt.format`, for models and servers without tools; it needs interface `chat`."""
    images: int = Field(3, ge=0, le=64)
    """Maximum number of screenshots in a request, the newest ones. Older screens are told by their text. 0: text alone."""
    computer_tool: str = "computer_20250124"
    """Type of Anthropic's computer-use tool, which the model's version decides."""
    beta: str = "computer-use-2025-01-24"
    """Value of the header `anthropic-beta`, which goes with the type of the tool. Empty: no such header."""
    sends_temperature: bool = True
    """Whether requests name a temperature, which reasoning models refuse."""
    max_requests_per_min: float | None = Field(None, gt=0)
    """Maximum number of requests in a minute, of one actor. None: as many as the episodes make."""
    input_price: float = Field(0.0, ge=0)
    """Price of a million input tokens, in any currency, for the report. 0: the report has no costs."""
    output_price: float = Field(0.0, ge=0)
    """Price of a million output tokens, in the same currency."""
    timeout_s: float = Field(300.0, gt=0)
    """Time limit of a `module:Class` or a program for one action in seconds."""
    max_calls: int = Field(4, ge=1, le=64)
    """Maximum number of completions of the policy that a trained agent gets for one action. Each is a step of the trajectory.
    Further requests are refused."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the constructor of a `module:Class`."""

    @model_validator(mode="after")
    def _has_its_command(self) -> Self:
        if self.is_program != bool(self.command):
            raise ValueError("command belongs to kind program, which needs one, such as command: [python, agent.py]")
        return self

    @property
    def is_program(self) -> bool:
        """Whether the agent is a program of its own, which acts by requests."""
        return self.kind == "program"

    @property
    def is_service(self) -> bool:
        """Whether the agent is a model on a server, which `actor.endpoint` names."""
        return self.kind in SERVICES


class TeacherConfig(Section):
    """An agent with a model of its own that gives the demonstrations of a run, in place of the tasks' demonstrators. Read by the
    actors and by launch."""

    agent: AgentConfig
    """Settings of the agent."""
    endpoint: EndpointConfig | None = None
    """Settings of the server of the agents `openai` and `anthropic`. None: there is no server."""
    max_new_tokens: int = Field(4096, ge=1)
    """Maximum number of tokens of an answer of the teacher, thoughts included."""


class ActorConfig(Section):
    """Settings of the actors and of their policy engines. Read by the actors and by launch."""

    num_actors: int = Field(1, ge=1, le=MAX_PROCESSES)
    """Number of actor processes."""
    num_episodes: int = Field(4, ge=1, le=MAX_PROCESSES)
    """Number of episodes that each actor plays at a time; normally the number of desktops that it can lease."""
    engine: Literal["auto", "vllm", "transformers", "endpoint", "agent"] = "auto"
    """Policy engine that samples completions. `auto`: `vllm` in a process that has a GPU and vLLM's build for it, else
    `transformers`, which is the faster one on CPUs (`computerrl bench engines`); also in serial mode and with `model.head_dtype:
    float32`. `endpoint`: a server samples, and the run can
    only evaluate. `model.name` is then a folder with the model's config.json and tokenizer, and for prompts with images with
    its image processor. `agent`: the agent of `agent` plays with a model of its own, and the run can only evaluate; `model` is
    not used."""
    endpoint: EndpointConfig | None = None
    """Settings of the server for engine `endpoint` and for the agents `openai` and `anthropic`. None: there is no server."""
    agent: AgentConfig | None = None
    """Settings of the agent that plays. With the engines `transformers` and `vllm` a `module:Class` asks the policy of the run by
    OpenAI's interface, and what it is answered is trained. None: prompts play."""
    inference: Literal["local", "central"] = "local"
    """Place where completions are sampled. `local`: each actor has an engine of its own. `central`: `num_engines` processes
    have one engine each and sample for all actors. Actors then need neither weights nor a GPU, and go on with another engine
    when theirs has ended."""
    num_engines: int = Field(1, ge=1, le=MAX_PROCESSES)
    """Number of engine processes with central inference; at most one for each actor."""
    bind_address: str = "127.0.0.1"
    """Address that engine processes listen on with central inference. The default, loopback, reaches no other host."""
    on_new_weights: Literal["continue", "resume"] = "continue"
    """Treatment of completions under way when new weights arrive. Each token carries the policy version that sampled it and its
    probability at that time in both cases. `continue`: sampling goes on at once, on keys and values that older weights
    computed. `resume`: the new weights first recompute keys and values of the prompt and of the tokens so far (prefill). Later
    tokens are then those of the new policy given that beginning."""
    older_policy_every: int | None = Field(None, ge=2)
    """Number of policy versions after which the older weights of cross-policy sampling are brought up to date. Each action of a
    training rollout is sampled by the present or by the older weights, with equal odds. This takes the memory and the threads
    of a second engine, and staleness mode `pace` does not wait for steps of the older weights. None: the present weights alone
    sample, as they always do in evaluations."""
    max_new_tokens: int = Field(32, ge=1)
    """Maximum number of tokens of a completion. A longer completion is cut and counts as badly formed. The default is 256 in a
    long format."""
    max_draft_tokens: int | None = Field(None, ge=0, le=64)
    """Maximum number of tokens of a completion that are guessed and computed in one pass (speculative sampling). Sampled tokens
    and their probabilities are distributed as without guesses. The engine `transformers` guesses from earlier completions,
    `vllm` from the prompt and the completion so far (vLLM's method `ngram`; tried on CPUs, not run on a GPU). 0: no guesses.
    None: 8 with `transformers`, 0 with `vllm`."""
    memo_mb: int = Field(256, ge=0)
    """Memory in MiB for next-token distributions that the present weights have already computed. Sampled tokens and their
    probabilities are the same as without it. One distribution over 49,152 tokens takes 200 kB. 0: nothing is kept. Only the
    engine `transformers` on CPUs uses this field."""
    max_invalid_actions: int = Field(2, ge=1)
    """Number of consecutive completions without a valid action after which an episode ends. Without this limit, a policy that
    produces no actions costs the most time."""
    require_done: bool = False
    """Whether an episode can only succeed after the policy's `done()` or when the task ends by itself, as in AndroidWorld.
    False: the end state alone counts, as in OSWorld. A policy that never stops is then rewarded for all its idle steps."""
    num_threads: int | None = Field(1, ge=1)
    """Number of CPU threads of an engine. None: all cores. Threads wait for each other after every matrix product. That costs
    more than it gains while a learner or desktops use the same cores."""
    gpu_memory: float = Field(0.4, gt=0, le=1)
    """Share of a GPU's memory that a vLLM engine takes for weights, keys and values. The rest is for a learner or another
    engine on that GPU. Set 0.9 where the engine is alone."""
    tensor_parallel_size: int = Field(1, ge=1)
    """Number of GPUs of one vLLM engine. Each holds a part of every matrix (tensor parallelism), and takes `gpu_memory` of its
    memory. It divides the model's number of attention heads. On a CPU it is the number of processes."""
    max_num_batched_tokens: int | None = Field(None, ge=1)
    """Maximum number of tokens that a vLLM engine computes in one step; longer prompts are read over several steps. Memory for
    activations grows with it, and so does the longest wait between two tokens of a completion. None: 16,384, or fewer where all
    prompts and completions under way have fewer."""
    enforce_eager: bool = False
    """Whether a vLLM engine on a GPU skips compilation and CUDA graphs. It then starts sooner and samples more slowly. Without
    effect on CPUs, which use neither."""
    prompt: PromptConfig = PromptConfig()
    """Settings of the prompt."""

    @property
    def served_at(self) -> str | None:
        """Place of a model whose weights are not the learner's, in words; None: engines of the run load them."""
        if self.endpoint is not None:
            return self.endpoint.url
        return self.agent.kind if self.agent is not None and self.engine == "agent" else None

    @property
    def shows_policy_images(self) -> bool:
        """Whether prompts, or an agent that is trained, show screenshots to the run's policy or to a server's model."""
        return self.prompt.shows_images and self.engine != "agent"

    @property
    def calls_per_action(self) -> int:
        """Maximum number of the policy's completions for one action: above 1 for an agent that is trained."""
        return 1 if self.agent is None or self.served_at is not None else self.agent.max_calls

    @property
    def num_live(self) -> int:
        """Maximum number of completions that an engine samples at a time."""
        if self.inference == "local":
            return self.num_episodes
        return -(-self.num_actors // self.num_engines) * self.num_episodes

    @model_validator(mode="before")
    @classmethod
    def _fill_answer(cls, given: Any) -> Any:
        prompt = given.get("prompt") if isinstance(given, dict) else None
        if isinstance(prompt, dict) and str(prompt.get("format")) in LONG_FORMATS:
            return {"max_new_tokens": LONG_NEW_TOKENS, **given}
        return given
