"""What calling the office leaves behind: its objects must go when the work is done, not when Python collects garbage."""

from __future__ import annotations

import gc
import queue
import weakref
from collections.abc import Iterator

import pytest

from env_server.guest.office.main_thread import Outcome, outcome_of
from env_server.guest.office.process import _answer


class Thing:
    """Stands for an object of the office."""


@pytest.fixture(autouse=True)
def no_garbage_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def refused(things: list[weakref.ref[Thing]]) -> None:
    thing = Thing()
    things.append(weakref.ref(thing))
    try:
        raise KeyError("what the office says")
    except KeyError as error:
        raise ValueError("what the agent reads") from error


def test_an_error_keeps_nothing_that_the_work_held() -> None:
    things: list[weakref.ref[Thing]] = []
    done, error = outcome_of(lambda: refused(things))
    assert not done and str(error) == "what the agent reads" and isinstance(error.__cause__, KeyError)
    assert things[0]() is None


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
