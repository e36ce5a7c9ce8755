"""The env_server process: desktops of this host behind one socket.

Announces its endpoint `desktops` to the broker by heartbeat. Ends by itself only when the host is broken (every desktop fails,
disk full, image gone) and then raises that error, whose exit code the process ends with.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from computerrl.common import log
from computerrl.common.config import RunConfig
from computerrl.common.descriptor_store import DescriptorStore
from computerrl.common.errors import ConfigError, DesktopBroken, PeerTimeout, Problem, SetupError
from computerrl.common.exporter import exporting
from computerrl.common.lifecycle import HeartbeatThread, StopToken, new_incarnation
from computerrl.common.run_files.run_folder import RunFolder, write_atomically
from computerrl.common.wire.addresses import own_address, tcp_address
from computerrl.common.wire.transport import Client, Server
from computerrl.env_server.client import memory_problem, needed_desktop
from computerrl.env_server.driver import LiveDesktop
from computerrl.env_server.drivers import make_driver
from computerrl.env_server.drivers.screenshots import ScreenshotStore
from computerrl.env_server.serving.service import DesktopService

STRETCH = 1 << 32
"""Number of leases that one process can grant: at a million per second it lasts an hour, at one per second a century."""
CLOSE_LIMIT_S = 2.0
"""Time limit of closing all desktops after a stop."""
_POLL_S = 0.25
"""Time after which a stop is noticed while there are no requests."""


def first_token(path: Path) -> int:
    """First lease token of this process; ``path`` keeps it for the next one. Raises `SetupError` when ``path`` holds no token."""
    try:
        first = int(path.read_text()) + STRETCH
    except FileNotFoundError:
        first = STRETCH
    except ValueError:
        step = "end all env_servers of this run, then delete it"
        raise SetupError(Problem(str(path), "does not hold the number of a lease", step)) from None
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, str(first).encode())
    return first


def run_env_server(config: RunConfig, *, index: int, stop: StopToken) -> None:
    """Serve desktops until ``stop``. Raises `ConfigError`, `SetupError`, `HostBroken`, `DiskFull`.

    Desktops that the supervisor has kept of an incarnation that was killed are taken over.
    """
    store = DescriptorStore.of_supervisor()
    problem = memory_problem(config.desktop)
    if problem is not None:
        raise ConfigError([problem])
    desktops = needed_desktop(config)
    folder = RunFolder(config.folder)
    keys = folder.load_keys()
    incarnation = new_incarnation()
    sender = f"env_server-{index}:{incarnation}"
    log.bind(role="env_server", index=index, incarnation=incarnation)
    screenshots = ScreenshotStore(
        folder.trajectories, picture_format=config.desktop.screenshot_format, incarnation=f"{index}-{incarnation}"
    )

    def make(desktop: int) -> LiveDesktop:
        logs = folder.logs / f"desktop-{index}-{desktop}"
        start = partial(make_driver, desktops, index=desktop, folder=logs, screenshots=screenshots)
        return start() if store is None else _kept_or_started(store, f"desktop-{desktop}", start)

    server = Server(tcp_address(own_address(config.desktop.bind_address), 0), keys=keys, sender=sender)
    service = None
    try:
        # Desktops start while the broker is still being found.
        token = first_token(folder.tokens / f"env_server-{index}")
        service = DesktopService(
            config.desktop,
            tasks=config.tasks,
            make=make,
            first_token=token,
            by_pixels=config.actor.prompt.shows_images,
            read=screenshots.get,
        )
        address = _broker_address(folder, stop)
        if address is not None:
            channel = Client(address, keys=keys, sender=sender)
            try:
                figures = lambda: {**service.metrics(), **server.counters}  # noqa: E731
                with (
                    _heartbeat(channel, index, incarnation, server, service, figures, stop),
                    exporting(config, role="env_server", index=index, metrics=figures),
                ):
                    _serve(server, service, stop)
            finally:
                channel.close()
    finally:
        if service is not None and not service.close(limit_s=CLOSE_LIMIT_S):
            log.get_logger().warning("desktops.close_late", limit_s=CLOSE_LIMIT_S)
        server.close()
        screenshots.close()
    if service.fatal is not None:
        raise service.fatal


def _kept_or_started(store: DescriptorStore, name: str, start: Callable[..., LiveDesktop]) -> LiveDesktop:
    """The desktop that ``store`` has under ``name``, or else a new one; ``store`` keeps it from now on."""
    driver, kept = None, store.take(name)
    if kept is not None:
        try:
            driver = start(kept=kept)
            log.get_logger().info("desktop.taken_over", name=name)
        except DesktopBroken as error:
            log.get_logger().warning("desktop.not_taken_over", name=name, reason=str(error))
    driver = driver or start()
    handles = driver.handles()
    if handles is not None:
        store.put(name, handles)
    return driver


def _broker_address(folder: RunFolder, stop: StopToken) -> str | None:
    """Address of the broker; None when a stop came first."""
    try:
        return folder.wait_for_broker(stop)
    except PeerTimeout:
        if stop.stopped:
            return None
        raise


def _heartbeat(
    channel: Client,
    index: int,
    incarnation: str,
    server: Server,
    service: DesktopService,
    metrics: Callable[[], dict[str, float]],
    stop: StopToken,
) -> HeartbeatThread:
    return HeartbeatThread(
        channel,
        role="env_server",
        index=index,
        incarnation=incarnation,
        endpoints={"desktops": server.address},
        metrics=metrics,
        note=service.note,
        stop=stop,
    )


def _serve(server: Server, service: DesktopService, stop: StopToken) -> None:
    log.get_logger().info("env_server.ready", address=server.address, pid=os.getpid())
    while not stop.stopped and service.fatal is None:
        for request in server.poll(_POLL_S):
            service.submit(request.message, request.sender, request.reply)
