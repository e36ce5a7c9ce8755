"""Wiping the writable folders: everything goes but what was named, whatever it is, and nothing outside is touched."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from computerrl.env_server.guest.faults import DesktopError
from computerrl.env_server.guest.files.folder import remove_tree
from computerrl.env_server.guest.files.leftovers import WritableFolders


class Ground:
    """A writable folder with a profile and a log in it, beside a folder that is somebody else's."""

    def __init__(self, tmp_path: Path) -> None:
        self.root, self.outside = tmp_path / "root", tmp_path / "outside"
        home = self.root / "home"
        self.profile, self.log = home / "app", home / "logs/app.log"
        for folder in (self.profile, self.log.parent, self.outside):
            folder.mkdir(parents=True)
        (self.profile / "state").write_text("its own")
        self.log.write_text("said")
        (self.outside / "file").write_text("somebody's")
        mounts = tmp_path / "mountinfo"
        rows = {"/": "ext4", self.root: "tmpfs", self.outside: "ext4"}
        mounts.write_text("".join(f"1 0 0:1 / {place} rw - {kind} x rw\n" for place, kind in rows.items()))
        self.folders = WritableFolders([str(self.root)], mounts=mounts)
        self.wipe()
        self.first = self.tree()

    def wipe(self) -> None:
        self.folders.wipe(folders=[self.profile], files=[self.log])

    def tree(self) -> dict[str, str]:
        return {
            str(path): path.read_text() if path.is_file() else "folder"
            for path in (self.root, *self.root.rglob("*"), *self.outside.rglob("*"))
        }


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


def deep(root: Path) -> None:
    """A folder whose path no system call takes."""
    before = os.open(".", os.O_RDONLY)
    try:
        os.chdir(root)
        for _ in range(60):
            os.mkdir("d" * 200)
            os.chdir("d" * 200)
        Path("file").touch()
        Path("0").mkdir()
    finally:
        os.fchdir(before)
        os.close(before)


def closed(root: Path) -> None:
    (root / "a/b/c").mkdir(parents=True)
    (root / "a/b/c/file").touch()
    for folder in ("a/b/c", "a/b", "a"):
        (root / folder).chmod(0)


def replaced(path: Path, target: Path) -> None:
    path.rename(path.parent / "moved")
    path.symlink_to(target)


def old_socket(root: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "s"))


MESSES: dict[str, Callable[[Ground], object]] = {
    "file": lambda ground: (ground.root / "file").write_text("x"),
    "file beside a log": lambda ground: (ground.log.parent / "x.log").write_text("x"),
    "link to a folder": lambda ground: (ground.root / "link").symlink_to(ground.outside),
    "link to nothing": lambda ground: (ground.root / "link").symlink_to("nowhere"),
    "pipe": lambda ground: os.mkfifo(ground.root / "pipe"),
    "socket that nobody listens at": lambda ground: old_socket(ground.root),
    "name that is no text": lambda ground: (Path(os.fsdecode(bytes(ground.root) + b"/\xff\n"))).touch(),
    "deep folder": lambda ground: deep(ground.root),
    "closed folders": lambda ground: closed(ground.root),
    "closed root": lambda ground: ground.root.chmod(0o500),
    "folders with numbers": lambda ground: [(ground.root / f"{n // 9}/{n % 9}/0").mkdir(parents=True) for n in range(81)],
}


@pytest.mark.parametrize("name", MESSES)
def test_wipe_leaves_what_was_there_at_first(ground: Ground, name: str) -> None:
    MESSES[name](ground)
    ground.wipe()
    assert ground.tree() == ground.first
    assert ground.root.stat().st_mode & 0o777 == 0o755


def test_wipe_keeps_a_socket_in_use_and_not_a_file_in_its_place(ground: Ground) -> None:
    path = ground.root / "run/s"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        ground.wipe()
        assert path.is_socket()
        path.unlink()
        path.write_text("x")
        ground.wipe()
        assert not path.exists()
    ground.wipe()
    assert ground.tree() == ground.first


def test_profile_that_became_a_link_goes_and_what_it_leads_to_stays(ground: Ground) -> None:
    replaced(ground.profile, ground.outside)
    ground.wipe()
    assert not os.path.lexists(ground.profile)
    assert (ground.outside / "file").read_text() == "somebody's"


def test_folder_on_a_disk_of_the_host_is_refused(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    with pytest.raises(DesktopError, match="outside"):
        WritableFolders([str(ground.outside)], mounts=tmp_path / "mountinfo")


def test_remove_tree_takes_folders_with_the_names_it_uses_itself(tmp_path: Path) -> None:
    for path in ("0/0/0", "0/1", "1/0/1/0", "2/0"):
        (tmp_path / "top" / path).mkdir(parents=True)
    remove_tree(tmp_path / "top")
    assert not (tmp_path / "top").exists()


def test_open_up_gives_back_permissions_of_folders_above_and_of_no_others(ground: Ground) -> None:
    (ground.root / "other").mkdir(mode=0o500)
    ground.profile.parent.chmod(0)
    ground.folders.open_up([ground.profile, ground.outside / "x/y"], home=ground.root / "home")
    assert os.geteuid() == 0 or ground.profile.parent.stat().st_mode & 0o777 == 0o700
    assert (ground.root / "other").stat().st_mode & 0o777 == 0o500
