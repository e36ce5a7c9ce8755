"""The agent's folder: file actions do what they say and never leave it."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computerrl.env_server.guest.files import archives
from computerrl.env_server.guest.files import folder as folder_module
from computerrl.env_server.guest.files.folder import MAX_FILE_BYTES, MAX_TEXT_BYTES, AgentFolder, FileActionError, make_way
from computerrl.env_server.guest.office import profile
from computerrl.env_server.guest.wire import MAX_FRAME_BYTES


@pytest.fixture
def folder(tmp_path: Path) -> AgentFolder:
    root = tmp_path / "work"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_text("alpha")
    (tmp_path / "secret").write_text("secret")
    return AgentFolder(root)


def test_actions_on_files_do_what_they_say(folder: AgentFolder) -> None:
    folder.write("b.txt", "beta")
    folder.copy("a.txt", "sub")
    folder.rename("a.txt", "c.txt")
    folder.move("b.txt", "sub")
    folder.make_folder("x/y")
    assert folder.listing() == ["c.txt", "sub/", "sub/a.txt", "sub/b.txt", "x/", "x/y/"]
    assert folder.list("sub") == ["a.txt", "b.txt"]
    assert folder.read("sub/b.txt") == "beta"
    folder.delete("sub")
    assert folder.listing() == ["c.txt", "x/", "x/y/"]


@pytest.mark.parametrize(
    ("action", "args"),
    [
        ("rename", ("none", "x")),
        ("rename", ("a.txt", "sub")),
        ("rename", ("a.txt", "../x")),
        ("rename", ("a.txt", "")),
        ("move", ("a.txt", "none")),
        ("move", ("sub", "sub")),
        ("move", ("a.txt", "a.txt")),
        ("copy", ("a.txt", "a.txt")),
        ("delete", ("none",)),
        ("delete", (".",)),
        ("move", (".", "sub")),
        ("make_folder", ("sub",)),
        ("read", ("sub",)),
        ("write", ("sub", "x")),
        ("write", ("none/x", "x")),
        ("list", ("a.txt",)),
        ("read", ("a\0b",)),
        ("copy", (".", "sub")),
    ],
)
def test_actions_that_cannot_be_done_say_so_and_change_nothing(folder: AgentFolder, action: str, args: tuple[str, ...]) -> None:
    before = folder.listing()
    with pytest.raises(FileActionError):
        getattr(folder, action)(*args)
    assert folder.listing() == before


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "sub/../../secret", "..", "link", "out/secret", "sub/../.."])
@pytest.mark.parametrize("action", ["read", "write", "delete", "make_folder", "list", "listing"])
def test_paths_and_links_that_lead_outside_are_refused(folder: AgentFolder, path: str, action: str) -> None:
    (folder.root / "link").symlink_to(folder.root.parent / "secret")
    (folder.root / "out").symlink_to(folder.root.parent)
    with pytest.raises(FileActionError):
        getattr(folder, action)(path, *(("x",) if action == "write" else ()))
    assert (folder.root.parent / "secret").read_text() == "secret"


@pytest.mark.parametrize("path", ["n" * 256, f"sub/{'n' * 256}", "\u00e4" * 128, f"{'n' * 256}/a"])
def test_name_that_no_file_can_have_is_refused(folder: AgentFolder, path: str) -> None:
    for action in (folder.read, folder.delete, folder.make_folder, folder.list, folder.listing, folder.resolve):
        with pytest.raises(FileActionError, match="255 bytes"):
            action(path)
    for refused in (folder.write, folder.move, folder.copy):
        with pytest.raises(FileActionError):
            refused("a.txt" if refused != folder.write else path, path)


def test_judge_of_a_path_outside_is_told_and_of_what_an_agent_made_unreadable_sees_nothing(folder: AgentFolder) -> None:
    for path in ("../secret", "/etc/passwd", "sub/../../secret", "..", "a\0b"):
        with pytest.raises(FileActionError):
            folder.bytes_or_none(path)
    root = folder.root
    (root / "link").symlink_to(root.parent / "secret")
    (root / "out").symlink_to(root.parent)
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(root / "socket"))
    with (root / "large").open("wb") as large:
        large.truncate(MAX_FILE_BYTES + 1)
    for path in ("link", "out/secret", "loop", "pipe", "socket", "large", "sub", "none", "a.txt/b", "n" * 256, "n/" * 400):
        assert folder.bytes_or_none(path) is None and folder.text_or_none(path) is None, path
    (root / "lines").write_bytes(b"a\r\nb\rc\xff")
    assert folder.text_or_none("lines") == "a\nb\nc\ufffd" and folder.bytes_or_none("a.txt") == b"alpha"


def test_moving_or_copying_outside_is_refused(folder: AgentFolder) -> None:
    for action in (folder.move, folder.copy):
        with pytest.raises(FileActionError):
            action("a.txt", "..")
    assert folder.listing() == ["a.txt", "sub/"]


def test_wipe_removes_everything_but_the_folder_and_follows_no_link(folder: AgentFolder) -> None:
    (folder.root / "out").symlink_to(folder.root.parent)
    (folder.root / "sub" / "deep").mkdir()
    (folder.root / "sub").chmod(0)
    inode = folder.root.stat().st_ino
    folder.wipe()
    assert folder.listing() == [] and folder.root.stat().st_ino == inode
    assert (folder.root.parent / "secret").exists()


def make_deep(top: Path, *, depth: int) -> None:
    """Folders within each other, too deep for a path to the innermost one."""
    before = os.getcwd()
    os.chdir(top)
    for _ in range(depth):
        os.mkdir("d")
        os.chdir("d")
    os.chdir(before)


def test_folders_of_any_depth_are_listed_copied_packed_and_deleted(folder: AgentFolder) -> None:
    make_deep(folder.root / "sub", depth=1300)
    assert len(folder.listing()) == 1302
    folder.copy("sub", "copied")
    assert len(folder.listing("copied")) == 1300
    assert archives.pack(folder.root / "copied", folder.root / "x.zip") == 1301
    assert len(profile.files(folder.root)) == 2604
    folder.delete("copied")
    folder.wipe()
    make_deep(folder.root, depth=3000)
    assert 1000 < len(folder.listing()) < 3000, "the rest is more than a listing holds"
    with pytest.raises((FileActionError, OSError)):
        folder.copy("d", "copied")
    folder.delete("d")
    folder.wipe()


def test_listing_of_very_much_is_cut(folder: AgentFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "_MAX_LISTED_CHARS", 100)
    for number in range(100):
        folder.write(f"sub/{number}", "")
    assert 10 < len(folder.listing()) < 50


def test_text_of_control_characters_fits_into_a_message(folder: AgentFolder) -> None:
    for size in (MAX_TEXT_BYTES, MAX_TEXT_BYTES + 1):
        (folder.root / "zeros").write_bytes(bytes(size))
        text = folder.text_or_none("zeros")
        assert (text is None) == (size > MAX_TEXT_BYTES)
        assert len(json.dumps({"value": text})) < MAX_FRAME_BYTES
    assert folder.bytes_or_none("zeros") is not None


@pytest.mark.parametrize("action", ["read", "write", "copy"])
def test_pipe_is_waited_for_by_no_action(folder: AgentFolder, action: str) -> None:
    os.mkfifo(folder.root / "pipe")
    with pytest.raises((FileActionError, OSError)):
        getattr(folder, action)("pipe", *([] if action == "read" else ["b"]))


@given(path=st.text(alphabet="ab/.~\\ ", max_size=24))
def test_resolve_of_any_path_stays_inside(tmp_path_factory: pytest.TempPathFactory, path: str) -> None:
    folder = AgentFolder(tmp_path_factory.getbasetemp() / "work")
    folder.root.mkdir(exist_ok=True)
    try:
        place = folder.resolve(path)
    except FileActionError:
        return
    assert place == folder.root or folder.root in place.parents


@pytest.mark.parametrize(
    "mess",
    [
        "nothing",
        "file",
        "folder",
        "closed-folder",
        "link",
        "broken-link",
        "pipe",
        "socket-file",
        "parent-file",
        "parent-link",
        "parent-loop",
        "parent-outside",
        "parent-closed",
        "grandparent-file",
        "link-inside",
        "link-to-come",
    ],
)
def test_way_to_a_new_file_is_made_whatever_is_there(tmp_path: Path, mess: str) -> None:
    root, outside = tmp_path / "home", tmp_path / "outside"
    parent, place = root / "a" / "b", root / "a" / "b" / "c.txt"
    outside.mkdir()
    (outside / "c.txt").write_text("theirs")
    (root if mess in ("nothing", "grandparent-file") else root / "a" if mess.startswith("parent") else parent).mkdir(parents=True)
    if mess == "file":
        place.write_text("theirs")
        place.chmod(0o400)
    elif mess in ("folder", "closed-folder"):
        (place / "below").mkdir(parents=True)
        place.chmod(0o000 if mess == "closed-folder" else 0o700)
    elif mess in ("link", "broken-link"):
        place.symlink_to(outside / ("c.txt" if mess == "link" else "none"))
    elif mess == "pipe":
        os.mkfifo(place)
    elif mess == "socket-file":
        socket.socket(socket.AF_UNIX).bind(str(place))
    elif mess in ("parent-file", "grandparent-file"):
        (parent if mess == "parent-file" else parent.parent).write_text("in the way")
    elif mess in ("parent-link", "parent-loop", "parent-outside"):
        parent.symlink_to({"parent-link": tmp_path / "none", "parent-loop": Path("b"), "parent-outside": outside}[mess])
    elif mess == "parent-closed":
        parent.mkdir()
        (parent / "c.txt").write_text("theirs")
        parent.chmod(0o500)
        parent.parent.chmod(0o000)
    elif mess in ("link-inside", "link-to-come"):
        if mess == "link-inside":
            (root / "real").mkdir()
        parent.rmdir()
        parent.symlink_to(root / "real")
    make_way(place, root=root)
    with place.open("x") as file:
        file.write("ours")
    assert place.read_text() == "ours" and (outside / "c.txt").read_text() == "theirs"
    assert parent.is_symlink() == (mess in ("link-inside", "link-to-come"))


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (lambda root: None, True),
        (lambda root: (root / ".config").mkdir(), True),
        (lambda root: (root / "a" / "new").touch(), False),
        (lambda root: (root / "a" / "note.txt").unlink(), False),
        (lambda root: (root / "a" / "note.txt").write_text("other"), False),
        (lambda root: (root / "a" / "note.txt").chmod(0o600), False),
        (lambda root: (root / "a").rename(root / "b"), False),
        (lambda root: (root / "a").rename(root / "b").rename(root / "a"), False),
        (lambda root: os.link(root / "a" / "note.txt", root / "a" / "other"), False),
    ],
)
def test_marks_tell_every_operation_on_files_of_the_users(tmp_path: Path, change: Callable[[Path], Any], same: bool) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "note.txt").write_text("text")
    folder = AgentFolder(tmp_path)
    before = folder.marks()
    time.sleep(0.02)  # a tick of the file system's clock
    change(tmp_path)
    assert (folder.marks() == before) == same


def test_folder_that_cannot_be_looked_into_is_empty_to_a_judge(folder: AgentFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", closed)
    monkeypatch.setattr(os, "scandir", closed)
    assert folder.listing() == []
    assert folder.marks() == frozenset()
