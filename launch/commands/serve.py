"""`computerrl serve-desktops`: desktops of this machine for programs that are none of ours. The server is `env_server.front`."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import stat
import sys
from pathlib import Path

import click

from computerrl.launch.commands.options import Host, Number, with_config

_MIN_TOKEN_CHARS = 20
_GRACE_S = 30.0
"""Time after which an unused lease ends, beyond the session's: the session, which says why, comes first."""


@click.command("serve-desktops", short_help="Serve desktops over HTTP to agents and trainers of others.")
@with_config()
@click.option("--host", default="127.0.0.1", type=Host(), show_default=True, help="Address to listen on, without encryption.")
@click.option(
    "--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="Port to listen on; 0: any free port."
)
@click.option(
    "--idle",
    "idle_limit_s",
    default=600.0,
    show_default=True,
    type=Number(1, 1e6),
    help="Seconds after which an unused session ends.",
)
@click.option(
    "--screenshots",
    "screenshot_format",
    default="webp",
    show_default=True,
    type=click.Choice(["webp", "png", "jpeg"]),
    help="Format.",
)
@click.option(
    "--allow-execute",
    is_flag=True,
    help="Let clients run commands inside their desktop, as OSWorld's set-ups and evaluators do.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File of the token, made if it is missing, so that it stays the same. Default: a new token each time.",
)
def serve_desktops(
    config: Path,
    overrides: tuple[str, ...],
    *,
    host: str,
    port: int,
    idle_limit_s: float,
    screenshot_format: str,
    allow_execute: bool,
    token_file: Path | None,
) -> None:
    """Serve the desktops and task families of CONFIG over HTTP, with OpenEnv's protocol, with that of
    OSWorld's controllers, and with MCP at /mcp.

    A session is one desktop; there are desktop.num_desktops of them. One more has to wait, and is then refused with status 429.
    A session ends with its WebSocket, with DELETE /session, or when it was not used for --idle seconds. Every request needs the
    token that is printed: Authorization: Bearer TOKEN. Ctrl-C ends all.

    \b
    computerrl serve-desktops quickstart
    computerrl serve-desktops quickstart --port 9000 --token-file token
    computerrl serve-desktops quickstart desktop.num_desktops=2
    curl -XPOST -H "Authorization: Bearer $(cat token)" localhost:9000/reset
    """
    from computerrl.common import lifecycle, log
    from computerrl.common.config import load_config
    from computerrl.common.wire.addresses import is_loopback

    loaded = load_config(config, overrides=overrides)
    desktop = loaded.desktop.model_copy(
        update={"lease_time_limit_s": idle_limit_s + _GRACE_S, "observation": "both", "screenshot_format": screenshot_format}
    )
    loaded = loaded.model_copy(update={"desktop": desktop})
    token = secrets.token_urlsafe(24) if token_file is None else _kept_token(token_file)
    click.echo(f"starting {desktop.num_desktops} desktop{'s' if desktop.num_desktops > 1 else ''}")
    log.configure()
    from computerrl.env_server.front.app import serve

    def announce(address: str) -> None:
        click.echo(f"serving: {address}")
        click.echo(f"token:   {token}" if token_file is None else f"token:   in {token_file}")
        if not is_loopback(host):
            click.echo("note: other computers can reach the server, and its connections are not encrypted", err=True)
        shown = token if token_file is None else f"$(cat {shlex.quote(str(token_file))})"
        click.echo(f'try:     curl -X POST -H "Authorization: Bearer {shown}" {address}/reset')
        sys.stdout.flush()

    async def main() -> None:
        stop = asyncio.Event()
        for number in lifecycle.stop_signals():
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await serve(
            loaded,
            token=token,
            host=host,
            port=port,
            idle_limit_s=idle_limit_s,
            allow_execute=allow_execute,
            on_ready=announce,
            stop=stop,
        )

    asyncio.run(main())


def _kept_token(file: Path) -> str:
    """The token in ``file``, which is made where there is none. Raises `SetupError` for a file that others may read."""
    from computerrl.common.errors import Problem, SetupError

    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pass
    except OSError as error:
        raise SetupError(Problem("--token-file", f"cannot write {str(file)!r}: {error.strerror}", "name another file")) from error
    else:
        with os.fdopen(descriptor, "w") as stream:
            stream.write(secrets.token_urlsafe(24))
    try:
        token = file.read_text().strip()
        mode = stat.S_IMODE(file.stat().st_mode)
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(Problem("--token-file", f"cannot read {str(file)!r}: {error}", "name another file")) from error
    if mode & 0o077:
        raise SetupError(
            Problem("--token-file", f"others may read {str(file)!r} (mode {mode:o})", f"chmod 600 {shlex.quote(str(file))}")
        )
    if len(token) < _MIN_TOKEN_CHARS or not token.isascii() or not token.isprintable():
        reason = f"{str(file)!r} holds no token of at least {_MIN_TOKEN_CHARS} printable characters"
        raise SetupError(Problem("--token-file", reason, "delete it, and a new one is made"))
    return token
