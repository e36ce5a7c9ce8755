"""`computerrl eval --endpoint` with a real `vllm serve` and real, contained desktops."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from computerrl.actor.engines.base import GenerationRequest
from computerrl.actor.engines.endpoint_engine import EndpointEngine
from computerrl.actor.engines.transformers_engine import load_model
from computerrl.actor.prompts.builder import FolderTokenizer
from computerrl.common.config import EndpointConfig
from computerrl.common.endpoint import Endpoint
from computerrl.common.host import fast_dtype
from computerrl.learner.model_store import ensure_model

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.release

START_S, EVAL_S = 200.0, 150.0


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a server with SmolLM2-135M."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
    }
    said = tmp_path_factory.mktemp("server") / "vllm.log"
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(ensure_model("smollm2-135m")),
        "--served-model-name",
        "theirs",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--max-model-len",
        "2048",
        "--max-num-seqs",
        "4",
        "--enforce-eager",
        "--block-size",
        "32",
        "--kv-cache-memory-bytes",
        str(256 << 20),
        "--dtype",
        fast_dtype(),
        "--logprobs-mode",
        "processed_logprobs",
        "--generation-config",
        "vllm",
        "--enable-auto-tool-choice",
        "--tool-call-parser",
        "hermes",
    ]
    with said.open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    deadline = time.monotonic() + START_S
    try:
        while not _is_up(port):
            assert process.poll() is None and time.monotonic() < deadline, said.read_text()[-3000:]
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _is_up(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_answers_of_a_real_server_are_the_models_own(url: str, temperature: float) -> None:
    folder = ensure_model("smollm2-135m")
    tokenizer = FolderTokenizer(folder)
    engine = EndpointEngine(Endpoint(EndpointConfig(url=url)), model="theirs", decode=tokenizer.decode, num_live=2, seed=0)
    engine.load(0, {})
    prompt = np.array(tokenizer.encode("The three largest cities of France are"), np.int32)
    stop = frozenset(tokenizer.encode("\n"))
    done = engine.submit(GenerationRequest(prompt, temperature, 24, stop)).result(120)
    engine.close()
    assert done.text == tokenizer.decode(done.tokens[:-1] if done.finish == "stop" else done.tokens)
    assert (done.finish == "stop") == (int(done.tokens[-1]) in stop | {tokenizer.eos_token})
    model = load_model(folder, dtype=fast_dtype(), device="cpu")
    whole = torch.as_tensor(np.concatenate([prompt, done.tokens]), dtype=torch.long)[None]
    with torch.inference_mode():
        logprobs = (model(whole).logits[0].float() / (temperature or 1.0)).log_softmax(-1)
    expected = logprobs[len(prompt) - 1 : -1].gather(1, whole[0, len(prompt) :, None])[:, 0].numpy()
    assert np.abs(done.logprobs - expected).mean() < (0.15 if fast_dtype() == "bfloat16" else 1e-3)


def test_evaluation_of_a_served_model_plays_real_desktops_without_its_weights(url: str, tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    for file in ensure_model("smollm2-135m").iterdir():
        if file.suffix == ".json":
            (folder / file.name).write_bytes(file.read_bytes())
    assert not list(folder.glob("*.safetensors"))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "computerrl",
            "eval",
            str(folder),
            "--config",
            str(ROOT / "configs" / "smoke.yaml"),
            "--endpoint",
            url,
            "--episodes",
            "2",
            "--json",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        text=True,
        capture_output=True,
        timeout=EVAL_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout[done.stdout.index("{") :])
    assert (figures["endpoint"], figures["all"]["num_rollouts"]) == (url, 4)
    assert url in (tmp_path / "runs" / "eval-theirs" / "evaluation.html").read_text()


@pytest.mark.parametrize("answers", ["tools", "text"])
def test_agent_behind_a_real_server_plays_real_desktops(answers: str, url: str, tmp_path: Path) -> None:
    settings = (f"actor.agent.answers={answers}", "actor.max_new_tokens=24", "desktop.observation=tree", "tasks.max_steps=3")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "computerrl", "eval", "theirs", "--config", str(ROOT / "configs" / "smoke.yaml")),
            *("--agent", "openai", "--endpoint", url, "--episodes", "1", "--json"),
            *(part for setting in settings for part in ("--set", setting)),
        ],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, text=True, capture_output=True,
        timeout=EVAL_S
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout[done.stdout.index("{") :])
    usage = figures["usage"]
    assert (figures["agent"], figures["all"]["num_rollouts"], usage["num_agent_failed"]) == ("openai", 2, 0)
    assert usage["num_requests"] >= 2 and usage["input_tokens"] > 50 * usage["num_requests"] and usage["output_tokens"] > 0
