"""`computerrl dashboard` and `replay`: serve a run's pages until Ctrl-C, or write one episode into a file."""

from __future__ import annotations

import asyncio
import getpass
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from socket import gethostname
from urllib.parse import urlsplit

import click

from common.run_folder import RunFolder, write_atomically
from launch.run_names import read_resolved

NICE = 10
"""The pages give way to the run: they are on its machine as a rule."""


def show_run(folder: Path, *, host: str, port: int, page: str, command: str, with_parent: bool) -> None:
    """Serve until SIGINT or SIGTERM. Raises `SetupError`, `ResumeError`."""
    from common import lifecycle

    if with_parent:
        lifecycle.die_with_parent()
    os.nice(NICE)
    asyncio.run(_serve(folder, host=host, port=port, page=page, command=command))


async def _serve(folder: Path, *, host: str, port: int, page: str, command: str) -> None:
    from launch.web.server import serve_run

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    def ready(address: str) -> None:
        click.echo(f"{command.rpartition(' ')[2]}: {address}{page}")
        hint = tunnel(address)
        if hint:
            click.echo(f"    -> from your own machine: {hint}, then open the address there")

    await serve_run(folder, host=host, port=port, command=command, on_ready=ready, stop=stop)


def tunnel(address: str) -> str:
    """The ssh command that brings ``address`` to whoever is logged in over ssh; empty for those who are not."""
    place = urlsplit(address)
    if "SSH_CONNECTION" not in os.environ or place.hostname not in ("127.0.0.1", "::1"):
        return ""
    return f"ssh -N -L {place.port}:127.0.0.1:{place.port} {getpass.getuser()}@{gethostname()}"


def write_episode(folder: Path, names: Sequence[str], *, out: Path) -> str:
    """Write the episodes as one page to ``out``; gives what to tell the person. Raises `ConfigError`."""
    from launch.web.episodes import Episodes
    from launch.web.share import episode_page

    run = RunFolder(folder)
    episodes = Episodes(run, model=read_resolved(folder)["model"]["name"])
    episodes.refresh()
    data = episode_page(run, episodes, names).encode()
    write_atomically(out, data)
    return f"{out}: {len(data) / 1e6:.1f} MB, everything in it"
