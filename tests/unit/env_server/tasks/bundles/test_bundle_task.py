"""An imported bundle as a task: what is brought onto the desktop, when, and what its scripts' ends mean."""

from __future__ import annotations

import io
import tarfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from computerrl.common.errors import TaskFailed
from computerrl.common.messages import Observation
from computerrl.env_server.driver import TaskInstance
from computerrl.env_server.tasks.bundles import stand_ins
from computerrl.env_server.tasks.bundles.format import read_bundle
from computerrl.env_server.tasks.bundles.hub import Hub
from computerrl.env_server.tasks.bundles.static_server import make_handler, read_pages
from computerrl.env_server.tasks.bundles.task import PAGES_SEND_WITHIN_S, BundleTask
from computerrl.env_server.tasks.family import DONE, NO_VERDICT
from computerrl.env_server.tasks.osworld.desktop import RunResult
from tests.support.osworld_fake import FakeDesktop
from tests.support.tasks.bundles import CHECKS, MAKES, write_bundle, write_hub

PAID = {"/reward.py": RunResult(0, "REWARD: 1\n", "")}


def bundle_task(folder: Path, **changes: Any) -> BundleTask:
    place = write_bundle(folder, "one", **changes)
    return BundleTask(place, read_bundle(place).digest)


def instance(task: BundleTask) -> TaskInstance:
    return task.as_instance("Do it.")


def archives(desktop: FakeDesktop) -> list[list[str]]:
    """Names of the files in each archive that was put onto the desktop."""
    data = [data for path, data in desktop.files.items() if path.endswith(".tar")]
    return [tarfile.open(fileobj=io.BytesIO(one)).getnames() for one in data]


def test_set_up_runs_the_script_beside_the_plain_files_and_removes_all(tmp_path: Path) -> None:
    task = bundle_task(tmp_path, setup="pass", solution="pass", files={"gold.txt": "x", "a/b.csv": "1"})
    desktop = FakeDesktop()
    task.set_up(desktop)
    (brought,) = archives(desktop)
    assert [name for name in brought if not name.startswith(stand_ins.FOLDER)] == ["a/b.csv", "gold.txt", "initial_setup.py"]
    (ran,) = [call[1] for call in desktop.calls if call[0] == "run" and "initial_setup.py" in call[1][-1]]
    place = str(Path(ran[-1]).parent)
    assert ran[0] == "prlimit" and ran[ran.index("env") :][:3] == ["env", "-C", place] and ran[-2] == "python3"
    assert desktop.calls[-1] == ("run", ["rm", "-rf", place])


def test_applications_that_the_set_up_script_starts_are_started_by_the_desktop(tmp_path: Path) -> None:
    class Starts(FakeDesktop):
        def read_file(self, path: str) -> bytes | None:
            return b"2\0vlc\0a b.mp4\x003\0libreoffice\0--calc\0\0" if path.endswith("/started") else None

    desktop = Starts()
    bundle_task(tmp_path, setup="pass").set_up(desktop)
    assert [call[1] for call in desktop.calls if call[0] == "launch"] == [["vlc", "a b.mp4"], ["libreoffice", "--calc", ""]]


def test_document_is_opened_unless_a_script_or_step_does_it(tmp_path: Path) -> None:
    document: dict[str, Any] = {"initial_setup.xlsx": b"PK"}
    opened = ("open", "/home/user/initial_setup.xlsx")
    for name, changes, is_opened in (
        ("alone", {}, True),
        ("script", {"setup": "pass"}, False),
        ("steps", {"config": [{"type": "sleep", "parameters": {"seconds": 0}}]}, False),
    ):
        desktop = FakeDesktop()
        bundle_task(tmp_path / name, files=document, **changes).set_up(desktop)
        assert desktop.files["/home/user/initial_setup.xlsx"] == b"PK" and (opened in desktop.calls) is is_opened


def test_steps_take_their_files_from_the_bundle(tmp_path: Path) -> None:
    files = [{"url": "https://h.invalid/deep/in.txt", "path": "/home/user/Desktop/in.txt"}]
    steps = [
        {"type": "download", "parameters": {"files": files}},
        {"type": "open", "parameters": {"path": "/home/user/Desktop/in.txt"}},
    ]
    desktop = FakeDesktop()
    bundle_task(tmp_path, files={"in.txt": "x"}, config=steps).set_up(desktop)
    assert desktop.files["/home/user/Desktop/in.txt"] == b"x" and ("open", "/home/user/Desktop/in.txt") in desktop.calls


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (RunResult(1, "", "no room"), "initial_setup.py ended with code 1: no room"),
        (RunResult(124, "", ""), "initial_setup.py did not end within 120 s"),
        (RunResult(137, "", ""), "initial_setup.py ended with code 137"),
    ],
)
def test_set_up_script_that_fails_fails_the_task(answer: RunResult, reason: str, tmp_path: Path) -> None:
    with pytest.raises(TaskFailed, match=reason):
        bundle_task(tmp_path, setup="pass").set_up(FakeDesktop(answers={"initial_setup.py": answer}))


def test_judgement_brings_its_files_for_the_script_alone(tmp_path: Path) -> None:
    task = bundle_task(tmp_path, setup="pass", solution="pass", files={"gold.txt": "x"})
    desktop = FakeDesktop(answers=PAID)
    assert task.evaluate(desktop).success
    assert {Path(path).name: data for path, data in desktop.judged_with.items()} == {
        "reward.py": CHECKS.encode(),
        "gold.txt": b"x",
    }
    assert not desktop.files, "a file that stays could be read"
    (place,) = {str(Path(path).parent) for path in desktop.judged_with}
    assert desktop.calls[0] == ("bring_own_files", None) and desktop.calls[-1] == ("run", ["rm", "-rf", place])
    desktop.judged_with = {}
    assert task.evaluate(desktop).success
    assert not any(path.startswith(place) for path in desktop.judged_with), "each judgement has a folder of its own"


@pytest.mark.parametrize(
    "answer",
    [RunResult(0, "", ""), RunResult(1, "REWARD: 1\n", ""), RunResult(124, "REWARD: 1\n", ""), RunResult(0, "REWARD: nan\n", "")],
)
def test_script_without_a_verdict_pays_nothing(answer: RunResult, tmp_path: Path) -> None:
    verdict = bundle_task(tmp_path).evaluate(FakeDesktop(answers={"/reward.py": answer}))
    assert verdict.reward == 0.0 and verdict.detail.startswith(NO_VERDICT)


class FullDesktop(FakeDesktop):
    """Takes no files."""

    def run(self, command: Any, *, timeout_s: float = 30.0, files: Mapping[str, bytes] | None = None) -> RunResult:
        if files:
            raise TaskFailed("No space left on device")
        return super().run(command, timeout_s=timeout_s)


def test_desktop_that_takes_no_file_of_the_judge_s_pays_nothing(tmp_path: Path) -> None:
    verdict = bundle_task(tmp_path).evaluate(FullDesktop(answers=PAID))
    assert verdict.reward == 0.0 and "No space left" in verdict.detail


def test_web_application_is_served_and_shown_and_must_live_until_the_judgement(tmp_path: Path) -> None:
    files: dict[str, Any] = {"web/index.html": "<h1>", "web/a.js": "1"}
    task = bundle_task(
        tmp_path, reward="print('__CUA_GYM_SHOP_URL__')", files=files, web_app={"folder": "web", "port": 9000, "path": "/?x=1"}
    )
    desktop = FakeDesktop(answers=PAID)
    task.set_up(desktop)
    (served,) = [call for call in desktop.calls if call[0] == "serve"]
    assert served[1][:3] == ["python3", "-I", "-c"] and served[1][-1] == "9000" and served[2] == 9000
    assert archives(desktop) == [["a.js", "index.html"]]
    assert [page.url for page in desktop.pages] == ["http://127.0.0.1:9000/?x=1"]
    assert task.evaluate(desktop).success
    assert b"http://127.0.0.1:9000" in next(iter(desktop.judged_with.values()))
    desktop.serves = False
    verdict = task.evaluate(desktop)
    assert verdict.reward == 0.0 and "has been ended" in verdict.detail


def test_pages_of_the_hub_have_time_to_send_before_a_solution_runs_and_before_the_judge_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = write_bundle(tmp_path, "one", setup="url = '__CUA_GYM_SHOP_URL__'")
    task = BundleTask(place, read_bundle(place).digest, Hub.open(write_hub(tmp_path / "hub"), field="hub"))
    desktop = FakeDesktop(answers=PAID)
    monkeypatch.setattr(time, "sleep", lambda seconds: desktop.calls.append(("waits", seconds)))
    task.set_up(desktop)
    assert desktop.calls[-1] == ("waits", PAGES_SEND_WITHIN_S)
    desktop.calls.clear()
    assert task.evaluate(desktop).success
    assert desktop.calls[0] == ("waits", PAGES_SEND_WITHIN_S), "before applications stand still"
    without = FakeDesktop(answers=PAID)
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("no page of the hub is there"))
    other = bundle_task(tmp_path / "other")
    other.set_up(without)
    assert other.evaluate(without).success


def test_web_application_for_node_needs_node(tmp_path: Path) -> None:
    task = bundle_task(tmp_path, files={"web/server.js": "x"})
    with pytest.raises(TaskFailed, match="the program node, which the desktop's image lacks"):
        task.set_up(FakeDesktop(answers={"node --version": RunResult(127, "", "")}))
    desktop = FakeDesktop()
    task.set_up(desktop)
    (served,) = [call for call in desktop.calls if call[0] == "serve"]
    assert served[1][-4:] == ["PORT=8080", "HOST=127.0.0.1", "node", "server.js"]


def test_solution_is_the_demonstration_and_runs_once(tmp_path: Path) -> None:
    desktop = FakeDesktop()
    made = instance(bundle_task(tmp_path, solution=MAKES))
    shown = Observation("files", "", (), None, 800, 600, "none", 0.0, "")
    for actions in ([], [DONE]):
        assert made.demonstrate("Do it.", shown, actions, desktop.answer) == DONE
    assert len([call for call in desktop.calls if call[0] == "run" and "solution.py" in str(call[1])]) == 1
    with pytest.raises(TaskFailed, match="no solution"):
        instance(bundle_task(tmp_path / "other")).demonstrate("Do it.", shown, [], desktop.answer)


def test_bundle_that_has_changed_since_its_import_is_refused(tmp_path: Path) -> None:
    task = bundle_task(tmp_path)
    (task.folder / "reward.py").write_text("print('REWARD: 1')")
    with pytest.raises(TaskFailed, match="has changed since its import"):
        task.evaluate(FakeDesktop(answers=PAID))
    (task.folder / "reward.py").unlink()
    with pytest.raises(TaskFailed, match="cannot be read: is missing"):
        task.set_up(FakeDesktop())


def test_static_pages_are_served_from_memory(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    for name, text in {"index.html": "home", "a b/index.html": "below", "a b/x.json": "{}"}.items():
        (tmp_path / name).write_text(text)
    pages = read_pages(str(tmp_path))
    server = ThreadingHTTPServer(("127.0.0.1", 0), make_handler(pages))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (tmp_path / "index.html").write_text("changed")

    def get(path: str) -> tuple[bytes, str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}{path}", timeout=30) as answer:
            return answer.read(), answer.headers["Content-Type"]

    assert get("/") == (b"home", "text/html") and get("/index.html?q=1") == (b"home", "text/html")
    assert get("/a%20b/") == (b"below", "text/html") and get("/a%20b/x.json") == (b"{}", "application/json")
    for path in ("/nothing", "/../index.html", "/a%20b/../index.html", "//etc/passwd"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(path)
    server.shutdown()
    server.server_close()
