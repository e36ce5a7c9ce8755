"""Memory of an engine that has seen many images: within the estimate of plans, and near it where caches are full."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import computerrl.actor.engines.images
import computerrl.actor.prompts.images
from computerrl.actor.engines.base import GenerationRequest
from computerrl.actor.engines.transformers_engine import TransformersCore, load_model
from computerrl.actor.prompts.images import ImageTokens
from computerrl.common.config import RunConfig
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.common.vision import screen_memory
from computerrl.common.vision.processor import load_processor
from computerrl.common.vision.screen_memory import engine_images, screen_of
from computerrl.common.vision.screens import Screens as RunScreens
from computerrl.env_server.drivers.screenshots import ScreenshotStore
from tests.support.data.tensors import LiveBytes
from tests.support.data.vision_data import Screens, make_config, save_model

NUM_KEPT = 9
"""Number of images whose features fit into their cache, and that fit prepared into theirs."""
LONG = 96
"""New tokens of a completion that is under way until the end of the test."""
OTHER_BYTES = 2**15
"""Tokens, positions and random numbers, which plans do not count."""


def config_with_images(folder: Path, tmp_path: Path, *, num_images: int) -> RunConfig:
    tree = make_config(folder, tmp_path, top_layers=None).model_dump()
    tree["desktop"] |= {"screen_width": 320, "screen_height": 240, "screenshot_format": "png"}
    tree["actor"] |= {"num_episodes": 4, "max_new_tokens": LONG}
    tree["actor"]["prompt"] |= {"format": "compact_vision", "images": num_images, "max_prompt_tokens": 128 * num_images}
    return RunConfig.model_validate(tree)


class Played:
    """The engine of a run, and prompts with new screens."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self._screens = Screens(folder, config)
        self._store = ScreenshotStore(RunFolder(config.folder).trajectories, picture_format="png", incarnation="played")
        self._images = ImageTokens(RunScreens(self._store.get, load_processor(folder)), image_token="<image>")
        self._shape = (config.desktop.screen_height, config.desktop.screen_width, 3)
        self._random = np.random.default_rng(0)
        self._num_asked = 0
        actor, model = config.actor, load_model(folder, dtype="float32", device="cpu")
        self.core = TransformersCore(
            model,
            num_live=actor.num_live,
            max_tokens=actor.prompt.max_prompt_tokens + actor.max_new_tokens,
            seed=0,
            max_draft_tokens=0,
            processor=load_processor(folder),
        )
        self.rows = [self.core._cache._live_LKSHTD, self.core._cache._stored_LKSHTD]
        self.known = [*model.parameters(), *self.rows]

    def ask(self, num_images: int, num_new: int) -> None:
        """Have a prompt with ``num_images`` new screens admitted, and those finished that stand in its way."""
        refs = [self._store.put(self._random.integers(0, 256, self._shape, dtype=np.uint8)) for _ in range(num_images)]
        tokens, images = self._screens.step(*refs, action=[1]).prompt_tokens, tuple(map(self._images.image, refs))
        while not self.core.add(self._num_asked, GenerationRequest(tokens, 1.0, num_new, frozenset(), images=images)):
            self.core.step()
        self._num_asked += 1


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def array_bytes() -> int:
    """Memory of the numpy arrays that were made since the test began."""
    of_numpy = tracemalloc.DomainFilter(inclusive=True, domain=np.lib.tracemalloc_domain)
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([of_numpy]).traces)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(("family", "num_images"), [("qwen3_vl", 3), ("idefics3", 1)])
def test_engine_with_full_caches_holds_what_the_plan_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, num_images: int
) -> None:
    text, tower = {"hidden_size": 256, "num_attention_heads": 32}, {} if family == "idefics3" else {"out_hidden_size": 256}
    folder = save_model(tmp_path / "model", model_type=family, text=text, tower=tower)
    config = config_with_images(folder, tmp_path, num_images=num_images)
    screen = screen_of(config)
    assert screen is not None
    for module in (screen_memory, computerrl.actor.engines.images):
        monkeypatch.setattr(module, "MAX_FEATURE_BYTES", int((NUM_KEPT + 0.5) * screen.feature_bytes))
    for module in (screen_memory, computerrl.actor.prompts.images):
        monkeypatch.setattr(module, "MAX_PREPARED_BYTES", int((NUM_KEPT + 0.5) * screen.prepared_bytes))
    planned, played = engine_images(config), Played(folder, config)
    before = array_bytes()
    with LiveBytes(played.known) as live:
        # All but one are under way for long, and the others push their images out of the caches.
        for _ in range(config.actor.num_live - 1):
            played.ask(num_images, LONG)
        for _ in range(2 * NUM_KEPT // num_images + 1):
            played.ask(num_images, 1)
    assert len(played.core._running) == config.actor.num_live
    assert sum(rows.nbytes for rows in played.rows) == planned.kv
    prepared = array_bytes() - before
    assert 0.75 * planned.features <= live.now <= planned.features + OTHER_BYTES
    assert 0.75 * planned.prepared <= prepared <= planned.prepared + OTHER_BYTES
