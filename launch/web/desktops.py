"""What the desktops of a run show now: asked of its env_servers once a second, in a thread. Small pictures on demand."""

from __future__ import annotations

import io
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING

from computerrl.common.errors import ComputerRLError
from computerrl.common.messages import DesktopView, Element, ScreenshotRef, Status
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.common.wire.transport import Client

if TYPE_CHECKING:
    from computerrl.env_server.client import DesktopClient

LOOK_EVERY_S = 1.0
THUMBNAIL_WIDTH, THUMBNAIL_QUALITY = 320, 60
MAX_KEPT = 4000
"""Thumbnails of about 6 kB."""
REST_FACTOR = 4.0
"""After making a picture nothing is made for so many times as long: never more than a fifth of a core."""

Place = str
"""`<env_server's index>/<desktop>`"""


class DesktopWatch:
    """All desktops of a run. Close it."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._clients: dict[str, Client] = {}
        self._lock = threading.Lock()
        self._views: dict[Place, DesktopView] = {}
        self._refs: OrderedDict[str, ScreenshotRef] = OrderedDict()

    def look(self, status: Status | None) -> dict[Place, DesktopView]:
        """Request the desktops of all env_servers. Blocks until all have replied or are given up. Empty where there is none."""
        peers = [peer for peer in status.peers if peer.role == "env_server"] if status is not None else []
        found: dict[Place, DesktopView] = {}
        for peer in peers:
            try:
                views = self._client(peer.endpoints["desktops"]).look().desktops
            except (ComputerRLError, KeyError):
                continue  # it is being started again: the broker will tell where
            found |= {f"{peer.index}/{view.desktop}": view for view in views}
        with self._lock:
            self._views = found
            for view in found.values():
                if view.screenshot is not None:
                    self._refs[view.screenshot.content_hash] = view.screenshot
                    self._refs.move_to_end(view.screenshot.content_hash)
            while len(self._refs) > MAX_KEPT:
                self._refs.popitem(last=False)
        self._forget({peer.endpoints.get("desktops", "") for peer in peers})
        return found

    def elements(self, status: Status | None, place: Place) -> tuple[Element, ...]:
        """The tree that the agent on ``place`` saw last; empty when it cannot be asked."""
        index, _, desktop = place.partition("/")
        for peer in status.peers if status is not None else ():
            if peer.role == "env_server" and str(peer.index) == index and desktop.isdigit():
                try:
                    return self._client(peer.endpoints["desktops"]).look(elements_of=int(desktop)).elements
                except (ComputerRLError, KeyError):
                    return ()
        return ()

    def ref(self, content_hash: str) -> ScreenshotRef | None:
        """Where a picture lies that some desktop showed lately."""
        with self._lock:
            return self._refs.get(content_hash)

    def close(self) -> None:
        """Close the connections."""
        self._forget(set())

    def _client(self, address: str) -> DesktopClient:
        from computerrl.env_server.client import DesktopClient

        with self._lock:
            if address not in self._clients:
                # An env_server that is started again has another address.
                client = Client(address, keys=self._folder.load_keys(), sender="supervisor-0:dashboard", gives_up_refused=True)
                self._clients[address] = client
            return DesktopClient(self._clients[address])

    def _forget(self, kept: set[str]) -> None:
        with self._lock:
            gone = [self._clients.pop(address) for address in list(self._clients) if address not in kept]
        for client in gone:
            client.close()


class Thumbnails:
    """Small pictures of stored screenshots, each made once; thread-safe."""

    def __init__(self, trajectories: Path) -> None:
        self._trajectories = trajectories
        self._made: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()
        self._rest_until = 0.0

    def get(self, ref: ScreenshotRef) -> bytes:
        """As WebP. Raises `OSError`, `ValueError` when it cannot be read (yet)."""
        from computerrl.env_server.client import read_screenshot

        with self._lock:
            if ref.content_hash in self._made:
                self._made.move_to_end(ref.content_hash)
                return self._made[ref.content_hash]
            time.sleep(max(0.0, self._rest_until - time.monotonic()))
            began = time.monotonic()
            data = _small(read_screenshot(self._trajectories, ref))
            now = time.monotonic()
            self._rest_until = now + REST_FACTOR * (now - began)
            self._made[ref.content_hash] = data
            if len(self._made) > MAX_KEPT:
                self._made.popitem(last=False)
            return data


def _small(data: bytes) -> bytes:
    from PIL import Image

    with Image.open(io.BytesIO(data)) as stored:
        stored.draft("RGB", (THUMBNAIL_WIDTH, THUMBNAIL_WIDTH))
        picture = stored.convert("RGB")
    picture.thumbnail((THUMBNAIL_WIDTH, THUMBNAIL_WIDTH), Image.Resampling.BILINEAR, reducing_gap=1.5)
    buffer = io.BytesIO()
    picture.save(buffer, format="WEBP", quality=THUMBNAIL_QUALITY, method=0)
    return buffer.getvalue()
