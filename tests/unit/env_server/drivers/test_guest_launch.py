"""How guests are started: flags of the container, and host problems as typed errors that name the next step."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

from computerrl.common.config import DesktopConfig
from computerrl.common.errors import DesktopBroken, HostBroken, SetupError
from computerrl.env_server.drivers import apptainer, isolation
from computerrl.env_server.drivers.apptainer import ApptainerLauncher, make_apptainer_driver
from computerrl.env_server.drivers.containment import Findings
from computerrl.env_server.drivers.guest_driver import GuestDriver
from computerrl.env_server.drivers.local import LocalLauncher
from computerrl.env_server.image.apptainer_install import Apptainer, clean_environment


def found(*, network_none: bool) -> Apptainer:
    return Apptainer(Path("/opt/apptainer"), "1.4.5", ("--userns",), network_none)


class FailingLauncher:
    """Starts a program that says something and ends."""

    def __init__(self, script: str) -> None:
        self._script = script

    def command(self, settings: dict[str, object]) -> list[str]:
        return ["sh", "-c", self._script]

    def explain(self, log: str) -> str:
        return ApptainerLauncher(found(network_none=True), Path("/image")).explain(log)

    def differences(self, found: Findings) -> list[str]:
        return []


@pytest.mark.parametrize("network_none", [True, False])
def test_container_command_isolates_and_binds_only_what_it_needs(monkeypatch: pytest.MonkeyPatch, network_none: bool) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    settings = {"width": 800, "max_processes": 600}
    command = list(ApptainerLauncher(found(network_none=network_none), Path("/image")).command(settings))
    flags = command[command.index("exec") :]
    assert {"--pid", "--no-home", "--cleanenv", "--no-mount", "--userns"} <= set(flags)
    assert not [flag for flag in flags if "writable" in flag]
    assert flags.count("--userns") == 1 and ("--net" in flags) == network_none
    binds = [flags[index + 1] for index, flag in enumerate(flags) if flag == "--bind"]
    assert [bind.partition(":")[2] for bind in binds if not bind.endswith(":ro")] == ["/tmp", "/var/tmp", "/home/user"]
    assert len(binds) == 8
    assert command[:3] == ["setpriv", "--no-new-privs", "unshare"] and "--kill-child=KILL" in command
    assert json.loads(command[-1])["width"] == 800


@pytest.mark.parametrize(
    ("held", "mode", "said"),
    [
        (0, 0o755, "SETUID, SETGID"),
        (1 << 7, 0o755, "SETGID"),
        (1 << 6 | 1 << 7, 0o700, "SYS_ADMIN"),
        (0, 0o700, "SETUID, SETGID, SYS_ADMIN"),
    ],
)
def test_root_without_the_rights_to_become_nobody_is_refused_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, held: int, mode: int, said: str
) -> None:
    monkeypatch.setattr(isolation, "_capabilities", lambda: held)
    monkeypatch.setattr(isolation, "_closed_above", lambda path: path.parent if mode == 0o700 else None)
    (tmp_path / "image").mkdir(mode=0o755)
    with pytest.raises(SetupError, match=f"capabilities {said} here") as caught:
        isolation.become_nobody([tmp_path / "image"], index=0)
    assert "ordinary user" in caught.value.problem.next_step and "docker run --cap-add" in caught.value.problem.next_step


def test_root_becomes_another_nobody_for_each_desktop_and_sees_what_it_needs_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(isolation, "_capabilities", lambda: -1)
    home, shown = tmp_path / "root's home", tmp_path / "open"
    for folder in (home / "image", shown):
        folder.mkdir(parents=True)
    home.chmod(0o700)
    commands = [isolation.isolation(max_processes=600, needs=(home / "image", shown), index=index) for index in (0, 1)]
    users = [next(word for word in command if word.startswith("--reuid=")) for command in commands]
    assert users == ["--reuid=1900000000", "--reuid=1900000001"]
    assert all("--clear-groups" in command and "--no-new-privs" in command for command in commands)
    script = commands[0][commands[0].index("-ec") + 1]
    covered = isolation._closed_above(home / "image")  # `home`, or a folder above it that pytest keeps to itself
    assert covered in (home, *home.parents) and f"tmpfs {shlex.quote(str(covered))}\n" in script
    moved = [line.split(maxsplit=3)[3] for line in script.splitlines() if line.startswith("mount --move")]
    assert set(moved) == {shlex.quote(str(path)) for path in (home / "image", shown) if isolation._closed_above(path)}


@pytest.mark.parametrize(
    ("user_ids", "user"),
    [
        ([(0, 0, 4294967295)], "1900000003"),
        ([(0, 0, 65536)], "65534"),  # a container of root's
        ([(0, 1000, 1), (1, 100000, 65536)], ""),  # a rootless container
        ([(0, 100000, 65536)], ""),
    ],
)
def test_only_who_is_root_outside_as_well_becomes_somebody_else(
    monkeypatch: pytest.MonkeyPatch, user_ids: list[tuple[int, int, int]], user: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(isolation, "_capabilities", lambda: -1)
    monkeypatch.setattr(isolation, "_user_ids", lambda: user_ids)
    command = isolation.isolation(max_processes=600, needs=(), index=3)
    assert [word for word in command if word.startswith("--reuid=")] == ([f"--reuid={user}"] if user else [])


def test_what_is_closed_and_too_large_to_copy_is_refused_with_a_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(isolation, "_capabilities", lambda: -1)
    closed = tmp_path / "image"
    closed.mkdir(mode=0o700)
    isolation.isolation(max_processes=600, needs=(closed,))
    with (closed / "large").open("wb") as file:
        file.truncate(100 << 20)
    with pytest.raises(SetupError, match=r"chmod -R o\+rX .*image"):
        isolation.isolation(max_processes=600, needs=(closed,))


def test_environment_of_a_container_is_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("APPTAINER_BIND", "SINGULARITYENV_X", "LD_PRELOAD", "http_proxy", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    assert set(clean_environment()) == {"PATH", "HOME", "LC_ALL"}


@pytest.mark.parametrize(
    ("path", "folder"),
    [("/usr/bin/apptainer", "/"), ("/opt/a/bin/apptainer", "/opt/a"), ("/cache/1.4.5/usr/bin/apptainer", "/cache/1.4.5")],
)
def test_apptainer_is_shown_with_all_that_lies_beside_it(path: str, folder: str) -> None:
    assert Apptainer(Path(path), "1.4.5", (), True).folder == Path(folder)


def test_local_command_has_namespaces_of_its_own() -> None:
    command = list(LocalLauncher().command({"max_processes": 600}))
    assert {"--user", "--mount", "--pid", "--kill-child=KILL"} <= set(command)


@pytest.mark.parametrize(
    ("release", "highest_pid"),
    [("6.18.44-fc", "900"), ("6.14", "900"), ("6.12.9-amd64", ""), ("5.14.0-503.el9", ""), ("7.0", "900")],
)
def test_highest_process_id_is_set_only_where_it_is_the_namespace_s_own(
    monkeypatch: pytest.MonkeyPatch, release: str, highest_pid: str
) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "host", release, "", "x86_64")))
    assert isolation.isolation(max_processes=600, needs=())[-1] == highest_pid


def test_ordinary_user_is_never_root() -> None:
    user, group = isolation.ordinary_user()
    assert user != "0" and group != "0"


def test_refused_network_namespace_is_an_error_unless_accepted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(apptainer, "_find_apptainer_once", lambda: found(network_none=False))
    with pytest.raises(SetupError, match="allow_shared_network=true"):
        make_apptainer_driver(DesktopConfig(), index=0, folder=tmp_path, screenshots=None)


def test_missing_image_is_an_error_that_names_set_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(apptainer, "_find_apptainer_once", lambda: found(network_none=True))
    with pytest.raises(SetupError, match=r"desktop\.image"):
        make_apptainer_driver(DesktopConfig(image=str(tmp_path / "none.sif")), index=0, folder=tmp_path, screenshots=None)


@pytest.mark.parametrize(
    ("said", "step"),
    [
        ("FATAL: could not use user namespace: disabled", "user.max_user_namespaces"),
        ("unshare: unshare failed: Operation not permitted", "user.max_user_namespaces"),
        ("unshare: unshare failed: No space left on device", "user.max_user_namespaces"),
        ("unshare: unshare failed: Operation not permitted", "--security-opt seccomp=unconfined"),
        ("setpriv: setresuid failed: Operation not permitted", "SETUID and SETGID"),
        ("mkdir: No space left on device", "free space"),
        ("mount: /dev/shm: permission denied", "refuses mounts"),
        ("error while setting up the network namespace", "network"),
    ],
)
def test_start_that_fails_for_a_known_reason_says_what_to_do(tmp_path: Path, said: str, step: str) -> None:
    with pytest.raises(HostBroken, match=step):
        GuestDriver(FailingLauncher(f"echo '{said}' >&2"), DesktopConfig(), index=0, folder=tmp_path, screenshots=None)


def test_log_folder_that_cannot_be_written_breaks_the_host(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HostBroken, match="not writable"):
        GuestDriver(FailingLauncher("true"), DesktopConfig(), index=0, folder=tmp_path / "file" / "logs", screenshots=None)


def test_start_that_fails_for_an_unknown_reason_shows_the_last_words(tmp_path: Path) -> None:
    with pytest.raises(DesktopBroken, match="so sorry"):
        GuestDriver(FailingLauncher("echo so sorry >&2"), DesktopConfig(), index=0, folder=tmp_path, screenshots=None)
