"""The pages of a run over HTTP. Access is decided by `common.pages`, the contents come from the other files of this folder.

state.json once a second  curves.json when there are new records  thumb/…, shot/…  episodes.json, episode.json  POST control/…
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from computerrl.common import pages
from computerrl.common.errors import ComputerRLError
from computerrl.common.messages import DesktopView, ScreenshotRef
from computerrl.common.metrics import json_ready
from computerrl.common.run_files.run_folder import PROCESSES_FILE, RunFolder
from computerrl.common.vision.encoded import image_type
from computerrl.launch.plan.run_names import read_resolved
from computerrl.launch.report.charts import PAGE_FOLDER
from computerrl.launch.report.report_data import ActiveTime, Attempt
from computerrl.launch.report.write import PAGE_FILE, last_moment, now_of, read_attempts, report_of
from computerrl.launch.watch.follow import RunWatch
from computerrl.launch.watch.run_state import phase_title
from computerrl.launch.web import controls, snapshot
from computerrl.launch.web.desktops import LOOK_EVERY_S, DesktopWatch, Place, Thumbnails
from computerrl.launch.web.episodes import Episodes, Wanted
from computerrl.launch.web.share import episode_page

if TYPE_CHECKING:
    from computerrl.launch.watch.run_state import RunState

_REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
"""Content-Security-Policy of the report: its styles and pictures are in it, and it has no script."""
_FOREVER = {"Cache-Control": "private, max-age=31536000, immutable"}
"""Headers of pictures, which are named by their content."""


class Pictures:
    """Stored screenshots of one run as HTTP responses."""

    def __init__(self, folder: Path) -> None:
        """``folder``: screenshot store of the run."""
        self._folder = folder
        self._thumbnails = Thumbnails(folder)
        # A thread of its own: making thumbnails pauses between two, and no other request should wait for that.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pictures")

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def respond(self, ref: ScreenshotRef | None, *, small: bool) -> web.Response:
        """The picture of ``ref``, as a thumbnail if ``small``; 404 when there is none."""
        if ref is None:
            raise web.HTTPNotFound(text="no such picture")
        try:
            if small:
                data = await asyncio.get_running_loop().run_in_executor(self._thread, self._thumbnails.get, ref)
            else:
                data = await asyncio.to_thread(self._whole, ref)
        except (OSError, ValueError) as error:
            raise web.HTTPNotFound(text=f"the picture cannot be read: {error}") from None
        return web.Response(body=data, content_type=image_type(data), headers=_FOREVER)

    def _whole(self, ref: ScreenshotRef) -> bytes:
        from computerrl.env_server.client import read_screenshot

        return read_screenshot(self._folder, ref)


class RunPages:
    """The pages of one run. Everything, the constructor included, is called in one event loop."""

    def __init__(self, folder: Path, *, goes_with_run: bool = False) -> None:
        """``goes_with_run``: this server ends when the run does."""
        self.run = RunFolder(folder)
        self._goes_with_run = goes_with_run
        self._ended_tiles: list[dict[str, Any]] | None = None
        self.config = read_resolved(folder)
        self._watch = RunWatch(self.run)
        self._desktops = DesktopWatch(self.run)
        self._views: dict[Place, DesktopView] = {}
        self._episodes = Episodes(self.run, model=self.config["model"]["name"])
        self._pictures = Pictures(self.run.trajectories)
        self._state_made = 0.0
        self._state = b"{}"
        self._looking: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Start watching the desktops."""
        self._looking = asyncio.create_task(self._look())

    async def close(self) -> None:
        """End everything."""
        if self._looking is not None:
            self._looking.cancel()
        self._pictures.close()
        await asyncio.to_thread(self._watch.close)
        self._desktops.close()

    async def _look(self) -> None:
        while True:
            self._views = await asyncio.to_thread(self._desktops.look, self._watch.refresh().status)
            await asyncio.sleep(LOOK_EVERY_S)

    # --- responses

    async def state(self, _request: web.Request) -> web.Response:
        """Everything but the curves; made at most once a second for all pages together."""
        if time.monotonic() - self._state_made > LOOK_EVERY_S / 2:
            self._state = _dumps(self._snapshot()).encode()
            self._state_made = time.monotonic()
        return web.Response(body=self._state, content_type="application/json")

    def _snapshot(self) -> dict[str, Any]:
        state = self._watch.refresh()
        folder, max_age = self.run.folder, self._max_age
        ended = self._ended()
        is_live = state.status is not None and state.summary is None and ended is None
        about = {
            "name": folder.resolve().name,
            "report": str(folder.resolve() / PAGE_FILE),
            "phase": phase_title(state.phase),
            "reason": state.phase_reason,
            "note": state.learner_note(),
            "is_live": is_live,
            "is_ended": ended is not None,
            "goes_with_run": self._goes_with_run,
            "is_paused": bool(state.status is not None and state.status.gauges.get("paused")),
            "num_records": _num_records(state),
        }
        if ended is not None:
            if self._ended_tiles is None:
                self._ended_tiles = snapshot.ended_tiles(report_of(folder))
            has_report = (folder / PAGE_FILE).is_file()
            return {**about, "ended": snapshot.ended_text(ended), "has_report": has_report, "tiles": self._ended_tiles}
        self._ended_tiles = None
        return {
            **about,
            "tiles": snapshot.tiles(state, max_age=max_age),
            "desktops": snapshot.desktop_rows(self._views),
            "processes": snapshot.process_rows(state.status, _supervised(self.run.logs)),
            "flow": snapshot.flow(state),
            "controls": controls.available(folder, is_live=is_live, phase=state.phase),
            "pressed": controls.pressed(folder),
        }

    def _ended(self) -> Attempt | None:
        """The newest attempt when it has ended; None while it runs, or when it was killed before it could record its end."""
        attempts = read_attempts(self.run.logs)
        return attempts[-1] if attempts and attempts[-1].ended is not None else None

    @property
    def _max_age(self) -> float:
        return float(self.config["learner"]["max_age"])

    async def curves(self, request: web.Request) -> web.Response:
        """The curves; 304 when nothing was recorded since ``?have=``."""
        state = self._watch.refresh()
        num_records = _num_records(state)
        if request.query.get("have") == str(num_records):
            return web.Response(status=304)
        attempts = read_attempts(self.run.logs)
        newest = now_of(attempts) if state.status is not None else last_moment(state)
        active = ActiveTime(attempts, last_record=newest)
        found = snapshot.curves(state, active, max_age=self._max_age)
        return web.json_response({"num_records": num_records, **found}, dumps=_dumps)

    async def report(self, _request: web.Request) -> web.Response:
        """The run's latest report."""
        try:
            text = await asyncio.to_thread((self.run.folder / PAGE_FILE).read_text, encoding="utf-8")
        except OSError:
            raise web.HTTPNotFound(text="there is no report yet; `computerrl report` writes one") from None
        headers = {"Content-Security-Policy": _REPORT_POLICY}
        return web.Response(text=text, content_type="text/html", headers=headers)

    async def desktop(self, request: web.Request) -> web.Response:
        """One desktop with the elements of its latest observation."""
        place = f"{request.match_info['index']}/{request.match_info['desktop']}"
        view = self._views.get(place)
        if view is None:
            raise web.HTTPNotFound(text="no such desktop, or its env_server does not answer")
        elements = await asyncio.to_thread(self._desktops.elements, self._watch.refresh().status, place)
        rows = [
            {
                "number": one.number,
                "role": one.role,
                "text": one.text[:200],
                "states": list(one.states),
                "x": one.x,
                "y": one.y,
                "width": one.width,
                "height": one.height,
            }
            for one in elements
        ]
        (row,) = snapshot.desktop_rows({place: view})
        said = {"instruction": view.instruction, "completion": view.completion, "action": view.action}
        return web.json_response({**row, **said, "elements": rows}, dumps=_dumps)

    async def thumbnail(self, request: web.Request) -> web.Response:
        """Thumbnail of a desktop's screenshot."""
        return await self._pictures.respond(self._desktops.ref(request.match_info["hash"]), small=True)

    async def shot(self, request: web.Request) -> web.Response:
        """Screenshot of a desktop, whole."""
        return await self._pictures.respond(self._desktops.ref(request.match_info["hash"]), small=False)

    async def frame(self, request: web.Request) -> web.Response:
        """Screenshot of a stored episode: `?episode=&image=&small=1`; the image by the hash of its content."""
        ref = self._episodes.ref(request.query.get("episode", ""), request.query.get("image", ""))
        return await self._pictures.respond(ref, small="small" in request.query)

    async def list_episodes(self, request: web.Request) -> web.Response:
        """Rows of stored episodes: see `Wanted` for the query."""
        self._episodes.refresh()
        query = request.query
        start, age = (int(query[name]) if query.get(name, "").isdigit() else None for name in ("start", "min_age"))
        wanted = Wanted(**{name: query.get(name, "") for name in ("kind", "family", "success", "outcome", "text")}, min_age=age)
        return web.json_response(self._episodes.list(wanted, start=start or 0), dumps=_dumps)

    async def episode(self, request: web.Request) -> web.Response:
        """One stored episode: `?id=`."""
        self._episodes.refresh()
        try:
            return web.json_response(self._episodes.get(request.query.get("id", "")), dumps=_dumps)
        except ComputerRLError as error:
            raise web.HTTPNotFound(text=str(error)) from None

    async def share(self, request: web.Request) -> web.Response:
        """One episode, or two side by side, as a page of its own: `?id=&beside=`."""
        self._episodes.refresh()
        names = [request.query[name] for name in ("id", "beside") if request.query.get(name)]
        try:
            text = await asyncio.to_thread(episode_page, self.run, self._episodes, names)
        except ComputerRLError as error:
            raise web.HTTPNotFound(text=str(error)) from None
        file = f"{self.run.folder.resolve().name}-{names[0].replace('/', '-')}.html"
        headers = {"Content-Disposition": f'attachment; filename="{file}"'}
        return web.Response(text=text, content_type="text/html", headers=headers)

    async def control(self, request: web.Request) -> web.Response:
        """Carry out a button that a person pressed and confirmed."""
        pages.require_same_origin(request, what="buttons")
        state = self._watch.refresh()
        is_live = state.status is not None and state.summary is None
        try:
            said = controls.press(self.run.folder, request.match_info["name"], is_live=is_live, phase=state.phase)
        except ComputerRLError as error:
            return web.json_response({"refused": str(error)}, status=409)
        except OSError as error:
            return web.json_response({"refused": f"{self.run.folder} cannot be written to: {error.strerror}"}, status=409)
        self._state_made = 0.0
        return web.json_response({"done": said})


def make_app(run: RunPages, *, token: str, host: str) -> web.Application:
    """The pages of ``run`` for clients that know ``token``."""
    files = pages.page_files(PAGE_FOLDER)
    routes = [
        web.get("/{token}/state.json", run.state),
        web.get("/{token}/curves.json", run.curves),
        web.get("/{token}/report.html", run.report),
        web.get("/{token}/desktop/{index}/{desktop}", run.desktop),
        web.get("/{token}/thumb/{hash}", run.thumbnail),
        web.get("/{token}/shot/{hash}", run.shot),
        web.get("/{token}/frame", run.frame),
        web.get("/{token}/episodes.json", run.list_episodes),
        web.get("/{token}/episode.json", run.episode),
        web.get("/{token}/share", run.share),
        web.post("/{token}/control/{name}", run.control),
    ]
    return pages.make_app(files, token=token, host=host, routes=routes)


async def serve_run(
    folder: Path,
    *,
    host: str,
    port: int,
    command: str,
    on_ready: Callable[[str], None],
    stop: asyncio.Event,
    goes_with_run: bool = False,
) -> None:
    """Serve the pages of the run in ``folder`` until ``stop``; ``on_ready`` gets their address. Raises `SetupError`.

    ``goes_with_run``: the caller ends this server with the run, which the page then explains.
    """
    token = secrets.token_urlsafe(24)
    run = RunPages(folder, goes_with_run=goes_with_run)
    try:
        await run.begin()
        app = make_app(run, token=token, host=host)
        await pages.serve(app, token=token, host=host, port=port, command=command, on_ready=on_ready, stop=stop)
    finally:
        await run.close()


def _num_records(state: RunState) -> int:
    return len(state.updates) + len(state.evaluations) + len(state.phases) + len(state.sft_steps)


def _supervised(logs: Path) -> dict[str, dict[str, Any]]:
    try:
        tree = json.loads((logs / "latest" / PROCESSES_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _dumps(tree: Any) -> str:
    return json.dumps(json_ready(tree), separators=(",", ":"))
