"""The built-in model `tiny-vision` as it is shipped points at what it is asked for, in the prompts of its configuration."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from computerrl.actor.grounding import PicturePolicy
from computerrl.common.config import load_config
from computerrl.common.messages import ScreenshotRef
from computerrl.learner.model_store import ensure_model
from computerrl.learner.pretraining.pages import HEIGHT, WIDTH, Canvas
from tests.unit.learner.pretraining.test_drawn_pages import PillowsFont

CONFIG = Path(__file__).resolve().parents[4] / "configs" / "vision-quickstart.yaml"
SIDE = 104
PLACES = ((55, 152), (177, 152), (55, 280), (177, 280))
"""Left and upper edges of boxes, as the pages of web-click-color have them."""


class Shipped:
    """The model, as an evaluation asks it, and pages of two boxes."""

    def __init__(self) -> None:
        ensure_model("tiny-vision")
        config = load_config(CONFIG, overrides=["learner.recipe.eval_temperature=0", "learner.device=cpu"])
        self._pages: dict[str, bytes] = {}
        self.policy = PicturePolicy(config, read=lambda ref: self._pages[ref.content_hash])
        self.policy.start(config)

    def page(self, seed: int, *, red: tuple[int, int], blue: tuple[int, int]) -> ScreenshotRef:
        """A page with these boxes, below an instruction that names other things."""
        canvas = Canvas(random.Random(seed), PillowsFont(), looseness=1.0)  # type: ignore[arg-type]
        canvas.header()
        for color, (x, y) in (("red", red), ("blue", blue)):
            canvas.color_box(x, y, SIDE, SIDE, color)
        encoded = io.BytesIO()
        canvas.image.save(encoded, format="PNG")
        name = f"page-{seed}"
        self._pages[name] = encoded.getvalue()
        return ScreenshotRef(name, "segment-0.bin", seed, len(encoded.getvalue()), WIDTH, HEIGHT)


@pytest.fixture(scope="module")
def shipped() -> Iterator[Shipped]:
    made = Shipped()
    yield made
    made.policy.close()


@pytest.mark.release
def test_shipped_model_clicks_the_box_of_the_colour_it_is_asked_for(shipped: Shipped) -> None:
    places = random.Random(3)
    for seed in range(4):
        red, blue = places.sample(PLACES, 2)
        page = shipped.page(seed, red=red, blue=blue)
        for color, (x, y) in (("red", red), ("blue", blue)):
            answer = shipped.policy.answer(page, f"Click on the {color} colored box.")
            assert answer.text.startswith("click(") and answer.point is not None, answer
            assert x <= answer.point[0] < x + SIDE and y <= answer.point[1] < y + SIDE, (color, (x, y), answer)
