"""The thread around an engine core: ordering, futures, failure; and the bookkeeping of the transformers engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

import numpy as np
import pytest
import torch

from computerrl.actor.engines.base import Completion, GenerationRequest, RequestImage
from computerrl.actor.engines.kv_cache import KVCache, common_prefix
from computerrl.actor.engines.threaded import ADMISSION_S, MAX_FAILED_STEPS, Sampled, ThreadedEngine
from computerrl.actor.engines.transformers_engine import sample
from computerrl.common.errors import EngineFailed, WeightError


class CountingCore:
    """Samples 10, 11, ... and takes ``room`` requests at a time; ``broken`` makes the next step raise."""

    def __init__(self, room: int = 2) -> None:
        self.room = room
        self.vocabulary = 1000
        self.broken: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.running: dict[int, tuple[GenerationRequest, list[int]]] = {}
        self.most_running = 0
        self.longest_prompt = 0
        self.probed = 0.0
        self.closed = False

    def add(self, key: int, request: GenerationRequest) -> bool:
        if len(request.prompt_tokens) > 100:
            raise EngineFailed("too long")
        if len(self.running) == self.room:
            return False
        self.running[key] = (request, [])
        self.longest_prompt = max(self.longest_prompt, len(request.prompt_tokens))
        self.most_running = max(self.most_running, len(self.running))
        return True

    def step(self) -> Sequence[Sampled]:
        self.gate.wait(10.0)
        if self.broken is not None:
            error, self.broken = self.broken, None
            raise error
        done = []
        for key, (request, tokens) in list(self.running.items()):
            tokens.append(10 + len(tokens))
            if tokens[-1] in request.stop_tokens or len(tokens) == request.max_new_tokens:
                del self.running[key]
                done.append(Sampled(key, tokens, [-1.0] * len(tokens), [5] * len(tokens), tokens[-1] in request.stop_tokens))
        return done

    def load(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        if "bad" in tensors:
            raise WeightError("no tensor 'bad'")
        self.probed = float(tensors.get("probed", 0.0))
        if "half" in tensors:
            raise RuntimeError("broke off")

    def probe(self, tokens: np.ndarray, images: tuple[RequestImage, ...] = ()) -> np.ndarray:
        return np.full(len(tokens) - 1, self.probed, dtype=np.float32)

    def abort(self) -> Sequence[Sampled]:
        said = {key: tokens for key, (_, tokens) in self.running.items()}
        found = [Sampled(key, tokens, [-1.0] * len(tokens), [5] * len(tokens), False) for key, tokens in said.items()]
        self.running.clear()
        return found

    def close(self) -> None:
        self.closed = True


def request(num_prompt: int = 3, *, stop: int = 12, most: int = 8) -> GenerationRequest:
    return GenerationRequest(np.arange(num_prompt, dtype=np.int32), 1.0, most, frozenset({stop}))


def make_engine(core: CountingCore, *, resumes: bool = False) -> ThreadedEngine:
    decode = lambda tokens: " ".join(map(str, tokens))  # noqa: E731
    return ThreadedEngine(core, decode=decode, name="test", dtype="float32", resumes=resumes)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_engine_with_more_requests_than_room_finishes_all_in_turn() -> None:
    core = CountingCore(room=2)
    core.gate.clear()
    engine = make_engine(core)
    futures = [engine.submit(request()) for _ in range(5)]
    core.gate.set()
    completions = [future.result(10) for future in futures]
    engine.close()
    assert [completion.tokens.tolist() for completion in completions] == [[10, 11, 12]] * 5
    assert completions[0].text == "10 11" and completions[0].finish == "stop"
    assert core.most_running == 2 and core.closed


class SlowlyAdmittingCore(CountingCore):
    """Takes as long to take one request in as all may take between two steps; ``at_steps`` counts the requests of each step."""

    def __init__(self) -> None:
        super().__init__(room=8)
        self.at_steps: list[int] = []

    def add(self, key: int, request: GenerationRequest) -> bool:
        time.sleep(ADMISSION_S)
        return super().add(key, request)

    def step(self) -> Sequence[Sampled]:
        self.at_steps.append(len(self.running))
        return super().step()


def test_engine_given_a_burst_computes_for_the_first_while_it_takes_in_the_others() -> None:
    core = SlowlyAdmittingCore()
    engine = make_engine(core)
    futures = [engine.submit(request(stop=999, most=20)) for _ in range(6)]
    assert all(len(future.result(10).tokens) == 20 for future in futures)
    engine.close()
    assert core.at_steps[:6] == [1, 2, 3, 4, 5, 6]


def test_engine_at_the_length_limit_says_length_and_keeps_all_text() -> None:
    engine = make_engine(CountingCore())
    completion = engine.submit(request(most=2)).result(10)
    engine.close()
    assert completion.finish == "length" and completion.text == "10 11"


def test_engine_whose_step_raises_fails_what_runs_and_serves_on() -> None:
    core = CountingCore()
    core.broken = MemoryError("none left")
    engine = make_engine(core)
    with pytest.raises(EngineFailed, match="MemoryError"):
        engine.submit(request()).result(10)
    assert engine.submit(request()).result(10).finish == "stop"
    engine.close()


def test_engine_with_impossible_request_fails_it_alone() -> None:
    engine = make_engine(CountingCore())
    bad, good = engine.submit(request(101)), engine.submit(request())
    with pytest.raises(EngineFailed, match="too long"):
        bad.result(10)
    assert good.result(10).finish == "stop"
    engine.close()


def test_engine_closed_while_busy_fails_everything_waiting() -> None:
    core = CountingCore(room=1)
    core.gate.clear()
    engine = make_engine(core)
    futures = [engine.submit(request(stop=999, most=10**9)) for _ in range(3)]
    closer = threading.Thread(target=engine.close)
    closer.start()
    core.gate.set()
    closer.join(10)
    for future in futures:
        with pytest.raises(EngineFailed):
            future.result(10)
    with pytest.raises(EngineFailed):
        engine.submit(request()).result(0)
    with pytest.raises(EngineFailed):
        engine.load(1, {})
    engine.close()


def test_engine_with_refused_weights_keeps_its_version() -> None:
    engine = make_engine(CountingCore())
    assert engine.policy_version == -1
    assert engine.load(4, {}) >= 0.0
    with pytest.raises(WeightError):
        engine.load(5, {"bad": torch.zeros(1)})
    assert engine.policy_version == 4
    assert len(engine.probe()) == 15
    engine.close()


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [({"probed": torch.tensor(0.5)}, "differ from the learner's by 0.500"), ({"half": torch.zeros(1)}, "broke off: Runtime")],
)
def test_engine_whose_weights_are_no_version_says_nothing(tensors: dict[str, torch.Tensor], reason: str) -> None:
    core = CountingCore(room=1)
    engine = make_engine(core)
    engine.load(4, {})
    core.gate.clear()
    before = [engine.submit(request(stop=999, most=10**9)) for _ in range(2)]
    loading = Future()
    threading.Thread(target=lambda: loading.set_exception(raised_by(engine, tensors))).start()
    core.gate.set()
    with pytest.raises(WeightError, match=reason):
        loading.result(10)
    assert engine.policy_version == -1
    for future in (*before, engine.submit(request())):
        with pytest.raises(EngineFailed, match="policy version 5"):
            future.result(10)
    assert engine.load(6, {}, expected_probe=np.zeros(15)) >= 0.0
    assert engine.policy_version == 6
    assert engine.submit(request()).result(10).finish == "stop"
    engine.close()


def raised_by(engine: ThreadedEngine, tensors: dict[str, torch.Tensor]) -> Exception:
    with pytest.raises(WeightError) as raised:
        engine.load(5, tensors, expected_probe=np.zeros(15))
    return raised.value


def test_engine_that_resumes_reads_prompt_and_answer_anew_and_gives_the_answer_as_one() -> None:
    core = CountingCore(room=2)
    engine = make_engine(core, resumes=True)
    engine.load(4, {})
    core.gate.clear()
    with engine._condition:  # its thread sees none of them before all are there
        futures = [engine.submit(request(3, stop=999, most=40)) for _ in range(3)]
    wait_until(lambda: core.most_running == 2)
    loading = threading.Thread(target=engine.load, args=(5, {}))
    loading.start()
    wait_until(lambda: bool(engine._commands))
    core.gate.set()
    loading.join(10)
    completions = [future.result(10) for future in futures]
    assert [len(completion.tokens) for completion in completions] == [40, 40, 40]
    assert all(completion.finish == "length" and len(completion.logprobs) == 40 for completion in completions)
    # What was said before became part of the prompt: the core counts from 10 again.
    said = [completion.tokens.tolist().index(10, 1) for completion in completions[:2]]
    assert core.longest_prompt == 3 + max(said) and min(said) >= 1
    engine.close()


def test_engine_that_resumes_and_refuses_weights_goes_on_with_the_old_ones() -> None:
    core = CountingCore(room=1)
    engine = make_engine(core, resumes=True)
    engine.load(4, {})
    core.gate.clear()
    future = engine.submit(request(stop=999, most=30))
    wait_until(lambda: core.most_running == 1)
    refusing = threading.Thread(target=lambda: raised_by(engine, {"bad": torch.zeros(1)}))
    refusing.start()
    wait_until(lambda: bool(engine._commands))
    core.gate.set()
    assert len(future.result(10).tokens) == 30
    refusing.join(10)
    assert engine.policy_version == 4
    engine.close()


def test_engine_that_refuses_weights_before_anything_changed_serves_on_with_the_old_ones() -> None:
    engine = make_engine(CountingCore())
    engine.load(4, {}, expected_probe=np.zeros(15))
    with pytest.raises(WeightError, match="no tensor"):
        engine.load(5, {"bad": torch.zeros(1)}, expected_probe=np.zeros(15))
    assert engine.policy_version == 4
    assert engine.submit(request()).result(10).finish == "stop"
    engine.close()


def test_engine_with_cancelled_request_goes_on_with_the_next() -> None:
    core = CountingCore(room=1)
    core.gate.clear()
    engine = make_engine(core)
    engine.submit(request())
    cancelled, kept = engine.submit(request()), engine.submit(request())
    cancelled.cancel()
    core.gate.set()
    assert kept.result(10).finish == "stop"
    engine.close()


# --- sampling and cache ------------------------------------------------------------------------------------------


def test_sample_of_known_distribution_draws_in_proportion() -> None:
    probabilities = torch.tensor([0.5, 0.0, 0.3, 0.2])
    logits = probabilities.log().expand(20_000, 4).contiguous()
    counts = torch.bincount(sample(logits, torch.Generator().manual_seed(0)), minlength=4) / 20_000
    assert counts[1] == 0 and torch.allclose(counts, probabilities, atol=0.015)


def test_sample_with_the_largest_draw_never_takes_an_impossible_token() -> None:
    class Ones(torch.Generator):
        pass

    logits = torch.tensor([[0.0, 0.0, float("-inf"), float("-inf")]]).expand(4000, 4).contiguous()
    assert sample(logits, Ones().manual_seed(1)).max() <= 1


def test_common_prefix_of_token_arrays_counts_equal_starts() -> None:
    assert common_prefix(np.array([1, 2, 3]), np.array([1, 2, 4])) == 2
    assert common_prefix(np.array([1, 2]), np.array([1, 2, 4])) == 2
    assert common_prefix(np.array([], dtype=int), np.array([1])) == 0


def make_cache(num_live: int = 2) -> KVCache:
    return KVCache(num_layers=2, num_live=num_live, max_tokens=32, num_kv_heads=2, head_dim=4, dtype=torch.float32, device="cpu")


def test_cache_written_token_by_token_reads_back_by_row_head_and_position() -> None:
    cache = make_cache()
    new = torch.arange(2 * 4 * 4, dtype=torch.float32).view(2, 4, 4)
    cache.write(1, cache.places(torch.tensor([0, 1]), torch.tensor([5, 7])), new)
    assert (cache.keys_SHTD[1][0, :, 5] == new[0, :2]).all() and (cache.values_SHTD[1][0, :, 5] == new[0, 2:]).all()
    assert (cache.keys_SHTD[1][1, :, 7] == new[1, :2]).all() and cache.keys_SHTD[0].abs().sum() == 0


def test_cache_stored_prefix_is_found_copied_and_forgotten() -> None:
    cache = make_cache()
    tokens = np.arange(20, dtype=np.int32)
    cache.keys_SHTD[0][0, :, :20] = 3.0
    cache.store(tokens, live=0)
    other = np.concatenate([tokens[:12], np.array([99], dtype=np.int32)])
    row, shared = cache.best_stored(other)
    assert shared == 12
    cache.restore(row, live=1, num_tokens=shared)
    assert (cache.keys_SHTD[0][1, :, :12] == 3.0).all() and (cache.keys_SHTD[0][1, :, 12:] == 0).all()
    assert cache.best_stored(other[:5]) == (-1, 0)
    cache.forget_stored()
    assert cache.best_stored(other) == (-1, 0)


def test_cache_full_of_prompts_replaces_the_one_used_longest_ago() -> None:
    cache = make_cache(num_live=1)
    prompts = [np.full(10, number, dtype=np.int32) for number in range(4)]
    for prompt in prompts[:3]:
        cache.store(prompt, live=0)
    assert cache.best_stored(prompts[0])[1] == 10
    cache.store(prompts[3], live=0)
    assert [cache.best_stored(prompt)[1] for prompt in prompts] == [10, 0, 10, 10]


class DyingCore(CountingCore):
    """Every step fails; ``stuck``: nothing can be taken back either."""

    def __init__(self, error: Exception, *, stuck: bool = False) -> None:
        super().__init__()
        self.error, self.stuck = error, stuck

    def step(self) -> Sequence[Sampled]:
        raise self.error

    def abort(self) -> Sequence[Sampled]:
        if self.stuck:
            raise RuntimeError("cannot be emptied")
        return super().abort()


def asked_in_turn(engine: ThreadedEngine, times: int) -> list[EngineFailed]:
    failures = []
    for _ in range(times):
        with pytest.raises(EngineFailed) as caught:
            engine.submit(request()).result(10.0)
        failures.append(caught.value)
    return failures


def test_engine_whose_every_step_fails_says_that_its_process_should_end() -> None:
    core = DyingCore(RuntimeError("cancelled"))
    engine = ThreadedEngine(core, decode=str, name="test-engine", dtype="float32")
    try:
        asked_in_turn(engine, MAX_FAILED_STEPS - 1)
        assert engine.failure is None, "it may come to itself"
        asked_in_turn(engine, 1)
        assert "cancelled" in str(engine.failure)
    finally:
        engine.close()


def test_steps_that_fail_now_and_then_end_nothing() -> None:
    core = CountingCore()
    engine = ThreadedEngine(core, decode=str, name="test-engine", dtype="float32")
    try:
        for _ in range(2 * MAX_FAILED_STEPS):
            core.broken = RuntimeError("once")
            asked_in_turn(engine, 1)
            assert len(engine.submit(request()).result(10.0).tokens)
        assert engine.failure is None
    finally:
        engine.close()


def test_core_that_cannot_be_emptied_fails_what_waits_and_what_comes() -> None:
    engine = ThreadedEngine(DyingCore(RuntimeError("cancelled"), stuck=True), decode=str, name="test-engine", dtype="float32")
    asked_in_turn(engine, 3)
    assert "cannot be emptied" in str(engine.failure)
    engine.close()


def test_full_memory_names_the_settings_to_lower() -> None:
    full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.00 GiB free.")
    engine = ThreadedEngine(DyingCore(full), decode=str, name="test-engine", dtype="float32")
    try:
        (failure,) = asked_in_turn(engine, 1)
        assert "2.00 GiB" in str(failure) and "actor.gpu_memory" in str(failure)
    finally:
        engine.close()


class SteppingCore(CountingCore):
    """Notes how many requests each step was for."""

    def __init__(self, *, step_s: float) -> None:
        super().__init__(room=64)
        self.sizes: list[int] = []
        self.step_s = step_s
        self.probe_gate = threading.Event()
        self.probe_gate.set()
        self.probing = threading.Event()

    def probe(self, tokens: np.ndarray, images: tuple[RequestImage, ...] = ()) -> np.ndarray:
        self.probing.set()
        self.probe_gate.wait(60.0)
        return super().probe(tokens, images)

    def step(self) -> Sequence[Sampled]:
        self.sizes.append(len(self.running))
        time.sleep(self.step_s)
        return super().step()


def test_episodes_whose_answers_end_together_are_read_together_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # Long enough for threads on a loaded machine: a step takes 3 s, and so long the engine waits.
    monkeypatch.setattr("computerrl.actor.engines.threaded.ADMISSION_S", 60.0)
    core, episodes = SteppingCore(step_s=3.0), 8
    engine = ThreadedEngine(core, decode=str, name="test-engine", dtype="float32")
    try:
        core.probe_gate.clear()
        probing = threading.Thread(target=engine.probe)
        probing.start()
        assert core.probing.wait(60.0)
        first = [engine.submit(request(most=1)) for _ in range(episodes)]
        core.probe_gate.set()

        def play(answer: Future[Completion]) -> None:
            answer.result(60.0)
            engine.submit(request(most=1)).result(60.0)

        threads = [threading.Thread(target=play, args=(answer,)) for answer in first]
        for thread in threads:
            thread.start()
        for thread in (probing, *threads):
            thread.join(60.0)
        assert core.sizes == [episodes, episodes]
    finally:
        engine.close()


def test_one_request_waits_for_no_other() -> None:
    core = SteppingCore(step_s=0.0)
    engine = ThreadedEngine(core, decode=str, name="test-engine", dtype="float32")
    try:
        for number in (8, 1, 1):
            for future in [engine.submit(request(most=1)) for _ in range(number)]:
                future.result(10.0)
        assert core.sizes[-2:] == [1, 1]
    finally:
        engine.close()
