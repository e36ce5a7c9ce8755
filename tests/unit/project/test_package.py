"""The package `computerrl`: one top-level name, whole in a wheel, and in nobody's way beside other packages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from computerrl.benchmarks.faults import _roles
from tests.support import forked

ROOT = Path(__file__).resolve().parents[3]
BARE = re.compile(r"^\s*(?:from|import) (?:actor|benchmarks|broker|common|env_server|launch|learner)\b", re.MULTILINE)
FOLDERS = ("actor", "benchmarks", "broker", "common", "configs", "env_server", "launch", "learner")


def test_every_folder_of_the_package_is_a_link_to_one_beside_it() -> None:
    package = ROOT / "computerrl"
    assert {path.name for path in package.iterdir() if path.is_symlink()} == set(FOLDERS)
    assert all((package / name).readlink() == Path("..") / name for name in FOLDERS)


def test_no_file_imports_a_folder_by_its_bare_name() -> None:
    listed = subprocess.run(["git", "ls-files", "*.py", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    found = {name for name in listed.stdout.split() if BARE.search((ROOT / name).read_text(encoding="utf-8"))}
    assert not found


@pytest.mark.parametrize("name", sorted({*forked.PRELOAD, *_roles.PRELOAD}))
def test_module_that_a_fork_server_is_to_import_is_there(name: str) -> None:
    """A fork server says nothing of one that is not, and each process imports it again."""
    assert find_spec(name) is not None


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the wheel, as pip would install them."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{ROOT}", source], check=True)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, source]
    subprocess.run(command, check=True, timeout=500)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


@pytest.mark.release
def test_wheel_holds_everything_below_one_name(installed: Path) -> None:
    names = {path.name for path in installed.iterdir()}
    assert len(names) == 2 and "computerrl" in names and any(name.endswith(".dist-info") for name in names)
    for folder in FOLDERS:
        listed = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
        missing = [name for name in listed if not (installed / "computerrl" / name).is_file()]
        assert not missing, f"not in the wheel: {missing}"


@pytest.mark.release
@pytest.mark.parametrize(
    "words",
    [
        ("train", "quickstart", "--dry-run", "desktop.driver=scripted", "mode=serial"),
        ("plan", "quickstart", "--site", "one-partition"),
        ("bench", "staleness", "--quick"),
        ("study", "--help"),
    ],
    ids=["train", "plan", "bench", "study"],
)
def test_wheel_works_in_an_empty_folder_beside_packages_with_our_folders_names(
    installed: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    other, empty = tmp_path / "other", tmp_path / "empty"
    empty.mkdir()
    for name in FOLDERS:
        (other / name).mkdir(parents=True)
        (other / name / "__init__.py").write_text("raise ImportError('another package')\n")
    environment = {**os.environ, "PYTHONPATH": f"{other}:{installed}"}
    done = subprocess.run(
        [sys.executable, "-m", "computerrl", *words],
        cwd=empty,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
