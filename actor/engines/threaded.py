"""The thread around an engine: queue in, futures out, weight loads and probes between decode steps.

`EngineCore` is the part that differs between engines. It is called from this one thread only, so cores hold no locks. This file
decides ordering, timing and failure; it knows nothing about models.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from computerrl.actor.engines.base import NO_VERSION, Completion, GenerationRequest, RequestImage
from computerrl.common import log
from computerrl.common.errors import ComputerRLError, EngineFailed, WeightError
from computerrl.common.vision.probe import PROBE_HASH, make_image_probe
from computerrl.common.vision.processor import ImageProcessor
from computerrl.common.weight_plan import check_probe, probe_tokens

if TYPE_CHECKING:
    import torch


ADMISSION_S = 0.005
"""Minimum time for admitting requests between two steps, while more of them wait. A longer step allows as much as it took."""

MAX_FAILED_STEPS = 3
"""In a row, after which the engine is taken for one that does not come to itself."""


class _Spoilt(WeightError):
    """The core's weights have changed, but not to a version of the policy."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """A finished request of a core."""

    key: int
    tokens: list[int]
    logprobs: list[float]
    policy_versions: list[int]
    stopped: bool
    """Whether a stop token ended it, not its length."""


class EngineCore(Protocol):
    """One engine's model and batching; confined to the engine thread."""

    vocabulary: int
    """Number of tokens that the model knows."""

    def add(self, key: int, request: GenerationRequest) -> bool:
        """Admit the request. Returns False when there is no room now; it is offered again after the next step."""

    def step(self) -> Sequence[Sampled]:
        """One decode step for all admitted requests (prefills included). Returns those that finished."""

    def load(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Replace weights. After a `WeightError` nothing has changed; after any other error something may have."""

    def probe(self, tokens: np.ndarray, images: tuple[RequestImage, ...] = ()) -> np.ndarray:
        """Log-probs of ``tokens[1:]``, each given the tokens before it; after ``images``, of the tokens behind the last one."""

    def abort(self) -> Sequence[Sampled]:
        """Drop all admitted requests. Returns their tokens so far, in the order of their keys; some completions may be whole."""

    def close(self) -> None:
        """Free all resources."""


def probed_by(vocabulary: int, processor: ImageProcessor | None) -> tuple[np.ndarray, tuple[RequestImage, ...]]:
    """Arguments of `EngineCore.probe`: tokens and images."""
    if processor is None:
        return np.asarray(probe_tokens(vocabulary), dtype=np.int32), ()
    probe = make_image_probe(processor, vocabulary=vocabulary)
    return np.concatenate([probe.prompt_tokens, probe.scored_tokens]), (RequestImage(PROBE_HASH, probe.processed),)


@dataclass(slots=True)
class _Ticket:
    request: GenerationRequest
    future: Future[Completion]
    submitted: float
    admitted: float = 0.0
    said: Sampled = field(default_factory=lambda: Sampled(-1, [], [], [], False))
    """Tokens from before the request was interrupted."""

    def rest(self) -> GenerationRequest:
        """The request for the rest of the completion: the tokens so far have become part of the prompt."""
        said = self.said.tokens
        if not said:
            return self.request
        prompt = np.concatenate([self.request.prompt_tokens, np.asarray(said, dtype=np.int32)])
        return replace(self.request, prompt_tokens=prompt, max_new_tokens=self.request.max_new_tokens - len(said))

    def with_said(self, sampled: Sampled) -> Sampled:
        """The tokens from before the interruption and ``sampled``, joined."""
        said = self.said
        return Sampled(
            sampled.key,
            said.tokens + sampled.tokens,
            said.logprobs + sampled.logprobs,
            said.policy_versions + sampled.policy_versions,
            sampled.stopped,
        )


@dataclass(slots=True)
class _Command:
    run: Callable[[], Any]
    future: Future[Any]


class ThreadedEngine:
    """A `PolicyEngine` made of a core, a thread and a text decoder."""

    def __init__(
        self,
        core: EngineCore,
        *,
        decode: Callable[[Sequence[int]], str],
        name: str,
        dtype: str,
        resumes: bool = False,
        processor: ImageProcessor | None = None,
    ) -> None:
        """``dtype``: torch's name of the weights' type, which decides how closely two probes of the same weights agree.
        ``resumes``: a load interrupts the completions under way, and the new weights prefill them again before they go on.
        ``processor``: of a model that takes images, whose probe holds one."""
        self._core = core
        self._probed = probed_by(core.vocabulary, processor)
        self._decode = decode
        self._dtype = dtype
        self._resumes = resumes
        self._unfit = ""
        """Reason why these weights may not sample; only the engine's thread uses it."""
        self._version = NO_VERSION
        self._probe_gap: float | None = None
        self._condition = threading.Condition()
        self._queue: deque[tuple[int, _Ticket]] = deque()
        self._commands: deque[_Command] = deque()
        self._running: dict[int, _Ticket] = {}
        self._next_key = 0
        self._failure: ComputerRLError | None = None
        self._num_failed_steps = 0
        """In a row; only the engine's thread uses it."""
        self._num_awaited = 1
        """Requests in the queue that the engine's thread waits for."""
        self._num_delivered = 0
        """Answers of the last step; only the engine's thread uses it."""
        self._step_s = 0.0
        """Duration of the last step; only the engine's thread uses it."""
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    @property
    def policy_version(self) -> int:
        return self._version

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        future: Future[Completion] = Future()
        with self._condition:
            if self._closed:
                future.set_exception(EngineFailed("the engine is closed"))
                return future
            self._queue.append((self._next_key, _Ticket(request, future, time.perf_counter())))
            self._next_key += 1
            if len(self._queue) >= self._num_awaited:
                self._condition.notify()
        return future

    def load(
        self, version: int, tensors: Mapping[str, torch.Tensor], *, expected_probe: Sequence[float] | np.ndarray | None = None
    ) -> float:
        def apply() -> float:
            start = time.perf_counter()
            if self._resumes:
                self._interrupt()
            self._core.load(version, tensors)
            try:
                if expected_probe is not None:
                    self._probe_gap = check_probe(expected_probe, self._core.probe(*self._probed), dtype=self._dtype)
            except WeightError as error:
                raise _Spoilt(f"policy version {version}: {error}") from error
            self._version, self._unfit = version, ""
            return time.perf_counter() - start

        def apply_or_stand_still() -> float:
            try:
                return apply()
            except _Spoilt as error:
                self._stand_still(str(error))
                raise
            except WeightError:
                raise  # Refused before anything changed: the old weights go on serving.
            except Exception as error:
                reason = f"loading policy version {version} broke off: {type(error).__name__}: {error}"
                self._stand_still(reason)
                raise _Spoilt(reason) from error

        return self._command(apply_or_stand_still)

    @property
    def failure(self) -> ComputerRLError | None:
        return self._failure

    def probe(self) -> np.ndarray:
        return self._command(lambda: self._core.probe(*self._probed))

    def metrics(self) -> dict[str, float]:
        return {} if self._probe_gap is None else {"engine/probe_gap": self._probe_gap}

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _command(self, run: Callable[[], Any]) -> Any:
        future: Future[Any] = Future()
        with self._condition:
            if self._closed:
                raise EngineFailed("the engine is closed")
            self._commands.append(_Command(run, future))
            self._condition.notify()
        return future.result()

    def _loop(self) -> None:
        try:
            while self._wait_for_work():
                self._run_commands()
                self._gather()
                self._admit()
                if self._running:
                    self._step()
        except Exception as error:  # noqa: BLE001  (thread boundary: a core that cannot even be emptied after a failure)
            log.get_logger().exception("engine.failed")
            self._failure = _as_ours(error)
        finally:
            self._fail_everything("the engine is closed")
            self._core.close()

    def _interrupt(self) -> None:
        """Return all requests under way to the head of the queue, with their tokens so far."""
        for partial in reversed(self._core.abort()):
            ticket = self._running[partial.key]
            whole = ticket.with_said(partial)
            if whole.stopped or len(whole.tokens) == ticket.request.max_new_tokens:
                self._deliver(partial)
                continue
            ticket.said = whole
            del self._running[partial.key]
            self._queue.appendleft((partial.key, ticket))

    def _stand_still(self, reason: str) -> None:
        """Fail all requests until a load succeeds: the weights in the core are no version of the policy."""
        self._version, self._unfit = NO_VERSION, reason
        self._core.abort()
        self._fail_running(EngineFailed(reason))

    def _fail_running(self, error: ComputerRLError) -> None:
        for ticket in self._running.values():
            ticket.future.set_exception(error)
        self._running.clear()

    def _wait_for_work(self) -> bool:
        with self._condition:
            while not (self._closed or self._commands or self._queue or self._running):
                self._condition.wait()
            return not self._closed

    def _run_commands(self) -> None:
        while self._commands:
            command = self._commands.popleft()
            try:
                command.future.set_result(command.run())
            except Exception as error:  # noqa: BLE001  (the caller's thread gets it: this is the boundary between the two)
                command.future.set_exception(_as_ours(error))

    def _gather(self) -> None:
        """Wait, no longer than a short step takes, for as many requests as have just been answered, while there are none to go on
        with: of episodes whose answers end together, one would else be read first, and all others a step later."""
        wanted, self._num_delivered = self._num_delivered, 0
        with self._condition:
            if self._running or not 0 < len(self._queue) < wanted:
                return
            # Who submits wakes this thread for the last of them alone: waking it for each costs as much as a small step.
            self._num_awaited = wanted
            self._condition.wait_for(
                lambda: self._closed or self._commands or len(self._queue) >= wanted, min(ADMISSION_S, self._step_s)
            )
            self._num_awaited = 1

    def _admit(self) -> None:
        """Admit requests, for at most as long as a step takes. Completions under way then do not wait for a whole burst, and a
        GPU already computes for the first requests of a burst."""
        deadline = time.perf_counter() + max(ADMISSION_S, self._step_s)
        while self._queue and time.perf_counter() < deadline:
            key, ticket = self._queue[0]
            if not ticket.future.running() and not ticket.future.set_running_or_notify_cancel():
                self._queue.popleft()
                continue
            try:
                if self._unfit:
                    raise EngineFailed(self._unfit)
                if not self._core.add(key, ticket.rest()):
                    return
            except Exception as error:  # noqa: BLE001  (one bad request must not end the engine for the others)
                self._queue.popleft()
                ticket.future.set_exception(_as_ours(error))
                continue
            self._queue.popleft()
            ticket.admitted = ticket.admitted or time.perf_counter()
            self._running[key] = ticket

    def _step(self) -> None:
        started = time.perf_counter()
        try:
            finished = self._core.step()
        except Exception as error:  # noqa: BLE001  (every waiting episode gets the error, then the engine goes on with an empty batch)
            self._num_failed_steps += 1
            if self._num_failed_steps == MAX_FAILED_STEPS:
                self._failure = _as_ours(error)
            self._fail_running(_as_ours(error))
            self._core.abort()
            return
        finally:
            self._step_s = time.perf_counter() - started
        self._num_failed_steps = 0
        self._num_delivered = len(finished)
        for sampled in finished:
            self._deliver(sampled)

    def _deliver(self, sampled: Sampled) -> None:
        ticket = self._running.pop(sampled.key)
        ticket.future.set_result(_completion(ticket.with_said(sampled), ticket, self._decode))

    def _fail_everything(self, reason: str) -> None:
        with self._condition:
            self._closed = True
            requests = [ticket.future for _, ticket in self._queue] + [ticket.future for ticket in self._running.values()]
            commands = [command.future for command in self._commands]
            self._queue.clear()
            self._running.clear()
            self._commands.clear()
        waiting: list[Future[Any]] = [*requests, *commands]
        for future in waiting:
            if not future.cancelled():
                future.set_exception(EngineFailed(reason))


def _completion(sampled: Sampled, ticket: _Ticket, decode: Callable[[Sequence[int]], str]) -> Completion:
    spoken = sampled.tokens[:-1] if sampled.stopped else sampled.tokens
    return Completion(
        tokens=np.asarray(sampled.tokens, dtype=np.int32),
        logprobs=np.asarray(sampled.logprobs, dtype=np.float32),
        policy_versions=np.asarray(sampled.policy_versions, dtype=np.int32),
        text=decode(spoken),
        finish="stop" if sampled.stopped else "length",
        queue_s=ticket.admitted - ticket.submitted,
        generate_s=time.perf_counter() - ticket.admitted,
    )


def _as_ours(error: Exception) -> ComputerRLError:
    if isinstance(error, ComputerRLError):
        return error
    # torch's own message says how much was asked for and how much is free.
    is_full = type(error).__name__ == "OutOfMemoryError"
    step = "\n    -> lower actor.num_episodes, actor.max_num_batched_tokens or actor.gpu_memory" if is_full else ""
    failed = EngineFailed(f"{type(error).__name__}: {error}{step}")
    failed.__cause__ = error
    return failed
