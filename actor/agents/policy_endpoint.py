"""The run's policy behind OpenAI's chat completions, for agents that are trained without knowing it.

No HTTP: `server` has it. Each completion that an episode's agent asks for is sampled by the engine and kept with its exact
tokens, log-probs and policy versions: that is what the learner trains on. Nothing is tokenised again later, and prompts may be
rewritten, branched or sent side by side as an agent likes. In a demonstration `actor.agent.demonstrate` says what the policy
should answer. Of images, a policy that takes any is shown the screens of its desktop, as the agent got them: what is trained on
has to be known by its name. No tools, whose form differs from model to model.
"""

from __future__ import annotations

import base64
import binascii
import json
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from computerrl.actor.agents.base import Call
from computerrl.actor.agents.refused import Refused, told
from computerrl.actor.engines.base import Completion, GenerationRequest, Sampler
from computerrl.actor.prompts.formats.base import ChatMessage
from computerrl.actor.prompts.images import ImageTokens
from computerrl.actor.prompts.tokenizer import Tokenizer
from computerrl.common.errors import ConfigError, EngineFailed, PictureError, Problem
from computerrl.common.messages import Assignment, Observation, ScreenshotRef, ShownImages, content_hash

MODEL = "policy"
"""Name of the policy, the only model there is."""
_ROLES = frozenset({"system", "user", "assistant"})
_MAX_STOPS = 8
_NO_IMAGES = "a message's content is text; the policy is shown no images here (actor.prompt.format)"
Messages = list[dict[str, Any]]
Demonstrate = Callable[[Messages, str], object]
"""(messages that an agent has sent, action of a demonstrator) -> what the policy should answer: `actor.agent.demonstrate`."""


class PolicySession:
    """What the agent of one episode has asked. Thread-safe."""

    def __init__(self, engine: Sampler | None, assignment: Assignment, *, max_calls: int) -> None:
        self.engine, self.assignment = engine, assignment
        self.answer: Callable[[Messages], object] | None = None
        """Answers in a demonstration, in place of the engine."""
        self.screens: dict[str, ScreenshotRef] = {}
        """Content hash -> screen that the agent has seen."""
        self._max_calls = max_calls
        self._lock = threading.Lock()
        self._num_begun = 0
        """Completions that were asked for since the last action."""
        self._calls: list[Call] = []
        self._broken: EngineFailed | None = None
        self._failure = ""
        self._told: np.ndarray | None = None
        """Tokens of the last prompt and its completion."""

    def see(self, observation: Observation) -> None:
        """The agent gets ``observation``."""
        if observation.screenshot is not None:
            self.screens = {**self.screens, observation.screenshot.content_hash: observation.screenshot}

    def demonstrate(self, answer: Demonstrate | None, action: str) -> None:
        """From now on ``answer`` answers, so that the agent does ``action``."""
        if answer is None:
            step = "name the function that says what the policy should have answered, or set learner.recipe.demos_per_family=0"
            raise ConfigError([Problem("actor.agent.demonstrate", "is missing, and the run begins with demonstrations", step)])
        self.answer = lambda messages: answer(messages, action)

    def begin_call(self) -> None:
        """Raises `Refused` when the agent has asked as often as it may."""
        with self._lock:
            if self._num_begun == self._max_calls:
                reason = f"{self._max_calls} completions for one action are all there are (actor.agent.max_calls)"
                raise Refused(429, "too_many_calls", reason)
            self._num_begun += 1

    def end_call(self, call: Call) -> bool:
        """Keep a completion; tells whether its prompt goes on from the one before."""
        with self._lock:
            told, self._told = self._told, np.concatenate([call.prompt_tokens, call.completion.tokens])
            self._calls.append(call)
            return told is None or (
                len(told) <= len(call.prompt_tokens) and np.array_equal(told, call.prompt_tokens[: len(told)])
            )

    def fail(self, failure: str) -> None:
        """The agent cannot go on, whatever it makes of the refusal."""
        with self._lock:
            self._failure = self._failure or failure

    def break_off(self, error: EngineFailed) -> None:
        """The engine cannot go on: the episode is void."""
        with self._lock:
            self._broken = self._broken or error

    def take_calls(self) -> tuple[tuple[Call, ...], str]:
        """(completions since the last action, reason why the agent cannot go on or nothing). Raises `EngineFailed`."""
        with self._lock:
            if self._broken is not None:
                raise self._broken
            calls, self._calls, self._num_begun = tuple(self._calls), [], 0
            return calls, self._failure


class PolicyEndpoint:
    """The policy of an actor's run, for its agents."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        max_prompt_tokens: int,
        max_new_tokens: int,
        images: ImageTokens | None = None,
        is_central: bool = False,
    ) -> None:
        """``images``: of a policy that is shown screens. ``is_central``: the engine is in another process.

        Raises `ConfigError` for a model whose files name no chat template or no end of a turn."""
        self._tokenizer = tokenizer
        self._images, self._is_central = images, is_central
        self._stop_tokens = _ends(tokenizer)
        self._max_prompt_tokens, self._max_new_tokens = max_prompt_tokens, max_new_tokens
        self._lock = threading.Lock()
        self._counts = Counter(calls=0, rewritten=0)

    def counts(self) -> dict[str, int]:
        """Completions, and of these the ones whose prompt does not go on from the one before."""
        with self._lock:
            return dict(self._counts)

    def complete(self, session: PolicySession, asked: dict[str, Any]) -> dict[str, Any]:
        """The reply to the request ``asked``. Blocks until it is there. Raises `Refused`."""
        call, text = self._sample(session, asked)
        return _reply(call, text)

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1

    def _sample(self, session: PolicySession, asked: dict[str, Any]) -> tuple[Call, str]:
        """The completion that was ``asked`` for, and its text. Blocks until it is there."""
        if asked.get("model") != MODEL:
            failure = f"the agent asked for the model {asked.get('model')!r:.80}, and there is only {MODEL!r}"
            session.fail(failure)
            raise Refused(404, "model_not_found", failure)
        _require_plain(asked)
        stops = _stops(asked.get("stop"))
        prompt, refs = self._prompt(asked.get("messages"), session.screens)
        wanted = _whole(asked, "max_completion_tokens") or _whole(asked, "max_tokens")
        most = min(self._max_new_tokens, wanted or self._max_new_tokens)
        session.begin_call()
        if session.answer is not None:
            completion = self._shown(session, session.answer, asked["messages"], most=most)
        else:
            request = GenerationRequest(
                prompt_tokens=prompt,
                # The learner's importance weights hold for the order's temperature.
                temperature=session.assignment.temperature,
                max_new_tokens=most,
                stop_tokens=self._stop_tokens,
                may_be_older=session.assignment.kind == "training",
                **self._request_images(refs, session.assignment.shown_images),
            )
            assert session.engine is not None, "evaluation and training wait for an engine"
            try:
                completion = session.engine.submit(request).result()
            except EngineFailed as error:
                session.break_off(error)
                raise Refused(503, "engine_failed", str(error)) from None
        completion, text = self._cut(completion, stops)
        self._count("calls")
        call = Call(prompt, completion, refs)
        if not session.end_call(call):
            self._count("rewritten")
        return call, text

    def _request_images(self, refs: Sequence[ScreenshotRef], shown: ShownImages) -> dict[str, Any]:
        """``refs`` as fields of a `GenerationRequest`. Raises `Refused` when one cannot be read."""
        if self._images is None:
            return {}
        try:
            if self._is_central:
                return {"sent": tuple(self._images.sent(ref, shown) for ref in refs)}
            return {"images": self._images.asked(refs, shown)}
        except PictureError as error:
            raise Refused(400, "invalid_request_error", str(error)) from None

    def _shown(
        self, session: PolicySession, answer: Callable[[Messages], object], messages: Messages, *, most: int
    ) -> Completion:
        """What the policy should answer, as it would have to sample it: without log-probs. Raises `Refused`."""
        try:
            text = answer(messages)
        except Exception as error:  # code of others may raise anything
            failure = f"demonstrate raised {told(error)}"
            session.fail(failure)
            raise Refused(500, "demonstrate", failure) from error
        if not isinstance(text, str):
            failure = f"demonstrate returned {type(text).__name__} in place of the policy's answer"
            session.fail(failure)
            raise Refused(500, "demonstrate", failure)
        tokens = np.asarray(self._tokenizer.encode_completion(text.strip()), dtype=np.int32)
        if len(tokens) > most:
            # The policy would learn it and could never sample it to the end.
            failure = f"demonstrate's answer has {len(tokens)} tokens, and a completion {most} at most (actor.max_new_tokens)"
            session.fail(failure)
            raise Refused(500, "demonstrate", failure)
        nothing = np.zeros(0, dtype=np.int32)
        return Completion(tokens, nothing.astype(np.float32), nothing, text.strip(), "stop", 0.0, 0.0)

    def _prompt(self, messages: object, screens: Mapping[str, ScreenshotRef]) -> tuple[np.ndarray, tuple[ScreenshotRef, ...]]:
        """[P] int32 tokens of ``messages`` by the model's chat template, and their images. Raises `Refused`."""
        if not isinstance(messages, list) or not messages:
            raise Refused(400, "invalid_request_error", "messages is no list of turns")
        turns = [ChatMessage(_role(message), *self._content(message, screens)) for message in messages]
        refs = tuple(turn.image for turn in turns if turn.image is not None)
        try:
            texts = [] if self._images is None else [self._images.text(ref) for ref in refs]
            tokens = self._tokenizer.encode_chat(turns, image_texts=texts)
            if self._images is not None:
                self._images.require_written(tokens, refs)
        except PictureError as error:
            raise Refused(400, "invalid_request_error", str(error)) from None
        except ConfigError as error:
            raise Refused(400, "invalid_request_error", f"the model's chat template takes no such turns: {error}") from None
        if len(tokens) > self._max_prompt_tokens:
            reason = f"{len(tokens)} tokens, and a prompt may have {self._max_prompt_tokens} (actor.prompt.max_prompt_tokens)"
            raise Refused(400, "context_length_exceeded", reason)
        return np.asarray(tokens, dtype=np.int32), refs

    def _content(self, message: dict[str, Any], screens: Mapping[str, ScreenshotRef]) -> tuple[str, ScreenshotRef | None]:
        """Text of ``message``, and the screen that it shows. Raises `Refused`."""
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        texts: list[str] = []
        images: list[ScreenshotRef] = []
        for part in parts:
            given = part if isinstance(part, dict) else {}
            text = given.get("text")
            if given.get("type") == "text" and isinstance(text, str):
                texts.append(text)
            elif given.get("type") == "image_url" and self._images is not None:
                images.append(_screen(given, screens))
            else:
                reason = "a message's content is text and image_url" if self._images else _NO_IMAGES
                raise Refused(400, "invalid_request_error", reason)
        if len(images) > 1:
            raise Refused(
                400, "invalid_request_error", "a message shows one image at most, before its text: send several messages"
            )
        return "".join(texts), images[0] if images else None

    def _cut(self, completion: Completion, stops: list[str]) -> tuple[Completion, str]:
        """``completion`` up to the token with which one of ``stops`` is complete, and its text before that.

        Where a beginning of a sampled text ends is decided by that beginning alone, so what is left was sampled as it stands.
        """
        text = completion.text
        places = [text.find(stop) for stop in stops if stop in text]
        if not places:
            return completion, text
        kept = next(
            number
            for number in range(1, len(completion.tokens) + 1)
            if any(stop in self._tokenizer.decode(completion.tokens[:number].tolist()) for stop in stops)
        )
        cut = Completion(
            tokens=completion.tokens[:kept],
            logprobs=completion.logprobs[:kept],
            policy_versions=completion.policy_versions[:kept],
            text=text,
            finish="stop",
            queue_s=completion.queue_s,
            generate_s=completion.generate_s,
        )
        return cut, text[: min(places)]


def _ends(tokenizer: Tokenizer) -> frozenset[int]:
    """Tokens that end a completion. Raises `ConfigError`."""
    tokenizer.encode_chat([ChatMessage("user", "question")])
    end = tokenizer.end_of_turn()
    if end is None:
        reason = "the tokenizer names no end-of-text token (eos_token), and the chat template writes none after an answer"
        step = "name one in tokenizer_config.json or generation_config.json: an agent's completions end with it"
        raise ConfigError([Problem("model.name", reason, step)])
    return tokenizer.stop_tokens | {end}


def _require_plain(asked: dict[str, Any]) -> None:
    """Raises `Refused` for what would have to be answered otherwise than by one text."""
    if asked.get("tools") or asked.get("functions"):
        raise Refused(400, "invalid_request_error", "the policy takes no tools: tell of them in text")
    if asked.get("n") not in (None, 1):
        raise Refused(400, "invalid_request_error", "n is 1: ask several times")


def _whole(asked: dict[str, Any], name: str) -> int | None:
    value = asked.get(name)
    if value is None:
        return None
    if type(value) is not int or value < 1:
        raise Refused(400, "invalid_request_error", f"{name} is no number of tokens")
    return value


def _stops(given: object) -> list[str]:
    stops = [given] if isinstance(given, str) else given or []
    if not isinstance(stops, list) or len(stops) > _MAX_STOPS or not all(isinstance(stop, str) and stop for stop in stops):
        raise Refused(400, "invalid_request_error", f"stop is a text or a list of at most {_MAX_STOPS} texts")
    return stops


def _role(message: object) -> Any:
    role = message.get("role") if isinstance(message, dict) else None
    role = "system" if role == "developer" else role
    if role not in _ROLES:
        raise Refused(400, "invalid_request_error", f"role {role!r:.40} of a message is none of {', '.join(sorted(_ROLES))}")
    return role


def _screen(part: dict[str, Any], screens: Mapping[str, ScreenshotRef]) -> ScreenshotRef:
    """The screen that ``part`` holds. Raises `Refused`."""
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else None
    head, _, data = url.partition(",") if isinstance(url, str) else ("", "", "")
    if not (head.startswith("data:image/") and head.endswith(";base64")):
        raise Refused(400, "invalid_request_error", "an image is data:image/...;base64,...: nothing is fetched")
    try:
        name = content_hash(base64.b64decode(data, validate=True))
    except (binascii.Error, ValueError):
        raise Refused(400, "invalid_request_error", "an image's data is no base64") from None
    if name not in screens:
        reason = "the policy is shown the screens of its desktop alone: send the bytes of screenshot as they are"
        raise Refused(400, "invalid_request_error", reason)
    return screens[name]


def _reply(call: Call, text: str) -> dict[str, Any]:
    num_in, num_out = len(call.prompt_tokens), len(call.completion.tokens)
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": call.completion.finish}
    return {
        "id": f"chatcmpl-{secrets.token_hex(8)}",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [choice],
        "usage": {"prompt_tokens": num_in, "completion_tokens": num_out, "total_tokens": num_in + num_out},
    }


def stream_of(reply: dict[str, Any]) -> Iterator[str]:
    """``reply`` as a stream: the whole text at once, then the end."""
    (choice,) = reply["choices"]
    head = {**reply, "object": "chat.completion.chunk"}
    del head["usage"]
    first = {"index": 0, "delta": choice["message"], "finish_reason": None}
    last = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    for one in (first, last):
        yield f"data: {json.dumps({**head, 'choices': [one]})}\n\n"
    yield "data: [DONE]\n\n"
