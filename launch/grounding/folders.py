"""Folders of grounding data sets as they are published: lists of annotations in JSON beside a folder of pictures.

    ScreenSpot-v2    screenspot_*_v2.json, pictures in screenspotv2_image/         bbox [x, y, width, height]
    ScreenSpot-Pro   annotations/*.json, pictures in images/                       bbox [left, top, right, bottom]
    OSWorld-G        OSWorld-G.json, OSWorld-G_refined.json, pictures in images/   bbox [x, y, width, height], polygon, refusal

Reads annotations only; pictures are looked at by `launch.grounding.pictures`. Nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from computerrl.common.errors import ConfigError, Problem
from computerrl.launch.grounding.entries import Dataset, Entry, Region

FIELD = "--grounding"
MAX_PROBLEMS = 8
"""Maximum number of malformed entries that an error names."""
MAX_PLACE = 1_000_000
"""Largest magnitude of a coordinate in pixels. No picture is as large."""

Tree = Mapping[str, Any]
Labels = dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _Format:
    """A published form of a folder."""

    name: str
    pattern: str
    """Annotation files, below the data set's folder."""
    picture_folders: tuple[str, ...]
    """Names that the folder of the pictures may have."""
    picture_field: str
    read: Callable[[Tree, str], tuple[Region, tuple[int, int] | None, Labels]]
    """(annotation, name of its file without ending) -> region, size by the annotation, labels. Raises `_Malformed`."""
    is_one_file: bool = False
    """Whether each annotation file is a data set of its own: the same questions in other words."""


class _Malformed(Exception):
    """An annotation that is none, and why."""


def read_dataset(source: Path) -> Dataset:
    """The data set in folder ``source``, or the part of one in annotation file ``source``.

    Raises `ConfigError` for another folder, for one without pictures, and for annotations that are malformed."""
    if source.is_file():
        form, folder, files = _of_file(source)
    elif source.is_dir():
        form, folder, files = _of_folder(source)
    else:
        raise _problem(f"there is no folder or file {str(source)!r}", "give the folder of a data set; nothing is downloaded")
    pictures = _picture_folder(folder, form)
    digest = hashlib.sha256()
    problems: list[Problem] = []
    entries: list[Entry] = []
    for file in files:
        data = _read_file(file)
        digest.update(f"{file.name}\0{len(data)}\0".encode() + data)
        for number, tree in enumerate(_read_list(file, data)):
            key = f"{file.name}:{number}"
            try:
                entries.append(_entry(tree, form, key=key, stem=file.stem, pictures=pictures))
            except _Malformed as error:
                problems.append(Problem(FIELD, f"entry {number} of {str(file)!r}: {error}", _published(form)))
    if problems:
        raise ConfigError(problems[:MAX_PROBLEMS])
    if not entries:
        raise _problem(f"the annotations in {str(source)!r} have no entries", _published(form))
    return Dataset(form.name, tuple(file.name for file in files), digest.hexdigest(), tuple(entries))


def _published(form: _Format) -> str:
    return f"use {form.name} as it is published"


def _problem(reason: str, next_step: str) -> ConfigError:
    return ConfigError([Problem(FIELD, reason, next_step)])


# --- files -----------------------------------------------------------------------------------------------------------


def _of_folder(folder: Path) -> tuple[_Format, Path, list[Path]]:
    found = [(form, files) for form in FORMATS if (files := sorted(folder.glob(form.pattern)))]
    if not found:
        known = ", ".join(f"{form.name} ({form.pattern})" for form in FORMATS)
        raise _problem(f"{str(folder)!r} holds no annotations of a known data set", f"give a folder of {known}")
    if len(found) > 1:
        names = " and ".join(form.name for form, _ in found)
        raise _problem(f"{str(folder)!r} holds annotations of {names}", "give each data set a folder of its own")
    ((form, files),) = found
    if form.is_one_file and len(files) > 1:
        step = f"name one of them: {FIELD} {files[0]}"
        raise _problem(f"{str(folder)!r} has the same entries in {' and in '.join(file.name for file in files)}", step)
    return form, folder, files


def _of_file(file: Path) -> tuple[_Format, Path, list[Path]]:
    for form in FORMATS:
        depth = len(PurePosixPath(form.pattern).parts)
        if file.absolute().match(form.pattern):
            return form, file.absolute().parents[depth - 1], [file]
    known = ", ".join(f"{form.pattern} of {form.name}" for form in FORMATS)
    raise _problem(f"{str(file)!r} is no annotation file of a known data set", f"give one of {known}, or the folder")


def _picture_folder(folder: Path, form: _Format) -> Path:
    there = [folder / name for name in form.picture_folders if (folder / name).is_dir()]
    if len(there) == 1:
        return there[0]
    names = " or ".join(f"{name}/" for name in form.picture_folders)
    if there:
        raise _problem(f"{str(folder)!r} has two folders of pictures: {names}", "remove one of them")
    raise _problem(f"{str(folder)!r} has no folder of pictures {names}", "unpack the pictures of the data set there")


def _read_file(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise _problem(f"{str(file)!r} cannot be read: {error.strerror}", "get permission to read it") from None


def _read_list(file: Path, data: bytes) -> list[Any]:
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError) as error:
        reason = f"{str(file)!r} is no JSON: {error}"
        raise _problem(reason, "copy the file again; a file of Git LFS has to be fetched first") from None
    if not isinstance(tree, list):
        raise _problem(f"{str(file)!r} holds no list of annotations", "copy the file again")
    return tree


# --- annotations -----------------------------------------------------------------------------------------------------


def _entry(tree: Any, form: _Format, *, key: str, stem: str, pictures: Path) -> Entry:
    if not isinstance(tree, dict):
        raise _Malformed("it is no mapping")
    name, instruction = PurePosixPath(_text(tree, form.picture_field)), _text(tree, "instruction")
    if name.is_absolute() or ".." in name.parts or "\0" in str(name):
        raise _Malformed(f"{form.picture_field} {str(name)!r:.200} leads out of the folder of pictures")
    region, said_size, labels = form.read(tree, stem)
    return Entry(key, pictures / name, instruction, region, said_size, labels)


def _screenspot_v2(tree: Tree, stem: str) -> tuple[Region, None, Labels]:
    platform = stem.removeprefix("screenspot_").removesuffix("_v2")
    labels: Labels = {"type": (_type(tree, "data_type"),), "platform": (platform,), "source": (_text(tree, "data_source"),)}
    return _sized_box(_numbers(tree, "bbox", 4), "bbox"), None, labels


def _screenspot_pro(tree: Tree, _stem: str) -> tuple[Region, tuple[int, int], Labels]:
    left, top, right, bottom = _numbers(tree, "bbox", 4)
    if right < left or bottom < top:
        raise _Malformed(f"bbox [{left:g}, {top:g}, {right:g}, {bottom:g}] ends before it begins")
    labels: Labels = {name: (_text(tree, name),) for name in ("platform", "application", "group")}
    return Region.box(left, top, right, bottom), _size(tree, "img_size"), {"type": (_type(tree, "ui_type"),), **labels}


def _osworld_g(tree: Tree, _stem: str) -> tuple[Region, tuple[int, int], Labels]:
    kind = _text(tree, "box_type")
    if kind == "bbox":
        region = _sized_box(_numbers(tree, "box_coordinates", 4), "box_coordinates")
    elif kind == "polygon":
        numbers = _numbers(tree, "box_coordinates", None)
        if len(numbers) < 6 or len(numbers) % 2:
            raise _Malformed(f"box_coordinates of a polygon are x, y of three corners or more, not {len(numbers)} numbers")
        region = Region("polygon", tuple(zip(numbers[::2], numbers[1::2], strict=True)))
    elif kind == "refusal":
        region = Region("refusal")
    else:
        raise _Malformed(f"box_type is {kind!r:.80}, not bbox, polygon or refusal")
    types = tree.get("GUI_types") or []  # Some refusals have none.
    if not isinstance(types, list) or not all(isinstance(one, str) for one in types):
        raise _Malformed("GUI_types is no list of texts")
    return region, _size(tree, "image_size"), {"region": (kind,), "GUI type": tuple(dict.fromkeys(types))}


def _sized_box(numbers: Sequence[float], field: str) -> Region:
    left, top, width, height = numbers
    if width < 0 or height < 0:
        raise _Malformed(f"{field} has width {width:g} and height {height:g}")
    return Region.box(left, top, left + width, top + height)


def _text(tree: Tree, field: str) -> str:
    value = tree.get(field)
    if not isinstance(value, str) or not value.strip():
        raise _Malformed(f"{field} is {value!r:.80}, not a text" if field in tree else f"it has no {field}")
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise _Malformed(f"{field} is {value!a:.80}, with half a letter of UTF-16")
    return value


def _type(tree: Tree, field: str) -> str:
    value = _text(tree, field)
    if value not in ("text", "icon"):
        raise _Malformed(f"{field} is {value!r:.80}, not text or icon")
    return value


def _numbers(tree: Tree, field: str, number: int | None) -> list[float]:
    values = tree.get(field)
    if not isinstance(values, list) or not all(map(_is_place, values)) or number not in (None, len(values)):
        wanted = "a list of numbers" if number is None else f"a list of {number} numbers"
        raise _Malformed(f"{field} is {values!r:.80}, not {wanted}" if field in tree else f"it has no {field}")
    return values


def _is_place(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_PLACE  # False for NaN, too.


def _size(tree: Tree, field: str) -> tuple[int, int]:
    width, height = _numbers(tree, field, 2)
    if width < 1 or height < 1 or width != int(width) or height != int(height):
        raise _Malformed(f"{field} is [{width:g}, {height:g}], not a width and a height in pixels")
    return int(width), int(height)


FORMATS = (
    _Format("ScreenSpot-v2", "screenspot_*_v2.json", ("screenspotv2_image", "images"), "img_filename", _screenspot_v2),
    _Format("ScreenSpot-Pro", "annotations/*.json", ("images",), "img_filename", _screenspot_pro),
    _Format("OSWorld-G", "OSWorld-G*.json", ("images",), "image_path", _osworld_g, is_one_file=True),
)
"""Published forms of folders. A folder has the annotations of one of them."""
