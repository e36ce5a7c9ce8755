"""Small folders of grounding data sets in their three published forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from PIL import Image

WIDTH, HEIGHT = 160, 120
"""Size in pixels of a picture that `save_picture` makes by default."""


def save_picture(file: Path, *, size: tuple[int, int] = (WIDTH, HEIGHT), mode: str = "RGB") -> Path:
    """A picture whose colour depends on its name; one with transparency is half transparent."""
    file.parent.mkdir(parents=True, exist_ok=True)
    colour = (sum(map(ord, file.stem)) % 256, 90, 200)
    image = Image.new("RGB", size, colour).convert(mode)
    if mode == "RGBA":
        image.putalpha(127)
    image.save(file)
    return file


def screenspot_v2(folder: Path, **more: list[dict[str, Any]]) -> Path:
    """Two entries on the desktop and one on a phone, and ``more`` by platform."""
    lists = {
        "desktop": [v2_entry("pc_a.png", [10, 20, 30, 40]), v2_entry("pc_a.png", [100, 5, 8, 8], data_type="icon")],
        "mobile": [v2_entry("mobile_b.png", [0, 0, 20, 20], data_source="ios")],
    }
    for name in ("pc_a.png", "mobile_b.png"):
        save_picture(folder / "screenspotv2_image" / name)
    for platform, entries in {**lists, **{key: lists.get(key, []) + value for key, value in more.items()}}.items():
        (folder / f"screenspot_{platform}_v2.json").write_text(json.dumps(entries))
    return folder


def v2_entry(picture: str, bbox: list[Any], **fields: Any) -> dict[str, Any]:
    """One annotation of ScreenSpot-v2."""
    entry = {
        "img_filename": picture,
        "bbox": bbox,
        "instruction": f"open {bbox} of {picture}",
        "data_type": "text",
        "data_source": "windows",
    }
    return {**entry, **fields}


def screenspot_pro(folder: Path, *more: dict[str, Any]) -> Path:
    """Two entries of one application, and ``more``."""
    entries = [pro_entry("cad_windows/one.png", [10, 20, 40, 60]), pro_entry("cad_windows/one.png", [150, 110, 159, 119])]
    save_picture(folder / "images" / "cad_windows" / "one.png")
    (folder / "annotations").mkdir(parents=True)
    (folder / "annotations" / "cad_windows.json").write_text(json.dumps([*entries, *more]))
    return folder


def pro_entry(picture: str, bbox: list[Any], **fields: Any) -> dict[str, Any]:
    """One annotation of ScreenSpot-Pro."""
    entry = {
        "img_filename": picture,
        "bbox": bbox,
        "instruction": f"draw a line at {bbox}",
        "ui_type": "icon",
        "application": "cad",
    }
    return {**entry, "platform": "windows", "img_size": [WIDTH, HEIGHT], "group": "CAD", "id": "cad_0", **fields}


def osworld_g(folder: Path, *more: dict[str, Any], name: str = "OSWorld-G_refined.json") -> Path:
    """A box, a triangle and a refusal, and ``more``."""
    entries = [
        osworld_entry("bbox", [10, 20, 30, 40], GUI_types=["Button", "Icon"]),
        osworld_entry("polygon", [0, 0, 100, 0, 0, 100], GUI_types=["Label"]),
        osworld_entry("refusal", [-1, -1, -1, -1], GUI_types=[]),
    ]
    save_picture(folder / "images" / "one.png", mode="RGBA")
    (folder / name).write_text(json.dumps([*entries, *more]))
    return folder


def osworld_entry(box_type: str, coordinates: list[Any], **fields: Any) -> dict[str, Any]:
    """One annotation of OSWorld-G."""
    entry = {"image_path": "one.png", "image_size": [WIDTH, HEIGHT], "instruction": f"find the {box_type}", "id": "x"}
    return {**entry, "box_type": box_type, "box_coordinates": coordinates, **fields}
