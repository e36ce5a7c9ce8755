"""What calling the office leaves behind: its objects must go when the work is done, not when Python collects garbage."""

from __future__ import annotations

import gc
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from computerrl.env_server.guest.office import main_thread
from computerrl.env_server.guest.office.main_thread import MainThread, Outcome, outcome_of
from computerrl.env_server.guest.office.process import DocumentError, Office, OfficeGone, _answer
from computerrl.env_server.guest.processes import Program


class Thing:
    """Stands for an object of the office, of any kind."""

    office: FakeOffice
    mark: object

    def createScreenCompatibleDevice(self, _wide: int, _high: int) -> Thing:
        return self.office.thing("device")

    def addCallback(self, callback: Callable[[], None], _: None) -> None:
        callback()

    def setInputStream(self, mark: object) -> None:
        self.mark = mark


@pytest.fixture(autouse=True)
def no_garbage_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


class OfficeError(Exception):
    """As UNO's: it knows the object that it came from."""

    def __init__(self, context: Thing) -> None:
        super().__init__("what the office says")
        self.context = context


def refused(things: list[weakref.ref[Thing]]) -> None:
    thing, other = Thing(), Thing()
    things += [weakref.ref(thing), weakref.ref(other)]
    try:
        raise OfficeError(other)
    except OfficeError as error:
        raise DocumentError("what the agent reads") from error


def test_an_error_keeps_nothing_that_the_work_held() -> None:
    things: list[weakref.ref[Thing]] = []
    done, error = outcome_of(lambda: refused(things))
    assert not done and str(error) == "what the agent reads" and "what the office says" in error.__notes__[0]
    assert [thing() for thing in things] == [None, None]


def test_an_error_goes_once_it_is_handled() -> None:
    answer: queue.SimpleQueue[Outcome] = queue.SimpleQueue()

    class Refusal(Exception):
        """A class of ours: built-in ones take no weak references."""

    error = Refusal("no")
    gone = weakref.ref(error)
    answer.put((False, error))
    del error
    with pytest.raises(Refusal, match="no") as caught:
        _answer(answer, 1.0)
    del caught
    assert gone() is None


# --- work in the main thread -----------------------------------------------------------------------------------------


class FakeOffice:
    """Notes what is let go of, in order; calls back at once, as if from its main thread."""

    def __init__(self) -> None:
        self.gone: list[str] = []

    def thing(self, name: str) -> Thing:
        thing = Thing()
        weakref.finalize(thing, self.gone.append, name)
        return thing

    def create(self, service: str) -> Any:
        made = self.thing(service.rpartition(".")[2])
        made.office = self
        return made


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeOffice:
    monkeypatch.setattr(main_thread, "_callback_class", lambda: lambda notify: notify)
    monkeypatch.setattr(main_thread, "_mark_class", lambda: Thing)
    return FakeOffice()


@pytest.mark.parametrize("fails", [False, True])
def test_what_the_work_lets_go_of_lies_between_the_two_marks(fake: FakeOffice, *, fails: bool) -> None:
    def work() -> str:
        thing = fake.thing("text")
        if fails:
            raise DocumentError("no")
        del thing
        return "done"

    answer: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
    released = MainThread(fake.create).put(work, answer)
    assert fake.gone[:3] == ["device", "text", "TextInputStream"] and released.is_set()
    assert answer.get_nowait()[0] is not fails


class FakeMain:
    """Answers with ``outcome``; what the work used is gone after ``released_after_s``, None: never."""

    def __init__(self, outcome: Outcome | None, released_after_s: float | None) -> None:
        self._outcome, self._released_after_s = outcome, released_after_s

    def put(self, work: Callable[[], Any], answer: queue.SimpleQueue[Outcome]) -> threading.Event:
        released = threading.Event()
        if self._outcome is not None:
            answer.put(self._outcome)
        if self._released_after_s is not None:
            threading.Timer(self._released_after_s, released.set).start()
        self.released = released
        return released


@pytest.fixture
def office(tmp_path: Path) -> Office:
    office = Office(env={"HOME": str(tmp_path)}, log_folder=tmp_path)
    office._context = object()
    return office


@pytest.mark.parametrize(("timeout_s", "released_after_s"), [(5.0, 0.1), (1.0, 1.2)])
def test_on_main_waits_until_all_is_gone_however_little_time_is_left(
    office: Office, timeout_s: float, released_after_s: float
) -> None:
    office._main = main = FakeMain((True, "done"), released_after_s=released_after_s)
    assert office.on_main(lambda: "", timeout_s=timeout_s) == "done" and main.released.is_set()


def test_on_main_refusal_is_one_once_all_is_gone(office: Office) -> None:
    office._main = main = FakeMain((False, DocumentError("no such slide")), released_after_s=1.2)
    with pytest.raises(DocumentError, match="no such slide"):
        office.on_main(lambda: "", timeout_s=1.0)
    assert main.released.is_set()


def test_on_main_without_an_answer_says_so(office: Office) -> None:
    office._main = FakeMain(None, released_after_s=None)
    with pytest.raises(OfficeGone, match="did not answer in time"):
        office.on_main(lambda: "", timeout_s=1.0)


def test_on_main_does_not_wait_for_an_office_that_has_ended(office: Office, tmp_path: Path) -> None:
    office.program = Program("office", ["sh", "-c", "exit 3"], env={"PATH": "/usr/bin:/bin"}, log_folder=tmp_path)
    office.program.start()
    office._main = FakeMain(None, released_after_s=None)
    with pytest.raises(OfficeGone, match="did not answer; office ended, exit status 3"):
        office.on_main(lambda: "", timeout_s=600.0)


def test_on_main_says_when_nothing_is_let_go_of(office: Office) -> None:
    office._main = FakeMain((True, "done"), released_after_s=None)
    with pytest.raises(OfficeGone, match="did not let go"):
        office.on_main(lambda: "", timeout_s=1.0)


# --- its thread ------------------------------------------------------------------------------------------------------


def test_thread_of_an_office_that_was_started_anew_ends(office: Office, tmp_path: Path) -> None:
    office.program = Program("office", ["sleep", "60"], env={"PATH": "/usr/bin:/bin"}, log_folder=tmp_path)
    (office.folder / "user").mkdir(parents=True)
    (office.folder / "user/registrymodifications.xcu").touch()
    goes_on = threading.Event()
    workers = []
    for _ in range(5):
        office._context = object()
        workers.append(office.call(threading.current_thread, timeout_s=600.0))
        with pytest.raises(OfficeGone):  # this one blocks, as an office does that shows a dialog
            office.call(goes_on.wait, timeout_s=0.0)
        office.start()
    goes_on.set()
    for worker in workers:
        worker.join(600.0)
    assert len(set(workers)) == len(workers) and not any(worker.is_alive() for worker in workers)
    office._context = object()
    assert office.call(threading.current_thread, timeout_s=600.0).is_alive()
    office.program.kill()


# --- how the office ended --------------------------------------------------------------------------------------------


def ended(tmp_path: Path, script: str) -> str:
    program = Program("office", ["sh", "-c", script], env={"PATH": "/usr/bin:/bin"}, log_folder=tmp_path)
    program.start()
    try:
        return program.how_it_ended(wait_s=10.0)
    finally:
        program.kill()


def test_how_it_ended_names_signal_or_status_and_the_last_words_of_this_start(tmp_path: Path) -> None:
    assert ended(tmp_path, "echo first; kill -ABRT $$") == "; office ended, killed by signal 6 (Aborted): first"
    assert ended(tmp_path, "echo second; exit 3") == "; office ended, exit status 3: second"
    assert "killed by signal 35" in ended(tmp_path, "kill -35 $$")


def test_how_it_ended_is_empty_before_and_while_it_runs(tmp_path: Path) -> None:
    program = Program("office", ["sleep", "60"], env={"PATH": "/usr/bin:/bin"}, log_folder=tmp_path)
    assert program.how_it_ended(wait_s=10.0) == ""
    program.start()
    assert program.how_it_ended(wait_s=0.0) == ""
    program.kill()
