"""Run folders with drawn screens, and steps that show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from computerrl.benchmarks._episodes import make_group, make_step
from computerrl.benchmarks.vision._folders import IMAGE
from computerrl.common.config import ActorConfig, LearnerConfig, ModelConfig, PromptConfig, RunConfig
from computerrl.common.messages import ScreenshotRef, Step, TaskRef, TrajectoryGroup
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.common.vision.processor import ImageProcessor, load_processor
from computerrl.common.vision.screens import Screens
from computerrl.env_server.drivers.screenshots import ScreenshotStore
from computerrl.learner.images import ImageFolder

Row = dict[str, Any]
_LEARNER = {"device": "cpu", "max_logprob_gap": None, "optimizer": {"lr": 1e-5}}


def drawn_screen(seed: int, size: tuple[int, int]) -> np.ndarray:
    """[height, width, 3] windows, buttons and lines of text."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", size, (214, 219, 225))
    draw = ImageDraw.Draw(image)
    for _ in range(12):
        left, top = (int(rng.integers(0, side)) for side in size)
        width, height = (int(rng.integers(60, max(61, side // 2))) for side in size)
        color = tuple(rng.integers(90, 256, 3).tolist())
        draw.rectangle((left, top, left + width, top + height), fill=color, outline=(40, 40, 40))
        for line in range(0, height - 12, 14):
            words = "".join(rng.choice(list("abc def ghi"), width // 8))
            draw.text((left + 4, top + line), words, fill=(20, 20, 20))
    return np.array(image)


def make_prompt(processor: ImageProcessor, refs: Sequence[ScreenshotRef]) -> np.ndarray:
    """[P] text, the tokens of each image, text."""
    pieces = [np.full(processor.layout(ref.width, ref.height).num_pieces, IMAGE) for ref in refs]
    return np.concatenate([[5, 6], *pieces, [7, 8, 9]]).astype(np.int32)


class VisionRun:
    """A run folder with stored screens, for one model."""

    def __init__(
        self,
        folder: Path,
        name: str,
        model: Path,
        *,
        dtype: str,
        top_layers: int | None,
        vision: str = "frozen",
        learner: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """``learner``: settings of the section beside those that all have."""
        self.config = RunConfig(
            run_dir=str(folder / "runs"),
            name=name,
            model=ModelConfig.model_validate(
                {"name": str(model), "dtype": dtype, "trainable_top_layers": top_layers, "vision": vision}
            ),
            actor=ActorConfig(prompt=PromptConfig(format="compact_vision")),
            learner=LearnerConfig.model_validate({**_LEARNER, **learner}),
        )
        self.processor = load_processor(model)
        self._store = ScreenshotStore(RunFolder(self.config.folder).trajectories, picture_format="png", incarnation="bench")
        self._images = ImageFolder(RunFolder(self.config.folder).images)
        self.reader = Screens(self._store.get, self.processor)

    def take(self, seed: int, size: tuple[int, int]) -> ScreenshotRef:
        ref = self._store.put(drawn_screen(seed, size))
        self._images.fetch([ref.content_hash], lambda names: {ref.content_hash: self._store.get(ref)})
        return ref

    def step(self, ref: ScreenshotRef, action: Sequence[int], logprobs: Sequence[float]) -> Step:
        return make_step(make_prompt(self.processor, [ref]), action, logprobs=logprobs, screen=ref)

    def group(self, steps: Sequence[Step]) -> TrajectoryGroup:
        """A group of episodes of one step each; every second one is solved."""
        task = TaskRef("family", 0, "training")
        return make_group(0, "rl-1", task, [([step], index % 2 == 1) for index, step in enumerate(steps)])
