"""Policy engines: steps per second and tokens per second of transformers against vLLM, alternating, on SmolLM2-135M.

Each engine lives in a process of its own (vLLM changes torch for its whole process) and plays rounds in turn: groups of 8
rollouts, 3 steps each, prompts of 80 to 110 tokens of which the first step's is the group's, actions of 10 tokens; 4 or 8
rollouts at a time, each waiting for its answer before it asks again, as episodes do. Every round has new prompts. With
`training`, a process of one thread trains beside it all the time, as in a run. Values are medians over rounds.

The engine of transformers alone, in float32: steps per second of processor time, passes and tokens per pass, as its means are
added one by one (`WAYS`). Rollouts of a group are then at temperature 0.3, and a desktop answers equal actions equally, so that
contexts repeat as in the training of a policy that knows what to do.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from computerrl import SOURCE_ROOT

ENGINES = ("transformers", "vllm")
GROUP_SIZE = 8
NUM_STEPS = 3
NUM_PROMPT_TOKENS = 80
NUM_NEW_PER_STEP = 15
"""A later step's prompt has this many tokens more than the one before; the elements before them stay."""
NUM_ACTION_TOKENS = 10
NUM_THREADS = 1
WAYS: dict[str, dict[str, Any]] = {
    "HFDecoder": {"fused": False},
    "LlamaDecoder": {"half": False},
    "and half precision": {},
    "and memo": {"memo_bytes": 256 << 20},
}
"""Options of `make_transformers_engine`."""

WAYS_TEMPERATURE = 0.3


def run(quick: bool) -> list[dict[str, Any]]:
    """Rows of design section 6; vLLM's figure is the peer of transformers'."""
    rounds = 2 if quick else 7
    concurrencies = (4,) if quick else (4, 8)
    installed = [name for name in ENGINES if name != "vllm" or _has_vllm()]
    rows: list[dict[str, Any]] = []
    with _engines(installed) as engines:
        for training in (False,) if quick else (False, True):
            with _competitor(training):
                for concurrency in concurrencies:
                    rows.extend(_compare(engines, concurrency, rounds, training=training))
        for name, engine in engines.items():
            rows.append({"name": f"start {name}", "value": engine.start_s, "unit": "s", "better": "lower", "target": 40.0})
    rows.extend(_compare_ways(rounds))
    return rows


def _compare_ways(rounds: int) -> Iterator[dict[str, Any]]:
    """Each figure's peer is that of the way before."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
    with _engines(list(WAYS)) as engines:
        for number in range(rounds):
            for name, engine in engines.items():
                found[name].append(engine.play(seed=number, concurrency=4, temperature=WAYS_TEMPERATURE))
    before = ""
    for name, figures in found.items():
        for key, unit, better in (
            ("steps_per_cpu_s", "steps/CPU-s", "higher"),
            ("passes", "passes/step", "lower"),
            ("tokens_per_pass", "tokens/pass", None),
            ("without_pass", "share of steps without a pass", "higher"),
        ):
            values = [one[key] for one in figures]
            row = {
                "name": f"groups, {name}",
                "value": statistics.median(values),
                "unit": unit,
                "spread": max(values) - min(values),
            }
            peer = {"peer": before, "peer_value": statistics.median(one[key] for one in found[before])} if before else {}
            yield row | {"target": None, "better": better} | peer
        before = name


def _compare(engines: dict[str, _Engine], concurrency: int, rounds: int, *, training: bool) -> Iterator[dict[str, Any]]:
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for number in range(rounds + 1):
        for name, engine in engines.items():
            seed = 1000 * concurrency + number + 500_000 * training
            took_s = engine.play(seed=seed, concurrency=concurrency, temperature=1.0)["took_s"]
            if number:  # the first round warms up
                seconds[name].append(took_s)
    num_steps = GROUP_SIZE * NUM_STEPS
    beside = " beside training" if training else ""
    peer = seconds.get("vllm")
    for unit, amount in (("steps/s", num_steps), ("action tokens/s", num_steps * NUM_ACTION_TOKENS)):
        values = [amount / took_s for took_s in seconds["transformers"]]
        yield {
            "name": f"transformers, {concurrency} at a time{beside}",
            "value": statistics.median(values),
            "unit": unit,
            "spread": max(values) - min(values),
            "target": 16.0 if unit == "steps/s" else None,
            "better": "higher",
            "peer": "vllm" if peer else "vllm (not installed)",
            "peer_value": statistics.median(amount / took_s for took_s in peer) if peer else None,
        }


def _has_vllm() -> bool:
    import importlib.util

    return importlib.util.find_spec("vllm") is not None


class _Engine:
    """An engine in a process of its own, told by lines of JSON to play a round."""

    def __init__(self, name: str) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": str(NUM_THREADS), "PYTHONPATH": str(SOURCE_ROOT)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "computerrl.benchmarks.engines.engines", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            cwd=SOURCE_ROOT,
        )
        self.start_s = self._answer()["took_s"]

    def play(self, *, seed: int, concurrency: int, temperature: float) -> dict[str, float]:
        """Figures of one round."""
        assert self._process.stdin is not None
        order = {"seed": seed, "concurrency": concurrency, "temperature": temperature}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=20)

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("figures "):
                figures: dict[str, float] = json.loads(line.removeprefix("figures "))
                return figures
        raise RuntimeError(f"the engine process ended with code {self._process.wait()}")


@contextmanager
def _engines(names: list[str]) -> Iterator[dict[str, _Engine]]:
    made: dict[str, _Engine] = {}
    try:
        for name in names:
            made[name] = _Engine(name)
        yield made
    finally:
        for engine in made.values():
            engine.close()


_TRAIN = """
import os, torch
torch.set_num_threads(1)
parent = os.getppid()
layers = torch.nn.Sequential(*[torch.nn.Linear(576, 1536), torch.nn.SiLU(), torch.nn.Linear(1536, 576)] * 12).bfloat16()
x = torch.randn(1024, 576, dtype=torch.bfloat16)
while os.getppid() == parent:
    layers(x).sum().backward()
"""


@contextmanager
def _competitor(wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", _TRAIN], env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        yield
    finally:
        process.kill()
        process.wait()


# --- the engine's process ----------------------------------------------------------------------------------------


def _serve(name: str) -> None:
    started = time.perf_counter()
    engine = _make_engine(name)
    engine.load(0, {})
    _play_round(engine, seed=1 << 30, concurrency=2, temperature=1.0)
    print("figures", json.dumps({"took_s": time.perf_counter() - started}), flush=True)
    for line in sys.stdin:
        # Each round is a policy version's: what the one before left behind serves no more.
        engine.load(0, {})
        before, cpu_s, started = _totals(engine), time.process_time(), time.perf_counter()
        _play_round(engine, **json.loads(line))
        took_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu_s
        passes, tokens, without_pass = (after - total for after, total in zip(_totals(engine), before, strict=True))
        num_steps = GROUP_SIZE * NUM_STEPS
        figures = {
            "took_s": took_s,
            "steps_per_cpu_s": num_steps / cpu_s,
            "passes": passes / num_steps,
            "tokens_per_pass": tokens / passes if passes else 0.0,
            "without_pass": without_pass / num_steps,
        }
        print("figures", json.dumps(figures), flush=True)
    engine.close()


def _make_engine(name: str) -> Any:
    from computerrl.common.config import RunConfig
    from computerrl.common.models.folder import model_folder

    tree = {"actor": {"engine": name, "num_episodes": 8, "num_threads": NUM_THREADS}}
    config = RunConfig.model_validate(tree if name in ENGINES else {})
    folder = model_folder(config.model.name)
    if name in ENGINES:
        from computerrl.actor.engines import make_engine

        return make_engine(config, folder, decode=lambda _: "")
    from computerrl.actor.engines import MAX_DRAFT_TOKENS
    from computerrl.actor.engines.transformers_engine import make_transformers_engine

    return make_transformers_engine(
        folder,
        decode=lambda _: "",
        dtype="float32",
        device="cpu",
        num_live=4,
        max_tokens=160,
        seed=0,
        num_threads=NUM_THREADS,
        max_draft_tokens=MAX_DRAFT_TOKENS,
        **WAYS[name],
    )


def _totals(engine: Any) -> tuple[float, float, float]:
    """(passes, tokens computed in them, answers without a pass) so far; zeros for vLLM."""
    metrics = engine.metrics()
    names = ("engine/passes_total", "engine/computed_tokens_total", "engine/answers_without_pass_total")
    first, second, third = (metrics.get(name, 0.0) for name in names)
    return first, second, third


def _play_round(engine: Any, *, seed: int, concurrency: int, temperature: float) -> None:
    """A group's rollouts on a desktop whose screen depends on the actions so far alone."""
    import numpy as np

    from computerrl.actor.engines.base import GenerationRequest

    first = np.random.default_rng(seed).integers(100, 40_000, NUM_PROMPT_TOKENS).astype(np.int32)
    slots = threading.Semaphore(concurrency)

    def roll() -> None:
        with slots:
            prompt = first
            for _ in range(NUM_STEPS):
                request = GenerationRequest(prompt, temperature, NUM_ACTION_TOKENS, frozenset())
                action = engine.submit(request).result().tokens
                screen = np.random.default_rng(zlib.crc32(prompt.tobytes() + action.tobytes()))
                tail = screen.integers(100, 40_000, NUM_NEW_PER_STEP).astype(np.int32)
                prompt = np.concatenate([prompt[:-5], tail, prompt[-5:]])

    threads = [threading.Thread(target=roll) for _ in range(GROUP_SIZE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    _serve(sys.argv[1])
