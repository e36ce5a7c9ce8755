"""Holds one desktop until it is killed; prints the desktop's outermost process id. Used by tests."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from tests.support.desktops import open_desktop


def main() -> None:
    """Start the desktop, say where it is, wait for the end."""
    folder = Path(sys.argv[1])
    with open_desktop(folder) as driver:
        print(driver.pid, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
