"""The run's CURVE keys and the files they lie in: mode 0600 in a folder of mode 0700. Makes no keys and opens no sockets.

    server.key          public and secret line of all servers
    client.key          public and secret line of all the run's own clients
    clients/NAME.pub    the public line of somebody else who may talk to the servers; read when a server starts

A file counts only when it is a plain file of this user that nobody else can read or write; so does a folder.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from computerrl.common.errors import Problem, SetupError

_KEY = re.compile(rb"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
"""Z85 text of 32 bytes."""
_MAX_FILE_BYTES = 1024
_MAKE_STEP = "start the run with `computerrl train CONFIG`, which makes its keys"


@dataclass(frozen=True, slots=True)
class Keys:
    """The run's two CURVE key pairs in Z85 text, one that all servers use and one that all its clients use; who else may talk."""

    server_public: bytes
    server_secret: bytes
    client_public: bytes
    client_secret: bytes
    other_clients: frozenset[bytes] = frozenset()
    """Public keys; read by servers, beside ``client_public``."""

    def __repr__(self) -> str:
        return "Keys(...)"


class AllowList:
    """Answers a ZAP handler's question whether a key may talk: the run's own client key may, and those listed beside it."""

    def __init__(self, keys: Keys) -> None:
        self._allowed = {keys.client_public, *keys.other_clients}

    def callback(self, domain: str, key: bytes) -> bool:
        """Called by pyzmq."""
        del domain
        return key in self._allowed


def store_keys(folder: Path, make: Callable[[], Keys]) -> Keys:
    """Write ``server.key`` and ``client.key`` (public and secret line) into ``folder``; keep those that are there."""
    if not folder.is_symlink() and not folder.exists():
        folder.mkdir(mode=0o700, parents=True)
        folder.chmod(0o700)  # Whatever the umask says.
    _check_folder(folder)
    if not (folder / "server.key").exists() or not (folder / "client.key").exists():
        keys = make()
        _write_key(folder / "server.key", keys.server_public, keys.server_secret)
        _write_key(folder / "client.key", keys.client_public, keys.client_secret)
    return load_keys(folder)


def load_keys(folder: Path) -> Keys:
    """Read what `store_keys` wrote, and who else may talk. Raises `SetupError` when missing, damaged or open to others."""
    _check_folder(folder)
    server_public, server_secret = _read_key(folder / "server.key", num_lines=2)
    client_public, client_secret = _read_key(folder / "client.key", num_lines=2)
    return Keys(server_public, server_secret, client_public, client_secret, _read_listed(folder / "clients"))


def _read_listed(folder: Path) -> frozenset[bytes]:
    """Public keys of the files in ``folder``, none when there is no such folder."""
    if not folder.is_symlink() and not folder.exists():
        return frozenset()
    _check_folder(folder)
    return frozenset(_read_key(path, num_lines=1)[0] for path in folder.glob("*.pub"))


def _write_key(path: Path, public: bytes, secret: bytes) -> None:
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)
        file.write(public + b"\n" + secret + b"\n")
    temporary.replace(path)


def _check_folder(folder: Path) -> None:
    try:
        found = folder.lstat()
    except OSError as error:
        raise SetupError(Problem(str(folder / "server.key"), f"key cannot be read: {error.strerror}", _MAKE_STEP)) from None
    if not stat.S_ISDIR(found.st_mode):
        raise SetupError(Problem(str(folder), "is no folder of its own, perhaps a link", f"delete it; {_MAKE_STEP}"))
    _check_private(folder, found, mode=0o700)


def _read_key(path: Path, *, num_lines: int) -> list[bytes]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise SetupError(Problem(str(path), f"key cannot be read: {error.strerror}", _MAKE_STEP)) from None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise SetupError(Problem(str(path), "is no plain file", f"delete it; {_MAKE_STEP}"))
        _check_private(path, found, mode=0o600)
        lines = file.read(_MAX_FILE_BYTES).split()
    if len(lines) != num_lines or not all(_KEY.fullmatch(line) for line in lines):
        reason = f"is no key file of {num_lines} line{'s' * (num_lines > 1)} of 40 characters"
        raise SetupError(Problem(str(path), reason, f"delete {path if num_lines == 1 else path.parent}; {_MAKE_STEP}"))
    return lines


def _check_private(path: Path, found: os.stat_result, *, mode: int) -> None:
    if found.st_uid != os.geteuid():
        step = "run as its owner, or delete it and let the run make its own"
        raise SetupError(Problem(str(path), f"belongs to user {found.st_uid}, this is user {os.geteuid()}", step))
    if found.st_mode & 0o077:
        reason = f"key has mode {found.st_mode & 0o777:04o}: others can read it"
        raise SetupError(Problem(str(path), reason, f"chmod {mode:o} {path}"))
