"""Holds one desktop until it is killed; prints the desktop's outermost process id. Used by tests."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from common.config import DesktopConfig
from env_server.drivers import make_driver
from env_server.drivers.guest_driver import GuestDriver
from env_server.screenshots import ScreenshotStore


def main() -> None:
    """Start the desktop, say where it is, wait for the end."""
    folder = Path(sys.argv[1])
    driver = make_driver(
        DesktopConfig(), index=0, folder=folder / "logs", screenshots=ScreenshotStore(folder, incarnation="host")
    )
    assert isinstance(driver, GuestDriver)
    print(driver.pid, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
