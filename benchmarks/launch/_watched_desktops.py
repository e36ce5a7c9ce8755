"""A dashboard's server with 1,000 desktops that are not there: each shows something new every second. Part of `bench watch`."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path

import numpy as np

from computerrl.common.config import RunConfig
from computerrl.common.messages import DesktopView, ScreenshotRef, Status, TaskRef
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.env_server.drivers.screenshots import ScreenshotStore
from computerrl.launch.web import server
from computerrl.launch.web.desktops import DesktopWatch, Place

NUM_DESKTOPS = 1000
_PER_HOST = 50
_NUM_PICTURES = 64


class PretendedDesktops(DesktopWatch):
    """Answers for env_servers that are not there."""

    refs: tuple[ScreenshotRef, ...] = ()

    def look(self, status: Status | None) -> dict[Place, DesktopView]:
        second = int(time.monotonic())
        found = {}
        for number in range(NUM_DESKTOPS):
            ref = self.refs[(number * 7 + second) % len(self.refs)]
            # Pictures are kept by their content: another name is another picture.
            named = ScreenshotRef(f"{number}-{second}", ref.segment, ref.offset, ref.num_bytes, ref.width, ref.height)
            task = TaskRef(f"family-{number % 20}", number, "training")
            found[f"{number // _PER_HOST}/{number % _PER_HOST}"] = DesktopView(
                number,
                "leased",
                "",
                f"actor-{number // 16}:i",
                task,
                "Put 615 into cell F1.",
                second % 30,
                f"click({number})",
                "<think>where is it</think> click(3)",
                "",
                None,
                named,
            )
        with self._lock:
            self._refs.update({view.screenshot.content_hash: view.screenshot for view in found.values() if view.screenshot})
            while len(self._refs) > 4 * NUM_DESKTOPS:
                self._refs.popitem(last=False)
        return found


def _pictures(folder: RunFolder) -> tuple[ScreenshotRef, ...]:
    store = ScreenshotStore(folder.trajectories, picture_format="webp", incarnation="pretended")
    random = np.random.default_rng(0)
    refs = []
    for _ in range(_NUM_PICTURES):
        screen = np.full((600, 800, 3), 240, np.uint8)
        for _ in range(120):  # about as much as an application's window shows
            x, y = random.integers(0, 760), random.integers(0, 580)
            screen[y : y + 12, x : x + 36] = random.integers(0, 200, 3)
        refs.append(store.put(screen))
    store.close()
    return tuple(refs)


async def _main(folder: Path) -> None:
    config = RunConfig.model_validate({"name": "pretended", "run_dir": str(folder)})
    run = RunFolder(config.folder)
    run.create(config)
    PretendedDesktops.refs = _pictures(run)
    server.DesktopWatch = PretendedDesktops  # type: ignore[misc]
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await server.serve_run(
        config.folder, host="127.0.0.1", port=0, command="bench", on_ready=lambda address: print(address, flush=True), stop=stop
    )


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1])))
