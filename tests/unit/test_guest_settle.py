"""`settle`: when the screen counts as quiet, and what may be done meanwhile. The screen here changes when the test says so."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from env_server.guest.settle import Settled, settle

_QUIET_S = 0.02


@dataclass
class Source:
    """A screen, or an accessibility bus: a descriptor to poll, and how many changes there are to be taken."""

    fd: int
    num_changes: int = 0

    def fileno(self) -> int:
        return self.fd

    def pump(self) -> int:
        found, self.num_changes = self.num_changes, 0
        return found


@pytest.fixture
def sources() -> Iterator[tuple[Source, Source]]:
    reader, writer = os.pipe()
    yield Source(reader), Source(reader)
    os.close(reader)
    os.close(writer)


def wait(sources: tuple[Any, Any], meanwhile: Callable[[], object], *, deadline_s: float = 30.0) -> Settled:
    how: dict[str, Any] = {"quiet_s": _QUIET_S, "confirmed": lambda: True, "is_at_rest": lambda: True}
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
