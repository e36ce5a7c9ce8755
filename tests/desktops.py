"""Real desktops for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.config import DesktopConfig
from env_server.drivers import make_driver
from env_server.drivers.guest_driver import GuestDriver
from env_server.screenshots import ScreenshotStore


@contextmanager
def open_desktop(folder: Path, config: DesktopConfig | None = None) -> Iterator[GuestDriver]:
    """One desktop, closed at the end; logs and screenshots lie in ``folder``."""
    store = ScreenshotStore(folder, incarnation="test")
    driver = make_driver(config or DesktopConfig(), index=0, folder=folder / "logs", screenshots=store)
    assert isinstance(driver, GuestDriver)
    try:
        yield driver
    finally:
        driver.close()
        store.close()
