"""Regions, outcomes and scores of grounding evaluations, and the pictures that prompts and the page show."""

from __future__ import annotations

import io
import itertools
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from computerrl.common.errors import PictureError
from computerrl.launch.grounding.entries import Entry, LeftOut, Region
from computerrl.launch.grounding.figures import Answered, grounding_figures, table_of
from computerrl.launch.grounding.page import MAX_SHOWN, evenly, make_page, outline
from computerrl.launch.grounding.pictures import MAX_KEPT, Pictures, check_pictures
from computerrl.launch.report.evaluation_figures import wilson_interval
from tests.unit.launch.grounding.grounding_folders import save_picture

PLACES = st.integers(-5, 25)
BOX, REFUSAL = Region.box(10, 10, 20, 20), Region("refusal")


def entry(region: Region, *, key: str = "a.json:0", picture: Path = Path("none.png"), **labels: tuple[str, ...]) -> Entry:
    return Entry(key, picture, "open it", region, None, labels)


def answered(one: Entry, kind: str, point: tuple[int, int] | None = None) -> Answered:
    return Answered(one, kind, f"<i>{kind}</i>", point, "<u>why</u>")


@given(x=PLACES, y=PLACES, left=PLACES, top=PLACES, width=st.integers(0, 9), height=st.integers(0, 9))
def test_box_holds_its_pixels_and_its_edges(x: int, y: int, left: int, top: int, width: int, height: int) -> None:
    right, bottom = left + width, top + height
    inside = left <= x <= right and top <= y <= bottom
    assert Region.box(left, top, right, bottom).holds(x, y) is inside
    if width and height:
        assert Region("polygon", Region.box(left, top, right, bottom).corners).holds(x, y) is inside


@given(
    corners=st.lists(st.tuples(PLACES, PLACES), min_size=3, max_size=3, unique=True),
    weights=st.tuples(*[st.integers(0, 8)] * 3).filter(any),
    turn=st.booleans(),
)
def test_triangle_holds_every_mean_of_its_corners_whichever_way_round(
    corners: list[tuple[int, int]], weights: tuple[int, int, int], turn: bool
) -> None:
    region = Region("polygon", tuple(corners[::-1] if turn else corners))
    total = sum(weights)
    # On a grid of the sums of the weights every number is whole, and so nothing is rounded.
    x, y = (sum(w * corner[axis] for w, corner in zip(weights, corners, strict=True)) for axis in (0, 1))
    scaled = Region("polygon", tuple((total * cx, total * cy) for cx, cy in region.corners))
    assert scaled.holds(x, y)


def test_polygon_with_a_notch_holds_no_point_of_the_notch() -> None:
    region = Region("polygon", ((0, 0), (30, 0), (30, 30), (20, 30), (20, 10), (10, 10), (10, 30), (0, 30)))
    assert region.holds(5, 25) and region.holds(25, 25) and region.holds(15, 5) and region.holds(15, 10)
    assert not region.holds(15, 20) and not region.holds(31, 5)


@pytest.mark.parametrize(
    ("region", "is_outside"),
    [
        (Region.box(0, 0, 9, 9), False),
        (Region.box(95, 45, 140, 80), False),
        (Region.box(-9, -9, 0, 0), False),
        (Region.box(99, 49, 99, 49), False),
        (Region.box(100, 0, 110, 9), True),
        (Region.box(0, 50, 9, 59), True),
        (Region.box(-9, 0, -1, 9), True),
        (REFUSAL, False),
    ],
)
def test_region_is_outside_where_no_pixel_of_the_picture_can_be_in_it(region: Region, is_outside: bool) -> None:
    assert region.is_outside(100, 50) is is_outside
    assert is_outside or not region.corners or any(region.holds(x, y) for x in range(100) for y in range(50))


@pytest.mark.parametrize(
    ("region", "kind", "point", "outcome"),
    [
        (BOX, "point", (10, 20), "hit"),
        (BOX, "point", (9, 20), "beside"),
        (BOX, "fail", None, "refused"),
        (BOX, "other_action", None, "other_action"),
        (BOX, "no_action", None, "no_action"),
        (REFUSAL, "fail", None, "hit"),
        (REFUSAL, "point", (0, 0), "pointed"),
        (REFUSAL, "other_action", None, "other_action"),
        (REFUSAL, "no_action", None, "no_action"),
    ],
)
def test_outcome_of_an_answer(region: Region, kind: str, point: tuple[int, int] | None, outcome: str) -> None:
    assert answered(entry(region), kind, point).outcome == outcome


@given(hits=st.lists(st.tuples(st.booleans(), st.sampled_from("abc")), max_size=40))
def test_scores_are_shares_with_wilson_s_interval_and_kinds_add_up(hits: list[tuple[bool, str]]) -> None:
    answers = [answered(entry(BOX, type=(value,)), "point", (15, 15) if is_hit else (0, 0)) for is_hit, value in hits]
    figures = grounding_figures(answers, [])
    whole, values = figures["all"], figures["kinds"].get("type", {})
    assert whole["num_entries"] == len(hits) == sum(score["num_entries"] for score in values.values())
    assert whole["num_hits"] == figures["outcomes"]["hit"] == sum(score["num_hits"] for score in values.values())
    for score in (whole, *values.values()):
        mean = score["num_hits"] / score["num_entries"] if score["num_entries"] else None
        assert score["mean"] == mean
        assert (score["low"], score["high"]) == wilson_interval(mean or 0.0, score["num_entries"])
    assert sum(figures["outcomes"].values()) == len(hits) and table_of(figures)


def test_texts_of_others_cannot_break_the_page_or_steer_a_terminal(tmp_path: Path) -> None:
    picture = save_picture(tmp_path / "one.png")
    evil = "\x1b[2J<script>alert(1)</script>"
    answers = [answered(entry(BOX, key=evil, picture=picture, **{"GUI type": (evil,)}), "point", (0, 0))]
    figures = grounding_figures(answers, [LeftOut(evil, "box_outside", evil)])
    assert "\x1b" not in table_of(figures)
    dataset = {"name": evil, "files": [evil], "num_entries": 2}
    page = make_page({"name": evil, "model": evil, "endpoint": evil, "temperature": 0, "dataset": dataset, **figures}, answers)
    assert "<script" not in page and "<i>" not in page and "<u>" not in page and "&lt;i&gt;point" in page


def test_page_tells_where_a_picture_has_gone() -> None:
    answers = [answered(entry(BOX), "no_action")]
    figures = {**grounding_figures(answers, []), "name": "x", "dataset": {"files": []}}
    assert "cannot be read any more" in make_page(figures, answers)


def test_page_and_table_without_any_answer_tell_what_was_left_out() -> None:
    figures = {**grounding_figures([], [LeftOut("a.json:0", "picture_unreadable", "cut")]), "name": "x", "dataset": {"files": []}}
    assert "picture unreadable" in make_page(figures, []) and "1 picture_unreadable" in table_of(figures)


@given(number=st.integers(0, 400))
def test_wrong_answers_on_the_page_are_evenly_spread(number: int) -> None:
    items = [answered(entry(BOX, key=str(place)), "fail") for place in range(number)]
    shown = [int(one.entry.key) for one in evenly(items, MAX_SHOWN)]
    assert len(shown) == min(number, MAX_SHOWN) and shown == sorted(set(shown))
    gaps = [later - earlier for earlier, later in itertools.pairwise(shown)]
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_outline_goes_around_the_region_at_the_scale_of_the_image() -> None:
    image = Image.new("RGB", (100, 50))
    outline(image, Region.box(200, 100, 600, 300), width=1000, height=500)
    assert image.getpixel((20, 20)) == image.getpixel((60, 25)) == (47, 125, 79)
    assert image.getpixel((40, 20)) == (0, 0, 0) == image.getpixel((90, 45))


# --- pictures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mode"), [("a.png", "RGB"), ("a.png", "RGBA"), ("a.png", "P"), ("a.png", "L"), ("a.webp", "RGBA")]
)
def test_prompts_show_the_picture_in_rgb_and_a_plain_file_as_it_is(tmp_path: Path, name: str, mode: str) -> None:
    file = save_picture(tmp_path / name, mode=mode)
    pictures = Pictures()
    ref = pictures.ref(file)
    data = pictures.read(ref)
    with Image.open(io.BytesIO(data)) as shown, Image.open(file) as stored:
        assert shown.mode == "RGB" and shown.size == stored.size == (ref.width, ref.height)
        assert shown.tobytes() == stored.convert("RGB").tobytes()
    assert (data == file.read_bytes()) is (mode == "RGB") and ref.num_bytes == len(data)


def test_pictures_that_are_no_longer_kept_are_read_again(tmp_path: Path) -> None:
    pictures = Pictures()
    files = [save_picture(tmp_path / f"{number}.png", size=(8 + number, 8)) for number in range(2 * MAX_KEPT)]
    refs = [pictures.ref(file) for file in files]
    assert [pictures.read(ref) for ref in refs] == [file.read_bytes() for file in files]


def test_picture_that_is_cut_at_any_place_is_no_picture(tmp_path: Path) -> None:
    whole = save_picture(tmp_path / "a.png", size=(64, 64)).read_bytes()
    for share in (0.0, 0.1, 0.5, 0.7):
        (tmp_path / "cut.png").write_bytes(whole[: math.floor(share * len(whole))])
        with pytest.raises(PictureError, match="cannot be read"):
            Pictures().ref(tmp_path / "cut.png")


def test_pictures_are_held_to_their_annotations(tmp_path: Path) -> None:
    file = save_picture(tmp_path / "a.png", size=(40, 30))
    (tmp_path / "b.png").mkdir()
    entries = [
        Entry("fits", file, "x", Region.box(30, 20, 99, 99), (40, 30), {}),
        Entry("other size", file, "x", BOX, (30, 40), {}),
        Entry("beside", file, "x", Region.box(50, 0, 60, 9), None, {}),
        Entry("missing", tmp_path / "none.png", "x", BOX, None, {}),
        Entry("missing too", tmp_path / "none.png", "x", BOX, None, {}),
        Entry("folder", tmp_path / "b.png", "x", BOX, None, {}),
    ]
    fitting, left_out = check_pictures(entries)
    assert [(one.key, size) for one, size in fitting] == [("fits", (40, 30))]
    assert {one.key: one.reason for one in left_out} == {
        "other size": "picture_mismatch",
        "beside": "box_outside",
        "missing": "picture_missing",
        "missing too": "picture_missing",
        "folder": "picture_unreadable",
    }
