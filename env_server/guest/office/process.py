"""The office's process and how it is called: every UNO call is made by one worker thread, or by the office's own main thread.

One worker thread, so that a blocked office (a modal dialog, an endless formula) costs a deadline and not the guest. What opens
or closes windows has to run in the office's main thread (`Office.on_main`): from any other, that thread would run the
GTK loop too, and the two lock each other out about one time in four.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..files.folder import read_regular, remove
from ..processes import Program
from . import profile
from .main_thread import MainThread, Outcome, outcome_of

T = TypeVar("T")

_PIPE = "computerrl"
_SETTINGS_FILE = "user/registrymodifications.xcu"
_RESOLVE_LIMIT_S = 5.0
_BROKEN, _END_LIMIT_S = "URP bridge", 1.0
"""Text of errors when the connection broke; and time from then to the end of the process, which first saves open documents."""
_LOOK_EVERY_S = 0.2
_RELEASE_LIMIT_S = 2.0
"""At least so long the office may take to destroy what it is no longer asked for, however little time the call has left."""


class OfficeGone(RuntimeError):
    """The office does not answer or is dead."""


class DocumentError(ValueError):
    """Asked for something that the document or the office does not have; the message is for the agent."""


class _Worker:
    """One thread that makes all UNO calls of one office process, until `end`."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Outcome]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="uno", daemon=True).start()

    def call(self, work: Callable[[], T], *, timeout_s: float) -> T:
        answer: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._calls.put((work, answer))
        return _answer(answer, timeout_s)

    def end(self) -> None:
        """The thread ends with the call that it is making, which may be never; it does none that comes after this."""
        self._calls.put(None)

    def _run(self) -> None:
        while call := self._calls.get():
            _do(*call)
            del call


def _do(work: Callable[[], Any], answer: queue.SimpleQueue[Outcome]) -> None:
    # A function of its own: variables of the endless loop would hold the last work, and what it knows, until the next one comes.
    answer.put(outcome_of(work))


def _answer(answer: queue.SimpleQueue[Outcome], timeout_s: float, *, how_it_ended: Callable[[], str] = str) -> Any:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            done, value = answer.get(timeout=max(0.0, min(deadline - time.monotonic(), _LOOK_EVERY_S)))
            break
        except queue.Empty:
            if how := how_it_ended():
                raise OfficeGone(f"the office did not answer{how}") from None
            if time.monotonic() >= deadline:
                raise OfficeGone("the office did not answer in time") from None
    if done:
        return value
    try:
        raise value
    finally:
        del value  # a frame in its own error's traceback is a cycle


def _wait_for(released: threading.Event, deadline: float) -> None:
    if not released.wait(max(_RELEASE_LIMIT_S, deadline - time.monotonic())):
        raise OfficeGone("the office did not let go of what it was asked for")


class Office:
    """The process, started with a warm sheet."""

    def __init__(self, *, env: Mapping[str, str], log_folder: Path) -> None:
        self.folder = Path(env["HOME"]) / ".config/libreoffice/4"
        """Its profile."""
        self.program = Program(
            "office",
            [
                str(profile.PROGRAM / "soffice.bin"),
                "--norestore",
                "--nologo",
                "--nofirststartwizard",
                "--nolockcheck",
                f"-env:UserInstallation=file://{self.folder}",
                f"--accept=pipe,name={_PIPE};urp;",
                "--calc",
            ],
            env={**env, "TMPDIR": str(self.folder / "tmp")},
            log_folder=log_folder,
        )
        self._first: tuple[frozenset[str], Mapping[str, str]] | None = None
        """Files and options as they were before a task; None: not known."""
        self._worker = _Worker()
        self._context: Any = None
        self._main: MainThread | None = None
        self.num_starts = 0
        self.options_before: dict[tuple[str, str], Any] = {}
        """Options that tools changed, with their values before (`registry`); kept over a restart, as the profile is."""
        self.options_restored: dict[str, str] = {}
        """Options that were put back, by node and name, with their values as the profile has them."""

    def start(self) -> None:
        """Start it; it can be called once `connect` returns."""
        self.program.kill()
        self._context = self._main = None
        self._replace_worker()
        self.num_starts += 1
        user = self.folder / "user"
        user.mkdir(parents=True, exist_ok=True)
        (self.folder / "tmp").mkdir(exist_ok=True)
        settings = user / "registrymodifications.xcu"
        if not settings.exists():
            settings.write_text(profile.settings_file(), encoding="utf-8")
            profile.mark_extensions_current(user)
        self.program.start()

    def _replace_worker(self) -> None:
        self._worker.end()
        self._worker = _Worker()

    def end(self) -> None:
        """End it and forget its profile; it is started anew when it is needed."""
        self.program.kill()
        self._context = self._main = self._first = None
        self.options_before.clear()
        self.options_restored.clear()
        remove(self.folder)

    def note(self) -> None:
        """No agent has used it since it was started: its profile is the first one."""
        if self._first is None:
            self._first = profile.files(self.folder), self._registry().options

    def changes(self, *, timeout_s: float) -> list[str]:
        """Names of files and options in its profile that are not as at first. Raises `OfficeGone`."""
        assert self._first is not None, "one that was started in the task is not asked"
        first_files, first_options = self._first
        self.call(self._write_registry, timeout_s=timeout_s)
        now = self._registry()
        if now.remembered:
            self.call(lambda: self._forget(now.remembered), timeout_s=timeout_s)
        changed = profile.changes(first_options, now.options, restored=self.options_restored)
        return sorted(profile.files(self.folder) ^ first_files) or changed

    def _write_registry(self) -> None:
        self.create("com.sun.star.configuration.ConfigurationProvider").flush()

    def _registry(self) -> profile.Registry:
        return profile.read_registry(read_regular(self.folder / profile.REGISTRY) or b"")

    def _forget(self, remembered: Sequence[tuple[str, str]]) -> None:
        import uno

        provider = self.create("com.sun.star.configuration.ConfigurationProvider")
        for node, name in remembered:
            place = uno.createUnoStruct("com.sun.star.beans.PropertyValue", Name="nodepath", Value=node)
            access = provider.createInstanceWithArguments("com.sun.star.configuration.ConfigurationUpdateAccess", (place,))
            if access.hasByName(name):
                access.removeByName(name)
                access.commitChanges()
        provider.flush()

    def connect(self, *, timeout_s: float) -> None:
        """Wait until it answers. Raises `OfficeGone`."""
        deadline = time.monotonic() + timeout_s
        while self._context is None:
            if not self.program.running:
                self.program.start()
            try:
                self._worker.call(self._resolve, timeout_s=_RESOLVE_LIMIT_S)
            except OfficeGone:
                self._replace_worker()  # A connection taken by an office that is just ending never answers.
            except Exception as error:  # pyuno raises classes made at run time; not listening yet is the common one
                if time.monotonic() > deadline:
                    raise OfficeGone(f"the office did not start: {error!r} {self.program.log_tail()}") from error
                time.sleep(0.03)
            if time.monotonic() > deadline:
                raise OfficeGone(f"the office did not start: {self.program.log_tail()}")

    @property
    def context(self) -> Any:
        """UNO's component context; only inside `call` and `on_main`."""
        return self._context

    def create(self, service: str) -> Any:
        """A new instance of a UNO service; only inside `call` and `on_main`."""
        return self._context.ServiceManager.createInstanceWithContext(service, self._context)

    def call(self, work: Callable[[], T], *, timeout_s: float) -> T:
        """Run ``work`` in the worker's thread; its result must be none of the office's objects.

        Raises `DocumentError` or, for whatever else goes wrong, `OfficeGone`.
        """
        if self._context is None:
            raise OfficeGone("the office is not connected")
        return self._checked(lambda: self._worker.call(work, timeout_s=timeout_s))

    def on_main(self, work: Callable[[], T], *, timeout_s: float) -> T:
        """Run ``work`` while the office's main thread carries out all its UNO calls; its result must be none of its objects.

        Those that it used are gone when this returns or raises `DocumentError` (`main_thread` says what ``work`` must not do for
        that). Raises like `call`, and `OfficeGone` when they do not go.
        """
        deadline = time.monotonic() + timeout_s
        answer: queue.SimpleQueue[Outcome] = queue.SimpleQueue()

        def ask() -> threading.Event:
            if self._main is None:
                self._main = MainThread(self.create)
            return self._main.put(work, answer)

        released = self.call(ask, timeout_s=timeout_s)
        try:
            # Unlike a call, which breaks with the connection, this answer just never comes when the office ends.
            value: T = self._checked(
                lambda: _answer(answer, deadline - time.monotonic(), how_it_ended=lambda: self.program.how_it_ended(wait_s=0.0))
            )
        except DocumentError:
            _wait_for(released, deadline)
            raise
        _wait_for(released, deadline)
        return value

    def _checked(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except (DocumentError, OfficeGone):
            raise
        except Exception as error:  # pyuno raises classes made at run time: the bridge broke, or the document is gone
            how = self.program.how_it_ended(wait_s=_END_LIMIT_S if _BROKEN in str(error) else 0.0)
            raise OfficeGone(f"{type(error).__name__}: {error}{how}") from error

    def _resolve(self) -> None:
        import uno

        local = uno.getComponentContext()
        resolver = local.ServiceManager.createInstanceWithContext("com.sun.star.bridge.UnoUrlResolver", local)
        self._context = resolver.resolve(f"uno:pipe,name={_PIPE};urp;StarOffice.ComponentContext")
