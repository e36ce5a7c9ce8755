"""Builds a desktop image without `apptainer build`, straight into a sandbox folder, from the same definition file.

mmdebstrap does what the file's header and package list say, then the file's own commands run in the new root. The result is
a folder, not an image file: starting from a folder is twice as fast and costs a third less memory per desktop (every mount
of an image file has a page cache of its own). A folder gets its name when it is whole, so a killed build leaves none.
Finding an image is `env_server.image.find`'s work.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import shlex
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from common.errors import Problem, SetupError
from common.model_folder import cache_folder
from env_server.host import (
    DEBIAN_KEYRING,
    Progress,
    apt_install,
    exclusive,
    is_root,
    missing_commands,
    no_progress,
    require_mirror,
    run_logged,
)

RECIPES = Path(__file__).parent

_BUILDER_REVISION = 1
"""Raise it when this file changes in a way that makes other images from the same recipe."""

_AFTER_PACKAGES = "# ---- AFTER PACKAGES ----"
_STEPS = {
    "running apt-get update": "reading the archive's lists",
    "downloading packages": "downloading packages",
    "extracting archives": "unpacking the base system",
    "installing essential packages": "installing the base system",
    "installing remaining packages": "installing the desktop and its applications",
    "running --customize-hook": "finishing",
    "cleaning package lists": "cleaning up",
}
"""What mmdebstrap says at each step -> what we say."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What the builder takes out of a definition file."""

    name: str
    digest: str
    """First 12 hexadecimal digits of a SHA-256 over the file and the builder's revision: any change makes another image."""
    release: str
    packages: tuple[str, ...]
    dpkg_options: tuple[str, ...]
    finish: str
    """Shell commands run in the new root when all packages are installed."""


def recipe_names() -> list[str]:
    """Names of the images that can be built."""
    return sorted(file.stem for file in RECIPES.glob("*.def"))


def read_recipe(name: str) -> Recipe:
    """The recipe ``name``, out of ``<name>.def`` beside this file. Raises `SetupError` for an unknown name."""
    file = RECIPES / f"{name}.def"
    if name not in recipe_names():
        raise SetupError(Problem("desktop.image", f"no recipe {name!r}", f"use one of {', '.join(recipe_names())}"))
    text = file.read_text(encoding="utf-8")
    return parse_recipe(name, text)


def parse_recipe(name: str, text: str) -> Recipe:
    """Take a definition file's ``text`` apart. Raises `SetupError` when one of the four shapes its head describes is missing."""
    release = re.search(r"^OSVersion:\s*(\S+)", text, flags=re.MULTILINE)
    packages = " ".join(re.findall(r'^\s+PACKAGES="\$PACKAGES ([^"]+)"', text, flags=re.MULTILINE)).split()
    options = re.findall(r"^\s+'((?:path-(?:ex|in)clude=|force-)[^']+)'", text, flags=re.MULTILINE)
    post = re.search(r"^%post\n(.*?)(?=^%|\Z)", text, flags=re.MULTILINE | re.DOTALL)
    finish = post[1].partition(_AFTER_PACKAGES)[2] if post else ""
    parts = {"OSVersion": release, "PACKAGES lines": packages, "commands after the packages": finish.strip()}
    absent = [part for part, found in parts.items() if not found]
    if release is None or absent:
        raise SetupError(
            Problem(f"{name}.def", f"no {', '.join(absent)} in it", "restore the shapes that the head of core.def describes")
        )
    digest = hashlib.sha256(f"{_BUILDER_REVISION}\n{text}".encode()).hexdigest()[:12]
    return Recipe(name, digest, release[1], tuple(packages), tuple(options), finish)


def image_folder(recipe: Recipe, cache: Path) -> Path:
    """Where the built image of ``recipe`` lies, whether or not it is there yet."""
    return cache / "images" / f"{recipe.name}-{recipe.digest}"


def build_image(
    name: str = "core", *, cache: Path | None = None, mirror: str | None = None, progress: Progress = no_progress
) -> Path:
    """The sandbox folder of recipe ``name``, built first when it is not there (about 70 s on 2 cores). Raises `SetupError`."""
    cache = cache or cache_folder()
    recipe = read_recipe(name)
    folder = image_folder(recipe, cache)
    if folder.is_dir():
        return folder
    mirror = require_mirror(mirror, purpose=f"building image {name!r}")
    with exclusive(cache / "locks" / f"image-{name}", progress=progress):
        if not folder.is_dir():
            _build(recipe, folder, mirror=mirror, log=cache / "logs" / f"image-{name}.log", progress=progress)
    return folder


def _build(recipe: Recipe, folder: Path, *, mirror: str, log: Path, progress: Progress) -> None:
    _require_builder(recipe, log=log, progress=progress)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # We hold the lock: whatever lies here was left by a build that was killed.
    for left_over in folder.parent.glob(f".{recipe.name}-partial-*"):
        shutil.rmtree(left_over)
    partial = Path(tempfile.mkdtemp(prefix=f".{recipe.name}-partial-", dir=folder.parent))
    try:
        root = partial / "root"
        command = _mmdebstrap(recipe, root, mirror=mirror)
        run_logged(command, log=log, on_line=lambda line: _tell(line, progress))
        root.chmod(0o755)
        root.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _tell(line: str, progress: Progress) -> None:
    for said, ours in _STEPS.items():
        if said in line:
            progress(ours)


def _mmdebstrap(recipe: Recipe, root: Path, *, mirror: str) -> list[str]:
    """The command that fills ``root``; as an ordinary user through a tar, so that all files belong to that user."""
    options = [
        f"--mode={'root' if is_root() else 'unshare'}",
        "--variant=apt",
        f"--include={','.join(recipe.packages)}",
        *(f"--dpkgopt={option}" for option in recipe.dpkg_options),
        '--aptopt=APT::Install-Recommends "false"',
        '--aptopt=Acquire::Languages "none"',
        # Inline, not a script's path: under another user id of our own range, our folders are closed.
        f'--customize-hook=chroot "$1" /bin/sh -euc {shlex.quote(recipe.finish)}',
        f"--keyring={DEBIAN_KEYRING}",
        # It would empty /etc/machine-id again.
        "--skip=cleanup/reproducible",
    ]
    if is_root():
        return ["mmdebstrap", *options, recipe.release, str(root), mirror]
    fill = shlex.join(["mmdebstrap", *options, "--format=tar", recipe.release, "-", mirror])
    unpack = f"mkdir {shlex.quote(str(root))} && tar -C {shlex.quote(str(root))} -x --no-same-owner --exclude='./dev/*'"
    return ["bash", "-o", "pipefail", "-c", f"{fill} | ({unpack})"]


def _require_builder(recipe: Recipe, *, log: Path, progress: Progress) -> None:
    """Have mmdebstrap and what it needs for this user, or say who can."""
    missing = ["mmdebstrap"] * bool(missing_commands(["mmdebstrap"])) + ["debian-archive-keyring"] * (
        not DEBIAN_KEYRING.is_file()
    )
    if is_root():
        if missing:
            apt_install(missing, log=log, progress=progress)
        return
    lacking = missing + ["uidmap"] * bool(missing_commands(["newuidmap"]))
    reasons = [f"{package} is not installed" for package in lacking]
    user = pwd.getpwuid(os.geteuid()).pw_name
    subuid = Path("/etc/subuid")
    if not subuid.is_file() or not re.search(rf"^{re.escape(user)}:", subuid.read_text(encoding="utf-8"), flags=re.MULTILINE):
        reasons.append(f"/etc/subuid gives user {user!r} no range of user ids")
    if reasons:
        raise SetupError(
            Problem(
                "desktop.image",
                f"image {recipe.name!r} is not built yet and this user cannot build it: {'; '.join(reasons)}",
                f"build it elsewhere from env_server/image/{recipe.name}.def (its head has the command) and set desktop.image "
                "to the file or folder; or ask an administrator for what is missing",
            )
        )
