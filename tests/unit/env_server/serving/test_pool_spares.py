"""Spare desktops in the pool core: which one shows a task beforehand, and who gets it."""

from __future__ import annotations

import pytest

from computerrl.common.errors import NoDesktop
from computerrl.common.messages import TaskRef
from computerrl.env_server.serving.pool import DesktopPool, PoolLimits

NEXT, OTHER = TaskRef("calc-set-cell", 7, "training"), TaskRef("web-click-button", 8, "training")


def ready_pool(num_desktops: int) -> DesktopPool:
    pool = DesktopPool(num_desktops, limits=PoolLimits(lease_time_limit_s=60.0), first_token=100)
    pool.starts.due(0.0)
    for desktop in range(num_desktops):
        pool.started(desktop, now=float(desktop))
    return pool


def prepare(pool: DesktopPool, task: TaskRef, *, now: float) -> int:
    desktop = pool.spare(task, app="calc", now=now)
    assert desktop is not None
    pool.prepared(desktop, done=True, now=now)
    pool.check()
    return desktop


def test_desktop_that_shows_the_task_is_leased_for_it_and_spared_for_others() -> None:
    pool = ready_pool(3)
    desktop = prepare(pool, NEXT, now=5.0)
    assert pool.lease("a", app="calc", task=OTHER, now=6.0).desktop != desktop
    assert pool.lease("a", app="calc", task=NEXT, now=7.0).desktop == desktop
    assert pool.num_spares_used == 1
    pool.check()


def test_spare_is_leased_for_another_task_when_there_is_no_other_desktop() -> None:
    pool = ready_pool(1)
    assert prepare(pool, NEXT, now=1.0) == pool.lease("a", app="", task=OTHER, now=2.0).desktop == 0
    assert pool.num_spares_used == 0


def test_task_is_shown_once_per_lease_of_the_spare() -> None:
    pool = ready_pool(2)
    desktop = prepare(pool, NEXT, now=1.0)
    lease = pool.lease("a", app="", task=NEXT, now=2.0)
    pool.release(lease, now=3.0)
    pool.lease("a", app="", task=NEXT, now=4.0)
    assert desktop == lease.desktop and pool.num_spares_used == 1


def test_desktop_being_prepared_is_leased_for_its_task_and_last_of_all_for_another() -> None:
    pool = ready_pool(3)
    preparing = pool.spare(NEXT, app="calc", now=1.0)
    others = {pool.lease("a", app="calc", task=OTHER, now=2.0).desktop for _ in range(2)}
    assert preparing not in others
    assert pool.lease("a", app="calc", task=OTHER, now=2.0).desktop == preparing
    pool.prepared(preparing or 0, done=True, now=3.0)
    assert pool[preparing or 0].state == "leased" and pool.num_spares_used == 0
    pool.check()
    with pytest.raises(NoDesktop, match="3 leased"):
        pool.lease("a", app="calc", task=NEXT, now=3.0)


def test_desktop_being_prepared_for_the_task_comes_before_an_idle_one() -> None:
    pool = ready_pool(2)
    preparing = pool.spare(NEXT, app="calc", now=1.0)
    assert pool.lease("a", app="calc", task=NEXT, now=2.0).desktop == preparing and pool.num_spares_used == 1


def test_task_that_could_not_be_prepared_is_not_shown() -> None:
    pool = ready_pool(1)
    pool.spare(NEXT, app="calc", now=1.0)
    pool.prepared(0, done=False, now=3.0)
    assert pool.lease("a", app="", task=NEXT, now=4.0).desktop == 0 and pool.num_spares_used == 0


def test_spare_of_a_task_nobody_came_for_is_used_for_the_next_one() -> None:
    pool = ready_pool(1)
    assert prepare(pool, NEXT, now=1.0) == prepare(pool, OTHER, now=2.0)
    assert pool.spare(OTHER, app="chromium", now=3.0) is None
    pool.lease("a", app="", task=OTHER, now=4.0)
    assert pool.num_spares_used == 1 and pool.spare(NEXT, app="calc", now=5.0) is None


def test_spare_that_breaks_while_being_prepared_is_started_anew() -> None:
    pool = ready_pool(1)
    pool.spare(NEXT, app="calc", now=1.0)
    pool.broke(0, "gone", now=2.0)
    pool.prepared(0, done=True, now=2.0)
    assert pool.starts.due(2.0) == [0] and pool[0].state == "starting"
    pool.check()
