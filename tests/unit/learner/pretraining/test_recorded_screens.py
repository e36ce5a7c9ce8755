"""Screens of desktops as labelled pages: recording goes on where it was ended, and things get the names of drawn ones."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from computerrl.learner.pretraining import screens
from computerrl.learner.pretraining.questions import askable
from computerrl.learner.pretraining.screens import Screens, Source, items_of, record
from computerrl.learner.pretraining.things import HEADER, HEIGHT, WIDTH
from tests.unit.learner.pretraining.test_drawn_pages import PillowsFont, page

FONTS: Any = PillowsFont()


def element(role: str, text: str, *, y: int = 200, height: int = 43, width: int = 100) -> dict[str, Any]:
    return {"role": role, "text": text, "x": 160, "y": y, "width": width, "height": height}


class Desktop:
    """Stands in for the Gymnasium environment: its screens tell seed and family apart."""

    def __init__(self, *, ends_after: int) -> None:
        self.num_resets, self.ends_after = 0, ends_after

    def reset(self, *, seed: int, options: dict[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
        if self.num_resets == self.ends_after:
            raise KeyboardInterrupt
        self.num_resets += 1
        shade = (seed % 256, len(options["task"]), 0)
        elements = [element("button", options["task"])]
        import numpy as np

        return {"screenshot": np.full((HEIGHT, WIDTH, 3), shade, np.uint8)}, {"task_seed": seed, "elements": elements}

    def close(self) -> None:
        pass


def test_recording_that_was_ended_goes_on_and_ends_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def recorded(folder: Path, *desktops: Desktop) -> str:
        for desktop in desktops:
            monkeypatch.setattr("gymnasium.make", lambda *_args, made=desktop, **_options: made)
            try:
                record(folder, num=7, seed=3, say=lambda _: None)
            except KeyboardInterrupt:
                with (folder / "screens.jsonl").open("a") as lines:
                    lines.write('{"family": "web-cl')
        return Screens(folder, FONTS).digest()

    at_once, again = Desktop(ends_after=9), Desktop(ends_after=9)
    whole = recorded(tmp_path / "whole", at_once)
    assert recorded(tmp_path / "parts", Desktop(ends_after=2), Desktop(ends_after=1), again) == whole
    assert (at_once.num_resets, again.num_resets) == (7, 4)
    nothing_left = Desktop(ends_after=0)
    assert recorded(tmp_path / "whole", nothing_left) == whole


@pytest.mark.parametrize(
    ("seen", "words", "asked"),
    [
        (element("button", "Save"), ("button", "Save"), '"Save"'),
        (element("button", "Close"), ("x", "Close", "button"), 'the "x"'),
        (element("entry", "abc"), ("text", "box", "input", "abc"), "textbox"),
        (element("password-text", ""), ("text", "box", "input"), "textbox"),
        (element("entry", "abc", height=52), ("textarea", "text", "abc"), "textarea"),
        (element("radio-button", "Xy", width=26, height=26), ("radio", "Xy"), "radio"),
        (element("check-box", "Xy", width=26, height=26), ("check", "box", "Xy"), "checkbox"),
        (element("page-tab", "Tab #2"), ("tab", "Tab", "#", "2"), "Tab #2"),
        (element("link", "Sit"), ("link", "Sit"), 'link "Sit"'),
    ],
)
def test_elements_are_named_as_drawn_things_are(seen: dict[str, Any], words: tuple[str, ...], asked: str) -> None:
    header, item = items_of([element("static", f"Click on the {seen['text']}", y=17, height=22), seen], FONTS)
    assert header.words == ("instruction",) and header.box[3] == HEADER
    assert item.words == words and asked in item.names
    left, top, right, bottom = item.box
    assert (left, top, bottom) == (160 - seen["width"] / 2, 200 - seen["height"] / 2, 200 + seen["height"] / 2)
    assert right >= 160 + seen["width"] / 2
    # The same names lead to a drawn thing of the same words.
    kinds = {one.words[0] for number in range(300) for name, one in askable(page(number)) if name == asked}
    assert not kinds or words[0] in kinds


def test_words_of_a_text_lie_beside_and_below_one_another() -> None:
    text = "one two three four five six"
    _, *one_line = items_of([element("static", text, height=22)], FONTS)
    assert [item.words for item in one_line] == [(word,) for word in text.split()]
    assert len({item.box[1] for item in one_line}) == 1
    assert [item.box[0] for item in one_line] == sorted(item.box[0] for item in one_line)
    _, *lines = items_of([element("static", text, height=68)], FONTS)
    assert len({item.box[1] for item in lines}) > 1 and all(item.box[2] <= 211 for item in lines)


def test_a_source_shows_screens_among_drawn_pages_and_none_before_words_lie_anywhere(tmp_path: Path) -> None:
    Image.new("RGB", (WIDTH, HEIGHT), "teal").save(tmp_path / "00000.png")
    (tmp_path / "screens.jsonl").write_text('{"elements": []}\n')
    source = Source(FONTS, Screens(tmp_path, FONTS))

    def num_screens(looseness: float) -> int:
        pages = [source.page(random.Random(seed), dense=True, looseness=looseness) for seed in range(60)]
        return sum(one.image.getpixel((1, 1)) == (0, 128, 128) for one in pages)

    assert num_screens(0.0) == 0 and 10 < num_screens(1.0) < 40
    with pytest.raises(FileNotFoundError, match="no recorded screens"):
        Screens(tmp_path / "elsewhere", FONTS)
    assert len(screens.FAMILIES) == 20
