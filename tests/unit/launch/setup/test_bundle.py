"""The offline bundle: what lies in it, its checksums, and the installer that looks at them first."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from computerrl.common.errors import SetupError
from computerrl.launch.setup import bundle
from computerrl.launch.setup.bundle import make_bundle, sha256


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle without packages, and with a tiny image."""

    def few_wheels(out: Path, _say: bundle.Say) -> str:
        (out / "wheels").mkdir(exist_ok=True)
        (out / "wheels" / "constraints.txt").touch()
        return "0 packages"

    monkeypatch.setattr(bundle, "_wheels", few_wheels)
    monkeypatch.setattr(bundle, "_MIN_FREE_MB", 1)
    image = tmp_path / "core-123"
    (image / "usr" / "bin").mkdir(parents=True)
    (image / "usr" / "bin" / "Xvfb").touch()
    return make_bundle(tmp_path / "out", image=str(image), model="tiny-random", say=lambda line: None)


def install(folder: Path, target: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "COMPUTERRL_CACHE": str(target / "cache"), "HOME": str(target)}
    return subprocess.run([folder / "install.sh", target / "here"], capture_output=True, text=True, env=env, check=False)


def test_bundle_holds_project_image_and_sums_of_everything(made: Path) -> None:
    names = {path.relative_to(made).as_posix() for path in made.rglob("*") if path.is_file()}
    assert names == {"SHA256SUMS", "install.sh", "source.tar.gz", "images/core-123.tar.gz", "wheels/constraints.txt"}
    with tarfile.open(made / "source.tar.gz") as archive:
        assert {"computerrl/setup.cfg", "computerrl/launch/commands/main.py"} <= set(archive.getnames())
    lines = dict(reversed(line.split("  ")) for line in (made / "SHA256SUMS").read_text().splitlines())
    assert lines["source.tar.gz"] == sha256(made / "source.tar.gz")
    assert lines.keys() == names - {"SHA256SUMS"}


def test_second_call_keeps_what_is_there(made: Path, tmp_path: Path) -> None:
    before = (made / "images" / "core-123.tar.gz").stat().st_mtime_ns
    said: list[str] = []
    make_bundle(made, image=str(tmp_path / "core-123"), model="tiny-random", say=said.append)
    assert (made / "images" / "core-123.tar.gz").stat().st_mtime_ns == before
    assert any("is there already" in line for line in said)


def test_installer_refuses_a_flipped_byte_before_it_unpacks_anything(made: Path, tmp_path: Path) -> None:
    archive = made / "images" / "core-123.tar.gz"
    data = bytearray(archive.read_bytes())
    data[len(data) // 2] ^= 1
    archive.write_bytes(data)
    done = install(made, tmp_path / "site")
    assert done.returncode == 3
    assert "the bundle is damaged" in done.stderr and "core-123" in done.stdout + done.stderr
    assert not (tmp_path / "site").exists()


def test_disk_that_is_too_small_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "_MIN_FREE_MB", 1 << 40)
    with pytest.raises(SetupError, match="MiB are free"):
        make_bundle(tmp_path / "out", image=None, model="tiny-random", say=print)
