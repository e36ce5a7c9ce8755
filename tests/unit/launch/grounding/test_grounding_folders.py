"""Folders of grounding data sets: what is read from the three published forms, and what is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computerrl.common.errors import ConfigError
from computerrl.launch.grounding.entries import Region
from computerrl.launch.grounding.folders import MAX_PROBLEMS, read_dataset
from tests.unit.launch.grounding.grounding_folders import (
    HEIGHT,
    WIDTH,
    osworld_entry,
    osworld_g,
    pro_entry,
    screenspot_pro,
    screenspot_v2,
    v2_entry,
)


def test_screenspot_v2_boxes_have_a_size_and_files_name_the_platform(tmp_path: Path) -> None:
    dataset = read_dataset(screenspot_v2(tmp_path))
    assert dataset.name == "ScreenSpot-v2" and dataset.files == ("screenspot_desktop_v2.json", "screenspot_mobile_v2.json")
    first, icon, phone = dataset.entries
    assert first.key == "screenspot_desktop_v2.json:0" and first.picture == tmp_path / "screenspotv2_image" / "pc_a.png"
    assert first.region == Region.box(10, 20, 40, 60) and first.said_size is None
    assert icon.labels == {"type": ("icon",), "platform": ("desktop",), "source": ("windows",)}
    assert phone.labels == {"type": ("text",), "platform": ("mobile",), "source": ("ios",)}


def test_screenspot_pro_boxes_have_two_corners_and_pictures_a_size(tmp_path: Path) -> None:
    dataset = read_dataset(screenspot_pro(tmp_path))
    assert dataset.name == "ScreenSpot-Pro" and dataset.files == ("cad_windows.json",)
    first = dataset.entries[0]
    assert first.region == Region.box(10, 20, 40, 60) and first.said_size == (WIDTH, HEIGHT)
    assert first.labels == {"type": ("icon",), "platform": ("windows",), "application": ("cad",), "group": ("CAD",)}


def test_osworld_g_has_boxes_polygons_and_refusals_with_any_number_of_gui_types(tmp_path: Path) -> None:
    dataset = read_dataset(osworld_g(tmp_path))
    box, polygon, refusal = dataset.entries
    assert dataset.name == "OSWorld-G" and box.region == Region.box(10, 20, 40, 60)
    assert polygon.region == Region("polygon", ((0, 0), (100, 0), (0, 100))) and refusal.region == Region("refusal")
    assert [entry.labels["GUI type"] for entry in dataset.entries] == [("Button", "Icon"), ("Label",), ()]
    assert [entry.labels["region"] for entry in dataset.entries] == [("bbox",), ("polygon",), ("refusal",)]


def test_one_file_of_a_folder_is_a_data_set_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    v2, pro, both = (tmp_path / name for name in ("v2", "pro", "both"))
    screenspot_v2(v2)
    assert len(read_dataset(Path("v2/screenspot_mobile_v2.json")).entries) == 1
    screenspot_pro(pro)
    (found, *_) = read_dataset(pro / "annotations" / "cad_windows.json").entries
    assert found.picture.is_file()
    osworld_g(both)
    osworld_g(both, name="OSWorld-G.json")
    with pytest.raises(ConfigError, match=r"name one of them: --grounding .*OSWorld-G\.json"):
        read_dataset(both)
    assert read_dataset(both / "OSWorld-G.json").files == ("OSWorld-G.json",)


def test_digest_tells_annotations_apart(tmp_path: Path) -> None:
    first = read_dataset(screenspot_v2(tmp_path)).digest
    assert read_dataset(tmp_path).digest == first
    assert read_dataset(screenspot_v2(tmp_path, mobile=[v2_entry("pc_a.png", [0, 0, 1, 1])])).digest != first


V2, PRO, G = screenspot_v2, screenspot_pro, osworld_g


@pytest.mark.parametrize(
    ("make", "entry", "said"),
    [
        (V2, v2_entry("a.png", [1, 2, 3]), "bbox is [1, 2, 3], not a list of 4 numbers"),
        (V2, v2_entry("a.png", ["1", 2, 3, 4]), "not a list of 4 numbers"),
        (V2, v2_entry("a.png", [True, 2, 3, 4]), "not a list of 4 numbers"),
        (V2, v2_entry("a.png", [1, 2, 3, float("nan")]), "not a list of 4 numbers"),
        (V2, v2_entry("a.png", [10**400, 2, 3, 4]), "not a list of 4 numbers"),
        (V2, v2_entry("a.png", [1, 2, -3, 4]), "width -3"),
        (V2, v2_entry("a.png", [1, 2, 3, 4], data_type="widget"), "data_type is 'widget', not text or icon"),
        (V2, v2_entry("a.png", [1, 2, 3, 4], instruction=" "), "instruction is ' ', not a text"),
        (V2, v2_entry("a.png", [1, 2, 3, 4], instruction="\ud800"), "half a letter"),
        (V2, v2_entry("../a.png", [1, 2, 3, 4]), "leads out of the folder"),
        (V2, v2_entry("/etc/a.png", [1, 2, 3, 4]), "leads out of the folder"),
        (V2, {"img_filename": "a.png"}, "it has no instruction"),
        (V2, "text", "it is no mapping"),
        (PRO, pro_entry("a.png", [5, 5, 4, 9]), "ends before it begins"),
        (PRO, pro_entry("a.png", [1, 2, 3, 4], img_size=[0, 5]), "not a width and a height"),
        (PRO, pro_entry("a.png", [1, 2, 3, 4], img_size=[1.5, 5]), "not a width and a height"),
        (PRO, pro_entry("a.png", [1, 2, 3, 4], group=None), "group is None, not a text"),
        (G, osworld_entry("circle", [1, 2, 3]), "box_type is 'circle'"),
        (G, osworld_entry("polygon", [1, 2, 3, 4]), "three corners or more"),
        (G, osworld_entry("polygon", [1, 2, 3, 4, 5, 6, 7]), "three corners or more"),
        (G, osworld_entry("bbox", [1, 2, 3, 4], GUI_types="Button"), "GUI_types is no list"),
    ],
)
def test_annotation_that_is_malformed_is_named_with_its_file_and_place(
    tmp_path: Path, make: Callable[..., Path], entry: Any, said: str
) -> None:
    data = make(tmp_path, web=[entry]) if make is V2 else make(tmp_path, entry)
    with pytest.raises(ConfigError) as raised:
        read_dataset(data)
    (problem,) = raised.value.problems
    assert said in problem.reason and "entry " in problem.reason and ".json" in problem.reason and problem.next_step


def test_error_names_some_of_many_malformed_entries(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        read_dataset(screenspot_v2(tmp_path, web=[{}] * 100))
    assert len(raised.value.problems) == MAX_PROBLEMS


@given(tree=st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=4), lambda x: st.lists(x, max_size=4)))
def test_fields_of_any_value_are_taken_or_named(tmp_path_factory: pytest.TempPathFactory, tree: Any) -> None:
    folder = tmp_path_factory.mktemp("data")
    screenspot_v2(folder)
    for field in ("img_filename", "bbox", "instruction", "data_type", "data_source"):
        (folder / "screenspot_web_v2.json").write_text(json.dumps([{**v2_entry("pc_a.png", [1, 2, 3, 4]), field: tree}]))
        said = field
        try:
            read_dataset(folder)
        except ConfigError as error:
            said = str(error)
        assert field in said


def _two(folder: Path) -> None:
    screenspot_v2(folder)
    osworld_g(folder)


def _no_pictures(folder: Path) -> None:
    screenspot_v2(folder)
    (folder / "screenspotv2_image").rename(folder / "pictures")


def _two_pictures(folder: Path) -> None:
    screenspot_v2(folder)
    (folder / "images").mkdir()


def _lfs(folder: Path) -> None:
    screenspot_v2(folder)
    (folder / "screenspot_web_v2.json").write_text("version https://git-lfs.github.com/spec/v1\n")


def _mapping(folder: Path) -> None:
    screenspot_v2(folder)
    (folder / "screenspot_web_v2.json").write_text("{}")


def _empty(folder: Path) -> None:
    screenspot_v2(folder)
    for file in folder.glob("*.json"):
        file.write_text("[]")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: None, "holds no annotations of a known data set"),
        (lambda folder: folder.rmdir(), "there is no folder or file"),
        (_two, "holds annotations of ScreenSpot-v2 and OSWorld-G"),
        (_no_pictures, "has no folder of pictures"),
        (_two_pictures, "has two folders of pictures"),
        (_lfs, "is no JSON"),
        (_mapping, "holds no list of annotations"),
        (_empty, "have no entries"),
    ],
)
def test_folder_that_is_no_data_set_is_refused_with_the_next_step(
    tmp_path: Path, spoil: Callable[[Path], object], said: str
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    spoil(folder)
    with pytest.raises(ConfigError) as raised:
        read_dataset(folder)
    (problem,) = raised.value.problems
    assert problem.field == "--grounding" and said in problem.reason and problem.next_step


def test_file_of_another_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(ConfigError, match="no annotation file of a known data set"):
        read_dataset(tmp_path / "other.json")
