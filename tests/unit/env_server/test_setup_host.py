"""What set-up reads from the machine: its Debian mirror, its distribution, a command's failure."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from computerrl.common.errors import SetupError
from computerrl.env_server.image.host import debian_mirror, exclusive, missing_commands, os_release, require_mirror, run_logged

BOOKWORM = {"ID": "debian", "VERSION_CODENAME": "bookworm"}


def sources(folder: Path, name: str, text: str) -> Path:
    (folder / "sources.list.d").mkdir(exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_debian_mirror_deb822_security_archive_is_passed_over(tmp_path: Path) -> None:
    text = (
        "Types: deb\nURIs: http://archive.invalid/security\nSuites: bookworm-security\nComponents: main\n\n"
        "# a comment\nTypes: deb\nURIs: http://archive.invalid/debian/\nSuites: bookworm bookworm-updates\nComponents: main\n"
    )
    assert debian_mirror(sources(tmp_path, "sources.list.d/debian.sources", text), BOOKWORM) == "http://archive.invalid/debian"


def test_debian_mirror_one_line_format_with_options_is_read(tmp_path: Path) -> None:
    text = "deb-src http://a.invalid bookworm main\n# deb http://b.invalid bookworm main\n"
    text += "deb [arch=amd64] http://c.invalid bookworm main\n"
    assert debian_mirror(sources(tmp_path, "sources.list", text), BOOKWORM) == "http://c.invalid"


@pytest.mark.parametrize(
    "text",
    [
        "Types: deb\nURIs: http://x.invalid\nSuites: nodistro\nComponents: main\n",
        "Types: deb\nURIs: http://x.invalid\nSuites: bookworm\nComponents: contrib\n",
        "Types: deb-src\nURIs: http://x.invalid\nSuites: bookworm\nComponents: main\n",
        "Enabled: no\nTypes: deb\nURIs: http://x.invalid\nSuites: bookworm\nComponents: main\n",
    ],
)
def test_debian_mirror_no_usable_source_is_none(tmp_path: Path, text: str) -> None:
    assert debian_mirror(sources(tmp_path, "sources.list.d/other.sources", text), BOOKWORM) is None


def test_debian_mirror_other_distribution_is_none(tmp_path: Path) -> None:
    folder = sources(tmp_path, "sources.list", "deb http://c.invalid noble main\n")
    assert debian_mirror(folder, {"ID": "ubuntu", "VERSION_CODENAME": "noble"}) is None


def test_require_mirror_given_one_wins() -> None:
    assert require_mirror("http://mine.invalid", purpose="a test") == "http://mine.invalid"


def test_os_release_quotes_are_removed(tmp_path: Path) -> None:
    (tmp_path / "os-release").write_text('ID=debian\nVERSION_ID="12"\n', encoding="utf-8")
    assert os_release(tmp_path / "os-release") == {"ID": "debian", "VERSION_ID": "12"}
    assert os_release(tmp_path / "none") == {}


def test_missing_commands_unknown_is_named() -> None:
    assert missing_commands(["sh", "no-such-command-here"]) == ["no-such-command-here"]


def test_run_logged_failure_shows_last_lines_and_log(tmp_path: Path) -> None:
    lines: list[str] = []
    with pytest.raises(SetupError, match=r"ended with 3(.|\n)*the reason(.|\n)*run\.log"):
        run_logged(["sh", "-c", "echo the reason >&2; exit 3"], log=tmp_path / "logs" / "run.log", on_line=lines.append)
    assert lines == ["the reason"]
    assert "the reason" in (tmp_path / "logs" / "run.log").read_text(encoding="utf-8")


def test_exclusive_second_holder_waits_for_first(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with exclusive(tmp_path / "lock", progress=order.append):
            order.append("second")

    with exclusive(tmp_path / "lock"):
        thread = threading.Thread(target=second)
        thread.start()
        while not order:
            thread.join(0.01)
        order.append("first")
    thread.join(10)
    assert order[0].startswith("another set-up")
    assert order[1:] == ["first", "second"]
