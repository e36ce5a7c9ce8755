"""Builds a desktop image without `apptainer build`, straight into a sandbox folder, from the same definition file.

mmdebstrap does what the file's header and package list say, then the file's own commands run in the new root. A recipe that
starts from another one starts from a copy of that one's folder: a third of the work of installing everything again. The result is
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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from computerrl.common.errors import Problem, SetupError
from computerrl.common.models.folder import cache_folder
from computerrl.env_server.image.host import (
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

_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
"""Those that this machine trusts: a site's proxy may sign what npm downloads."""
_BORROWED_CERTIFICATES = "/root/certificates-of-the-builder.crt"
"""Their place in the new root, while it is built."""

_AFTER_PACKAGES = "# ---- AFTER PACKAGES ----"
_STEPS = {
    "running --setup-hook in shell: sh -c 'cp -a": "copying the image it starts from",
    "running special hook: sync-in": "copying the image it starts from",
    "running apt-get update": "reading the archive's lists",
    "downloading packages": "downloading packages",
    "extracting archives": "unpacking the base system",
    "installing essential packages": "installing the base system",
    "installing remaining packages": "installing the desktop and its applications",
    "running --customize-hook in shell: sh -c 'APT_CONFIG": "installing more applications",
    "running --customize-hook in shell: sh -c 'NODE_EXTRA_CA_CERTS": "finishing",
    "cleaning package lists": "cleaning up",
}
"""What mmdebstrap says at each step -> what we say."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What the builder takes out of a definition file."""

    name: str
    digest: str
    """First 12 hexadecimal digits of a SHA-256 over the file, those it starts from, and the builder's revision: any change makes
    another image."""
    base: str | None
    """Name of the recipe whose image it starts from; None: it starts from nothing."""
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
    base = _base_of(text)
    return parse_recipe(name, text, base=None if base is None else read_recipe(base))


def _base_of(text: str) -> str | None:
    start = re.search(r"^From:\s*\{\{\s*(\w+)\s*\}\}", text, flags=re.MULTILINE)
    return start[1].lower() if start else None


def parse_recipe(name: str, text: str, *, base: Recipe | None = None) -> Recipe:
    """Take a definition file's ``text`` apart. Raises `SetupError` when one of the four shapes its head describes is missing.

    ``base``: the recipe whose image it starts from; its release holds.
    """
    release = re.search(r"^OSVersion:\s*(\S+)", text, flags=re.MULTILINE)
    release_name = release[1] if release else base.release if base else ""
    packages = " ".join(re.findall(r'^\s+PACKAGES="\$PACKAGES ([^"]+)"', text, flags=re.MULTILINE)).split()
    options = re.findall(r"^\s+'((?:path-(?:ex|in)clude=|force-)[^']+)'", text, flags=re.MULTILINE)
    post = re.search(r"^%post\n(.*?)(?=^%|\Z)", text, flags=re.MULTILINE | re.DOTALL)
    finish = post[1].partition(_AFTER_PACKAGES)[2] if post else ""
    parts = {"OSVersion": release_name, "PACKAGES lines": packages, "commands after the packages": finish.strip()}
    absent = [part for part, found in parts.items() if not found]
    if absent:
        raise SetupError(
            Problem(f"{name}.def", f"no {', '.join(absent)} in it", "restore the shapes that the head of core.def describes")
        )
    parts_of_digest = [str(_BUILDER_REVISION), *([base.digest] if base else []), text]
    digest = hashlib.sha256("\n".join(parts_of_digest).encode()).hexdigest()[:12]
    return Recipe(name, digest, base.name if base else None, release_name, tuple(packages), tuple(options), finish)


def image_folder(recipe: Recipe, cache: Path) -> Path:
    """Where the built image of ``recipe`` lies, whether or not it is there yet."""
    return cache / "images" / f"{recipe.name}-{recipe.digest}"


def _no_check(image: Path) -> None:
    """A check that finds nothing."""


def build_image(
    name: str = "core",
    *,
    cache: Path | None = None,
    mirror: str | None = None,
    progress: Progress = no_progress,
    check: Callable[[Path], None] = _no_check,
) -> Path:
    """The sandbox folder of recipe ``name``, built first when it is not there (about 70 s on 2 cores). Raises `SetupError`.

    What it starts from is built before it, and stays. ``check`` raises `SetupError` for a new image that does not work; that
    image is removed.
    """
    cache = cache or cache_folder()
    recipe = read_recipe(name)
    folder = image_folder(recipe, cache)
    if folder.is_dir():
        return folder
    mirror = require_mirror(mirror, purpose=f"building image {name!r}")
    base = build_image(recipe.base, cache=cache, mirror=mirror, progress=progress, check=check) if recipe.base else None
    with exclusive(cache / "locks" / f"image-{name}", progress=progress):
        if not folder.is_dir():
            log = cache / "logs" / f"image-{name}.log"
            _build(recipe, folder, base=base, mirror=mirror, log=log, progress=progress, check=check)
    return folder


def _build(
    recipe: Recipe,
    folder: Path,
    *,
    base: Path | None,
    mirror: str,
    log: Path,
    progress: Progress,
    check: Callable[[Path], None],
) -> None:
    _require_builder(recipe, log=log, progress=progress)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # We hold the lock: whatever lies here was left by a build that was killed.
    for left_over in folder.parent.glob(f".{recipe.name}-partial-*"):
        shutil.rmtree(left_over)
    partial = Path(tempfile.mkdtemp(prefix=f".{recipe.name}-partial-", dir=folder.parent))
    try:
        root = partial / "root"
        command = _mmdebstrap(recipe, root, base=base, mirror=mirror)
        run_logged(command, log=log, on_line=lambda line: _tell(line, progress))
        root.chmod(0o755)
        check(root)
        root.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _tell(line: str, progress: Progress) -> None:
    for said, ours in _STEPS.items():
        if said in line:
            progress(ours)


def _mmdebstrap(recipe: Recipe, root: Path, *, base: Path | None, mirror: str) -> list[str]:
    """The command that fills ``root``; as an ordinary user through a tar, so that all files belong to that user."""
    options = [
        f"--mode={'root' if is_root() else 'unshare'}",
        *(_from_nothing(recipe) if base is None else _from_folder(recipe, base, mirror=mirror)),
        '--aptopt=APT::Install-Recommends "false"',
        '--aptopt=Acquire::Languages "none"',
        # Inline, not a script's path: under another user id of our own range, our folders are closed.
        f'--customize-hook=NODE_EXTRA_CA_CERTS={_BORROWED_CERTIFICATES} chroot "$1" /bin/sh -euc {shlex.quote(recipe.finish)}',
        f'--customize-hook=rm -f "$1{_BORROWED_CERTIFICATES}"',
        f"--keyring={DEBIAN_KEYRING}",
        # It would empty /etc/machine-id again.
        "--skip=cleanup/reproducible",
    ]
    if is_root():
        return ["mmdebstrap", *options, recipe.release, str(root), mirror]
    fill = shlex.join(["mmdebstrap", *options, "--format=tar", recipe.release, "-", mirror])
    unpack = f"mkdir {shlex.quote(str(root))} && tar -C {shlex.quote(str(root))} -x --no-same-owner --exclude='./dev/*'"
    return ["bash", "-o", "pipefail", "-c", f"{fill} | ({unpack})"]


def _from_nothing(recipe: Recipe) -> list[str]:
    return [
        "--variant=apt",
        f"--include={','.join(recipe.packages)}",
        *(f"--dpkgopt={option}" for option in recipe.dpkg_options),
    ]


def _from_folder(recipe: Recipe, base: Path, *, mirror: str) -> list[str]:
    """Start from a copy of ``base`` and install as mmdebstrap itself would: apt outside, dpkg inside."""
    sources = shlex.quote(f"deb {mirror} {recipe.release} main")
    # The copy brings the archive and the name servers of the day on which it was made.
    refresh = f'echo {sources} > "$1/etc/apt/sources.list" && cp /etc/resolv.conf "$1/etc/resolv.conf"'
    trust = f'! [ -e {_CERTIFICATES} ] || cp {_CERTIFICATES} "$1{_BORROWED_CERTIFICATES}"'
    chrooted = '-oDir::Bin::dpkg=env -oDPkg::Options::=--unset=TMPDIR -oDPkg::Options::=dpkg -oDPkg::Chroot-Directory="$1"'
    install = f'APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get {chrooted} -y install {shlex.join(recipe.packages)}'
    source = shlex.quote(str(base))
    # Under another user id the folder is closed: only mmdebstrap's own pipe leads there, at a third of the speed.
    copy = [f'--setup-hook=cp -a {source}/. "$1"'] if is_root() else [f"--setup-hook=sync-in {source} /"]
    return ["--variant=custom", *copy, f"--setup-hook={refresh}", f"--setup-hook={trust}", f"--customize-hook={install}"]


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
