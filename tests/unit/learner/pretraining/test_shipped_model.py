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
from computerrl.common.vision.encoded import black_image
from computerrl.launch.report.chance import Targets, compare
from computerrl.learner.model_store import ensure_model
from computerrl.learner.pretraining.pages import Canvas
from computerrl.learner.pretraining.things import HEIGHT, WIDTH
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
        return self._stored(f"page-{seed}", encoded.getvalue())

    def black(self) -> ScreenshotRef:
        """A page without anything."""
        return self._stored("black", black_image(WIDTH, HEIGHT, "png"))

    def _stored(self, name: str, encoded: bytes) -> ScreenshotRef:
        self._pages[name] = encoded
        return ScreenshotRef(name, "segment-0.bin", 0, len(encoded), WIDTH, HEIGHT)


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


@pytest.mark.release
def test_shipped_model_is_no_better_than_blind_with_a_black_page_or_another_one(shipped: Shipped) -> None:
    """The blind agent of a report knows the text and where targets were: wrong pages are compared with that."""
    places = random.Random(5)
    boxes = [places.sample(PLACES, 2) for _ in range(14)]
    pages = [shipped.page(100 + number, red=red, blue=blue) for number, (red, blue) in enumerate(boxes)]
    shown = {"own": pages, "black": [shipped.black()] * len(pages), "another": pages[1:] + pages[:1]}
    targets, hits = Targets(), dict.fromkeys(shown, 0)
    for number, (page, pair) in enumerate(zip(pages, boxes, strict=True)):
        for color, (x, y) in zip(("red", "blue"), pair, strict=True):
            text = f"Click on the {color} colored box."
            target = [x + SIDE // 2, y + SIDE // 2, SIDE, SIDE, page.width, page.height]
            seed = 2 * number + (color == "blue")
            targets.add({"family": "boxes", "seed": seed, "instruction": text, "steps": [{"target": target}]})
            for kind, refs in shown.items():
                point = shipped.policy.answer(refs[number], text).point
                hits[kind] += point is not None and x <= point[0] < x + SIDE and y <= point[1] < y + SIDE
    compared = {}
    for kind, number in hits.items():
        compared[kind] = compare({"boxes": {"successes": number, "episodes": 2 * len(pages)}}, targets.chances())
    own, black, another = (found for found in compared.values() if found is not None)
    assert own.p_value < 0.01 < min(black.p_value, another.p_value), compared
