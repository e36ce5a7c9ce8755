"""`computerrl desktop`: one desktop in a web page, from start to Ctrl-C. The page itself is `env_server.live`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from computerrl.common import log
from computerrl.common.config import DesktopConfig, RunConfig
from computerrl.common.wire.addresses import is_loopback
from computerrl.launch.web.serve import tunnel_hint

_FIRST_FAMILY = "web-click-button"
_NO_TIME_LIMIT_S = 2e6
"""Lease of an assistant's desktop: a person may think for as long as they like."""
_MANY_STEPS = 10_000


@dataclass(frozen=True, slots=True)
class DesktopOptions:
    """The options of the command line."""

    family: str | None
    """None: that of the page by default, or all of them."""
    seed: int
    image: str
    driver: str
    recordings: str
    host: str
    port: int
    open_browser: bool | None


def run_desktop(options: DesktopOptions) -> int:
    """Serve until SIGINT, SIGTERM or SIGHUP. Returns the exit code. Raises `ConfigError`, `SetupError`."""
    from computerrl.common import lifecycle
    from computerrl.env_server.client import needed_desktop
    from computerrl.env_server.live.session import LiveSession
    from computerrl.env_server.live.web import serve

    log.configure()
    family = options.family or _FIRST_FAMILY
    desktop = DesktopConfig.model_validate({"driver": options.driver, "image": options.image})
    # This refuses unknown families. Applications of other families start when a task opens them.
    desktop = needed_desktop(RunConfig.model_validate({"desktop": desktop, "tasks": {"families": (family,)}}))
    recordings = Path(options.recordings).absolute()

    async def main() -> None:
        stop = asyncio.Event()
        for number in lifecycle.stop_signals():
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await serve(
            LiveSession(desktop, recordings=recordings),
            family=family,
            seed=options.seed,
            host=options.host,
            port=options.port,
            recordings=options.recordings,
            on_ready=lambda address: _announce(address, options),
            stop=stop,
        )

    asyncio.run(main())
    return 0


def run_mcp(options: DesktopOptions) -> int:
    """Serve one desktop to an assistant over stdin and stdout, until it closes stdin or a stop signal. Returns the exit code.
    Raises `ConfigError`, `SetupError`, `HostBroken`."""
    from computerrl.common import lifecycle

    if sys.stdin.isatty():
        click.echo("This speaks MCP on stdin and stdout: an assistant starts it. Paste into its configuration:", err=True)
        click.echo(json.dumps({"mcpServers": {"desktop": mcp_command()}}, indent=2), err=True)
    log.configure()
    from computerrl.env_server.front.app import serve_stdio

    desktop = {"driver": options.driver, "image": options.image, "num_desktops": 1, "observation": "both"}
    desktop |= {"screenshot_format": "webp", "lease_time_limit_s": _NO_TIME_LIMIT_S}
    tasks = {"families": () if options.family is None else (options.family,), "max_steps": _MANY_STEPS}
    # Without the checks of a training run, some of which a single desktop cannot pass.
    config = RunConfig.model_validate({"desktop": desktop, "tasks": tasks, "learner": {"recipe": {"demos_per_family": 0}}})

    async def main() -> None:
        stop = asyncio.Event()
        for number in lifecycle.stop_signals():
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await serve_stdio(config, stop=stop)

    asyncio.run(main())
    return 0


def mcp_command() -> dict[str, object]:
    """How an assistant starts `computerrl desktop --mcp`, as its configuration wants it."""
    return {"command": str(Path(sys.argv[0]).absolute()), "args": ["desktop", "--mcp"]}


def _announce(address: str, options: DesktopOptions) -> None:
    click.echo(f"desktop: {address}")
    click.echo("Anyone with this address can use the desktop. Ctrl-C ends it.")
    if not is_loopback(options.host):
        click.echo("note: other computers can reach the page, and its connections are not encrypted", err=True)
    hint = tunnel_hint(address)
    if hint:
        click.echo(hint)
    sys.stdout.flush()
    if _wants_browser(options.open_browser, os.environ):
        # A thread of its own, because the command that starts some browsers does not return.
        threading.Thread(target=_open, args=(address,), daemon=True).start()


def _wants_browser(asked: bool | None, environment: Any) -> bool:
    """Whether to open a browser: as ``asked``, else where stdout is a terminal with a display."""
    if asked is not None:
        return asked
    return sys.stdout.isatty() and bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def _open(address: str) -> None:
    import webbrowser

    webbrowser.open(address)
