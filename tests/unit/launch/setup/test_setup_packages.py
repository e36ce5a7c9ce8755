"""The package stage against made-up indexes: real uv and real pip, and wheels of a few hundred bytes that the tests write."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computerrl.common.errors import SetupError
from computerrl.launch.setup import packages
from computerrl.launch.setup.package_plan import TORCH, read_pip_config, torch_ways, uv_settings
from computerrl.launch.setup.packages import PackageStage, Stamp, damaged, find_uv, installed, site_packages
from tests.support.tiers import one_in

packages_run_logged = packages.run_logged

TORCH_CODE = """
{imports}
__version__ = "{version}"
class version:
    cuda = {cuda}
class ones:
    def __init__(self, *shape):
        self.shape = shape
    def __matmul__(self, other):
        return self
    def sum(self):
        return 512
"""
BACKEND = """
import zipfile
def build_editable(folder, config_settings=None, metadata_directory=None):
    name = "computerrl-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(folder + "/" + name, "w") as wheel:
        info = "computerrl-0.1.0.dist-info/"
        wheel.writestr("computerrl_trial.py", "def main(): print('usage')")
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: computerrl\\nVersion: 0.1.0\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "entry_points.txt", "[console_scripts]\\ncomputerrl = computerrl_trial:main\\n")
        wheel.writestr(info + "RECORD", "computerrl_trial.py,,\\n")
    return name
def build_wheel(*rest):
    raise NotImplementedError
"""


def wheel(folder: Path, name: str, version: str, code: str, *, needs: str = "") -> None:
    """A wheel with one module ``name`` in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + (f"Requires-Dist: {needs}\n" if needs else "")
    files = {
        f"{name}.py": code,
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(text.encode())}\n")
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        archive.writestr(f"{info}/RECORD", "".join([*rows, f"{info}/RECORD,,\n"]))


def index_of(folder: Path) -> str:
    """A package index in files, over the wheels of ``folder``."""
    for file in folder.glob("*.whl"):
        page = folder / "simple" / file.name.split("-")[0] / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        with page.open("a", encoding="utf-8") as stream:
            stream.write(f'<!DOCTYPE html><a href="../../{file.name}">{file.name}</a>\n')
    return (folder / "simple").as_uri()


def cpu_torch(folder: Path) -> None:
    wheel(folder, "torch", f"{TORCH}+cpu", TORCH_CODE.format(imports="", version=f"{TORCH}+cpu", cuda=None))


def cuda_torch(folder: Path) -> None:
    """A build that cannot be imported without its library, as the public index's."""
    code = TORCH_CODE.format(imports="import cudalib", version=TORCH, cuda="'13.0'")
    wheel(folder, "torch", TORCH, code, needs="cudalib")
    wheel(folder, "cudalib", "1.0", "")


@pytest.fixture(scope="session")
def real_uv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A uv of this machine: beside this Python, where set-up puts it, on PATH, or else fetched into a folder of its own."""
    for candidate in (Path(sys.prefix) / "bin" / "uv", shutil.which("uv")):
        if candidate is not None and packages._uv_works(Path(candidate)):
            return Path(candidate)
    folder = tmp_path_factory.mktemp("uv")
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, packages._UV], check=True)
    return folder / "bin" / "uv"


@pytest.fixture(scope="session")
def bare_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty environment, made once: `ensurepip` takes seconds."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    # With bytecode: each test starts this environment's pip several times.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, env=environment)
    return folder


class Machine:
    """A made-up machine: an index, a folder of wheels, a project with lists; no other index can be reached."""

    def __init__(self, folder: Path) -> None:
        self.index, self.links, self.project, self.venv = (folder / name for name in ("index", "links", "project", "venv"))
        self.links.mkdir()
        wheel(self.index, "alpha", "1.0", "")
        wheel(self.index, "beta", "2.0", "")
        self.project.mkdir()
        (self.project / "constraints.txt").write_text(f"# made up\nalpha==1.0\ntorch=={TORCH}\n", encoding="utf-8")
        (self.project / "constraints-develop.txt").write_text("beta==2.0\n", encoding="utf-8")
        (self.project / "setup.cfg").write_text("[metadata]\nname = computerrl\n", encoding="utf-8")
        (self.project / "backend.py").write_text(BACKEND, encoding="utf-8")
        system = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        (self.project / "pyproject.toml").write_text(system, encoding="utf-8")
        self.said: list[str] = []

    def stage(self, **changes: object) -> PackageStage:
        whole = {"lists": ("run",), "source": self.project, "trial_modules": ("alpha",), **changes}
        return PackageStage(self.venv, self.venv.parent / "log", self.said.append, **whole)  # type: ignore[arg-type]

    def versions(self) -> dict[str, str]:
        return {name: version for name, (version, _) in installed(site_packages(self.venv)).items()}

    def runs(self, code: str) -> bool:
        return subprocess.run([self.venv / "bin" / "python", "-I", "-c", code], check=False).returncode == 0


@pytest.fixture(params=["uv", pytest.param("pip", marks=pytest.mark.release)])
def machine(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real_uv: Path, bare_venv: Path
) -> Machine:
    made = Machine(tmp_path)
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    # uv's own indexes cannot be reached from a made-up machine, whatever this one can.
    monkeypatch.setenv("UV_OFFLINE", "1")
    (tmp_path / "pip.conf").write_text(
        f"[global]\nindex-url = {(made.index / 'simple').as_uri()}\nfind-links = {made.links}\ndisable-pip-version-check = 1\n",
        encoding="utf-8",
    )
    uv = real_uv if request.param == "uv" else None
    monkeypatch.setattr(packages, "find_uv", lambda venv, *, log, progress: uv)
    monkeypatch.setattr(packages, "has_cuda_gpu", lambda: False)

    def run(command: list[str | Path], **rest: Any) -> Any:
        if [str(word) for word in command[1:3]] != ["-m", "venv"]:
            return packages_run_logged(command, **rest)
        shutil.rmtree(made.venv, ignore_errors=True)
        return copy_venv(bare_venv, made.venv)

    monkeypatch.setattr(packages, "run_logged", run)
    copy_venv(bare_venv, made.venv)
    return made


def copy_venv(bare: Path, venv: Path) -> None:
    shutil.copytree(bare, venv, symlinks=True)
    (venv / "pyvenv.cfg").write_text((bare / "pyvenv.cfg").read_text().replace(str(bare), str(venv)))


def test_torch_cpu_build_in_pips_configured_folder_is_preferred(machine: Machine) -> None:
    cuda_torch(machine.index)
    cpu_torch(machine.links)
    index_of(machine.index)
    assert machine.stage().ensure().endswith("torch for CPU")
    assert machine.versions()["torch"] == f"{TORCH}+cpu"
    assert "cudalib" not in machine.versions()
    assert {"alpha", "computerrl"} <= machine.versions().keys()


def test_torch_only_the_cuda_build_to_be_had_comes_with_its_libraries(machine: Machine) -> None:
    cuda_torch(machine.index)
    index_of(machine.index)
    machine.stage().ensure()
    assert machine.versions()["torch"] == TORCH
    assert machine.runs("import torch")
    assert any("not to be had there" in line for line in machine.said)


def test_torch_for_cuda_is_the_plain_build_though_a_cpu_build_is_offered(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda_torch(machine.index)
    cpu_torch(machine.links)
    wheel(machine.index, "vllm", "0.32.0", "")
    index_of(machine.index)
    machine.stage().ensure()
    machine.stage(device="cuda").ensure()
    assert machine.versions()["torch"] == TORCH
    assert "vllm" in machine.versions()
    # A login node without a GPU and a GPU node share the environment: neither replaces the other's.
    machine.said.clear()
    for has_gpu in (False, True):
        monkeypatch.setattr(packages, "has_cuda_gpu", lambda has_gpu=has_gpu: has_gpu)
        assert machine.stage().ensure().endswith("torch for CUDA")
    assert machine.said == []


def test_gpu_beside_a_cpu_build_is_told_and_nothing_is_replaced(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu_torch(machine.links)
    index_of(machine.index)
    machine.stage().ensure()
    machine.said.clear()
    monkeypatch.setattr(packages, "has_cuda_gpu", lambda: True)
    assert "make setup DEVICE=cuda" in machine.stage().ensure()
    assert machine.said == []


def test_no_index_to_be_reached_is_an_error_with_next_steps_and_no_stamp(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = http://127.0.0.1:9/simple\nretries = 0\ndisable-pip-version-check = 1\n", encoding="utf-8"
    )
    with pytest.raises(SetupError):
        machine.stage().ensure()
    assert Stamp.read(machine.venv) is None


def test_lists_more_of_them_are_added_and_fewer_change_nothing(machine: Machine) -> None:
    cpu_torch(machine.links)
    index_of(machine.index)
    machine.stage().ensure()
    assert "beta" not in machine.versions()
    machine.stage(lists=("run", "develop")).ensure()
    assert machine.versions()["beta"] == "2.0"
    machine.said.clear()
    machine.stage().ensure()
    assert machine.said == []
    # A changed list is followed, and what was added before stays up to date.
    (machine.project / "constraints-develop.txt").write_text("beta==2.0\n# changed\n", encoding="utf-8")
    machine.stage(lists=("run", "develop")).ensure()
    assert machine.said


@pytest.mark.parametrize("harm", one_in(2, ["module gone", "module cut short", "record gone", "package gone"]))
def test_environment_half_installed_is_mended(machine: Machine, harm: str) -> None:
    cpu_torch(machine.links)
    index_of(machine.index)
    machine.stage().ensure()
    site = site_packages(machine.venv)
    (machine.venv / ".computerrl-setup").unlink()
    if harm == "module gone":
        (site / "alpha.py").unlink()
    elif harm == "module cut short":
        (site / "torch.py").unlink()
        (site / "torch.py").write_text("x = 1")
    elif harm == "record gone":
        (site / "alpha-1.0.dist-info" / "RECORD").unlink()
    else:
        shutil.rmtree(site / "alpha-1.0.dist-info")
        (site / "alpha.py").unlink()
    machine.stage().ensure()
    assert machine.runs("import torch, alpha; torch.ones")
    assert not list(damaged(site))


def test_environment_that_does_not_work_although_whole_is_made_anew(machine: Machine) -> None:
    cpu_torch(machine.links)
    index_of(machine.index)
    machine.stage().ensure()
    stray = site_packages(machine.venv) / "alpha"
    stray.mkdir()
    (stray / "__init__.py").write_text("raise ImportError('in the way')")
    (machine.venv / ".computerrl-setup").unlink()
    machine.stage().ensure()
    assert not stray.exists()
    assert any("in the way" in line for line in machine.said)


def test_environment_whose_python_is_gone_is_made_anew(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "run_logged", packages_run_logged)  # With an environment that is really made.
    cpu_torch(machine.links)
    index_of(machine.index)
    machine.stage().ensure()
    (machine.venv / "bin" / "python").unlink()
    (machine.venv / "bin" / "python").symlink_to("/nowhere/python3")
    machine.stage().ensure()
    assert machine.runs("import torch, alpha")


def test_packages_that_cannot_be_imported_leave_no_stamp(machine: Machine) -> None:
    wheel(machine.links, "torch", f"{TORCH}+cpu", "raise ImportError('libcudnn.so.9')")
    index_of(machine.index)
    for _ in range(2):
        with pytest.raises(SetupError, match=r"libcudnn\.so\.9"):
            machine.stage().ensure()
        assert Stamp.read(machine.venv) is None


@pytest.mark.parametrize("machine", ["pip"], indirect=True)
def test_uv_cannot_be_fetched_is_told_and_pip_installs(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "find_uv", find_uv)
    monkeypatch.setattr(packages, "_UV_FETCH", ("--retries", "0"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(packages, "_uv_works", lambda uv: False)
    cpu_torch(machine.links)
    index_of(machine.index)
    machine.stage().ensure()
    assert any("cannot be fetched" in line and "pip installs instead" in line for line in machine.said)
    assert machine.runs("import torch, alpha")


def test_disk_full_is_named_with_what_is_free(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(command: list[str | Path], **_: object) -> None:
        from computerrl.common.errors import Problem

        raise SetupError(Problem("uv", "error: failed to write\n  cause: No space left on device (os error 28)", "see the log"))

    monkeypatch.setattr(packages, "run_logged", full)
    with pytest.raises(SetupError, match=r"the disk is full: \d+ MiB are free(.|\n)*UV_CACHE_DIR"):
        machine.stage().ensure()
    assert sum("torch" in line for line in machine.said) == 1, "the other ways to a torch would fill the disk again"
    assert Stamp.read(machine.venv) is None


@pytest.mark.parametrize("version", ["uv 0.5.1", "pyenv: uv: command not found", ""])
def test_uv_that_is_old_or_broken_is_not_used(tmp_path: Path, version: str) -> None:
    (tmp_path / "uv").write_text(f"#!/bin/sh\necho '{version}'\n")
    (tmp_path / "uv").chmod(0o755)
    assert not packages._uv_works(tmp_path / "uv")


# --- decisions -------------------------------------------------------------------------------------------------------


def test_pip_config_variables_win_over_install_over_global() -> None:
    listing = (
        ":env:.find-links='/env'\nglobal.find-links='/global'\nglobal.index-url='https://g.invalid'\n"
        "install.index-url='https://i.invalid'\ninstall.constraint='a b'\nfreeze.timeout='9'\n"
    )
    assert read_pip_config(listing) == {"find-links": "/env", "index-url": "https://i.invalid", "constraint": "a b"}


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ({"index-url": "https://a.invalid"}, ["--default-index", "https://a.invalid"]),
        ({"extra-index-url": "file:///a\nfile:///b"}, ["--index", "file:///a", "--index", "file:///b"]),
        ({"find-links": "/a /b"}, ["--find-links", "/a", "--find-links", "/b"]),
        ({"constraint": "/c.txt"}, ["--constraints", "/c.txt"]),
        ({"trusted-host": "h.invalid"}, ["--allow-insecure-host", "h.invalid"]),
        ({"no-index": "true"}, ["--no-index"]),
        ({"no-index": "false"}, []),
        ({"only-binary": ":all:"}, ["--only-binary", ":all:"]),
    ],
)
def test_uv_settings_pips_options_are_passed_on(config: dict[str, str], options: list[str]) -> None:
    assert list(uv_settings(config, {}).options) == ["--index-strategy", "unsafe-best-match", *options]


def test_uv_settings_variables_of_the_connection(tmp_path: Path) -> None:
    found = uv_settings({"cert": str(tmp_path / "ca.crt"), "timeout": "180", "proxy": "http://p.invalid"}, {}).environment
    assert found["SSL_CERT_FILE"] == str(tmp_path / "ca.crt")
    assert found["UV_HTTP_TIMEOUT"] == "180"
    assert found["HTTPS_PROXY"] == found["HTTP_PROXY"] == "http://p.invalid"
    assert uv_settings({"cert": str(tmp_path)}, {}).environment["SSL_CERT_DIR"] == str(tmp_path)


def test_uv_settings_uvs_own_index_wins_over_pips() -> None:
    given = uv_settings({"index-url": "https://a.invalid"}, {"UV_DEFAULT_INDEX": "https://b.invalid"})
    assert "--default-index" not in given.options


@given(device=st.sampled_from(["cpu", "cuda"]), has_card=st.booleans(), has_uv=st.booleans())
def test_torch_ways_the_last_one_always_brings_the_libraries(device: str, has_card: bool, has_uv: bool) -> None:
    ways = torch_ways(device, has_card=has_card, has_uv=has_uv)  # type: ignore[arg-type]
    assert ways[-1].with_dependencies and ways[-1].backend is None
    assert has_uv or all(way.backend is None for way in ways)
    # A build without its dependencies is only ever one that has none of its own.
    assert all(way.with_dependencies or way.backend == "cpu" or "+cpu" in way.requirement for way in ways)
    assert device == "cpu" or not any("+cpu" in way.requirement or way.backend == "cpu" for way in ways)
