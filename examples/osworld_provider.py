"""OSWorld's `DesktopEnv` on desktops of `computerrl serve-desktops`, in place of a virtual machine. Copy it beside your agent.

    computerrl serve-desktops quickstart desktop.image=full desktop.apps=[] --allow-execute --token-file token

    export COMPUTERRL_SERVER=http://127.0.0.1:8000 COMPUTERRL_TOKEN_FILE=token

    import osworld_provider          # before the agent's own imports
    from desktop_env.desktop_env import DesktopEnv
    env = DesktopEnv(provider_name="computerrl")

It needs the package desktop_env (1.0.2) and nothing of ComputerRL's. Each `DesktopEnv` holds one desktop until `close`. The
screen has the size that the server was started with (`desktop.screen_width`, `desktop.screen_height`).
"""

from __future__ import annotations

import os
import urllib.parse
from pathlib import Path
from typing import Any

import desktop_env.desktop_env as published
import requests

NAME = "computerrl"
_START_LIMIT_S = 300.0
"""Time for a desktop to become free; the server answers earlier, and is asked again."""
_NO_PORTS = (0, 0, 0)
"""Of the browser's debugger, VNC and VLC: a desktop has no network, and nobody reaches into it."""


class _Address(str):
    """Host with user and password, and ports. `DesktopEnv` splits the text at colons, one of which stands before the password."""

    def split(self, *_: Any, **__: Any) -> list[str]:  # type: ignore[override]
        host, *ports = super().rsplit(":", 4)
        return [host, *ports]


def _token() -> str:
    token, file = os.environ.get("COMPUTERRL_TOKEN"), os.environ.get("COMPUTERRL_TOKEN_FILE")
    if not token and not file:
        raise RuntimeError("set COMPUTERRL_TOKEN_FILE to the file of `computerrl serve-desktops --token-file`")
    return token or Path(file or "").read_text().strip()


class Manager:
    """There are no machines to keep a list of."""

    def get_vm_path(self, **_: Any) -> str:
        """A name that stands for whichever desktop is free."""
        return NAME


class Provider:
    """One desktop, from the first start to `stop_emulator`. Raises `requests.HTTPError` with the server's words."""

    def __init__(self) -> None:
        address = urllib.parse.urlsplit(os.environ.get("COMPUTERRL_SERVER", "http://127.0.0.1:8000"))
        self._host, self._port = address.hostname or "127.0.0.1", address.port or 80
        self._token = _token()
        self._session = ""

    def start_emulator(self, *_: Any) -> None:
        """Lease a desktop, unless there is one; waits while all are taken."""
        if not self._session:
            self._session = self._ask("POST", "/osworld/session").json()["session"]

    def get_ip_address(self, _path: str) -> str:
        """What the controllers connect to."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return _Address(":".join(map(str, (f"{self._session}:{self._token}@{host}", self._port, *_NO_PORTS))))

    def revert_to_snapshot(self, path: str, _name: str) -> str:
        """Remove all that was done on the desktop."""
        self._ask("POST", "/osworld/reset")
        return path

    def save_state(self, *_: Any) -> None:
        """Desktops have one state to go back to."""
        raise NotImplementedError("desktops of ComputerRL go back to an empty desktop only")

    def stop_emulator(self, *_: Any) -> None:
        """Give the desktop back."""
        if self._session:
            self._ask("DELETE", "/osworld/session")
            self._session = ""

    def _ask(self, method: str, path: str) -> requests.Response:
        reply = self._once(method, path)
        waited_s = 0.0
        while reply.status_code == 429 and waited_s < _START_LIMIT_S:
            waited_s += reply.elapsed.total_seconds()
            reply = self._once(method, path)
        if not reply.ok:
            raise requests.HTTPError(f"{method} {path}: {reply.status_code} {reply.text[:300]}", response=reply)
        return reply

    def _once(self, method: str, path: str) -> requests.Response:
        host = f"[{self._host}]" if ":" in self._host else self._host
        url = f"http://{host}:{self._port}{path}"
        return requests.request(method, url, auth=(self._session or "none", self._token), timeout=_START_LIMIT_S)


class DesktopEnv(published.DesktopEnv):  # type: ignore[misc]
    """The published environment, with one more provider."""

    def __init__(self, provider_name: str = NAME, *args: Any, **named: Any) -> None:
        if provider_name != NAME:
            super().__init__(provider_name, *args, **named)
            return
        factory, published.create_vm_manager_and_provider = published.create_vm_manager_and_provider, _make
        try:
            # It knows its own providers by name; those of this one start with a clean desktop.
            super().__init__("docker", *args, **named)
        finally:
            published.create_vm_manager_and_provider = factory


def _make(*_: Any, **__: Any) -> tuple[Manager, Provider]:
    return Manager(), Provider()


published.DesktopEnv = DesktopEnv
