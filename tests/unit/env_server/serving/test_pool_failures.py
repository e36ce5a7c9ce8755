"""Failures in the pool core: recycling, backoff, quarantine, broken host; and its invariants under random events."""

from __future__ import annotations

import random

import pytest

from computerrl.common.errors import EnvError, HostBroken, LeaseRefused, NoDesktop
from computerrl.common.messages import Lease
from computerrl.env_server.serving.pool import QUARANTINE_FAILURES, DesktopPool, PoolLimits

LIMITS = PoolLimits(lease_time_limit_s=60.0, backoff_s=1.0, max_backoff_s=5.0)


def ready_pool(num_desktops: int = 2) -> DesktopPool:
    pool = DesktopPool(num_desktops, limits=LIMITS)
    assert pool.starts.due(0.0) == list(range(num_desktops))
    for desktop in range(num_desktops):
        pool.started(desktop, now=0.0)
    return pool


def test_broke_first_time_restarts_at_once_and_voids_the_lease() -> None:
    pool = ready_pool()
    lease = pool.lease("a", app="", now=1.0)
    pool.begin_call(lease, now=1.0)
    pool.broke(lease.desktop, "died", now=2.0)
    with pytest.raises(LeaseRefused, match="died"):
        pool.begin_call(lease, now=2.0)
    assert pool.starts.due(2.0) == [lease.desktop] and pool.starts.due(2.0) == []
    assert pool[lease.desktop].state == "starting" and pool.starts.num_restarts == 1


def test_broke_again_waits_doubled_backoff_up_to_its_limit() -> None:
    pool = ready_pool()
    now, waits = 0.0, []
    for _ in range(6):
        pool.broke(0, "died", now=now)
        deadline = pool.next_deadline()
        assert deadline is not None
        waits.append(deadline - now)
        now = deadline
        assert pool.starts.due(now) == [0]
        pool.started(0, now=now)
    assert waits == [0.0, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert pool.num_quarantined == 1


def test_broke_finished_call_in_between_starts_counting_anew() -> None:
    pool = ready_pool(1)
    for _ in range(10):
        pool.broke(0, "died", now=0.0)
        assert pool.starts.due(0.0) == [0]
        pool.started(0, now=0.0)
        lease = pool.lease("a", app="", now=0.0)
        pool.begin_call(lease, now=0.0)
        pool.end_call(0, lease.token, now=0.0)
    assert pool.starts.host_reason == ""


def test_broke_every_desktop_in_a_row_breaks_the_host() -> None:
    pool = ready_pool(2)
    for _ in range(QUARANTINE_FAILURES):
        for desktop in (0, 1):
            pool.starts.due(1e9)
            pool.broke(desktop, "no image", now=0.0)
    assert "no image" in pool.starts.host_reason
    assert pool.starts.due(1e9) == []
    with pytest.raises(HostBroken, match="no image"):
        pool.lease("a", app="", now=1.0)


def test_host_broke_refuses_calls_of_running_leases() -> None:
    pool = ready_pool()
    lease = pool.lease("a", app="", now=0.0)
    pool.starts.host_broke("disk full")
    with pytest.raises(HostBroken, match="disk full"):
        pool.begin_call(lease, now=1.0)


@pytest.mark.parametrize("seed", range(20))
def test_pool_random_events_keep_invariants_and_never_two_holders(seed: int) -> None:
    rng = random.Random(seed)
    pool = DesktopPool(3, limits=LIMITS)
    pool.starts.due(0.0)
    now, last_token = 0.0, 0
    valid: dict[int, Lease] = {}
    for _ in range(2000):
        now += rng.expovariate(0.2)
        event = rng.randrange(6)
        desktop = rng.randrange(3)
        try:
            if event == 0:
                lease = pool.lease("a", app="", now=now)
                assert lease.token > last_token, "tokens only grow"
                last_token, valid[lease.desktop] = lease.token, lease
            elif event == 1 and valid:
                lease = rng.choice(list(valid.values()))
                pool.begin_call(lease, now=now)
                assert valid[lease.desktop] is lease, "an older lease was let in"
                pool.end_call(lease.desktop, lease.token, now=now)
            elif event == 2 and desktop in valid:
                pool.release(valid[desktop], now=now)
            elif event == 3 and pool[desktop].state != "broken" and rng.random() < 0.3:
                pool.broke(desktop, "died", now=now)
                valid.pop(desktop, None)
                if pool.starts.host_reason:
                    return
            elif event == 4 and pool[desktop].state == "starting":
                pool.started(desktop, now=now)
            else:
                pool.starts.due(now)
        except (NoDesktop, LeaseRefused):
            pass
        except EnvError as error:  # pragma: no cover - would be a bug
            raise AssertionError(f"unexpected {error!r}") from error
        pool.check()


def test_due_starts_no_more_at_a_time_than_the_limit() -> None:
    pool = DesktopPool(5, limits=PoolLimits(lease_time_limit_s=60.0, max_starting=2))
    assert pool.starts.due(0.0) == [0, 1] and pool.starts.due(0.0) == []
    assert pool.next_deadline() is None
    pool.started(1, now=1.0)
    assert pool.starts.due(1.0) == [2]
    pool.broke(0, "died", now=2.0)
    assert pool.starts.due(2.0) == [0], "a broken desktop takes its turn among the new ones, lowest first"
    pool.started(0, now=3.0)
    pool.started(2, now=3.0)
    assert pool.starts.due(3.0) == [3, 4]
    assert pool.starts.num_restarts == 1
