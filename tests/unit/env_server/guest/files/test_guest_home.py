"""The user's home at the beginning of a task, and what applications keep in it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from computerrl.env_server.guest.apps.simple import default_profile
from computerrl.env_server.guest.faults import Refused
from computerrl.env_server.guest.files import home
from computerrl.env_server.guest.files.folder import AgentFolder


@pytest.fixture
def folder(tmp_path: Path) -> AgentFolder:
    found = AgentFolder(tmp_path / "user")
    home.renew(found)
    return found


def test_home_is_the_same_whatever_a_task_has_left(folder: AgentFolder) -> None:
    first = {place for place in folder.root.rglob("*")}
    root = folder.root
    (root / ".config/libreoffice/4").mkdir(parents=True)
    (root / ".config/libreoffice/4/kept").write_text("x")
    (root / ".bashrc").write_text("alias ls=false")
    (root / ".config/vlc").mkdir()
    (root / ".config/vlc/vlcrc").write_text("qt-bgcone=0")
    (root / ".config/gtk-3.0/gtk.css").unlink()
    (root / ".config/gtk-3.0/gtk.css").mkdir()
    (root / ".config/gtk-3.0").chmod(0)
    (root / ".local").symlink_to("/")
    home.renew(folder, keep=[root / ".config/libreoffice/4"])
    assert (root / ".config/libreoffice/4/kept").read_text() == "x"
    assert {place for place in root.rglob("*")} - first == {
        root / ".config/libreoffice",
        root / ".config/libreoffice/4",
        root / ".config/libreoffice/4/kept",
    }
    assert all((root / path).read_text() == text for path, text in home.SKELETON.items())


def test_link_in_the_way_of_what_is_kept_is_not_followed(folder: AgentFolder, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/precious").write_text("x")
    home.renew(folder)
    for name in ("gtk-3.0/settings.ini", "gtk-3.0/gtk.css"):
        (folder.root / ".config" / name).unlink()
    (folder.root / ".config/gtk-3.0").rmdir()
    (folder.root / ".config/google-chrome").unlink()
    (folder.root / ".config/chromium").rmdir()
    (folder.root / ".config").rmdir()
    (folder.root / ".config").symlink_to(tmp_path / "other")
    home.renew(folder)
    assert os.listdir(tmp_path / "other") == ["precious"] and not (folder.root / ".config").is_symlink()


@pytest.mark.parametrize("link", home.LINKS)
def test_folder_with_two_names_can_be_filled_by_each_before_its_application_runs(folder: AgentFolder, link: str) -> None:
    subprocess.run(["mkdir", "-p", folder.root / link / "Default"], check=True)
    (folder.root / link / "Default/Preferences").write_text("{}")
    home.renew(folder)
    assert list((folder.root / link).resolve(strict=True).iterdir()) == []


def test_applications_own_files_are_no_part_of_a_listing(folder: AgentFolder) -> None:
    folder.write("a.txt", "x")
    folder.make_folder("sub")
    folder.write("sub/.hidden", "x")
    assert folder.list() == ["a.txt", "sub/"] and folder.listing() == ["a.txt", "sub/", "sub/.hidden"]
    assert folder.list("sub") == [".hidden"] and ".bashrc" not in folder.listing()


@pytest.mark.parametrize(
    ("text", "profile"),
    [
        ("[Profile0]\nName=a\nPath=a.one\n", "a.one"),
        ("[Profile1]\nPath=a.one\n[Profile0]\nPath=b.two\nDefault=1\n", "b.two"),
        ("[Install4F96D1932A9F858E]\nDefault=c.three\nLocked=1\n[Profile0]\nPath=b.two\nDefault=1\n", "c.three"),
    ],
)
def test_mail_profile_is_the_one_that_a_task_brings_as_the_default(text: str, profile: str) -> None:
    assert default_profile(text) == profile


@pytest.mark.parametrize("text", ["", "[General]\nVersion=2\n", "no ini"])
def test_mail_profiles_that_name_none_are_refused(text: str) -> None:
    with pytest.raises(Refused, match=r"profiles\.ini"):
        default_profile(text)
