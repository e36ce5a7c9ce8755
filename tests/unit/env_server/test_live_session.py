"""A person's session and its web server, on an imitated desktop: what is told, what is refused, what is saved."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from computerrl.common.actions import ACTIONS, parse_action
from computerrl.common.config import DesktopConfig, TasksConfig
from computerrl.common.errors import DesktopBroken, SetupError
from computerrl.common.messages import Action, TaskRef
from computerrl.common.run_files.recordings import read_recording
from computerrl.common.wire.transport import LocalChannel
from computerrl.env_server.client import DesktopClient
from computerrl.env_server.driver import LiveDesktop
from computerrl.env_server.drivers.scripted import ScriptedDriver
from computerrl.env_server.live import pointing
from computerrl.env_server.live.picture import HEADER
from computerrl.env_server.live.session import LiveSession
from computerrl.env_server.live.web import serve
from computerrl.env_server.serving.replay import with_recording
from computerrl.env_server.serving.service import DesktopService
from computerrl.env_server.tasks import task_instance

SCRIPTED = DesktopConfig(driver="scripted")


@pytest.fixture
def session(tmp_path: Path) -> Iterator[LiveSession]:
    made = LiveSession(SCRIPTED, recordings=tmp_path / "demos")
    yield made
    made.close()


def click_on(session: LiveSession, text: str) -> None:
    element = next(element for element in session.episode.elements if element.text == text)
    x, y = element.x + 1, element.y - 1
    session.act(lambda: pointing.click(session.episode.elements, x, y), pointed=(x, y))


# --- the session -----------------------------------------------------------------------------------------------------


def test_session_task_solved_by_pointing_is_scored_and_saved(session: LiveSession, tmp_path: Path) -> None:
    session.start("web-click-button", 4)
    assert session.phase == "ready" and session.episode.task == TaskRef("web-click-button", 4, "demonstration")
    wanted = session.episode.instruction.split('"')[1]
    session.act("click(999)")
    click_on(session, wanted)
    assert session.episode.finished and session.episode.verdict is not None and session.episode.verdict.reward == 1.0
    assert [(entry.text, bool(entry.error)) for entry in session.episode.entries] == [
        ("click(999)", True),
        (f'click("{wanted}")', False),
    ]
    session.save()
    path = tmp_path / "demos" / "web-click-button-4.json"
    assert session.reason == "" and str(path) in session.episode.saved
    recording = read_recording(path)
    assert [step.action_text for step in recording.steps] == [f'click("{wanted}")'], "what could not be done is left out"
    (step,) = recording.steps
    assert step.picture and step.targets["target"].text == wanted
    assert step.pointed == (step.targets["target"].x + 1, step.targets["target"].y - 1)


def test_session_recording_replayed_on_a_fresh_desktop_solves_the_task(session: LiveSession, tmp_path: Path) -> None:
    session.start("calc-type-cell", 7)
    words = session.episode.instruction.split()
    click_on(session, words[3])
    for part in words[-1].rstrip("."):
        session.act(Action(name="type", args={"text": part, "enter": False}))
    session.act('key("enter")')
    session.act("done()")
    session.save()
    assert session.episode.saved, session.reason
    task = TaskRef("calc-type-cell", 7, "demonstration")
    tasks = TasksConfig(recordings=str(tmp_path / "demos"))
    instance = with_recording(task_instance(task, tasks=tasks), task, tasks=tasks)
    desktop = ScriptedDriver(SCRIPTED)
    instruction, observation = desktop.reset(instance)
    actions: list[Action] = []
    while (action := instance.demonstrate(instruction, observation, actions, desktop.get)).name != "done":
        result = desktop.step(action)
        assert not result.action_error
        observation = result.observation
        actions.append(action)
    assert [action.name for action in actions] == ["click", "type", "key"]
    assert instance.evaluate(desktop.get).success


def test_session_recording_is_replayed_at_the_pixels_of_the_clicks_for_a_policy_that_sees_images(
    session: LiveSession, tmp_path: Path
) -> None:
    session.start("web-click-button", 4)
    click_on(session, session.episode.instruction.split('"')[1])
    session.save()
    (step,) = read_recording(tmp_path / "demos" / "web-click-button-4.json").steps
    task, tasks = TaskRef("web-click-button", 4, "demonstration"), TasksConfig(recordings=str(tmp_path / "demos"))
    x, y = step.pointed
    for by_pixels, expected in ((True, f"click({x}, {y})"), (False, step.action_text)):
        service = DesktopService(SCRIPTED, tasks=tasks, make=lambda _: ScriptedDriver(SCRIPTED), by_pixels=by_pixels)
        desktops = DesktopClient(LocalChannel(service.handle), config=SCRIPTED)
        try:
            assert service.wait_ready(1, timeout_s=20)
            lease = desktops.lease("a", task)
            desktops.reset(lease, task)
            assert desktops.demonstrate(lease).action_text == expected
            assert desktops.step(lease, parse_action(expected)).finished and desktops.evaluate(lease).success
        finally:
            service.close()


@pytest.mark.parametrize(
    ("family", "seed", "act", "reason"),
    [
        ("files-move", 1, "", "nothing was done"),
        ("files-move", 1, "wait()", "not solved"),
        ("files-move", 1, "fail()", "not solved"),
        ("files-move", 150_000, "wait()", "kept for training"),
        ("files-move", 10_000_000, "wait()", "kept for evaluation"),
    ],
)
def test_session_saves_only_what_may_be_learned_from(
    session: LiveSession, tmp_path: Path, family: str, seed: int, act: str, reason: str
) -> None:
    session.start(family, seed)
    if act:
        session.act(act)
    session.save()
    assert reason in session.reason and not session.episode.saved and not (tmp_path / "demos").exists()


def test_session_after_the_end_does_nothing_until_begun_again(session: LiveSession) -> None:
    session.start("files-move", 1)
    session.act("done()")
    assert session.episode.finished and session.episode.verdict is not None and session.episode.verdict.reward == 0.0
    session.act("wait()")
    assert "has ended" in session.episode.entries[-1].error
    session.choose("files-move", 1)
    assert not session.episode.finished and session.episode.entries == [] and session.episode.verdict is None


def test_session_mistakes_are_log_lines(session: LiveSession) -> None:
    session.start("files-move", 1)
    session.act("__import__('os').system('true')")
    session.act(lambda: pointing.drag(session.episode.elements, (799, 599), (798, 598)))
    assert "unknown action" in session.episode.entries[0].error or "not" in session.episode.entries[0].error
    assert "there is none" in session.episode.entries[1].error
    assert session.phase == "ready" and session.episode.performed == []


def test_session_misspelt_action_is_answered_with_the_nearest_name(session: LiveSession) -> None:
    session.start("web-click-button", 4)
    for name in ACTIONS:
        session.act(f"{name[:-1]}{name[-1] * 2}(1)")
        entry = session.episode.entries[-1]
        assert entry.error.startswith("unknown action") and f"did you mean {name}?" in entry.error
    for text in ("xyzzy(1)", 'click("nothing of that name")', "click(", "5"):
        session.act(text)
        assert session.episode.entries[-1].error and "did you mean" not in session.episode.entries[-1].error


def test_session_instance_that_does_not_exist_leaves_the_desktop_usable(session: LiveSession) -> None:
    session.start("files-move", 99_999_999)
    assert session.phase == "ready" and "outside" in session.reason and session.episode.observation is None
    session.act("wait()")
    session.choose("files-move", 2)
    assert session.reason == "" and session.episode.instruction


class DyingDesktops:
    """Drivers that end when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from computerrl.env_server import drivers
        from computerrl.env_server.live import desktop as live

        self.made: list[LiveDesktop] = []

        def make(*args: Any, **kwargs: Any) -> LiveDesktop:
            driver = drivers.make_driver(*args, **kwargs)
            self.made.append(driver)
            return driver

        monkeypatch.setattr(live, "make_driver", make)

    def kill(self) -> None:
        def step(action: Action) -> Any:
            raise DesktopBroken("killed")

        self.made[-1].step = step  # type: ignore[method-assign]
        self.made[-1].healthy = lambda: False  # type: ignore[method-assign]


@pytest.mark.parametrize("noticed_by", ["act", "check"])
def test_session_broken_desktop_says_so_and_is_restarted_when_asked(
    session: LiveSession, monkeypatch: pytest.MonkeyPatch, noticed_by: str
) -> None:
    desktops = DyingDesktops(monkeypatch)
    session.start("files-move", 1)
    desktops.kill()
    if noticed_by == "act":
        session.act("wait()")
    else:
        session.check()
    assert session.phase == "broken" and session.reason
    session.act("wait()")
    session.score()
    session.choose("files-move", 2)
    assert session.phase == "broken" and session.frame() is None and len(desktops.made) == 1
    session.restart("files-move", 2)
    assert (
        (session.phase, session.reason) == ("ready", "") and session.episode.task is not None and session.episode.task.seed == 2
    )


def test_session_closed_while_it_starts_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from computerrl.env_server.live import desktop as live

    entered, release = threading.Event(), threading.Event()

    def slow(*args: Any, **kwargs: Any) -> LiveDesktop:
        entered.set()
        release.wait(20)
        raise DesktopBroken("never")

    monkeypatch.setattr(live, "make_driver", slow)
    session = LiveSession(SCRIPTED, recordings=tmp_path)
    starting = threading.Thread(target=session.start, args=("files-move", 1))
    starting.start()
    assert entered.wait(10)
    session.close()
    starting.join(10)
    release.set()
    assert not starting.is_alive() and session.phase == "closed"


def test_session_desktop_that_does_not_start_says_why_at_once(tmp_path: Path) -> None:
    session = LiveSession(SCRIPTED.model_copy(update={"driver": "apptainer", "image": "/nowhere"}), recordings=tmp_path)
    session.start("files-move", 1)
    assert session.phase == "broken" and "/nowhere" in session.reason
    session.close()


# --- the web server --------------------------------------------------------------------------------------------------


class Visitor:
    """A page's end of the WebSocket."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.latest: dict[str, dict[str, Any]] = {}
        self.log: list[dict[str, Any]] = []
        self.parts: list[tuple[int, ...]] = []

    async def do(self, **command: Any) -> None:
        await self.socket.send_str(json.dumps(command))

    async def until(self, true: Callable[[], object], *, timeout_s: float = 15.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not true():
            message = await self.socket.receive(timeout=max(0.1, deadline - time.monotonic()))
            if message.type == aiohttp.WSMsgType.BINARY:
                self.parts.append(HEADER.unpack(message.data[: HEADER.size]))
                continue
            assert message.type == aiohttp.WSMsgType.TEXT, message
            news = json.loads(message.data)
            self.latest[news["kind"]] = news
            if news["kind"] == "log":
                self.log = [*([] if news["fresh"] else self.log), *news["entries"]]

    @property
    def state(self) -> dict[str, Any]:
        return self.latest.get("state", {})

    def idle(self) -> bool:
        return self.state.get("phase") == "ready" and not self.state["busy"]


def with_server(tmp_path: Path, visit: Callable[[str, aiohttp.ClientSession], Awaitable[None]]) -> None:
    """Run ``visit(address, http)`` beside a served session; afterwards everything has ended."""

    async def main() -> None:
        stop, addresses = asyncio.Event(), asyncio.Queue[str]()
        session = LiveSession(SCRIPTED, recordings=tmp_path / "demos")
        serving = asyncio.create_task(
            serve(
                session,
                family="web-click-button",
                seed=1,
                host="127.0.0.1",
                port=0,
                recordings="demos",
                on_ready=addresses.put_nowait,
                stop=stop,
            )
        )
        address = await asyncio.wait_for(addresses.get(), 10)
        try:
            async with aiohttp.ClientSession() as http:
                await visit(address, http)
        finally:
            stop.set()
            await asyncio.wait_for(serving, 5)
        assert session.phase == "closed"

    asyncio.run(main())


def origin(address: str) -> dict[str, str]:
    return {"Origin": "/".join(address.split("/")[:3])}


def test_web_page_and_its_files_come_from_here_only(tmp_path: Path) -> None:
    async def visit(address: str, http: aiohttp.ClientSession) -> None:
        async with http.get(address) as answer:
            page = await answer.text()
            assert answer.status == 200 and answer.content_type == "text/html"
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            assert answer.headers["Referrer-Policy"] == "no-referrer" and answer.headers["Cache-Control"] == "private, no-cache"
        assert "://" not in page.replace("http://www.w3.org", "") and "<script>" not in page and "style=" not in page
        for name in ("style.css", "main.js", "screen.js", "keyboard.js", "line.js", "panel.js", "pointing.js", "icon.svg"):
            async with http.get(address + name) as answer:
                assert answer.status == 200, name
                assert "://" not in (await answer.text()).replace("http://www.w3.org", "")
        async with http.get(address + "hub.py") as answer:
            assert answer.status == 404
        async with http.get(address + "..%2fhub.py") as answer:
            assert answer.status == 404

    with_server(tmp_path, visit)


def test_web_without_the_token_or_under_another_name_is_refused(tmp_path: Path) -> None:
    async def visit(address: str, http: aiohttp.ClientSession) -> None:
        root = "/".join(address.split("/")[:3])
        token = address.split("/")[3]
        wrong = token[:-1] + ("A" if token[-1] != "A" else "B")
        for path in ("/", f"/{wrong}/", f"/{token}x/", "/style.css", f"/{wrong}/style.css", f"/{wrong}/socket", "/%ff/", "/é/"):
            async with http.get(root + path, headers=origin(address)) as answer:
                assert answer.status in (403, 404), path
                assert token not in await answer.text()
        for name in ("evil.example", "evil.example:80", "127.0.0.1.evil.example"):
            async with http.get(address, headers={"Host": name}) as answer:
                assert answer.status == 403, name
        for name in ("localhost:9000", "127.0.0.1:9000", "[::1]:9000"):
            async with http.get(address, headers={"Host": name}) as answer:
                assert answer.status == 200, "through an SSH tunnel with another port"
        async with http.post(address) as answer:
            assert answer.status == 405

    with_server(tmp_path, visit)


@pytest.mark.parametrize("claimed", [None, "null", "http://evil.example", "https://127.0.0.1", "http://127.0.0.1:1", "file://"])
def test_web_socket_of_another_origin_is_refused(tmp_path: Path, claimed: str | None) -> None:
    async def visit(address: str, http: aiohttp.ClientSession) -> None:
        headers = {} if claimed is None else {"Origin": claimed}
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await http.ws_connect(address + "socket", headers=headers)
        assert refused.value.status == 403

    with_server(tmp_path, visit)


def test_web_task_solved_through_the_socket(tmp_path: Path) -> None:
    async def visit(address: str, http: aiohttp.ClientSession) -> None:
        async with http.ws_connect(address + "socket", headers=origin(address)) as socket:
            page = Visitor(socket)
            await page.until(page.idle)
            await page.until(lambda: page.parts and page.latest["screen"]["elements"])
            assert page.parts[0] == (0, 0, 800, 600)
            assert {"click", "calc.set_cell"} <= {action["name"] for action in page.latest["hello"]["actions"]}
            wanted = page.state["instruction"].split('"')[1]
            target = next(e for e in page.latest["screen"]["elements"] if e["text"] == wanted)
            await page.do(do="click", x=target["x"], y=target["y"])
            await page.until(lambda: page.state["finished"] and page.idle())
            assert page.state["verdict"]["reward"] == 1.0 and page.log[-1]["text"] == f'click("{wanted}")'
            await page.do(do="save")
            await page.until(lambda: page.state["saved"])
            assert list((tmp_path / "demos").iterdir())
            await page.do(do="choose", family="calc-set-cell", seed=2)
            await page.until(lambda: page.state["choice"] == ["calc-set-cell", 2] and page.idle())
            assert page.log == [] and page.latest["screen"]["app"] == "calc"
            await page.do(do="type", text="hi")
            await page.do(do="key", keys="enter")
            await page.do(do="act", text='calc.get_cell("A1")')
            await page.until(lambda: len(page.log) == 3)
            assert page.log[2]["result"] == "hi"
            await page.until(lambda: len(page.parts) > 2)
            assert any(part[2:] != (800, 600) for part in page.parts), "only what changed"

    with_server(tmp_path, visit)


def test_web_second_page_is_told_everything_and_garbage_is_answered(tmp_path: Path) -> None:
    async def visit(address: str, http: aiohttp.ClientSession) -> None:
        async with http.ws_connect(address + "socket", headers=origin(address)) as socket:
            first = Visitor(socket)
            await first.until(first.idle)
            await first.do(do="act", text="wait()")
            await first.until(lambda: len(first.log) == 1)
            for garbage in ("", "{", '{"do": "dance"}', '{"do": "choose", "family": "none", "seed": 1}'):
                first.latest.pop("refused", None)
                await socket.send_str(garbage)
                await first.until(lambda: "refused" in first.latest)
            await socket.send_bytes(b"\x00")
            async with http.ws_connect(address + "socket", headers=origin(address)) as other:
                second = Visitor(other)
                await second.until(lambda: second.log and second.parts)
                assert [line["text"] for line in second.log] == ["wait()"]

    with_server(tmp_path, visit)


def test_web_port_taken_names_the_option(tmp_path: Path) -> None:
    async def visit(address: str, http: aiohttp.ClientSession) -> None:
        port = int(address.split("/")[2].split(":")[1])
        with pytest.raises(SetupError, match="--port 0"):
            await serve(
                LiveSession(SCRIPTED, recordings=tmp_path),
                family="files-move",
                seed=1,
                host="127.0.0.1",
                port=port,
                recordings="demos",
                on_ready=lambda address: None,
                stop=asyncio.Event(),
            )

    with_server(tmp_path, visit)
