"""The run's CURVE keys and the files they lie in: mode 0600 in a folder of mode 0700. Makes no keys and opens no sockets."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common.errors import Problem, SetupError


@dataclass(frozen=True, slots=True)
class Keys:
    """The run's two CURVE key pairs in Z85 text: one that all servers use, one that all clients use."""

    server_public: bytes
    server_secret: bytes
    client_public: bytes
    client_secret: bytes

    def __repr__(self) -> str:
        return "Keys(...)"


def store_keys(folder: Path, make: Callable[[], Keys]) -> Keys:
    """Write ``server.key`` and ``client.key`` (public and secret line) into ``folder``; keep those that are there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    if not (folder / "server.key").exists() or not (folder / "client.key").exists():
        keys = make()
        _write_key(folder / "server.key", keys.server_public, keys.server_secret)
        _write_key(folder / "client.key", keys.client_public, keys.client_secret)
    return load_keys(folder)


def load_keys(folder: Path) -> Keys:
    """Read what `create_keys` made. Raises `SetupError` when missing, damaged or readable by others."""
    return Keys(*_read_key(folder / "server.key"), *_read_key(folder / "client.key"))


def _write_key(path: Path, public: bytes, secret: bytes) -> None:
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(public + b"\n" + secret + b"\n")
    temporary.replace(path)


def _read_key(path: Path) -> tuple[bytes, bytes]:
    step = "start the run with `computerrl train CONFIG`, which makes its keys"
    try:
        mode = path.stat().st_mode
        lines = path.read_bytes().split()
    except OSError as error:
        raise SetupError(Problem(str(path), f"key cannot be read: {error.strerror}", step)) from None
    if mode & 0o077:
        raise SetupError(Problem(str(path), f"key has mode {mode & 0o777:04o}: others can read it", f"chmod 600 {path}"))
    if len(lines) != 2 or any(len(line) != 40 for line in lines):
        raise SetupError(Problem(str(path), "is no key file of two lines of 40 characters", f"delete {path.parent}; {step}"))
    return lines[0], lines[1]
