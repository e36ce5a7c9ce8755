"""The run's policy behind OpenAI's chat completions, for agents that are trained without knowing it.

An episode's agent gets a key. Each completion that it asks for with the key is sampled by the engine and kept with its exact
tokens, log-probs and policy versions: that is what the learner trains on. Nothing is tokenised again later, and prompts may be
rewritten, branched or sent side by side as an agent likes. Text alone; no tools, whose form differs from model to model.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from computerrl.actor.agents.base import Call
from computerrl.actor.engines.base import Completion, GenerationRequest, Sampler
from computerrl.actor.prompts.builder import PromptBuilder
from computerrl.actor.prompts.formats.base import ChatMessage
from computerrl.actor.prompts.tokenizer import Tokenizer
from computerrl.common.errors import ConfigError, EngineFailed
from computerrl.common.messages import Assignment

MODEL = "policy"
"""Name of the policy, the only model there is."""
_ROLES = frozenset({"system", "user", "assistant"})
_MAX_BODY_BYTES = 8 << 20
_MAX_STOPS = 8
_START_LIMIT_S, _CLOSE_LIMIT_S = 30.0, 5.0


class Refused(Exception):
    """A request that is not answered, with status and type as OpenAI's interface has them."""

    def __init__(self, status: int, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.status, self.kind = status, kind


class Session:
    """What the agent of one episode has asked. Thread-safe."""

    def __init__(self, engine: Sampler, assignment: Assignment, *, max_calls: int) -> None:
        self.key = secrets.token_urlsafe(24)
        self.engine, self.assignment = engine, assignment
        self._max_calls = max_calls
        self._lock = threading.Lock()
        self._num_begun = 0
        """Completions that were asked for since the last action."""
        self._calls: list[Call] = []
        self._broken: EngineFailed | None = None
        self._failure = ""
        self._told: np.ndarray | None = None
        """Tokens of the last prompt and its completion."""

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
    """A server on loopback for the agents of one actor."""

    def __init__(self, builder: PromptBuilder, tokenizer: Tokenizer, *, max_prompt_tokens: int, max_new_tokens: int) -> None:
        """``builder`` names the tokens that end a completion. Starts the server; close it."""
        self._tokenizer = tokenizer
        self._stop_tokens = builder.stop_tokens
        self._max_prompt_tokens, self._max_new_tokens = max_prompt_tokens, max_new_tokens
        self._sessions: dict[str, Session] = {}
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(("calls", "rewritten", "refused"), 0)
        routes = [
            Route("/v1/chat/completions", self._complete, methods=["POST"]),
            Route("/v1/models", self._models),
        ]
        config = uvicorn.Config(Starlette(routes=routes), log_config=None, lifespan="off", access_log=False)
        self._server = uvicorn.Server(config)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"
        """Value of OPENAI_BASE_URL."""
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="policy-endpoint", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + _START_LIMIT_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise EngineFailed("the server for agents did not start")
            time.sleep(0.01)

    def open(self, engine: Sampler, assignment: Assignment, *, max_calls: int) -> Session:
        """A session for one episode, whose completions ``engine`` samples."""
        session = Session(engine, assignment, max_calls=max_calls)
        with self._lock:
            self._sessions[session.key] = session
        return session

    def end(self, session: Session) -> None:
        """The episode has ended; its key opens nothing any more."""
        with self._lock:
            self._sessions.pop(session.key, None)

    def metrics(self) -> dict[str, float]:
        """See docs/metrics.md."""
        with self._lock:
            return {f"actor/agent_{name}_total": float(count) for name, count in self._counts.items()}

    def close(self) -> None:
        """End the server."""
        self._server.should_exit = True
        self._thread.join(_CLOSE_LIMIT_S)
        with suppress(OSError):
            self._socket.close()

    # --- requests ----------------------------------------------------------------------------------------------------

    async def _models(self, request: Request) -> Response:
        try:
            self._session_of(request)
        except Refused as error:
            return self._refusal(error)
        return JSONResponse({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "computerrl"}]})

    async def _complete(self, request: Request) -> Response:
        try:
            session = self._session_of(request)
            asked = await _body(request)
            call, text = await run_in_threadpool(self._sample, session, asked)
        except Refused as error:
            return self._refusal(error)
        reply = _reply(call, text)
        if asked.get("stream"):
            return StreamingResponse(_chunks(reply), media_type="text/event-stream")
        return JSONResponse(reply)

    def _refusal(self, error: Refused) -> Response:
        self._count("refused")
        return JSONResponse({"error": {"message": str(error), "type": error.kind, "code": error.kind}}, status_code=error.status)

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1

    def _session_of(self, request: Request) -> Session:
        key = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        with self._lock:
            session = self._sessions.get(key)
        if session is None:
            raise Refused(401, "invalid_api_key", "no such key, or its episode has ended")
        return session

    def _sample(self, session: Session, asked: dict[str, Any]) -> tuple[Call, str]:
        """The completion that was ``asked`` for, and its text. Blocks until it is there."""
        if asked.get("model") != MODEL:
            failure = f"the agent asked for the model {asked.get('model')!r:.80}, and there is only {MODEL!r}"
            session.fail(failure)
            raise Refused(404, "model_not_found", failure)
        _require_plain(asked)
        stops = _stops(asked.get("stop"))
        prompt = self._prompt(asked.get("messages"))
        wanted = _whole(asked, "max_completion_tokens") or _whole(asked, "max_tokens")
        most = min(self._max_new_tokens, wanted or self._max_new_tokens)
        session.begin_call()
        request = GenerationRequest(
            prompt_tokens=prompt,
            # The learner's importance weights hold for the order's temperature.
            temperature=session.assignment.temperature,
            max_new_tokens=most,
            stop_tokens=self._stop_tokens,
            may_be_older=session.assignment.kind == "training",
        )
        try:
            completion = session.engine.submit(request).result()
        except EngineFailed as error:
            session.break_off(error)
            raise Refused(503, "engine_failed", str(error)) from None
        completion, text = self._cut(completion, stops)
        self._count("calls")
        if not session.end_call(Call(prompt, completion)):
            self._count("rewritten")
        return Call(prompt, completion), text

    def _prompt(self, messages: object) -> np.ndarray:
        """[P] int32 tokens of ``messages`` by the model's chat template. Raises `Refused`."""
        if not isinstance(messages, list) or not messages:
            raise Refused(400, "invalid_request_error", "messages is no list of turns")
        turns = [ChatMessage(_role(message), _content(message)) for message in messages]
        try:
            tokens = self._tokenizer.encode_chat(turns)
        except ConfigError as error:
            raise Refused(400, "invalid_request_error", f"the model's chat template takes no such turns: {error}") from None
        if len(tokens) > self._max_prompt_tokens:
            reason = f"{len(tokens)} tokens, and a prompt may have {self._max_prompt_tokens} (actor.prompt.max_prompt_tokens)"
            raise Refused(400, "context_length_exceeded", reason)
        return np.asarray(tokens, dtype=np.int32)

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


async def _body(request: Request) -> dict[str, Any]:
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > _MAX_BODY_BYTES:
            raise Refused(413, "invalid_request_error", f"a request has at most {_MAX_BODY_BYTES >> 20} MiB")
    try:
        asked = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Refused(400, "invalid_request_error", f"the request is no JSON: {str(error)[:200]}") from None
    if not isinstance(asked, dict):
        raise Refused(400, "invalid_request_error", "the request is no JSON object")
    return asked


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


def _content(message: dict[str, Any]) -> str:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise Refused(400, "invalid_request_error", "a message's content is text; the policy is shown no images here")
    return "".join(map(str, texts))


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


def _chunks(reply: dict[str, Any]) -> Iterator[str]:
    """``reply`` as a stream: the whole text at once, then the end."""
    (choice,) = reply["choices"]
    head = {**reply, "object": "chat.completion.chunk"}
    del head["usage"]
    first = {"index": 0, "delta": choice["message"], "finish_reason": None}
    last = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    for one in (first, last):
        yield f"data: {json.dumps({**head, 'choices': [one]})}\n\n"
    yield "data: [DONE]\n\n"
