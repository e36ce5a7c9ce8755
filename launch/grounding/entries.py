"""Entries of a grounding data set: a picture, an instruction, and the region that a right answer points into. Pure.

Places are pixels of the picture, x from its left edge and y from its top. Edges and corners of a region belong to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Point = tuple[float, float]

RegionKind = Literal["box", "polygon", "refusal"]


@dataclass(frozen=True, slots=True)
class Region:
    """Where a right answer points."""

    kind: RegionKind
    """`refusal`: nothing in the picture fits the instruction, and a right answer is the format's `fail()`."""
    corners: tuple[Point, ...] = ()
    """Corners in order around the region; of a box its four. None for a refusal."""

    @classmethod
    def box(cls, left: float, top: float, right: float, bottom: float) -> Region:
        """A box with these edges."""
        return cls("box", ((left, top), (right, top), (right, bottom), (left, bottom)))

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom edge of a region with corners."""
        xs, ys = [x for x, _ in self.corners], [y for _, y in self.corners]
        return min(xs), min(ys), max(xs), max(ys)

    def holds(self, x: float, y: float) -> bool:
        """Whether the point lies in the region or on its edge."""
        if not self.corners:
            return False
        left, top, right, bottom = self.bounds
        if not (left <= x <= right and top <= y <= bottom):
            return False
        return self.kind == "box" or _in_polygon(self.corners, x, y)

    def is_outside(self, width: int, height: int) -> bool:
        """Whether no pixel of a picture of ``width`` x ``height`` pixels can be in the region's bounds."""
        if not self.corners:
            return False
        left, top, right, bottom = self.bounds
        return right < 0 or bottom < 0 or left > width - 1 or top > height - 1


def _in_polygon(corners: Sequence[Point], x: float, y: float) -> bool:
    """Even-odd rule: a ray to the right crosses the outline an odd number of times. Points on the outline are inside."""
    is_inside = False
    for (x1, y1), (x2, y2) in zip(corners, (*corners[1:], corners[0]), strict=True):
        across = (x2 - x1) * (y - y1) - (y2 - y1) * (x - x1)
        if across == 0 and min(x1, x2) <= x <= max(x1, x2) and min(y1, y2) <= y <= max(y1, y2):
            return True
        if (y1 > y) != (y2 > y) and x < x1 + (y - y1) * (x2 - x1) / (y2 - y1):
            is_inside = not is_inside
    return is_inside


@dataclass(frozen=True, slots=True)
class Entry:
    """One question of a data set."""

    key: str
    """Annotation file and place in its list, counted from 0; unique in the data set."""
    picture: Path
    """File of the picture, which may be missing."""
    instruction: str
    region: Region
    said_size: tuple[int, int] | None
    """Width and height of the picture in pixels by the annotation; None: it has none."""
    labels: Mapping[str, tuple[str, ...]]
    """Kind of figure (`type`, `platform`, ...) -> values of this entry; an entry may have several GUI types, or none."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """All entries of a data set, in the order of its files."""

    name: str
    """`ScreenSpot-v2`, `ScreenSpot-Pro` or `OSWorld-G`."""
    files: tuple[str, ...]
    """Names of the annotation files that were read."""
    digest: str
    """SHA-256 of the annotation files, as hexadecimal digits."""
    entries: tuple[Entry, ...]


LeftOutReason = Literal[
    "picture_missing", "picture_unreadable", "picture_mismatch", "picture_refused", "box_outside", "request_refused"
]
"""Reason why an entry was not played. `picture_missing`: no file. `picture_unreadable`: not a whole PNG, JPEG or WebP file.
`picture_mismatch`: another size than the annotation has. `picture_refused`: a size that the model does not take. `box_outside`:
the region lies beside the picture. `request_refused`: the server refused the request."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An entry that was not played."""

    key: str
    reason: LeftOutReason
    detail: str
    """File and figures, or the server's words."""
