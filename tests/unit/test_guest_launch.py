"""How guests are started: flags of the container, and host problems as typed errors that name the next step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from common.config import DesktopConfig
from common.errors import HostBroken, SetupError
from env_server.apptainer_install import Apptainer
from env_server.drivers import apptainer, isolation
from env_server.drivers.apptainer import ApptainerLauncher, make_apptainer_driver
from env_server.drivers.guest_driver import GuestDriver
from env_server.drivers.local import LocalLauncher
from env_server.drivers.private_folder import PrivateFolder


def found(*, network_none: bool) -> Apptainer:
    return Apptainer(Path("/opt/apptainer"), "1.4.5", ("--userns",), network_none)


class FailingLauncher:
    """Starts a program that says something and ends."""

    def __init__(self, script: str) -> None:
        self._script = script

    def command(self, folder: PrivateFolder, settings: dict[str, object]) -> list[str]:
        return ["sh", "-c", self._script]

    def explain(self, log: str) -> str:
        return ApptainerLauncher(found(network_none=True), Path("/image")).explain(log)


@pytest.mark.parametrize("network_none", [True, False])
def test_container_command_isolates_and_binds_only_what_it_needs(tmp_path: Path, *, network_none: bool) -> None:
    folder = PrivateFolder(tmp_path)
    command = list(ApptainerLauncher(found(network_none=network_none), Path("/image")).command(folder, {"width": 800}))
    flags = command[command.index("exec") :]
    assert {"--containall", "--no-home", "--cleanenv", "--writable-tmpfs", "--userns"} <= set(flags)
    assert flags.count("--userns") == 1 and ("--net" in flags) == network_none
    binds = [flags[index + 1] for index, flag in enumerate(flags) if flag == "--bind"]
    assert [bind.endswith(":ro") for bind in binds] == [True, True, False, False]
    assert all(bind.startswith(str(tmp_path)) for bind in binds[2:])
    assert command[0] == "unshare" and "--kill-child=KILL" in command
    assert json.loads(command[-1])["width"] == 800


def test_local_command_has_namespaces_of_its_own(tmp_path: Path) -> None:
    command = list(LocalLauncher().command(PrivateFolder(tmp_path), {}))
    assert {"--user", "--mount", "--pid", "--kill-child=KILL"} <= set(command)


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
        ("write: No space left on device", "free space"),
        ("error while setting up the network namespace", "network"),
    ],
)
def test_start_that_fails_for_a_known_reason_says_what_to_do(tmp_path: Path, said: str, step: str) -> None:
    with pytest.raises(HostBroken, match=step):
        GuestDriver(FailingLauncher(f"echo '{said}' >&2"), DesktopConfig(), index=0, folder=tmp_path, screenshots=None)


def test_folders_that_cannot_be_written_break_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(HostBroken, match="not writable"):
        GuestDriver(FailingLauncher("true"), DesktopConfig(), index=0, folder=file / "logs", screenshots=None)
    monkeypatch.setattr("tempfile.tempdir", str(file))
    with pytest.raises(HostBroken, match="TMPDIR"):
        PrivateFolder.make(0)


def test_failed_start_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    with pytest.raises(Exception, match="did not start"):
        GuestDriver(FailingLauncher("exit 3"), DesktopConfig(), index=0, folder=tmp_path / "logs", screenshots=None)
    assert list(temporary.iterdir()) == []
