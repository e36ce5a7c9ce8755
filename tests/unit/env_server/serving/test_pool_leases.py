"""Leases, fencing tokens and expiry in the pool core."""

from __future__ import annotations

import pytest

from computerrl.common.errors import LeaseRefused, NoDesktop
from computerrl.common.messages import Lease
from computerrl.env_server.serving.pool import DesktopPool, PoolLimits

LIMITS = PoolLimits(lease_time_limit_s=60.0)


def ready_pool(num_desktops: int = 2) -> DesktopPool:
    pool = DesktopPool(num_desktops, limits=LIMITS, first_token=100)
    pool.starts.due(0.0)
    for desktop in range(num_desktops):
        pool.started(desktop, now=0.0)
    return pool


def test_lease_none_started_refused_with_reason() -> None:
    with pytest.raises(NoDesktop, match="2 new"):
        DesktopPool(2, limits=LIMITS).lease("a", app="", now=0.0)


def test_lease_all_taken_refused_until_released() -> None:
    pool = ready_pool(1)
    lease = pool.lease("a", app="", now=0.0)
    with pytest.raises(NoDesktop, match="1 leased"):
        pool.lease("b", app="", now=1.0)
    pool.release(lease, now=2.0)
    assert pool.lease("b", app="", now=3.0).token > lease.token


def test_lease_old_token_after_expiry_refused() -> None:
    pool = ready_pool(1)
    old = pool.lease("a", app="", now=0.0)
    new = pool.lease("b", app="", now=60.0)
    for call in (pool.begin_call, pool.release):
        with pytest.raises(LeaseRefused):
            call(old, now=61.0)
    pool.begin_call(new, now=61.0)


@pytest.mark.parametrize("lease", [Lease(7, 100), Lease(-1, 100), Lease(0, 99)])
def test_begin_call_unknown_lease_refused(lease: Lease) -> None:
    pool = ready_pool()
    pool.lease("a", app="", now=0.0)
    with pytest.raises(LeaseRefused):
        pool.begin_call(lease, now=1.0)


def test_lease_used_is_renewed() -> None:
    pool = ready_pool(1)
    lease = pool.lease("a", app="", now=0.0)
    pool.begin_call(lease, now=50.0)
    pool.end_call(0, lease.token, now=55.0)
    assert pool.expire(100.0) == 0
    assert pool.next_deadline() == 115.0
    assert pool.expire(115.0) == 1


def test_lease_busy_does_not_expire_and_takes_no_second_call() -> None:
    pool = ready_pool(1)
    lease = pool.lease("a", app="", now=0.0)
    pool.begin_call(lease, now=1.0)
    assert pool.expire(1000.0) == 0 and pool.next_deadline() is None
    with pytest.raises(LeaseRefused, match="busy"):
        pool.begin_call(lease, now=1001.0)


def test_release_while_busy_frees_when_the_call_ends() -> None:
    pool = ready_pool(1)
    lease = pool.lease("a", app="", now=0.0)
    pool.begin_call(lease, now=1.0)
    pool.release(lease, now=2.0)
    with pytest.raises(NoDesktop):
        pool.lease("b", app="", now=2.0)
    with pytest.raises(LeaseRefused):
        pool.begin_call(lease, now=2.0)
    pool.end_call(0, lease.token, now=3.0)
    assert pool[0].state == "idle"


def test_lease_prefers_the_desktop_that_showed_the_application() -> None:
    pool = ready_pool(3)
    leases = {app: pool.lease("a", app=app, now=0.0) for app in ("calc", "chromium", "editor")}
    for now, app in enumerate(("editor", "calc", "chromium")):
        pool.release(leases[app], now=float(now))
    assert pool.lease("b", app="chromium", now=9.0).desktop == leases["chromium"].desktop
    # No warm one for files: the longest unused.
    assert pool.lease("b", app="files", now=9.0).desktop == leases["editor"].desktop


def test_release_holder_frees_only_its_desktops() -> None:
    pool = ready_pool(2)
    mine, other = pool.lease("a", app="", now=0.0), pool.lease("b", app="", now=0.0)
    pool.release_holder("a", now=1.0)
    with pytest.raises(LeaseRefused):
        pool.begin_call(mine, now=2.0)
    pool.begin_call(other, now=2.0)
    assert pool.holders() == {"b"}
