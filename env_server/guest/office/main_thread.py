"""Work in the office's own main thread, and when the office may forget the objects that the work asked for.

An object that Python lets go of is destroyed by another thread of the office, whenever it comes to that. The texts of slides,
their paragraphs and cursors leave their lists there without any lock: while the main thread changes or saves the slide, that
ends the office (``SvxUnoTextBase::createEnumeration``, about one of a hundred saves on a busy machine). So what a piece of work
lets go of is held back until the work is done, and it counts as done only when all of that is gone. Held back it is by the lock
that the main thread has during the work: until the work lets the office look after its windows (loading, saving, a dialog).
Work must not let go of a slide's texts and do that afterwards.
"""

from __future__ import annotations

import functools
import gc
import queue
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import Any

Outcome = tuple[bool, Any]
"""Did it work, and its result or its error."""
_OF_THE_OFFICE = "__pyunostruct__"
"""What classes of the office's exceptions have; those take no attributes."""
_MAX_NOTE = 500


def outcome_of(work: Callable[[], Any]) -> Outcome:
    """Do it; an error is kept without what its frames and causes held: the office's objects are to go when the work is done."""
    try:
        return True, work()
    except Exception as error:  # noqa: BLE001  (handed to the caller's thread: this is the boundary between the two)
        _forget(error)
        return False, error


def _forget(error: BaseException) -> None:
    one: BaseException | None = error
    while one is not None:
        traceback.clear_frames(one.__traceback__)
        one = one.__context__
    if error.__context__ is not None and not hasattr(type(error), _OF_THE_OFFICE):
        # An exception of the office's knows the object that it came from.
        error.add_note(f"caused by {error.__context__!r}"[:_MAX_NOTE])
        error.__cause__ = error.__context__ = None


class MainThread:
    """The main thread of one office, for one connection to it."""

    def __init__(self, create: Callable[[str], Any]) -> None:
        self._callback_class, self._mark_class = _callback_class(), _mark_class()
        gc.collect()  # The import of unohelper leaves this frame and its callers' in a cycle.
        self._create = create
        self._queue = create("com.sun.star.awt.AsyncCallback")
        self._toolkit = create("com.sun.star.awt.Toolkit")

    def put(self, work: Callable[[], Any], answer: queue.SimpleQueue[Outcome]) -> threading.Event:
        """Have ``work`` done; its outcome goes to ``answer``, and the event is set when all that it let go of is gone.

        The main thread calls us back, and what a called-back thread asks of the office is done by the thread that called.
        """
        released = threading.Event()
        # Objects are destroyed in the order in which they were let go, by one thread. The first needs the main thread's lock, so
        # that all others wait behind it; the last takes an object of ours with it.
        first, last = [self._toolkit.createScreenCompatibleDevice(1, 1)], [self._holder_of_mark(released)]

        def notify() -> None:
            first.clear()
            outcome = outcome_of(work)
            last.clear()
            answer.put(outcome)

        self._queue.addCallback(self._callback_class(notify), None)
        return released

    def _holder_of_mark(self, released: threading.Event) -> Any:
        mark = self._mark_class()
        weakref.finalize(mark, released.set)
        holder = self._create("com.sun.star.io.TextInputStream")
        holder.setInputStream(mark)
        return holder


# Classes are made once: each is part of a cycle of references, which only Python's garbage collector ends, at any time it likes.


@functools.cache
def _callback_class() -> Any:
    import uno
    import unohelper

    class Callback(unohelper.Base, uno.getClass("com.sun.star.awt.XCallback")):  # type: ignore[misc]
        def __init__(self, work: Callable[[], None]) -> None:
            self._work = work

        def notify(self, _: Any) -> None:
            self._work()

    return Callback


@functools.cache
def _mark_class() -> Any:
    import uno
    import unohelper

    class Mark(unohelper.Base, uno.getClass("com.sun.star.io.XInputStream")):  # type: ignore[misc]
        """A stream that is never read: the office's reader of text is the simplest thing that keeps an object of ours."""

    return Mark
