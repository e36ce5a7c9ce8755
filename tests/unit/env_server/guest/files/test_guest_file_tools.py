"""The agent's API of files: results as text, mistakes as messages, and archives that lead nowhere else."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import random
import tarfile
import zipfile
from pathlib import Path

import pytest

from computerrl.common.actions.tables.system import FILES
from computerrl.env_server.guest.files import archives, file_tools
from computerrl.env_server.guest.files.file_tools import FileTools, changed_mode
from computerrl.env_server.guest.files.folder import AgentFolder, FileActionError


@pytest.fixture
def tools(tmp_path: Path) -> FileTools:
    root = tmp_path / "work"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_text("Alpha one\nbeta two\n")
    (root / "sub" / "b.TXT").write_text("Beta three")
    (root / "sub" / "c.bin").write_bytes(b"\0beta")
    (tmp_path / "secret").write_text("secret beta")
    return FileTools(AgentFolder(root))


def root(tools: FileTools) -> Path:
    return tools._folder.root


def test_every_action_of_the_table_but_open_is_a_method() -> None:
    methods = {spec.name.removeprefix("files.") for spec in FILES} - {"open"}
    made = FileTools(AgentFolder(Path("/nowhere")))
    assert all(callable(getattr(made, method)) for method in methods)


def test_append_adds_and_makes(tools: FileTools) -> None:
    tools.append("a.txt", "gamma")
    tools.append("new.txt", "x")
    assert tools.read("a.txt") == "Alpha one\nbeta two\ngamma" and tools.read("new.txt") == "x"


def test_find_by_pattern_ignores_case_and_gives_paths_from_the_top(tools: FileTools) -> None:
    assert tools.find("*.txt", ".") == "a.txt\nsub/b.TXT"
    assert tools.find("*.txt", "sub") == "sub/b.TXT"
    assert tools.find("s*", ".") == "sub/"
    assert tools.find("*.doc", ".") == "nothing is called *.doc"


def test_search_gives_lines_of_text_files_only(tools: FileTools) -> None:
    (root(tools) / "out").symlink_to(root(tools).parent / "secret")
    assert tools.search("BETA", ".") == "a.txt:2: beta two\nsub/b.TXT:1: Beta three"
    assert "no line contains" in tools.search("delta", ".")


def test_long_answers_are_cut_and_say_so(tools: FileTools) -> None:
    for number in range(250):
        (root(tools) / f"n{number:03}.txt").touch()
    lines = tools.find("n*", ".").splitlines()
    assert len(lines) == 201 and lines[-1] == "... 50 more paths"


def test_info_and_permissions(tools: FileTools) -> None:
    assert tools.set_permissions("a.txt", "640") == "a.txt: -rw-r----- (640)"
    assert "a.txt: file, 19 bytes" in tools.info("a.txt") and "-rw-r----- (640)" in tools.info("a.txt")
    assert "sub: folder, 2 entries" in tools.info("sub")


@pytest.mark.parametrize(
    ("old", "mode", "new"),
    [
        (0o644, "600", 0o600),
        (0o644, "u+x", 0o744),
        (0o644, "+x", 0o755),
        (0o777, "go-w", 0o755),
        (0o644, "a=r", 0o444),
        (0o600, "u-w,g+r", 0o440),
        (0o644, "0755", 0o755),
        (0o751, "o=", 0o750),
    ],
)
def test_changed_mode_octal_and_symbolic(old: int, mode: str, new: int) -> None:
    assert changed_mode(old, mode) == new


@pytest.mark.parametrize("mode", ["", "9", "64", "rwx", "u+s", "4755", "u+x,", "0o644", "u-q"])
def test_changed_mode_of_something_else_is_refused(mode: str) -> None:
    with pytest.raises(FileActionError, match="is no mode"):
        changed_mode(0o644, mode)


@pytest.mark.parametrize("archive", ["all.zip", "all.tar.gz", "sub.tgz"])
def test_compress_and_extract_give_the_same_files_back(tools: FileTools, archive: str) -> None:
    (root(tools) / "sub" / "link").symlink_to("../a.txt")
    assert tools.compress("sub", archive) == f"{archive}: 3 packed"
    assert tools.extract(archive, "there/it is") == "2 files unpacked into there/it is"
    unpacked = root(tools) / "there" / "it is" / "sub"
    assert sorted(path.name for path in unpacked.iterdir()) == ["b.TXT", "c.bin"]
    assert (unpacked / "b.TXT").read_text() == "Beta three" and (unpacked / "c.bin").read_bytes() == b"\0beta"


def test_one_file_is_packed_under_its_name(tools: FileTools) -> None:
    tools.compress("a.txt", "sub/a.zip")
    with zipfile.ZipFile(root(tools) / "sub" / "a.zip") as packed:
        assert packed.namelist() == ["a.txt"]


@pytest.mark.parametrize(
    ("method", "args", "words"),
    [
        ("append", ("none/x.txt", "x"), "no folder"),
        ("append", ("sub", "x"), "is a folder"),
        ("append", ("../x", "x"), "outside"),
        ("find", (" ", "."), "pattern"),
        ("find", ("*", "none"), "there is no none"),
        ("search", ("", "."), "words"),
        ("search", ("x", ".."), "outside"),
        ("info", ("none",), "there is no"),
        ("set_permissions", ("none", "600"), "there is no"),
        ("set_permissions", ("a.txt", "yes"), "is no mode"),
        ("set_permissions", (".", "000"), "keeps its permissions"),
        ("compress", ("none", "x.zip"), "there is no"),
        ("compress", ("a.txt", "x.rar"), "no archive's name"),
        ("compress", ("a.txt", "../x.zip"), "outside"),
        ("compress", ("a.txt", "none/x.zip"), "no folder"),
        ("compress", (".", "x.zip"), "name one"),
        ("extract", ("a.txt", "."), "no archive's name"),
        ("extract", ("none.zip", "."), "there is no"),
        ("extract", ("sub", "."), "not a file"),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_changes(
    tools: FileTools, method: str, args: tuple[str, ...], words: str
) -> None:
    before = {path: path.lstat().st_mode for path in root(tools).parent.rglob("*")}
    with pytest.raises(FileActionError, match=words):
        getattr(tools, method)(*args)
    assert {path: path.lstat().st_mode for path in root(tools).parent.rglob("*")} == before


def test_compress_onto_a_file_that_is_there_is_refused(tools: FileTools) -> None:
    tools.compress("a.txt", "x.zip")
    with pytest.raises(FileActionError, match="there already"):
        tools.compress("a.txt", "x.zip")


def zip_with(path: Path, name: str, *, mode: int = 0o644) -> None:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    with zipfile.ZipFile(path, "w") as target:
        target.writestr(info, "evil")


def tar_with(path: Path, member: tarfile.TarInfo, content: bytes = b"") -> None:
    member.size = len(content)
    with tarfile.open(path, "w:gz") as target:
        target.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "sub/../../evil", "..\\evil", "out/evil"])
def test_extract_of_names_that_lead_outside_is_refused(tools: FileTools, name: str) -> None:
    (root(tools) / "out").symlink_to(root(tools).parent)
    zip_with(root(tools) / "x.zip", name)
    tar_with(root(tools) / "x.tar.gz", tarfile.TarInfo(name), b"evil")
    for archive in ("x.zip", "x.tar.gz"):
        with pytest.raises(FileActionError, match=r"outside|through a link"):
            tools.extract(archive, ".")
    assert not list(root(tools).parent.rglob("evil"))


def test_extract_of_links_and_devices_is_refused(tools: FileTools) -> None:
    zip_with(root(tools) / "x.zip", "link", mode=0o120777)
    for kind, target in (
        (tarfile.SYMTYPE, "/etc/passwd"),
        (tarfile.LNKTYPE, "../secret"),
        (tarfile.CHRTYPE, ""),
        (tarfile.FIFOTYPE, ""),
    ):
        member = tarfile.TarInfo("link")
        member.type, member.linkname = kind, target
        tar_with(root(tools) / "x.tar.gz", member)
        with pytest.raises(FileActionError, match="link or a device"):
            tools.extract("x.tar.gz", ".")
    with pytest.raises(FileActionError, match="is a link"):
        tools.extract("x.zip", ".")
    assert not (root(tools) / "link").is_symlink()


def test_extract_over_a_file_that_is_there_is_refused_before_anything_is_written(tools: FileTools) -> None:
    with zipfile.ZipFile(root(tools) / "x.zip", "w") as target:
        target.writestr("first.txt", "x")
        target.writestr("a.txt", "y")
    with pytest.raises(FileActionError, match="there already"):
        tools.extract("x.zip", ".")
    assert not (root(tools) / "first.txt").exists() and tools.read("a.txt").startswith("Alpha")


def test_extract_of_too_much_or_damaged_is_refused(tools: FileTools, monkeypatch: pytest.MonkeyPatch) -> None:
    (root(tools) / "bad.zip").write_bytes(b"PK\x03\x04 no zip at all")
    (root(tools) / "bad.tar.gz").write_bytes(b"\x1f\x8b no gzip")
    for archive in ("bad.zip", "bad.tar.gz"):
        with pytest.raises((FileActionError, OSError)):
            tools.extract(archive, ".")
    tools.compress("sub", "x.zip")
    tools.compress("sub", "x.tar.gz")
    monkeypatch.setattr(archives, "MAX_UNPACKED_BYTES", 5)
    for archive in ("x.zip", "x.tar.gz"):
        with pytest.raises(FileActionError, match="more than 5 bytes"):
            tools.extract(archive, "there")
    monkeypatch.setattr(archives, "MAX_UNPACKED_BYTES", 500)
    monkeypatch.setattr(archives, "MAX_MEMBERS", 2)
    with pytest.raises(FileActionError, match="more than 2 members"):
        tools.extract("x.zip", "there")


def test_extract_of_any_damaged_archive_is_refused_or_done(tools: FileTools) -> None:
    rng = random.Random(7)
    archived = {}
    for name in ("x.zip", "x.tar.gz"):
        tools.compress("sub", name)
        raw = (root(tools) / name).read_bytes()
        archived[name] = raw if name == "x.zip" else gzip.decompress(raw)
    for number in range(300):
        name = rng.choice(sorted(archived))
        data = bytearray(archived[name])
        for _ in range(rng.randrange(1, 6)):
            place = rng.randrange(len(data))
            if rng.random() < 0.7:
                data[place] = rng.choice([0, 255, 128, ord("/"), ord("9"), rng.randrange(256)])
            else:
                del data[place : place + rng.randrange(1, 40)]
        (root(tools) / name).write_bytes(bytes(data) if name == "x.zip" else gzip.compress(bytes(data), 1))
        with contextlib.suppress(FileActionError, OSError):
            tools.extract(name, f"out{number}")


def test_pack_takes_what_unpack_does_and_leaves_pipes_out(tools: FileTools, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(root(tools) / "sub" / "pipe")
    os.utime(root(tools) / "sub" / "b.TXT", (0, 0))  # earlier than a .zip can tell
    assert tools.compress("sub", "x.zip").endswith("packed")
    with open(os.fsencode(root(tools)) + b"/sub/\xff", "wb"):
        pass
    with pytest.raises(FileActionError, match="no text"):
        tools.compress("sub", "y.zip")
    tools.compress("sub", "y.tar.gz")
    with open(root(tools) / "huge", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FileActionError, match="too much"):
        tools.compress("huge", "z.zip")
    monkeypatch.setattr(archives, "MAX_MEMBERS", 2)
    with pytest.raises(FileActionError, match="more than 2 members"):
        tools.compress("sub", "z.zip")


def test_search_of_too_much_is_refused(tools: FileTools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_tools, "_MAX_SEARCHED_BYTES", 5)
    with pytest.raises(FileActionError, match="more than 5 bytes"):
        tools.search("x", ".")
