"""Policy engines: steps per second and tokens per second of transformers against vLLM, alternating, on SmolLM2-135M.

Each engine lives in a process of its own (vLLM changes torch for its whole process) and plays rounds in turn: groups of 8
rollouts, 3 steps each, prompts of 80 to 110 tokens of which the first step's is the group's, actions of 10 tokens; 4 or 8
rollouts at a time, each waiting for its answer before it asks again, as episodes do. Every round has new prompts. With
`training`, a process of one thread trains beside it all the time, as in a run. Values are medians over rounds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ENGINES = ("transformers", "vllm")
GROUP_SIZE = 8
NUM_STEPS = 3
NUM_PROMPT_TOKENS = 80
NUM_NEW_PER_STEP = 15
"""A later step's prompt has this many tokens more than the one before; the elements before them stay."""
NUM_ACTION_TOKENS = 10
NUM_THREADS = 1
_ROOT = Path(__file__).resolve().parent.parent


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
    return rows


def _compare(engines: dict[str, _Engine], concurrency: int, rounds: int, *, training: bool) -> Iterator[dict[str, Any]]:
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for number in range(rounds + 1):
        for name, engine in engines.items():
            took_s = engine.play(seed=1000 * concurrency + number + 500_000 * training, concurrency=concurrency)
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
        environment = {**os.environ, "OMP_NUM_THREADS": str(NUM_THREADS), "PYTHONPATH": str(_ROOT)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.engines", name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment, cwd=_ROOT,
        )  # fmt: skip
        self.start_s = self._answer()

    def play(self, *, seed: int, concurrency: int) -> float:
        """Seconds of one round."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"seed": seed, "concurrency": concurrency}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=20)

    def _answer(self) -> float:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("took "):
                return float(line.split()[1])
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
    from actor.engines import make_engine
    from common.config import RunConfig
    from common.model_folder import model_folder

    config = RunConfig.model_validate({"actor": {"engine": name, "num_episodes": 8, "num_threads": NUM_THREADS}})
    engine = make_engine(config, model_folder(config.model.name), decode=lambda _: "")
    engine.load(0, {})
    _play_round(engine, seed=0, concurrency=2)
    print("took", time.perf_counter() - started, flush=True)
    for line in sys.stdin:
        print("took", _play_round(engine, **json.loads(line)), flush=True)
    engine.close()


def _play_round(engine: Any, *, seed: int, concurrency: int) -> float:
    import numpy as np

    from actor.engines.base import GenerationRequest

    rng = np.random.default_rng(seed)
    first = rng.integers(100, 40_000, NUM_PROMPT_TOKENS).astype(np.int32)
    tails = rng.integers(100, 40_000, (GROUP_SIZE, NUM_STEPS, NUM_NEW_PER_STEP)).astype(np.int32)
    slots = threading.Semaphore(concurrency)

    def roll(number: int) -> None:
        with slots:
            prompt = first
            for step in range(NUM_STEPS):
                engine.submit(GenerationRequest(prompt, 1.0, NUM_ACTION_TOKENS, frozenset())).result()
                prompt = np.concatenate([prompt[:-5], tails[number, step], prompt[-5:]])

    threads = [threading.Thread(target=roll, args=(number,)) for number in range(GROUP_SIZE)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


if __name__ == "__main__":
    _serve(sys.argv[1])
