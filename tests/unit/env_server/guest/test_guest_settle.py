"""`settle`: when the screen counts as quiet, and what may be done meanwhile. The screen here changes when the test says so, and
time passes only where `settle` waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from computerrl.env_server.guest.screen import settle as settle_module
from computerrl.env_server.guest.screen.settle import Settled, settle

_QUIET_S = 0.02


@dataclass
class Source:
    """A screen, or an accessibility bus: how many changes there are to be taken."""

    num_changes: int = 0

    def fileno(self) -> int:
        return 0

    def pump(self) -> int:
        found, self.num_changes = self.num_changes, 0
        return found


class Clock:
    """Stands for both modules that `settle` waits with, so that a machine that stalls changes nothing here."""

    POLLIN = 1

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def poll(self, timeout_ms: float | None = None) -> Clock:
        """Without a time `select.poll`, which makes a poller; with one the poller's own, which waits."""
        self.now_s += (timeout_ms or 0.0) / 1000
        return self

    def register(self, fd: int, events: int) -> None:
        """Nothing here wakes a poller."""


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> tuple[Source, Source]:
    clock = Clock()
    monkeypatch.setattr(settle_module, "time", clock)
    monkeypatch.setattr(settle_module, "select", clock)
    return Source(), Source()


def wait(
    sources: tuple[Any, Any],
    meanwhile: Callable[[], object] | None = None,
    *,
    deadline_s: float = 30.0,
    is_at_rest: Callable[[], bool] = lambda: True,
) -> Settled:
    how: dict[str, Any] = {"quiet_s": _QUIET_S, "confirmed": lambda: True, "is_at_rest": is_at_rest}
    return settle(*sources, deadline_s=deadline_s, meanwhile=meanwhile, **how)


def test_meanwhile_is_called_once_where_nothing_changes(sources: tuple[Source, Source]) -> None:
    calls: list[str] = []
    assert wait(sources, lambda: calls.append("read")).by == "quiet"
    assert calls == ["read"]


@pytest.mark.parametrize("which", [0, 1], ids=["screen", "accessibility"])
@pytest.mark.parametrize(("num_changing", "num_calls"), [(1, 2), (2, 2), (9, 2)])
def test_meanwhile_is_called_once_more_after_a_change(
    sources: tuple[Source, Source], which: int, num_changing: int, num_calls: int
) -> None:
    calls: list[str] = []

    def read() -> None:
        calls.append("read")
        sources[which].num_changes = int(len(calls) <= num_changing)

    assert wait(sources, read).by == "quiet"
    assert len(calls) == num_calls


def test_a_change_during_the_last_call_has_to_come_to_rest_too(sources: tuple[Source, Source]) -> None:
    def read() -> None:
        sources[0].num_changes = 1

    assert wait(sources, read).duration_s >= 2 * _QUIET_S


def test_nothing_is_called_after_the_deadline(sources: tuple[Source, Source]) -> None:
    calls: list[str] = []
    assert wait(sources, lambda: calls.append("read"), deadline_s=0.0).by == "deadline"
    assert not calls


@pytest.mark.parametrize("which", [0, 1], ids=["screen", "accessibility"])
def test_what_came_until_all_were_at_rest_has_to_come_to_rest_too(sources: tuple[Source, Source], which: int) -> None:
    """An application that has sent its last request is at rest before the X server has dealt with it."""
    looks: list[str] = []

    def is_at_rest() -> bool:
        looks.append("look")
        sources[which].num_changes = int(len(looks) == 1)
        return True

    settled = wait(sources, is_at_rest=is_at_rest)
    assert (settled.by, len(looks)) == ("quiet", 2)
    assert settled.duration_s >= 2 * _QUIET_S
