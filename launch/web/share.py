"""One episode, or two side by side, as a page that needs nothing else: pictures, texts, style and script are in it."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from computerrl.common.metrics import json_ready
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.launch.report.charts import PAGE_FOLDER
from computerrl.launch.web.episodes import Episodes


def episode_page(run: RunFolder, episodes: Episodes, names: Sequence[str]) -> str:
    """The page as text. Raises `ConfigError` for an episode that is not there."""
    import jinja2

    found = [episodes.get(name) for name in names]
    for name, episode in zip(names, found, strict=True):
        episode["pictures"] = [_picture(run, episodes, name, index) for index in (*range(len(episode["steps"])), -1)]
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True)
    environment.filters.update(as_json=_as_json)
    return environment.get_template("share.html.j2").render(
        title=" and ".join(names),
        remark=f"run {run.folder.resolve().name}, {found[0].get('family', '')} #{found[0].get('seed', '')}",
        style=_file("style.css"),
        script=_file("episode.js"),
        data={"episodes": found},
    )


def _as_json(tree: dict[str, Any]) -> str:
    """For a ``<script type="application/json">``: nothing in it ends that."""
    return json.dumps(json_ready(tree), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _file(name: str) -> str:
    return (PAGE_FOLDER / name).read_text(encoding="utf-8")


def _picture(run: RunFolder, episodes: Episodes, name: str, index: int) -> str:
    """As a data URI; empty where there is none, or it cannot be read."""
    from computerrl.env_server.client import read_screenshot

    ref: Any = episodes.ref(name, index)
    if ref is None:
        return ""
    try:
        data = read_screenshot(run.trajectories, ref)
    except (OSError, ValueError):
        return ""
    return f"data:{picture_type(data)};base64,{base64.b64encode(data).decode()}"


def picture_type(data: bytes) -> str:
    """MIME type of a stored screenshot."""
    return "image/png" if data.startswith(b"\x89PNG") else "image/jpeg" if data.startswith(b"\xff\xd8") else "image/webp"
