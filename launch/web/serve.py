"""`computerrl dashboard` and `replay`: serve a run's pages until Ctrl-C, or write one episode into a file."""

from __future__ import annotations

import asyncio
import functools
import getpass
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from socket import gethostname
from urllib.parse import urlsplit

import click

from computerrl.common.run_files.run_folder import ADDRESS_FILE, PRIVATE, RunFolder, write_atomically
from computerrl.common.wire.addresses import in_address, is_loopback
from computerrl.launch.plan.run_names import read_resolved

NICE = 10
"""The pages give way to the run: they are on its machine as a rule."""


def show_run(folder: Path, *, host: str, port: int, page: str, command: str, with_parent: bool) -> None:
    """Serve until SIGINT or SIGTERM. Raises `SetupError`, `ResumeError`."""
    from computerrl.common import lifecycle

    read_resolved(folder)  # Refused before this process gives way: no user but root can take niceness back.
    if with_parent:
        lifecycle.die_with_parent()
    os.nice(NICE)
    if os.getsid(0) == os.getpid():  # Not a person's terminal.
        lifecycle.set_session_nice(os.getpid(), NICE)
    asyncio.run(_serve(folder, host=host, port=port, page=page, command=command, with_parent=with_parent))


def show_recording(path: Path, *, host: str, port: int, command: str) -> None:
    """Serve the page of a recorded demonstration until SIGINT or SIGTERM. Raises `ConfigError`, `SetupError`."""
    from computerrl.launch.web.recording import recording_page

    asyncio.run(_serve_page(recording_page(path, is_linked=True), host=host, port=port, command=command))


async def _serve_page(page: str, *, host: str, port: int, command: str) -> None:
    from computerrl.common import lifecycle, pages
    from computerrl.launch.report.charts import PAGE_FOLDER

    stop = asyncio.Event()
    for number in lifecycle.stop_signals():
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    token = secrets.token_urlsafe(24)
    files = {**pages.page_files(PAGE_FOLDER), "index.html": page.encode()}
    app = pages.make_app(files, token=token, host=host, routes=())
    ready = functools.partial(_announce, command=command)
    await pages.serve(app, token=token, host=host, port=port, command=command, on_ready=ready, stop=stop)


def _announce(address: str, *, command: str, page: str = "") -> None:
    click.echo(f"{command.rpartition(' ')[2]}: {address}{page}")
    hint = tunnel_hint(address)
    if hint:
        click.echo(hint)


async def _serve(folder: Path, *, host: str, port: int, page: str, command: str, with_parent: bool) -> None:
    from computerrl.common import lifecycle
    from computerrl.launch.web.server import serve_run

    stop = asyncio.Event()
    for number in lifecycle.stop_signals():
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    def ready(address: str) -> None:
        if with_parent:
            # The parent draws on the terminal: it reads this file and shows the address itself.
            write_atomically(folder / ADDRESS_FILE, f"{address}{page}\n".encode(), mode=PRIVATE)
            return
        _announce(address, page=page, command=command)

    await serve_run(folder, host=host, port=port, command=command, on_ready=ready, stop=stop, goes_with_run=with_parent)


def tunnel(address: str) -> str:
    """The ssh command that brings ``address`` to the machine of a user who is logged in over ssh; else empty."""
    place = urlsplit(address)
    host = place.hostname or ""
    if "SSH_CONNECTION" not in os.environ or not is_loopback(host):
        return ""
    return f"ssh -N -L {place.port}:{in_address(host)}:{place.port} {getpass.getuser()}@{gethostname()}"


def tunnel_hint(address: str) -> str:
    """What to do from one's own machine before ``address`` can be opened; empty where nothing is needed."""
    command = tunnel(address)
    return f"    -> from your own machine: {command}, then open the address there" if command else ""


def write_episode(folder: Path, names: Sequence[str], *, out: Path) -> str:
    """Write the episodes as one page to ``out``; gives what to tell the person. Raises `ConfigError`."""
    from computerrl.launch.web.episodes import Episodes
    from computerrl.launch.web.share import episode_page

    run = RunFolder(folder)
    episodes = Episodes(run, model=read_resolved(folder)["model"]["name"])
    episodes.refresh()
    return _write_page(episode_page(run, episodes, names), out)


def write_film(folder: Path, names: Sequence[str], *, out: Path) -> str:
    """Write the episodes as an animated picture to ``out``: without ``names``, a success of each family; gives what to tell the
    person. Raises `ConfigError`."""
    from computerrl.launch.web.episodes import Episodes
    from computerrl.launch.web.film import choose, make_film

    run = RunFolder(folder)
    episodes = Episodes(run, model=read_resolved(folder)["model"]["name"])
    episodes.refresh()
    chosen = names or choose(list(episodes.rows.values()))
    film = make_film(run, [episodes.get(name) for name in chosen])
    write_atomically(out, film, mode=PRIVATE)
    return f"{out}: {len(film) / 1e3:,.0f} kB, {', '.join(chosen)}"


def write_recording_page(path: Path, *, out: Path) -> str:
    """Write the recorded demonstration in file ``path`` as one page to ``out``; gives what to tell the person. Raises
    `ConfigError`."""
    from computerrl.launch.web.recording import recording_page

    return _write_page(recording_page(path), out)


def _write_page(page: str, out: Path) -> str:
    data = page.encode()
    write_atomically(out, data, mode=PRIVATE)
    return f"{out}: {len(data) / 1e3:,.0f} kB, everything in it"
