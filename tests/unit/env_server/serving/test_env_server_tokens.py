"""Lease tokens over restarts of their env_server."""

import time
from pathlib import Path

import pytest

from computerrl.common.errors import SetupError
from computerrl.env_server.process import first_token
from computerrl.env_server.serving.pool import DesktopPool, PoolLimits


def test_tokens_after_a_restart_with_the_clock_set_back_are_above_all_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokens" / "env_server-0"
    given: list[int] = []
    for hours in (0, -5, 3, -1000):
        monkeypatch.setattr(time, "time", lambda hours=hours: 1.7e9 + 3600 * hours)
        monkeypatch.setattr(time, "time_ns", lambda hours=hours: int((1.7e9 + 3600 * hours) * 1e9))
        pool = DesktopPool(2, limits=PoolLimits(lease_time_limit_s=60.0), first_token=first_token(path))
        pool.starts.due(0.0)
        for desktop in range(2):
            pool.started(desktop, now=0.0)
            given.append(pool.lease("a", app="", now=0.0).token)
    assert len(given) == 8
    assert given == sorted(set(given))


def test_first_token_from_a_damaged_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("")
    with pytest.raises(SetupError, match="tokens"):
        first_token(tmp_path / "tokens")
