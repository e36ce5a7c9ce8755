"""`computerrl bundle`: everything a site without internet needs, in one folder, and the script that installs it there.

    OUT/
      wheels/          every package that running and OSWorld's judges need, built for this kind of machine
      source.tar.gz    this project
      images/          the desktop image
      models/          the model folder, where one is asked for (built-in ones are made from their wheel)
      SHA256SUMS       checked by install.sh before anything is unpacked
      install.sh       makes .venv, unpacks, ends with `computerrl doctor`

Files whose checksum is right are kept: a bundle that was broken off goes on. Apptainer itself is the site's.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from computerrl import SOURCE_ROOT
from computerrl.common.errors import Problem, SetupError
from computerrl.common.models.folder import BUILT_IN_MODELS, check_model_folder, model_folder
from computerrl.common.models.hub import snapshot_at
from computerrl.env_server.image.host import run_logged
from computerrl.launch.progress import Tell, tell_nobody, tracked
from computerrl.launch.setup.package_plan import torch_ways
from computerrl.launch.setup.packages import LISTS, pinned
from computerrl.version import RECORD_FILE, find_version

SUMS_FILE, INSTALL_FILE, SOURCE_FILE = "SHA256SUMS", "install.sh", "source.tar.gz"
_CHUNK = 1 << 20
_PACKAGES = ("actor", "benchmarks", "broker", "common", "computerrl", "configs", "docs", "env_server", "launch", "learner")
_FILES = ("LICENSE", "Makefile", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", *LISTS.values(), "pyproject.toml", "setup.cfg")
_LISTS = ("run", "osworld")
_MIN_FREE_MB = 6000

Say = Callable[[str], None]


def make_bundle(out: Path, *, image: str | None, model: str, say: Say, tell: Tell = tell_nobody) -> Path:
    """Fill ``out``; gives it. ``image``: a recipe's name or a path, None: none. ``say`` receives a line for each finished part,
    ``tell`` the number of these parts and of all. Raises `SetupError`."""
    out.mkdir(parents=True, exist_ok=True)
    free_mb = shutil.disk_usage(out).free >> 20
    if free_mb < _MIN_FREE_MB and not (out / SUMS_FILE).exists():
        raise SetupError(Problem(str(out), f"{free_mb} MiB are free, a bundle takes about {_MIN_FREE_MB}", "choose another disk"))
    parts: tuple[tuple[str, Callable[[], str]], ...] = (
        ("wheels", lambda: _wheels(out, say)),
        ("source", lambda: pack_source(out)),
        ("image", lambda: _image(out, image) if image is not None else "none asked for"),
        ("model", lambda: _model(out, model)),
        ("sums", lambda: _finish(out)),
    )
    for what, work in tracked(parts, tell, total=len(parts)):
        began = time.monotonic()
        say(f"{what:8} {work()} ({time.monotonic() - began:.1f} s)")
    total_mb = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) >> 20
    say(f"{'done':8} {out}: {total_mb} MiB; copy it to the site and run ./{INSTALL_FILE} there")
    return out


def _finish(out: Path) -> str:
    shutil.copyfile(Path(__file__).with_name("bundle_install.sh"), out / INSTALL_FILE)
    (out / INSTALL_FILE).chmod(0o755)
    write_sums(out)
    return f"{INSTALL_FILE} and {SUMS_FILE}"


def _wheels(out: Path, say: Say) -> str:
    folder, log = out / "wheels", out.parent / f"{out.name}.log"
    stamp, requirements = folder / ".complete", pinned(SOURCE_ROOT, _LISTS)
    digest = hashlib.sha256("\n".join(requirements).encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == digest:
        return f"{len(list(folder.glob('*.whl')))} there already"
    pip = _pip_wheel()
    say(f"{'wheels':8} fetching and building; the output is in {log}")
    _torch_wheels(folder, log)
    rest = [line for line in requirements if not line.startswith("torch==")]
    run_logged([*pip, "--no-deps", "--wheel-dir", folder, *rest, "setuptools", "wheel", "pip"], log=log)
    (folder / "constraints.txt").write_text("".join(f"{line}\n" for line in requirements), encoding="utf-8")
    stamp.write_text(digest)
    return f"{len(list(folder.glob('*.whl')))} packages"


def _pip_wheel() -> list[str | Path]:
    return [sys.executable, "-m", "pip", "wheel", "--no-input", "--progress-bar", "off"]


def _torch_wheels(folder: Path, log: Path) -> None:
    """A CPU build of torch, else the index's own with the libraries it cannot be imported without."""
    ways = torch_ways("cpu", has_card=False, has_uv=False)
    for way in ways:
        options = [] if way.with_dependencies else ["--no-deps"]
        try:
            run_logged([*_pip_wheel(), *options, "--wheel-dir", folder, way.requirement], log=log)
            return
        except SetupError:
            if way is ways[-1]:
                raise


def pack_source(out: Path) -> str:
    """Write `SOURCE_FILE` into ``out``: what git tracks or, in a tree that git does not know, the packages; and the version."""
    listed = subprocess.run(["git", "-C", SOURCE_ROOT, "ls-files", "-z"], capture_output=True, text=True, check=False)
    names = [name for name in listed.stdout.split("\0") if name] if listed.returncode == 0 else [*_PACKAGES, *_FILES]
    with tarfile.open(out / SOURCE_FILE, "w:gz", compresslevel=6) as archive:
        for name in names:
            if (SOURCE_ROOT / name).exists():
                archive.add(SOURCE_ROOT / name, arcname=f"computerrl/{name}", filter=_clean)
        if RECORD_FILE not in names:
            record = f"Metadata-Version: 2.1\nName: computerrl\nVersion: {find_version(SOURCE_ROOT)}\n".encode()
            member = tarfile.TarInfo(f"computerrl/{RECORD_FILE}")
            member.size, member.mode = len(record), 0o644
            archive.addfile(member, io.BytesIO(record))
    return f"{len(names)} files"


def _clean(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if "__pycache__" in member.name:
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _image(out: Path, image: str) -> str:
    from computerrl.env_server.image.find import image_path

    path = image_path(image)
    folder = out / "images"
    folder.mkdir(exist_ok=True)
    target = folder / (f"{path.name}.tar.gz" if path.is_dir() else path.name)
    if target.is_file():
        return f"{target.name} is there already"
    partial = target.with_suffix(".partial")
    if path.is_dir():
        run_logged(["tar", "-C", path.parent, "-I", "gzip -1", "-cf", partial, path.name], log=out.parent / f"{out.name}.log")
    else:
        shutil.copyfile(path, partial)
    partial.rename(target)
    return f"{target.name}, {target.stat().st_size >> 20} MiB"


def _model(out: Path, model: str) -> str:
    if model in BUILT_IN_MODELS:
        return f"{model} is made from its wheel"
    folder = model_folder(model)
    check_model_folder(folder)
    (out / "models").mkdir(exist_ok=True)
    name, options = folder.name, []
    if (snapshot := snapshot_at(folder)) is not None:
        # The files of a folder of the hub's cache are links, and its name is a commit hash.
        name = snapshot.name.rpartition("/")[2]
        options = ["--dereference", f"--transform=s,^{snapshot.commit},{name},"]
    target = out / "models" / f"{name}.tar"
    if not target.is_file():
        partial = target.with_suffix(".partial")
        run_logged(["tar", "-C", folder.parent, *options, "-cf", partial, folder.name], log=out.parent / f"{out.name}.log")
        partial.rename(target)
    return f"{target.name}, {target.stat().st_size >> 20} MiB"


def write_sums(out: Path) -> None:
    """`SHA256SUMS` of everything else in ``out``, as sha256sum reads it."""
    lines = [f"{sha256(path)}  {path.relative_to(out)}\n" for path in _files(out)]
    (out / SUMS_FILE).write_text("".join(lines))


def _files(out: Path) -> Iterable[Path]:
    return sorted(path for path in out.rglob("*") if path.is_file() and path.name != SUMS_FILE and not path.name.startswith("."))


def sha256(path: Path) -> str:
    """Of the file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
