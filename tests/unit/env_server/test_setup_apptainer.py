"""Finding Apptainer, with small programs in its place that answer as the real one does."""

from __future__ import annotations

from pathlib import Path

import pytest

from computerrl.common.errors import SetupError
from computerrl.env_server.image import apptainer_install
from computerrl.env_server.image.apptainer_install import ensure_apptainer, find_apptainer


def put(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def stub(*, version: str = "1.4.5", fails_unless: str = "", fails_with: str = "") -> str:
    lines = [f'[ "$1" = --version ] && echo "apptainer version {version}" && exit 0']
    if fails_unless:
        lines.append(f'case "$*" in *{fails_unless}*) ;; *) echo "FATAL: no {fails_unless}" >&2; exit 255;; esac')
    if fails_with:
        lines.append(f'case "$*" in *{fails_with}*) echo "FATAL: {fails_with} refused" >&2; exit 255;; esac')
    return "\n".join([*lines, "exit 0"])


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return tmp_path / "bin" / "apptainer"


def test_find_apptainer_on_path_works_without_flags(tmp_path: Path, on_path: Path) -> None:
    put(on_path, stub())
    found = find_apptainer(tmp_path / "cache")
    assert (found.path, found.version, found.extra_flags, found.network_none) == (on_path, "1.4.5", (), True)


def test_find_apptainer_limited_root_gets_userns(tmp_path: Path, on_path: Path) -> None:
    put(on_path, stub(fails_unless="--userns"))
    assert find_apptainer(tmp_path / "cache").extra_flags == ("--userns",)


def test_find_apptainer_site_forbids_network_namespaces_is_reported(tmp_path: Path, on_path: Path) -> None:
    put(on_path, stub(fails_with="--network"))
    assert find_apptainer(tmp_path / "cache").network_none is False


def test_find_apptainer_broken_on_path_takes_own(tmp_path: Path, on_path: Path) -> None:
    put(on_path, "exit 1")
    own = put(tmp_path / "cache" / "apptainer" / "1.4.5-2" / "usr" / "bin" / "apptainer", stub())
    assert find_apptainer(tmp_path / "cache").path == own


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (stub(version="1.0.3"), "too old"),
        ("echo 'singularity-ce version 4.1'", "is no Apptainer"),
        (stub(fails_with="exec"), "starts no container here"),
        ("exec /no/such/program", "is no Apptainer"),
    ],
)
def test_find_apptainer_unusable_says_why_and_what_to_do(tmp_path: Path, on_path: Path, script: str, reason: str) -> None:
    put(on_path, script)
    with pytest.raises(SetupError, match=rf"{reason}(.|\n)*administrator"):
        find_apptainer(tmp_path / "cache")


def test_ensure_apptainer_without_root_says_what_to_install(
    tmp_path: Path, on_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apptainer_install, "is_root", lambda: False)
    with pytest.raises(SetupError, match=r"none on PATH(.|\n)*ask an administrator to install it: `apt-get install apptainer`"):
        ensure_apptainer(tmp_path / "cache")
