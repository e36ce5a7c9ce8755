"""A server in the shape of OSWorld's, made up for this test, inside a desktop beside ours: started, measured, ended, refused."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from computerrl.benchmarks.env._controllers import controller_rows
from computerrl.benchmarks.env._osworld_server import process_beside_listener
from computerrl.benchmarks.env._served import Front, serve_desktops
from computerrl.common.errors import ConfigError

POINTER = "def place(screen):\n    found = screen.root.query_pointer()\n    return found.root_x, found.root_y\n"
ELSEWHERE = "def place(screen):\n    return 1, 1\n"
PYAUTOGUI = "def click(x, y):\n    return None\n"
SERVER = """
import http.server
import json
import subprocess

import pyautogui
from Xlib.display import Display

import pointer

SCREEN = Display().screen()


def execute(body):
    done = subprocess.run(body["command"], capture_output=True, text=True)
    return {"returncode": done.returncode, "error": done.stderr}


ANSWERS = {
    "/screenshot": lambda body: "a picture",
    "/accessibility": lambda body: {"AT": "<desktop-frame><frame/></desktop-frame>"},
    "/screen_size": lambda body: {"width": SCREEN.width_in_pixels, "height": SCREEN.height_in_pixels},
    "/cursor_position": lambda body: pointer.place(SCREEN),
    "/execute": execute,
}


class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        content = json.dumps(ANSWERS[self.path](json.loads(body or "null"))).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = answer


http.server.ThreadingHTTPServer(("0.0.0.0", 5000), Handler).serve_forever()
"""
BROKEN = {
    "import no_such_module": ("No module named 'no_such_module'", "pip install"),
    "from json import no_such_name": ("cannot import name 'no_such_name'", "pip install"),
    "raise SystemExit('no display')": ("no display", "machine"),
    "": ("prints nothing", "machine"),
}


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with serve_desktops(tmp_path_factory.mktemp("front"), 1) as front:
        yield front


def make_server(folder: Path, **modules: str) -> Path:
    folder.mkdir()
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    return folder


@pytest.mark.release
def test_server_of_a_folder_is_asked_beside_ours_and_ends_with_the_next_reset(front: Front, tmp_path: Path) -> None:
    server = make_server(tmp_path / "server", main=SERVER, pointer=POINTER)
    packages = make_server(tmp_path / "packages", pyautogui=PYAUTOGUI)
    rows = {row["name"].partition(": ")[2]: row for row in controller_rows(front, 1, server, packages)}
    assert len(rows) == 9 and all(row["value"] > 0 and row["peer_value"] > 0 for row in rows.values())
    assert rows["nodes in the tree"]["peer_value"] == 2
    assert "network namespace" in rows["calls a second, one client, without the tree"]["reason"]
    assert process_beside_listener(front.process.pid) is not None, "it runs until the desktop is reset"
    with front.client() as client:
        session = front.reset(client)
        assert process_beside_listener(front.process.pid) is None
        client.delete("/session", headers=session).raise_for_status()


@pytest.mark.release
def test_server_that_sees_another_desktop_is_refused(front: Front, tmp_path: Path) -> None:
    server = make_server(tmp_path / "server", main=SERVER, pointer=ELSEWHERE)
    packages = make_server(tmp_path / "packages", pyautogui=PYAUTOGUI)
    with pytest.raises(RuntimeError, match=r"different desktops: the pointer is at \(1, 1\)"):
        controller_rows(front, 1, server, packages)


@pytest.mark.release
@pytest.mark.parametrize("program", BROKEN)
def test_server_that_does_not_start_is_refused_with_its_reason(program: str, front: Front, tmp_path: Path) -> None:
    reason, step = BROKEN[program]
    with pytest.raises(ConfigError) as error:
        controller_rows(front, 1, make_server(tmp_path / "server", main=program), None)
    [problem] = error.value.problems
    assert problem.field == "--osworld-server" and reason in problem.reason and step in problem.next_step


@pytest.mark.release
def test_ours_alone_is_measured_without_a_peer(front: Front) -> None:
    rows = controller_rows(front, 1, None, None)
    assert len(rows) == 9 and all(row["value"] > 0 and "peer" not in row for row in rows)
