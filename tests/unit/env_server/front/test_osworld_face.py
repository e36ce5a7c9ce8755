"""OSWorld's requests on imitated desktops, whose guest says what it was asked. Its own programs: tests/integration/roles."""

from __future__ import annotations

import base64
import io
import json
import sys
import threading
from typing import Any

import av
import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from computerrl.common.errors import DesktopBroken
from computerrl.env_server.drivers.scripted import ScriptedDriver
from computerrl.env_server.front import film
from computerrl.env_server.front.access import MAX_BODY_BYTES, MAX_UPLOAD_BYTES, Access
from computerrl.env_server.front.app import make_app
from computerrl.env_server.front.openenv import SESSION_HEADER
from computerrl.env_server.front.sessions import Sessions
from computerrl.env_server.front.threads import Threads
from tests.support.clock import ManualClock

TOKEN = "a-token-of-a-test-that-is-long"
Json = dict[str, Any]
TREE = (
    '<desktop-frame xmlns:a="urn:accessibility:state" xmlns:b="urn:accessibility:component">'
    '<terminal name="Terminal" a:focused="true" b:screencoord="(0, 0)">~$ ls\n</terminal></desktop-frame>'
)
WINDOW = {"title": "a - Terminal", "window_class": "Xfce4-terminal", "x": 0, "y": 0, "width": 700, "height": 500}
WRAPPED = "import pyautogui; import time; pyautogui.FAILSAFE = False; {}"


class Guest:
    """Stands for the guest's side of `CalledDesktop`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Json]] = []
        self.answers: Json = {
            "screen_size": [800, 600],
            "tree": TREE,
            "windows": [WINDOW],
            "run": {"returncode": 3, "stdout": "out", "stderr": "err"},
            "read_file": base64.b64encode(b"content").decode(),
            "open": True,
            "activate_window": True,
            "close_window": False,
        }

    def get(self, _driver: ScriptedDriver, kind: str, **args: Any) -> Any:
        assert kind == "osworld" and args.pop("by_agent")
        name = args.pop("call")
        self.calls.append((name, args))
        answer = self.answers.get(name)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def guest(monkeypatch: pytest.MonkeyPatch) -> Guest:
    guest = Guest()
    monkeypatch.setattr(ScriptedDriver, "get", lambda driver, kind, **args: guest.get(driver, kind, **args))
    return guest


def client_of(sessions: Sessions, *, allow_execute: bool) -> TestClient:
    app = make_app(sessions, Threads(2), picture_format="webp", port=8000, allow_execute=allow_execute)
    client = TestClient(Access(app, token=TOKEN, host="127.0.0.1"), base_url="http://127.0.0.1:8000")
    client.auth = ("nobody", TOKEN)
    client.auth = (client.post("/osworld/session").json()["session"], TOKEN)
    return client


@pytest.fixture
def client(sessions: Sessions, guest: Guest) -> TestClient:
    return client_of(sessions, allow_execute=False)


@pytest.fixture
def commander(sessions: Sessions, guest: Guest) -> TestClient:
    return client_of(sessions, allow_execute=True)


def name_of(sessions: Sessions) -> str:
    """Name of the only session."""
    (name,) = sessions._sessions
    return name


def pressed(*keys: str) -> tuple[str, Json]:
    blank = {"x": None, "y": None, "count": 1}
    return "input", {"events": [{"kind": "key", "text": key, **blank} for key in keys]}


def python(code: str) -> Json:
    return {"command": ["python", "-c", code], "shell": False}


# --- what is seen ----------------------------------------------------------------------------------------------------


def test_what_controllers_read(client: TestClient, guest: Guest) -> None:
    picture = client.get("/screenshot")
    assert picture.headers["content-type"] == "image/png" and Image.open(io.BytesIO(picture.content)).size == (800, 600)
    tree = client.get("/accessibility").json()["AT"]
    assert 'xmlns:a="https://accessibility.ubuntu.example.org/ns/state"' in tree and "urn:" not in tree
    assert client.get("/terminal").json() == {"output": "~$ ls", "status": "success"}
    assert client.post("/screen_size").json() == {"width": 800, "height": 600}
    assert client.post("/window_size", data={"app_class_name": "terminal"}).json() == {"width": 700, "height": 500}
    assert client.post("/window_size", data={"app_class_name": "gimp"}).json() is None
    assert (
        client.post("/desktop_path").json() == {"desktop_path": "/home/user/Desktop"} and client.get("/platform").text == "Linux"
    )
    assert client.post("/file", data={"file_path": "~/a b"}).content == b"content"
    assert guest.calls[-1] == ("read_file", {"path": "/home/user/a b"})
    guest.answers["read_file"] = None
    assert client.post("/file", data={"file_path": "/none"}).status_code == 404
    guest.answers["pointer"] = [30, 40]
    assert client.get("/cursor_position").json() == [30, 40]
    guest.answers["run"] = {"returncode": 0, "stdout": '{"name": "user"}', "stderr": ""}
    assert client.post("/list_directory", json={"path": "/home/user"}).json() == {"directory_tree": {"name": "user"}}
    for output, status in (("null", 400), ('{"name": "us', 422), ("", 422)):
        guest.answers["run"] = {"returncode": 0, "stdout": output, "stderr": ""}
        assert client.post("/list_directory", json={"path": "/x"}).status_code == status


def test_set_ups_without_commands(client: TestClient, guest: Guest) -> None:
    form = {"data": {"file_path": "$HOME/a"}, "files": {"file_data": ("a", b"data")}}
    assert client.post("/setup/upload", **form).text == "File Uploaded: 4 bytes"
    assert client.post("/setup/open_file", json={"path": "~/a"}).status_code == 200
    window = {"window_name": "Term", "strict": False, "by_class": False}
    assert client.post("/setup/activate_window", json=window).status_code == 200
    assert client.post("/setup/close_window", json=window).status_code == 400
    asked = {"title": "Term", "strict": False, "by_class": False}
    assert guest.calls == [
        ("put_file", {"path": "/home/user/a", "data": base64.b64encode(b"data").decode()}),
        ("open", {"path": "/home/user/a"}),
        ("activate_window", asked),
        ("close_window", asked),
    ]
    guest.answers["open"] = False
    assert client.post("/setup/open_file", json={"path": "~/a"}).status_code == 422


# --- what is done ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/execute", "/setup/execute"])
def test_pyautogui_is_read_and_becomes_input_of_this_screen(client: TestClient, guest: Guest, path: str) -> None:
    reply = client.post(path, json=python(WRAPPED.format("pyautogui.click(790, 590); time.sleep(0.01); pyautogui.press('a')")))
    assert reply.json() == {"status": "success", "output": "", "error": "", "returncode": 0}
    clicked = {"kind": "click", "text": "left", "x": 790, "y": 590, "count": 1}
    assert guest.calls == [("input", {"events": [clicked]}), pressed("a")]


@pytest.mark.parametrize(
    "code",
    ["for _ in range(3): pyautogui.press('a')", "pyautogui.locateOnScreen('a.png')", "pyautogui.press(", "time.sleep(90); " * 2],
)
def test_automation_that_is_no_list_of_calls_ends_with_an_error_that_says_so(
    client: TestClient, commander: TestClient, guest: Guest, code: str
) -> None:
    for one in (client, commander):
        reply = one.post("/execute", json=python(WRAPPED.format(code + "; pyautogui.press('b')")))
        assert reply.status_code == 200 and reply.json()["returncode"] == 1 and reply.json()["error"]
    assert guest.calls == []


COMMANDS: list[tuple[str, Json, Json]] = [
    ("/execute", {"command": "echo $HOME", "shell": True}, {"command": "echo $HOME", "timeout_s": 120.0}),
    ("/execute", {"command": "ls -l 'a b'"}, {"command": ["ls", "-l", "a b"], "timeout_s": 120.0}),
    ("/setup/execute", {"command": ["ls"]}, {"command": ["ls"], "timeout_s": 120.0}),
    (
        "/execute",
        python(WRAPPED.format("import platform; print(platform.system())")),
        {"command": ["python3", "-c", "import time\nimport platform\nprint(platform.system())"], "timeout_s": 120.0},
    ),
    ("/run_python", {"code": "print(1)"}, {"command": ["python3", "-c", "print(1)"], "timeout_s": 90.0}),
]


@pytest.mark.parametrize(("path", "body", "asked"), COMMANDS)
def test_commands_run_where_the_server_allows_it(commander: TestClient, guest: Guest, path: str, body: Json, asked: Json) -> None:
    said = commander.post(path, json=body).json()
    assert guest.calls == [("run", asked)]
    assert (said["output"], said["error"], said.get("returncode", said.get("return_code"))) == ("out", "err", 3)


def test_scripts_and_programs_that_go_on(commander: TestClient, guest: Guest) -> None:
    said = commander.post("/run_bash_script", json={"script": "pwd", "timeout": 7, "working_dir": "$(reboot)"}).json()
    assert said == {"status": "error", "output": "outerr", "error": "", "returncode": 3}
    assert commander.post("/setup/launch", json={"command": ["vlc", "a"]}).status_code == 200
    (_, ran), launched = guest.calls
    assert ran["command"][4:] == ["$(reboot)", "pwd"] and ran["timeout_s"] == 7.0 and "$(" not in ran["command"][2]
    assert launched == ("launch", {"command": ["vlc", "a"]})


def test_no_command_runs_unless_the_server_allows_it(client: TestClient, guest: Guest) -> None:
    refused = [(path, body) for path, body, _ in COMMANDS]
    refused += [("/run_bash_script", {"script": "ls"}), ("/setup/launch", {"command": ["vlc"]})]
    for path, body in refused:
        reply = client.post(path, json=body)
        assert reply.status_code == 403 and "--allow-execute" in reply.json()["message"]
    assert guest.calls == []


def test_what_is_not_served_says_why(client: TestClient) -> None:
    for path in ("/wallpaper", "/setup/download_file", "/setup/execute_with_verification"):
        reply = client.post(path)
        assert reply.status_code == 403 and reply.json()["message"].startswith(path)


# --- films -----------------------------------------------------------------------------------------------------------


def frames_of(data: bytes) -> tuple[list[float], tuple[int, int]]:
    """Seconds at which each frame is shown, and their size."""
    with av.open(io.BytesIO(data), "r") as container:
        frames = list(container.decode(video=0))
    return [float(frame.pts * frame.time_base) for frame in frames], (frames[0].width, frames[0].height)


def test_film_has_the_screenshots_that_the_client_took_between_beginning_and_end(client: TestClient) -> None:
    client.get("/screenshot")
    assert client.post("/start_recording").status_code == 200
    for _ in range(3):
        client.get("/screenshot")
    reply = client.post("/end_recording")
    assert reply.status_code == 200 and reply.headers["content-type"] == "video/mp4"
    times, size = frames_of(reply.content)
    assert len(times) == 6 and times == sorted(times) and size == (800, 600), "begin, three, end, and the end for a second"
    assert times[-1] - times[-2] == pytest.approx(1.0, abs=0.01)
    assert client.post("/end_recording").status_code == 400


def test_film_is_begun_once_in_a_session_that_there_is_and_ends_with_it(sessions: Sessions, client: TestClient) -> None:
    assert client.post("/start_recording", auth=("another", TOKEN)).status_code == 410
    assert client.post("/start_recording").status_code == 200
    twice = client.post("/start_recording")
    assert twice.status_code == 400 and "/end_recording" in twice.json()["message"]
    client.delete("/osworld/session")
    assert client.post("/end_recording").status_code == 400


def test_film_that_cannot_be_encoded_is_refused_at_its_beginning(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    reply = client.post("/start_recording")
    assert reply.status_code == 403 and "make setup WITH=osworld" in reply.json()["message"]


def test_long_film_loses_every_second_frame_and_none_of_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(film, "_MAX_FRAMES", 10)
    out = io.BytesIO()
    Image.new("RGB", (65, 33), "red").save(out, "PNG")
    clock = ManualClock()
    long = film.Film(clock)
    for _ in range(100):
        clock.advance(1.0)
        long.add(out.getvalue())
    assert len(long) <= 10
    times, size = frames_of(long.mp4())
    assert times[0] == pytest.approx(0.0, abs=1.1) and times[-1] == pytest.approx(100, abs=1.1) and size == (64, 32)


# --- whose desktop ---------------------------------------------------------------------------------------------------


def test_requests_without_a_session_or_token(sessions: Sessions, client: TestClient) -> None:
    for auth, status in (
        (("", TOKEN), 400),
        (("another", TOKEN), 410),
        ((name_of(sessions), "wrong"), 401),
    ):
        assert client.get("/screenshot", auth=auth).status_code == status
    assert client.delete("/osworld/session").status_code == 204 and len(sessions) == 0
    assert client.get("/screenshot").status_code == 410


def test_episode_whose_desktop_was_touched_from_outside_is_never_judged(client: TestClient, sessions: Sessions) -> None:
    session = {SESSION_HEADER: name_of(sessions)}
    client.post("/reset", json={"task": "calc-set-cell", "seed": 5}, headers=session)
    client.post("/execute", json=python(WRAPPED.format("pyautogui.press('a')")))
    reply = client.post("/step", json={"action": {"text": "done()"}}, headers=session)
    assert reply.status_code == 400 and "reset first" in reply.json()["message"]
    assert client.post("/reset", json={"task": "calc-set-cell", "seed": 5}, headers=session).status_code == 200


def test_desktop_that_broke_is_replaced_at_the_next_reset(client: TestClient, guest: Guest) -> None:
    guest.answers["tree"] = DesktopBroken("gone")
    assert client.get("/accessibility").status_code == 503
    assert client.get("/screenshot").status_code == 400
    guest.answers["tree"] = TREE
    assert client.post("/osworld/reset").status_code == 200
    assert client.get("/accessibility").status_code == 200


def test_no_third_session_on_two_desktops(client: TestClient, commander: TestClient) -> None:
    del commander
    assert client.post("/osworld/session").status_code == 429


def test_files_may_be_longer_than_other_requests(client: TestClient) -> None:
    assert client.post("/execute", content=b"x" * (MAX_BODY_BYTES + 1)).status_code == 413
    form: Any = {"data": {"file_path": "/a"}, "files": {"file_data": ("a", bytes(MAX_BODY_BYTES + 1))}}
    assert client.post("/setup/upload", **form).status_code == 200
    headers = {"Content-Length": str(MAX_UPLOAD_BYTES + 1)}
    assert client.post("/setup/upload", content=b"", headers=headers).status_code == 413


_TEXT = st.text(st.characters(), max_size=20) | st.sampled_from(["\0", "\ud800", "a" * 300, "'", "pyautogui.press(", "~"])
_VALUES = st.recursive(st.none() | st.booleans() | st.integers() | _TEXT, lambda inner: st.lists(inner, max_size=3), max_leaves=4)
_BODIES = st.dictionaries(st.sampled_from(["command", "shell", "code", "script", "path", "window_name", "timeout"]), _VALUES)
_PATHS = st.sampled_from(
    ["/execute", "/setup/launch", "/run_python", "/run_bash_script", "/list_directory", "/setup/open_file", "/setup/close_window"]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(path=_PATHS, body=_BODIES)
def test_any_json_is_answered_and_the_desktop_goes_on(commander: TestClient, path: str, body: Json) -> None:
    assert commander.post(path, content=json.dumps(body)).status_code in (200, 400, 403, 422)
    assert commander.post("/screen_size").status_code == 200


def test_one_desktop_takes_one_request_at_a_time(client: TestClient, guest: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    began, may_go_on = threading.Event(), threading.Event()
    get = guest.get

    def slow(driver: ScriptedDriver, kind: str, **args: Any) -> Any:
        if args["call"] == "windows":
            began.set()
            may_go_on.wait(30)
        return get(driver, kind, **args)

    monkeypatch.setattr(ScriptedDriver, "get", lambda driver, kind, **args: slow(driver, kind, **args))
    thread = threading.Thread(target=lambda: client.post("/window_size", data={"app_class_name": "a"}))
    thread.start()
    assert began.wait(30)
    assert client.get("/accessibility").status_code == 400
    may_go_on.set()
    thread.join(30)
    assert client.get("/accessibility").status_code == 200
