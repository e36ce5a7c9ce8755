"""Programs in place of applications while a set-up script runs, run by a real shell."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from computerrl.env_server.guest.osworld import programs
from computerrl.env_server.tasks.bundles import stand_ins


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name, data in stand_ins.files().items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def test_there_is_one_for_each_application_that_the_desktop_knows() -> None:
    assert set(stand_ins.PROGRAMS) == programs._APPS.keys()


def test_each_start_is_noted_word_by_word_and_nothing_is_run(place: Path) -> None:
    script = "vlc 'a b' --x; libreoffice --calc '' 'line\nbreak'; google-chrome \"x'y\""
    subprocess.run(stand_ins.with_stand_ins(["sh", "-c", script], str(place)), check=True, timeout=60)
    assert list(stand_ins.started(Path(stand_ins.notes(str(place))).read_bytes())) == [
        ["vlc", "a b", "--x"],
        ["libreoffice", "--calc", "", "line\nbreak"],
        ["google-chrome", "x'y"],
    ]


def test_program_that_opens_no_window_is_run_itself(place: Path) -> None:
    real = place / "bin"
    real.mkdir()
    (real / "soffice").write_text("#!/bin/sh\necho ran $*\n")
    (real / "soffice").chmod(0o755)
    command = stand_ins.with_stand_ins(["soffice", "--headless", "--convert-to", "pdf", "a.docx"], str(place))
    ran = subprocess.run(command, env={"PATH": f"{real}:/usr/bin:/bin"}, capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout == "ran --headless --convert-to pdf a.docx\n" and not Path(stand_ins.notes(str(place))).exists()


@pytest.mark.parametrize("noted", [b"x\0a\0", b"\xff\0"])
def test_notes_that_a_script_has_spoilt_are_an_error(noted: bytes) -> None:
    with pytest.raises(ValueError):
        list(stand_ins.started(noted))


def test_starts_without_end_are_cut() -> None:
    assert len(list(stand_ins.started(b"1\0vlc\0" * 1000))) == 20
