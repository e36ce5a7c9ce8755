"""One episode, or two side by side, as a page that needs nothing else: pictures, texts, style and script are in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from computerrl.common.messages import ScreenshotRef
from computerrl.common.metrics import json_ready
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.common.vision.encoded import data_uri
from computerrl.launch.report.charts import PAGE_FOLDER
from computerrl.launch.watch.run_state import Record
from computerrl.launch.web.episodes import Episodes

STYLE = "style.css"
SCRIPTS = ("places.js", "episode.js")


def episode_page(run: RunFolder, episodes: Episodes, names: Sequence[str]) -> str:
    """The page as text. Raises `ConfigError` for an episode that is not there."""
    found = [episodes.get(name) for name in names]
    refs = {content_hash: ref for name in names for content_hash, ref in episodes.refs(name).items()}
    pictures = {content_hash: _picture(run, ref) for content_hash, ref in refs.items()}
    remark = f"run {run.folder.resolve().name}, {found[0].get('family', '')} #{found[0].get('seed', '')}"
    return make_page(" and ".join(names), remark, found, pictures)


def make_page(
    title: str, remark: str, episodes: Sequence[Record], pictures: Mapping[str, str], *, is_linked: bool = False
) -> str:
    """A page of ``episodes`` (as `Episodes.get` gives them). ``pictures``: content hash -> data URI, empty for one that cannot be
    read. ``is_linked``: it refers to style and scripts beside it, for a server whose pages may hold no script."""
    import jinja2

    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True)
    environment.filters.update(as_json=_as_json)
    return environment.get_template("share.html.j2").render(
        title=title,
        remark=remark,
        is_linked=is_linked,
        style=_file(STYLE),
        style_name=STYLE,
        scripts={name: _file(name) for name in SCRIPTS},
        data={"episodes": episodes, "pictures": pictures},
    )


def _as_json(tree: dict[str, Any]) -> str:
    """For a ``<script type="application/json">``: nothing in it ends that."""
    return json.dumps(json_ready(tree), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _file(name: str) -> str:
    return (PAGE_FOLDER / name).read_text(encoding="utf-8")


def _picture(run: RunFolder, ref: ScreenshotRef) -> str:
    """As a data URI; empty where it cannot be read."""
    from computerrl.env_server.client import read_screenshot

    try:
        return data_uri(read_screenshot(run.trajectories, ref))
    except (OSError, ValueError):
        return ""
