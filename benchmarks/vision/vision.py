"""Vision-language policies: the way of an image per step, the gap between engine and learner, the learner's tokens per second.

The way of an image, of three screen sizes: capture (a copy of a frame buffer as Xvfb lays it out), encode (PNG, into the
screenshot store), move (the reply of an env_server written, read and checked by its hash; without the network), decode,
processor and tower. Cold: the first time; warm: the same screen again, where the part keeps results. Screens are drawn windows
with text; a photograph or noise would be larger. Models are random ones with the processors and tokens of their families (4
layers, 64 wide): the time of a real tower is that of its own size.

The gap is the largest difference of a sampled token's log-prob between the transformers engine and the learner, after images.
Memory is the peak of the resident set of a process that makes one update, as a share of which the plan's estimate may be wrong.
Steps per second are those of whole runs of the quickstarts, and stand here only without --quick. Values are medians; the spread
is from the least to the greatest.
"""

from __future__ import annotations

import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from computerrl import PACKAGE, SOURCE_ROOT
from computerrl.actor.engines.base import GenerationRequest, RequestImage
from computerrl.benchmarks.vision._folders import FAMILIES, save_random_model
from computerrl.benchmarks.vision._memory import memory_rows
from computerrl.benchmarks.vision._runs import Row, VisionRun, drawn_screen, make_prompt
from computerrl.common.messages import ScreenshotRef, Step
from computerrl.common.vision.processor import ImageProcessor, load_processor
from computerrl.common.vision.screens import Screens
from computerrl.env_server.drivers.frame_buffer import FrameBuffer
from computerrl.env_server.drivers.screenshots import ScreenshotStore
from computerrl.launch.plan.machine import inspect_machine, package_versions

SIZES = ((800, 600), (1280, 720), (1920, 1080))
MEASURED = ("qwen2_5_vl", "idefics3")
"""One family of each arrangement of pieces, for everything that takes time."""
MAX_GAP = 1e-4
"""Target of the gap in float32, in nats."""
NUM_NEW = 12
"""Number of sampled tokens per request."""
NUM_SCREENS = 4
"""Number of different screens in a learner's batch, each in two steps."""


def run(quick: bool) -> list[Row]:
    """The rows; prints machine and versions first."""
    machine = inspect_machine()
    print(f"{machine.num_cores} cores ({machine.cpu}), {machine.memory_mb} MiB; {machine.system}")
    print(", ".join(f"{name} {version}" for name, version in package_versions().items()), flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = {family: save_random_model(folder / family, family) for family in (MEASURED if quick else FAMILIES)}
        rows = list(way_rows(folder, models, rounds=2 if quick else 15, sizes=SIZES[:1] if quick else SIZES))
        for family, model in models.items():
            rows += [gap_row(folder, family, model, dtype) for dtype in (("float32",) if quick else ("float32", "bfloat16"))]
        for family in MEASURED:
            rows += _training(folder, family, models[family], rounds=1 if quick else 5)
        rows += memory_rows(folder, quick=quick)
        if not quick:
            rows += [steps_per_s(name, folder) for name in ("vision-quickstart", "quickstart")]
    return rows


# --- the way of an image ---------------------------------------------------------------------------------------------------


def _frame_buffer(folder: Path, pixels: np.ndarray) -> FrameBuffer:
    """A file with the header and the pixels of an X window dump, as Xvfb keeps its screen."""
    height, width, _ = pixels.shape
    header = [0] * 25
    header[0], header[4], header[5], header[11] = struct.calcsize(">25I"), width, height, 32
    whole = np.zeros((height, width, 4), np.uint8)
    whole[:, :, :3] = pixels[:, :, ::-1]
    path = folder / f"screen-{width}x{height}"
    path.write_bytes(struct.pack(">25I", *header) + whole.tobytes())
    return FrameBuffer(os.open(path, os.O_RDONLY), width=width, height=height, index=0)


def way_rows(folder: Path, models: dict[str, Path], *, rounds: int, sizes: Sequence[tuple[int, int]]) -> Iterator[Row]:
    store = ScreenshotStore(folder / "store", picture_format="png", incarnation="bench")
    for size in sizes:
        at = f"{size[0]}x{size[1]}"
        screens = [drawn_screen(seed, size) for seed in range(rounds)]
        buffers = [_frame_buffer(folder, screen) for screen in screens]
        yield _timed(f"{at}: capture", FrameBuffer.pixels, buffers)
        yield _timed(f"{at}: encode, cold", store.put, screens)
        yield _timed(f"{at}: encode, warm", store.put, screens)
        refs = [store.put(screen) for screen in screens]
        yield _timed(f"{at}: move", lambda ref: _moved(store, ref), refs)
        yield _timed(f"{at}: decode", Screens(store.get, load_processor(models[MEASURED[0]])).decode, refs)
        for family in MEASURED:
            yield from _read(at, family, models[family], store, refs)
    store.close()


def _read(at: str, family: str, model: Path, store: ScreenshotStore, refs: Sequence[ScreenshotRef]) -> Iterator[Row]:
    """Processor and tower. Warm: the number of an image's tokens for a size that was seen, and features that an engine keeps."""
    import torch

    from computerrl.actor.engines.images import EngineImages
    from computerrl.actor.engines.transformers_engine import load_model

    processor = load_processor(model)
    reader = Screens(store.get, processor)
    yield _timed(f"{at}: number of tokens, cold, {family}", reader.layout, refs[:1])
    yield _timed(f"{at}: number of tokens, warm, {family}", reader.layout, refs)
    yield _timed(f"{at}: processor, {family}", processor.process, [reader.decode(ref) for ref in refs])
    engine = EngineImages(load_model(model, dtype="float32", device="cpu"), processor)
    requests = [_request(processor, [ref], reader) for ref in refs]
    with torch.inference_mode():
        for what in ("cold", "warm"):
            yield _timed(f"{at}: tower, {what}, {family}", engine.of, requests)


def _moved(store: ScreenshotStore, ref: ScreenshotRef) -> None:
    """An env_server's reply with the image, as an actor takes it."""
    from computerrl.common.messages import EncodedImage, ImageReply
    from computerrl.common.wire.codec import decode, encode

    frames = encode(ImageReply((EncodedImage.of(store.get(ref)),)), sender="env_server-0:bench", message_id=1)
    reply = decode([bytes(frame) for frame in frames]).message
    assert isinstance(reply, ImageReply) and reply.images[0].is_intact


def _request(processor: ImageProcessor, refs: Sequence[ScreenshotRef], reader: Screens) -> GenerationRequest:
    images = tuple(RequestImage(ref.content_hash, reader.processed(ref)) for ref in refs)
    return GenerationRequest(make_prompt(processor, refs), 1.0, NUM_NEW, frozenset(), images=images)


# --- engine and learner ------------------------------------------------------------------------------------------------------


def gap_row(folder: Path, family: str, model: Path, dtype: str) -> Row:
    """Sample after two screens, and compute the same tokens in the learner."""
    import torch

    from computerrl.actor.engines.transformers_engine import TransformersCore, load_model
    from computerrl.learner.model.policy import load_policy

    run = VisionRun(folder, f"gap-{family}-{dtype}", model, dtype=dtype, top_layers=None)
    refs = [run.take(seed, (320, 240)) for seed in (1, 2)]
    core = TransformersCore(
        load_model(model, dtype=dtype, device="cpu"),
        num_live=len(refs),
        max_tokens=2048,
        seed=0,
        max_draft_tokens=0,
        processor=run.processor,
    )
    waiting = {key: _request(run.processor, [ref], run.reader) for key, ref in enumerate(refs)}
    sampled: dict[int, Any] = {}
    while len(sampled) < len(refs):
        for key in [key for key, request in waiting.items() if core.add(key, request)]:
            del waiting[key]
        sampled |= {one.key: one for one in core.step()}
    steps = [run.step(ref, sampled[key].tokens, sampled[key].logprobs) for key, ref in enumerate(refs)]
    policy = load_policy(run.config)
    gaps: list[float] = []
    with torch.no_grad():
        for pack in policy.packs(steps, max_tokens=4096):
            found = policy.forward(pack, temperature=1.0).logprobs_U[torch.from_numpy(pack.token_pair_M)].float().numpy()
            expected = np.concatenate([steps[i].behavior_logprobs for i in pack.samples_S])
            gaps += np.abs(found - expected).tolist()
    return {
        "name": f"gap engine to learner, {family}, {dtype}",
        "value": max(gaps),
        "unit": "nats",
        "spread": f"mean {statistics.mean(gaps):.2g}",
        "target": MAX_GAP if dtype == "float32" else None,
        "better": "lower",
    }


def _training(folder: Path, family: str, model: Path, *, rounds: int) -> Iterator[Row]:
    """Forward and backward passes of a learner with a frozen tower: with features to compute, and with kept ones."""
    from computerrl.learner.model.policy import load_policy

    run = VisionRun(folder, f"train-{family}", model, dtype="float32", top_layers=2)
    policy = load_policy(run.config)
    rates: dict[str, list[float]] = {"features computed": [], "features kept": []}
    for number in range(rounds + 1):
        refs = [run.take(1000 * number + seed, (800, 600)) for seed in range(NUM_SCREENS)]
        steps = [run.step(ref, [11, 12, 13 + i], [-1.0] * 3) for ref in refs for i in range(2)]
        num_tokens = sum(len(step.prompt_tokens) + len(step.action_tokens) for step in steps)
        for what in rates:
            took_s = _seconds(lambda of: _pass_over(policy, of), steps)
            if number:  # the first round warms up
                rates[what].append(num_tokens / took_s)
    computed = statistics.median(rates["features computed"])
    for what, values in rates.items():
        peer = {"peer": "features computed", "peer_value": computed} if what == "features kept" else {}
        yield {
            "name": f"learner, frozen tower, {what}, {family}",
            "value": statistics.median(values),
            "unit": "tokens/s",
            "spread": _spread(values),
            "better": "higher",
            **peer,
        }


def _pass_over(policy: Any, steps: Sequence[Step]) -> None:
    import torch

    for pack in policy.packs(steps, max_tokens=16_384):
        policy.forward(pack, temperature=1.0).logprobs_U[torch.from_numpy(pack.token_pair_M)].sum().backward()


# --- whole runs --------------------------------------------------------------------------------------------------------------


def steps_per_s(name: str, folder: Path, *, overrides: Sequence[str] = ()) -> Row:
    """Steps per second of a few updates of the configuration ``name``. Without a value where there is no such configuration, or
    where its run fails here; the row's name has the reason."""
    row: Row = {"name": f"{name}: desktop steps", "value": None, "unit": "steps/s", "better": "higher"}
    if not (PACKAGE / "configs" / f"{name}.yaml").exists():
        return {**row, "name": f"{row['name']} (missing: configs/{name}.yaml)"}
    settings = ("learner.recipe.max_updates=6", "learner.recipe.eval_episodes_per_family=0", f"run_dir={json.dumps(str(folder))}")
    command = [sys.executable, "-m", "computerrl", "train", name]
    for setting in (*settings, f"name=bench-{name}", *overrides):
        command += ["--set", setting]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(SOURCE_ROOT)}, capture_output=True, text=True, cwd=folder, check=False
    )
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        return {**row, "name": f"{row['name']} (it ended with {done.returncode}: {' '.join(last):.80})"}
    report = json.loads((folder / f"bench-{name}" / "report.json").read_text(encoding="utf-8"))
    return {**row, "value": report["env_steps_per_s"]}


# --- rows ----------------------------------------------------------------------------------------------------------------------


def _timed(name: str, call: Callable[[Any], object], items: Sequence[Any]) -> Row:
    """Milliseconds of ``call`` with each of ``items``, one after the other."""
    values = [1000 * _seconds(call, item) for item in items]
    return {"name": name, "value": statistics.median(values), "unit": "ms", "spread": _spread(values), "better": "lower"}


def _seconds(call: Callable[[Any], object], item: Any) -> float:
    started = time.perf_counter()
    call(item)
    return time.perf_counter() - started


def _spread(values: Sequence[float]) -> str | None:
    return f"{min(values):.3g}..{max(values):.3g}" if len(values) > 1 else None
