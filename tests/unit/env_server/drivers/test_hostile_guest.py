"""A guest that answers what it likes: the host's side of the wire takes nothing for granted, and the fault stays its own."""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from computerrl.common.actions import parse_action
from computerrl.common.config import DesktopConfig
from computerrl.common.descriptor_store import Kept
from computerrl.common.errors import ComputerRLError, DesktopBroken, HostBroken
from computerrl.common.messages import Action, Evaluation
from computerrl.env_server.driver import SitePage, TaskInstance
from computerrl.env_server.drivers import guest_log, guest_process
from computerrl.env_server.drivers.containment import Findings, differences
from computerrl.env_server.drivers.guest_driver import GuestDriver
from computerrl.env_server.drivers.guest_log import GuestLog
from computerrl.env_server.drivers.screenshots import ScreenshotStore

CONFIG = DesktopConfig(screen_width=640, screen_height=480, observation="both", step_deadline_s=20.0)
NO_TASK = TaskInstance("x", (), lambda get: Evaluation(0.0, False, ""), lambda *_: Action("done", {}))
FOUND = {
    "status": {
        "Uid": ["1000"] * 4,
        "CapInh": ["0" * 16],
        "CapPrm": ["0" * 16],
        "CapEff": ["0" * 16],
        "CapAmb": ["0" * 16],
        "NoNewPrivs": ["1"],
        "Seccomp": ["2"],
    },
    "writable": ["/tmp", "/dev/null"],
    "environment": ["PATH"],
    "descriptors": [0, 1, 2],
    "interfaces": ["lo"],
}

GUEST = """
import json, os, socket, struct, sys, threading
def end_with_host():
    sys.stdin.readline()
    os._exit(0)
threading.Thread(target=end_with_host, daemon=True).start()
sock = socket.socket(fileno=os.dup(1))
def raw(frame): sock.sendall(struct.pack(">I", len(frame)) + frame)
def say(**answer): raw(json.dumps(answer).encode())
def hear():
    head = b""
    while len(head) < 4:
        more = sock.recv(4 - len(head))
        if not more: sys.exit(0)
        head += more
    left, body = struct.unpack(">I", head)[0], b""
    while len(body) < left: body += sock.recv(left - len(body))
    return json.loads(body)
W, H = 640, 480
HEADER = struct.pack(">25I", 100, 7, 2, 24, W, H, 0, 0, 32, 0, 32, 32, W * 4, 4, 0, 0, 0, 0, 24, 0, W, H, 0, 0, 0)
GOOD = dict(app="calc", title="t", tree=1, nodes=[], picture=1, settled_by="quiet", settle_s=0.1, finished=False)
number = 0
def answer(**changes):
    global number
    number += 1
    say(**{**GOOD, "picture": number, **changes})
"""
SCREEN = """
hear()
screen = open("screen", "w+b")
screen.write(HEADER + bytes(W * H * 4)); screen.flush()
socket.send_fds(sock, [b"F"], [screen.fileno()])
"""


class Launcher:
    """Starts a guest of these lines."""

    def __init__(self, folder: Path, lines: str) -> None:
        self._folder, self._text = folder, GUEST + lines

    def command(self, settings: dict[str, Any]) -> list[str]:
        (self._folder / "guest.py").write_text(f"import os\nos.chdir({str(self._folder)!r})\n{self._text}")
        return [sys.executable, str(self._folder / "guest.py")]

    def explain(self, log: str) -> str:
        return "the disk is full" if "No space left" in log else ""

    def differences(self, found: Findings) -> list[str]:
        return list(differences(found, is_cut_off=True))


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., GuestDriver]]:
    monkeypatch.setattr(guest_process, "START_LIMIT_S", 20.0)
    started: list[GuestDriver] = []

    def begin(lines: str, *, found: dict[str, Any] = FOUND) -> GuestDriver:
        lines = textwrap.dedent(lines).replace("READY", f"say(ready=True, found={found!r})" + SCREEN)
        store = ScreenshotStore(tmp_path / "screenshots", incarnation="x")
        started.append(GuestDriver(Launcher(tmp_path, lines), CONFIG, index=0, folder=tmp_path, screenshots=store))
        return started[-1]

    yield begin
    for driver in started:
        driver.close()


ROW = '["k", {parent}, "button", "n", null, 1, 1, 9, 9, []]'


@pytest.mark.parametrize(
    "lines",
    [
        'raw(b"[" * 200_000)',
        'raw(b"[]")',
        "raw(b'{\"base64\": 5}')",
        'raw(b\'{"ready": \' + b"9" * 5000 + b"}")',
        'raw(b"\\xff\\xfe")',
        'sock.sendall(struct.pack(">I", 2**31))',
        "sys.exit(0)",
        "say(ready=True)",
        "say(ready=True, found=[1])",
        'say(ready=True, found=GOOD); hear(); socket.send_fds(sock, [b"F"], [0])',
    ],
)
def test_start_with_an_odd_answer_is_a_broken_desktop(start: Callable[..., GuestDriver], lines: str) -> None:
    with pytest.raises(DesktopBroken):
        start(f"{lines}\nhear()")


@pytest.mark.parametrize(
    "screen",
    [
        'sock.sendall(b"F")',
        'socket.send_fds(sock, [b"G"], [0])',
        'os.mkfifo("fifo"); socket.send_fds(sock, [b"F"], [os.open("fifo", os.O_RDWR)])',
        'socket.send_fds(sock, [b"F"], [os.open("/dev/zero", os.O_RDONLY)])',
        'socket.send_fds(sock, [b"F"], [os.open("/", os.O_RDONLY)])',
        'f = open("s", "w+b"); socket.send_fds(sock, [b"F"], [f.fileno()])',
        'f = open("s", "w+b"); f.write(HEADER); f.flush(); socket.send_fds(sock, [b"F"], [f.fileno()])',
        'f = open("s", "w+b"); f.write(b"\\xff" * 100 + bytes(2**20)); f.flush(); socket.send_fds(sock, [b"F"], [f.fileno()])',
    ],
)
def test_odd_screen_is_a_broken_desktop(start: Callable[..., GuestDriver], screen: str) -> None:
    with pytest.raises(DesktopBroken):
        start(f"say(ready=True, found={FOUND!r})\nhear()\n{screen}\nhear()")


@pytest.mark.parametrize(
    "answer",
    [
        'raw(b"[" * 300_000)',
        "raw(b'{\"base64\": 5}')",
        'raw(b\'{"nodes": [\' + b"[]," * 2_000_000 + b"[]]}")',
        'raw(b" " * (9 << 20))',
        "say()",
        "answer(nodes=[[1, 2], None])",
        'answer(nodes=[["k", 5, "button", "n", None, 1, 1, 9, 9, []]])',
        'answer(nodes=[["k", 0, "button", "n", None, 1, 1, 9, 9, []]])',
        'answer(nodes=[["k", n - 1, "button", "n", None, 1, 1, 9, 9, []] for n in range(5000)])',
        'answer(nodes=[["k", -1, "button", "n", None, 2**62, 1, 9, 9, []]])',
        'answer(nodes=[["k", -1, "button", "n", None, 1, 1, 9, 9, []]] * 30_000)',
        'answer(picture="x")',
        "answer(picture=-1)",
        'answer(settled_by="x")',
        'answer(settle_s="y")',
        "answer(settle_s=float('nan'))",
        'answer(finished="no")',
        "answer(tree=2**70)",
        'say(error="broken", message="B" * (1 << 20))',
        'say(error="broken", message="\\x1b[2J\\r\\n" * 9)',
        'say(error="odd")',
        "os.ftruncate(screen.fileno(), 4096); answer()",
        "os.ftruncate(screen.fileno(), 0); answer()",
    ],
)
def test_odd_observation_is_a_broken_desktop_and_a_short_message(start: Callable[..., GuestDriver], answer: str) -> None:
    driver = start(f"READY\nwhile True:\n    hear()\n    {answer}")
    with pytest.raises(DesktopBroken) as caught:
        driver.reset(NO_TASK)
    assert len(str(caught.value)) < 5000 and str(caught.value).isprintable()
    driver.healthy()


@pytest.mark.parametrize(
    "value",
    [
        'raw(b\'{"value": \' + b"[" * 50_000 + b"]" * 50_000 + b"}")',
        'raw(b\'{"value": {"base64": 5}}\')',
        "say(x=1)",
        *(f"raw(b'{{\"value\": [' + {part!r} * 2_000_000 + b'1]}}')" for part in (b"[],", b"{},", b'"",', b"1,", b'"\\\\",')),
    ],
)
def test_odd_value_is_a_broken_desktop(start: Callable[..., GuestDriver], value: str) -> None:
    with pytest.raises(DesktopBroken):
        start(f"READY\nhear()\n{value}\nhear()").get("editor_text")


@pytest.mark.parametrize("text", ["[,{", '"', "\\", '\\"', '"\\'])
def test_value_that_is_one_long_text_of_any_characters_arrives_whole(start: Callable[..., GuestDriver], text: str) -> None:
    driver = start(f"READY\nhear()\nsay(value=[{text!r} * 3_000_000, 'end'])\nhear()")
    assert driver.get("editor_text") == [text * 3_000_000, "end"]


def test_long_texts_are_cut_and_trees_of_equal_rows_cost_little(start: Callable[..., GuestDriver]) -> None:
    rows = '[[str(n), -1, "button", "n", None, n % 600, n // 600, 1, 1, []] for n in range(19_000)]'
    driver = start(f'READY\nwhile True:\n    hear()\n    answer(title="A" * 10**6, result="B" * 10**6, nodes={rows})')
    observation = driver.step(parse_action("wait()")).observation
    assert len(observation.window_title) <= 1000 and len(observation.result) <= 100_000
    assert len(observation.elements) == CONFIG.max_elements


_ASKS = """READY
while True:
    hear()
    say(site="https://shop.invalid/bags")
    answer(title=json.dumps(hear()["found"]))
"""


@pytest.mark.parametrize(
    ("sites", "found"),
    [
        (None, None),
        (lambda address: None, None),
        (
            lambda address: SitePage("text/html", address.encode()),
            {"type": "text/html", "body": {"base64": "aHR0cHM6Ly9zaG9wLmludmFsaWQvYmFncw=="}, "status": 200, "location": ""},
        ),
    ],
)
def test_web_site_that_a_guest_wants_is_the_task_s_alone(start: Callable[..., GuestDriver], sites: Any, found: Any) -> None:
    _, observation = start(_ASKS).reset(replace(NO_TASK, sites=sites))
    assert json.loads(observation.window_title) == found


def test_guest_that_only_wants_web_sites_is_a_broken_desktop(start: Callable[..., GuestDriver]) -> None:
    driver = start('READY\nhear()\nwhile True:\n    say(site="https://shop.invalid/" + "a" * 1000)')
    assert not driver.healthy()
    with pytest.raises(DesktopBroken):
        driver.observe()


def test_guest_that_closes_its_end_at_any_time_is_a_broken_desktop(start: Callable[..., GuestDriver]) -> None:
    driver = start("READY\nhear()")
    with pytest.raises(DesktopBroken):
        driver.observe()
    assert not driver.healthy()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"writable": ["/tmp", "/usr"]}, "/usr is writable"),
        ({"writable": ["/proc/sys/kernel/core_pattern"]}, "core_pattern is writable"),
        ({"environment": ["PATH", "AWS_SECRET"]}, "AWS_SECRET"),
        ({"descriptors": [0, 1, 2, 3, 9]}, "descriptor 9"),
        ({"interfaces": ["eth0", "lo"]}, "eth0"),
        ({"status": {**FOUND["status"], "Uid": ["0"] * 4}}, "runs as root"),  # type: ignore[dict-item]
        ({"status": {**FOUND["status"], "CapEff": ["1"]}}, "CapEff"),  # type: ignore[dict-item]
        ({"status": {**FOUND["status"], "NoNewPrivs": ["0"]}}, "gain privileges"),  # type: ignore[dict-item]
        ({"status": {**FOUND["status"], "Seccomp": ["0"]}}, "not filtered"),  # type: ignore[dict-item]
        ({"status": {}}, "capabilities"),
    ],
)
def test_desktop_that_finds_more_than_it_should_is_refused_by_name(
    start: Callable[..., GuestDriver], changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(HostBroken, match=words):
        start("READY", found={**FOUND, **changes})


def test_what_a_guest_says_after_it_was_ready_is_no_diagnosis(start: Callable[..., GuestDriver]) -> None:
    driver = start('READY\nprint("No space left", file=sys.stderr, flush=True)\nhear()')
    with pytest.raises(DesktopBroken):
        driver.observe()
    with pytest.raises(DesktopBroken, match="did not start"):  # the same file, another start
        start("sys.exit(1)")


def test_log_is_cut_and_keeps_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest_log, "FILE_LIMIT", 100_000)
    monkeypatch.setattr(guest_log, "BYTES_PER_S", 1e9)
    log = GuestLog(tmp_path, 3)
    end = os.dup(log.writer)
    log.begin()
    with open(end, "wb") as guest:
        guest.writelines(f"line {number}\n".encode() for number in range(50_000))
    assert log.tail(wait_s=60.0).endswith("line 49999\n")
    files = sorted(tmp_path.glob("desktop-3.log*"))
    assert len(files) == 2 and all(file.stat().st_size <= 100_000 for file in files)
    assert log.path.read_text().endswith("line 49999\n")
    assert log.path.stat().st_mode & 0o077 == 0


def test_wire_bounds_a_frame_before_it_is_read() -> None:
    from computerrl.env_server.guest.wire import Wire, WireClosed

    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(struct.pack(">I", 1000) + json.dumps({"a": 1}).encode())
        with pytest.raises(WireClosed, match="1000 bytes"):
            Wire(ours).receive_frame(timeout_s=5.0, max_bytes=999)


def test_errors_are_of_the_product(start: Callable[..., GuestDriver]) -> None:
    driver = start('READY\nhear()\nsay(error="task", message="C" * 10**6)\nhear()')
    with pytest.raises(ComputerRLError) as caught:
        driver.get("editor_text")
    assert len(str(caught.value)) < 5000


# --- a guest that is taken over from a process that was killed ------------------------------------------------------

SERVES = """
import time
def serve():
    while True:
        request = hear()
        if request["request"] == "screen":
            socket.send_fds(sock, [b"F"], [screen.fileno()])
        else:
            say(**({"echo": request["echo"]} if "echo" in request else {}))
"""


@pytest.fixture
def take_over(start: Callable[..., GuestDriver], tmp_path: Path) -> Iterator[Callable[[str], GuestDriver]]:
    """Have a guest of these lines taken over by a second driver; the first one is never asked again."""
    taken: list[GuestDriver] = []

    def take(lines: str) -> GuestDriver:
        handles = start(f"{SERVES}\nREADY\n{lines}").handles()
        kept = Kept(handles.pid, tuple(map(os.dup, handles.descriptors)))
        launcher = Launcher(tmp_path, "")
        taken.append(GuestDriver(launcher, CONFIG, index=0, folder=tmp_path, screenshots=None, kept=kept))
        return taken[-1]

    yield take
    for driver in taken:
        driver.close()


@pytest.mark.parametrize("lines", ["serve()", "say(message='of the dead')\nserve()"])
def test_guest_is_taken_over_with_its_answer_to_the_dead(take_over: Callable[[str], GuestDriver], lines: str) -> None:
    driver = take_over(lines)
    assert driver.healthy() and driver.frame().shape == (480, 640, 3)
    ended = os.dup(driver.handles().descriptors[0])
    driver.close()
    assert not driver.healthy()
    assert not Kept(0, (ended,)).is_alive
    os.close(ended)


@pytest.mark.parametrize(
    "lines",
    [
        "time.sleep(60)",
        "say(echo=7)\ntime.sleep(60)",
        "say(site='https://of.the.dead/')\nhear()\nserve()",
        'sock.sendall(b"x" * 20)\nserve()',
        'say(error="broken", message="no", echo=hear()["echo"])\nserve()',
        "while True: say()",
        "sys.exit(0)",
    ],
)
def test_guest_that_cannot_be_taken_over_is_a_broken_desktop(
    take_over: Callable[[str], GuestDriver], lines: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guest_process, "_TAKE_OVER_LIMIT_S", 1.0)
    with pytest.raises(DesktopBroken):
        take_over(lines)
