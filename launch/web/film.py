"""Episodes as an animated picture: each screen with the place at which the action pointed, and beside it the agent's text.

Chooses what is shown and draws it; `Episodes` reads what the run has stored.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from computerrl.common.errors import ConfigError, Problem
from computerrl.common.messages import ScreenshotRef
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.launch.report.film_strips import caption, complaint
from computerrl.launch.watch.run_state import Record

if TYPE_CHECKING:
    from PIL import Image

SCREEN = (800, 600)
"""Largest size of a screen in the film, in pixels."""
PANEL_WIDTH = 440
"""Width of the text beside it, in pixels."""
MARGIN = 24
SEEN_MS, ACTED_MS, ENDED_MS = 800, 1500, 2000
"""Durations of a screen before its action is shown, with its action, and of the last screen."""
MAX_EPISODES = 8
MAX_STEPS = 12
QUALITY = 80
"""Of WebP: writing stays sharp."""
BACKGROUND, TEXT, FAINT, GOOD, BAD = "#16181d", "#f2f3f5", "#9aa3af", "#58d68d", "#ff7b72"
_LINE_CHARS = 34
"""Characters of a line of the panel."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the panel."""

    text: str
    colour: str
    size: int = 20
    is_code: bool = False


@dataclass(frozen=True, slots=True)
class Scene:
    """One picture of the film."""

    screen: ScreenshotRef
    places: tuple[int, ...]
    head: tuple[Line, ...]
    """Family, player and task."""
    lines: tuple[Line, ...]
    """What was done so far."""
    duration_ms: int


def choose(rows: Sequence[Record]) -> list[str]:
    """Names of the episodes that a film of a whole run shows: of each family the newest success, of evaluations where there are
    any. ``rows`` as in `Episodes.rows`, oldest first. Raises `ConfigError` where there is none."""
    solved = [row for row in rows if row.get("success")]
    if not solved:
        step = "name one that failed: `computerrl replay RUN` lists all episodes"
        raise ConfigError([Problem("RUN", "no episode has succeeded", step)])
    evaluated = [row for row in solved if row.get("kind") == "evaluation"]
    newest = {row["family"]: str(row["trajectory_id"]) for row in evaluated or solved}
    return [name for _, name in sorted(newest.items())][:MAX_EPISODES]


def scenes(episode: Record) -> Iterator[Scene]:
    """The pictures of ``episode``, as `Episodes.get` gives it; screens that were not stored are left out."""
    title = Line(f"{episode.get('family', '')}  ({_player(episode)})", FAINT, 17)
    head = (title, *_wrapped(str(episode.get("instruction", "")), TEXT, 24), Line("", TEXT))
    done: list[Line] = []
    steps = list(episode.get("steps") or ())[:MAX_STEPS]
    for number, step in enumerate(steps, start=1):
        ref = _ref(step.get("screenshot"))
        words = [Line(f"step {number}", FAINT, 17), *_wrapped(caption(str(step.get("action_text", ""))), TEXT, 20, is_code=True)]
        words += _wrapped(complaint(step), BAD, 17)
        if ref is not None:
            yield Scene(ref, (), head, tuple(done), SEEN_MS)
            yield Scene(ref, tuple(step.get("places") or ()), head, (*done, *words), ACTED_MS)
        done += words
    last = _ref(episode.get("final_screenshot")) or (_ref(steps[-1].get("screenshot")) if steps else None)
    if last is not None:
        verdict = Line("solved", GOOD, 24) if episode.get("success") else Line("not solved", BAD, 24)
        yield Scene(last, (), head, (*done, Line("", TEXT), verdict), ENDED_MS)


def _player(episode: Record) -> str:
    """Who acts: a policy version, or the script of a demonstration."""
    version = episode.get("max_policy_version")
    return "demonstration" if version is None or version < 0 else f"{episode.get('kind')}, policy version {version}"


def _wrapped(text: str, colour: str, size: int, *, is_code: bool = False) -> list[Line]:
    width = _LINE_CHARS * 20 // max(20, size)
    return [Line(line, colour, size, is_code) for line in textwrap.wrap(text, width)]


def _ref(tree: dict[str, Any] | None) -> ScreenshotRef | None:
    return ScreenshotRef(**tree) if tree else None


def make_film(run: RunFolder, episodes: Sequence[Record]) -> bytes:
    """An animated WebP of ``episodes``, without end. Raises `ConfigError` where no screen of theirs can be read."""
    shown = [scene for episode in episodes for scene in scenes(episode)]
    found = [(picture, scene.duration_ms) for scene in shown if (picture := _drawn(run, scene)) is not None]
    if not found:
        names = ", ".join(str(episode["trajectory_id"]) for episode in episodes) or "no episode"
        step = "choose an episode whose desktops take screenshots (desktop.screenshot_format)"
        raise ConfigError([Problem("EPISODE", f"there is no screen to show ({names:.200})", step)])
    pictures, durations = zip(*found, strict=True)
    buffer = io.BytesIO()
    pictures[0].save(
        buffer,
        format="WEBP",
        save_all=True,
        append_images=pictures[1:],
        duration=list(durations),
        loop=0,
        quality=QUALITY,
        method=4,
    )
    return buffer.getvalue()


def _drawn(run: RunFolder, scene: Scene) -> Image.Image | None:
    """None where the screen cannot be read: an unfinished segment of a killed run."""
    from PIL import Image

    from computerrl.common.vision.encoded import mark_places
    from computerrl.env_server.client import read_screenshot

    picture = Image.new("RGB", (SCREEN[0] + PANEL_WIDTH, SCREEN[1]), BACKGROUND)
    try:
        with Image.open(io.BytesIO(read_screenshot(run.trajectories, scene.screen))) as stored:
            screen = stored.convert("RGB")
    except (OSError, ValueError):
        return None
    width, height = screen.size
    screen.thumbnail(SCREEN)
    mark_places(screen, scene.places, width=width, height=height)
    picture.paste(screen, ((SCREEN[0] - screen.width) // 2, (SCREEN[1] - screen.height) // 2))
    _write(picture, scene)
    return picture


def _write(picture: Image.Image, scene: Scene) -> None:
    """The panel's text. Where it does not fit, the oldest lines after the head are left out."""
    from matplotlib import get_data_path
    from PIL import ImageDraw, ImageFont

    room, lines = SCREEN[1] - 2 * MARGIN, list(scene.lines)
    while lines and sum(map(_height, (*scene.head, *lines))) > room:
        del lines[0]
    draw, place = ImageDraw.Draw(picture), MARGIN
    for line in (*scene.head, *lines):
        name = "DejaVuSansMono" if line.is_code else "DejaVuSans"
        font = ImageFont.truetype(f"{get_data_path()}/fonts/ttf/{name}.ttf", line.size)
        draw.text((SCREEN[0] + MARGIN, place), line.text, fill=line.colour, font=font)
        place += _height(line)


def _height(line: Line) -> int:
    return line.size * 3 // 2
