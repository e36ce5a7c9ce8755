"""Whose key files count: nobody else can have read or put them there. Who is listed may talk, once the server was restarted."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from test_transport_security import serving

from computerrl.common.errors import PeerTimeout, SetupError
from computerrl.common.messages import Ack, StatusRequest
from computerrl.common.wire import transport
from computerrl.common.wire.keys import Keys
from computerrl.common.wire.transport import Client, Server

OTHER_USER = 12345


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    transport.create_keys(tmp_path / ".keys")
    return tmp_path / ".keys"


def list_client(folder: Path, name: str = "other") -> Keys:
    """A second client's keys, whose public one is listed."""
    pair = transport.generate_keys()
    known = transport.load_keys(folder)
    (folder / "clients").mkdir(mode=0o700, exist_ok=True)
    path = folder / "clients" / f"{name}.pub"
    path.write_bytes(pair.client_public + b"\n")
    path.chmod(0o600)
    return Keys(known.server_public, b"", pair.client_public, pair.client_secret)


def may_talk(server: Server, keys: Keys) -> bool:
    client = Client(server.address, keys=keys, sender="actor-0:i1")
    try:
        return client.request(StatusRequest(), timeout_s=1.0) == Ack()
    except PeerTimeout:
        return False
    finally:
        client.close()


def test_listed_second_key_works_and_an_unlisted_one_does_not(folder: Path) -> None:
    second = list_client(folder)
    third = replace(second, **{name: getattr(transport.generate_keys(), name) for name in ("client_public", "client_secret")})
    with serving(transport.load_keys(folder)) as server:
        assert may_talk(server, second) and may_talk(server, transport.load_keys(folder))
        assert not may_talk(server, third)


def test_key_taken_off_the_list_is_refused_after_a_restart(folder: Path) -> None:
    second = list_client(folder)
    with serving(transport.load_keys(folder)) as server:
        (folder / "clients/other.pub").unlink()
        assert may_talk(server, second)
    with serving(transport.load_keys(folder)) as server:
        assert not may_talk(server, second)


@pytest.mark.parametrize("name", ["server.key", "client.key", "clients/other.pub"])
def test_key_file_that_is_a_link_is_refused(folder: Path, name: str) -> None:
    list_client(folder)
    path = folder / name
    path.rename(folder / "elsewhere")
    path.symlink_to(folder / "elsewhere")
    with pytest.raises(SetupError, match=name.rpartition("/")[2]):
        transport.load_keys(folder)


def test_folder_that_is_a_link_is_refused_by_creation_too(folder: Path) -> None:
    link = folder.parent / "link"
    link.symlink_to(folder)
    for use in (transport.load_keys, transport.create_keys):
        with pytest.raises(SetupError, match="link"):
            use(link)


@pytest.mark.parametrize("name", [".", "server.key", "clients", "clients/other.pub"])
def test_files_and_folders_open_to_others_are_refused(folder: Path, name: str) -> None:
    list_client(folder)
    path = folder / name
    path.chmod(stat.S_IMODE(path.stat().st_mode) | 0o020)
    with pytest.raises(SetupError, match=r"mode 0[67]20.*"):
        transport.load_keys(folder)


@pytest.mark.parametrize("name", [".", "client.key", "clients/other.pub"])
def test_files_and_folders_of_another_user_are_refused(folder: Path, name: str) -> None:
    list_client(folder)
    if os.geteuid() == 0:
        os.chown(folder / name, OTHER_USER, OTHER_USER)
        owner = OTHER_USER
    else:  # Only root can give files away, but everybody sees folders of root's.
        folder, owner = Path("/"), 0
    with pytest.raises(SetupError, match=f"belongs to user {owner}"):
        transport.load_keys(folder)


@pytest.mark.parametrize("content", [b"", b"short\n", b"x" * 41, b"\xff" * 40, b"x" * 40 + b"\n" + b"y" * 40])
def test_listed_file_that_is_no_key_is_refused_and_named(folder: Path, content: bytes) -> None:
    list_client(folder)
    (folder / "clients/other.pub").write_bytes(content)
    with pytest.raises(SetupError, match=r"other\.pub"):
        transport.load_keys(folder)


def test_pipe_in_place_of_a_key_is_refused_without_waiting(folder: Path) -> None:
    (folder / "client.key").unlink()
    os.mkfifo(folder / "client.key", 0o600)
    with pytest.raises(SetupError, match="no plain file"):
        transport.load_keys(folder)


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o277])
def test_created_keys_are_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        transport.create_keys(tmp_path / ".keys")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [tmp_path / ".keys", *(tmp_path / ".keys").iterdir()]}
    assert modes == {".keys": 0o700, "server.key": 0o600, "client.key": 0o600}


def test_keys_do_not_show_in_what_is_printed_of_them(folder: Path) -> None:
    keys = transport.load_keys(folder)
    assert keys.client_secret.decode() not in f"{keys} {keys!r} {[keys]}"
