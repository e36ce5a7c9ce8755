"""One desktop behind an env_server's socket, without a run around it. Part of `bench serve`.

python -m benchmarks.env._zmq_desktops RUN_FOLDER: prints the address once the desktop is up, ends on SIGTERM.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

from computerrl.common.config import load_config
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.common.wire.transport import Server
from computerrl.env_server.client import needed_desktop
from computerrl.env_server.drivers import make_driver
from computerrl.env_server.drivers.screenshots import RecentScreenshots
from computerrl.env_server.serving.service import DesktopService

_START_LIMIT_S = 300.0


def main(folder: RunFolder) -> None:
    """Serve until SIGTERM."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    config = load_config(folder.resolved_config)
    desktop, pictures = needed_desktop(config), RecentScreenshots(picture_format="webp", limit=8)
    server = Server("tcp://127.0.0.1:0", keys=folder.load_keys(), sender="env_server-0:bench")
    service = DesktopService(
        config.desktop,
        tasks=config.tasks,
        make=lambda index: make_driver(desktop, index=index, folder=folder.logs, screenshots=pictures),
        read=pictures.get,
    )
    if not service.wait_ready(1, timeout_s=_START_LIMIT_S):
        raise SystemExit(f"no desktop within {_START_LIMIT_S:.0f} s: {config.folder}")
    print(server.address, flush=True)
    while not ended.is_set():
        for request in server.poll(0.25):
            service.submit(request.message, request.sender, request.reply)
    service.close(limit_s=10.0)
    server.close()


if __name__ == "__main__":
    main(RunFolder(Path(sys.argv[1])))
