"""Finds an Apptainer that works on this machine, learns which flags it needs here, and installs one where there is none.

Drivers ask `find_apptainer`; set-up asks `ensure_apptainer`. Standard library only. It starts no desktop and builds no image.

What was found out by trying, Apptainer 1.4.5 on Linux 6.18 (the reasons behind `_FLAG_CHOICES` and `Apptainer`):

- An ordinary user needs no flag: user namespaces are the default of an installation without setuid.
- Root on a whole machine needs none either. Root in a container-like machine that lacks a capability (here CAP_SYS_RESOURCE)
  gets "Requesting capability set ... while permitted capability set is ..."; with ``--userns`` it works. An ordinary user may
  pass ``--userns`` too, but a site's setuid installation then loses its setuid features, so it is only the second choice.
- ``--containall --no-home --net --network none`` works with and without root; inside, only an idle `lo` is
  left. A site may forbid network namespaces, so this is tried and reported (`network_none`), never assumed.
- Starting takes 0.07 s from a sandbox folder and 0.13 s from a .sif, which needs /dev/fuse as well.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from computerrl.common.errors import Problem, SetupError
from computerrl.common.models.folder import cache_folder
from computerrl.env_server.image.host import (
    DEBIAN_KEYRING,
    Progress,
    apt_candidate,
    apt_install,
    apt_refresh,
    exclusive,
    is_root,
    missing_commands,
    no_progress,
    require_mirror,
    run_logged,
)

MIN_VERSION = (1, 1)
"""The first release whose unprivileged mode needs nothing from the administrator (January 2022)."""

_SMOKE_DEADLINE_S = 20.0
_IMAGE_DEADLINE_S = 120.0
"""Generous: on a loaded machine with a cold disk the imports alone have taken ten seconds."""
_IMAGE_TRIAL = "command -v Xvfb openbox >/dev/null; exec python3 -c 'import gi, msgpack, uno, Xlib, zmq'"
_FLAG_CHOICES: tuple[tuple[str, ...], ...] = ((), ("--userns",))
ISOLATION = ("--pid", "--no-home", "--cleanenv", "--no-mount", "bind-paths,cwd,home,hostfs,sys,tmp")
"""The image stays read-only; what the site's apptainer.conf would mount besides is left out."""
_NO_NETWORK = ("--net", "--network", "none")
_HOST_FOLDERS = ("/bin", "/lib", "/lib32", "/lib64", "/usr")

_NEWER_SUITE = "sid"
"""The Debian suite that has Apptainer."""
_LIBRARY_SUITE = "trixie"
"""The release whose C library that Apptainer is content with (glibc >= 2.38; Debian 12 has 2.36)."""
_PRIVATE_LIBRARIES = ("libc6", "libseccomp2", "libsqlite3-0")


@dataclass(frozen=True, slots=True)
class Apptainer:
    """A working Apptainer and how to call it on this machine."""

    path: Path
    """The executable."""
    version: str
    """As it names itself, for example 1.4.5."""
    extra_flags: tuple[str, ...]
    """Goes first after ``exec``: what this user on this machine needs for any container to start."""
    network_none: bool
    """Whether ``--net --network none`` works; where it does not, containers share the host's network."""

    @property
    def folder(self) -> Path:
        """Where it is installed, with all that it needs besides the system's own: the folder above bin or usr/bin."""
        prefix = self.path.resolve().parents[1]
        return prefix.parent if prefix.name == "usr" else prefix


def clean_environment() -> dict[str, str]:
    """The environment that Apptainer is started with: where programs are, and nothing else of ours.

    Shells and sites set variables that mount folders in containers, put names into their environment or change what runs
    (`APPTAINER_BIND`, `SINGULARITYENV_X`, `LD_PRELOAD`, `http_proxy`).
    """
    return {"PATH": os.environ.get("PATH", os.defpath), "HOME": "/", "LC_ALL": "C.UTF-8"}


def find_apptainer(cache: Path | None = None) -> Apptainer:
    """The first Apptainer that starts a container: the one on PATH, else the one set-up put into the cache.

    Takes about 0.3 s, as it really starts one. Raises `SetupError` that names each candidate with what is wrong with it.
    """
    refused: list[str] = []
    for path in _candidates(cache or cache_folder()):
        try:
            return _try_out(path)
        except SetupError as error:
            refused.append(f"{path}: {error.problem.reason}")
    if refused:
        reason, step = "none of those present works:\n      " + "\n      ".join(refused), _admin_step("repair it")
    else:
        reason = f"none on PATH and none in {_store(cache or cache_folder())}"
        step = "run `make setup` or `computerrl setup`" if is_root() else _admin_step("install it")
    raise SetupError(Problem("Apptainer", reason, step))


def ensure_apptainer(cache: Path | None = None, *, mirror: str | None = None, progress: Progress = no_progress) -> Apptainer:
    """The Apptainer that works here, installed first if there is none and this is root. Raises `SetupError`."""
    cache = cache or cache_folder()
    try:
        return find_apptainer(cache)
    except SetupError:
        if not is_root():
            raise
    with exclusive(cache / "locks" / "apptainer", progress=progress):
        if not any(_private(cache)):
            _install(cache, mirror=mirror, progress=progress)
    return find_apptainer(cache)


def try_image(apptainer: Apptainer, image: Path) -> None:
    """Start a container from ``image`` and import what the guest program needs. Raises `SetupError`.

    Takes about a second.
    """
    network = _NO_NETWORK if apptainer.network_none else ()
    command = [str(apptainer.path), "exec", *apptainer.extra_flags, *ISOLATION, *network, str(image), "sh", "-ec", _IMAGE_TRIAL]
    said = _container_error(command, deadline_s=_IMAGE_DEADLINE_S)
    if said:
        step = f"remove {image} and run set-up again (an image that was built elsewhere: build it again)"
        raise SetupError(Problem("desktop.image", f"a container of {image} does not work: {said}", step))


_FUSE = Path("/dev/fuse")


def check_fuse(image: Path) -> None:
    """Raise `SetupError` when this user cannot mount the image file ``image`` (a sandbox folder needs no such thing).

    Root's desktops run as another user, to whom the device must be open as well.
    """
    if not _opens(_FUSE) or (is_root() and not _FUSE.stat().st_mode & stat.S_IWOTH):
        raise SetupError(
            Problem(
                "/dev/fuse",
                f"not readable and writable by this user, so the image file {str(image)!r} cannot be mounted",
                f"unpack it into a folder, which needs no mount (apptainer build --sandbox FOLDER {image}), and set "
                "desktop.image to that folder; or ask an administrator for access to /dev/fuse",
            )
        )


def _opens(device: Path) -> bool:
    try:
        os.close(os.open(device, os.O_RDWR))
    except OSError:
        return False
    return True


def _store(cache: Path) -> Path:
    return cache / "apptainer"


def _candidates(cache: Path) -> Iterator[Path]:
    on_path = shutil.which("apptainer")
    if on_path:
        yield Path(on_path)
    yield from _private(cache)


def _private(cache: Path) -> list[Path]:
    return sorted(_store(cache).glob("[0-9]*/usr/bin/apptainer"), reverse=True)


def _admin_step(verb: str) -> str:
    return (
        f"ask an administrator to {verb}: `apt-get install apptainer` (Debian, Ubuntu) or `dnf install apptainer` (EPEL), "
        f"version {'.'.join(map(str, MIN_VERSION))} or newer, with unprivileged user namespaces allowed; or load a module"
    )


def _try_out(path: Path) -> Apptainer:
    """Start real containers with it, out of the host's own folders, so that no image is needed."""
    version = _version(path)
    with tempfile.TemporaryDirectory(prefix="computerrl-smoke-") as name:
        sandbox = Path(name)
        binds: list[str] = []
        for folder in (folder for folder in _HOST_FOLDERS if Path(folder).exists()):
            (sandbox / folder.lstrip("/")).mkdir()
            binds += ["--bind", folder]
        for folder in ("dev", "etc", "proc", "sys", "tmp", "var/tmp", "root", "home"):
            (sandbox / folder).mkdir(parents=True, exist_ok=True)
        sandbox.chmod(0o755)
        said = ""
        for flags in _FLAG_CHOICES:
            said = _smoke(path, [*flags, *ISOLATION, *binds], sandbox)
            if not said:
                network_none = not _smoke(path, [*flags, *ISOLATION, *_NO_NETWORK, *binds], sandbox)
                return Apptainer(path, version, flags, network_none)
    raise SetupError(Problem(str(path), f"version {version} starts no container here ({said})", _admin_step("repair it")))


def _version(path: Path) -> str:
    try:
        answer = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=_SMOKE_DEADLINE_S, check=False, env=clean_environment()
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(Problem(str(path), f"does not run ({error})", _admin_step("repair it"))) from error
    match = re.search(r"apptainer version ((\d+)\.(\d+)\S*)", answer.stdout)
    if match is None:
        said = (answer.stderr or answer.stdout).strip()[:200]
        raise SetupError(Problem(str(path), f"is no Apptainer (it says {said!r})", _admin_step("install it")))
    if (int(match[2]), int(match[3])) < MIN_VERSION:
        raise SetupError(Problem(str(path), f"version {match[1]} is too old", _admin_step("update it")))
    return match[1]


def _smoke(path: Path, flags: list[str], sandbox: Path) -> str:
    """Empty when a container started and ended well, else Apptainer's last words."""
    return _container_error([str(path), "exec", *flags, str(sandbox), "true"], deadline_s=_SMOKE_DEADLINE_S)


def _container_error(command: list[str], *, deadline_s: float) -> str:
    """Empty when ``command`` ended well, else the last line of its errors."""
    try:
        answer = subprocess.run(
            command,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            cwd="/",
            timeout=deadline_s,
            check=False,
            env=clean_environment(),
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {deadline_s:.0f} s"
    if answer.returncode == 0:
        return ""
    said = re.sub(r"\x1b\[\d*m", "", answer.stderr).strip()
    return said.splitlines()[-1] if said else f"exit code {answer.returncode}"


def _install(cache: Path, *, mirror: str | None, progress: Progress) -> None:
    log = cache / "logs" / "apptainer.log"
    if not missing_commands(["apt-get"]) and not apt_candidate("apptainer"):
        progress("apt-get update")
        apt_refresh(log=log)
    # One on PATH would have been taken if it worked: then only our own can help.
    if shutil.which("apptainer") is None and apt_candidate("apptainer"):
        apt_install(["apptainer"], log=log, progress=progress)
        return
    _install_private(cache, mirror=require_mirror(mirror, purpose="installing Apptainer"), log=log, progress=progress)


def _install_private(cache: Path, *, mirror: str, log: Path, progress: Progress) -> None:
    """Unpack Debian's newest Apptainer and the libraries it needs into the cache; the system's own libc stays untouched."""
    # uidmap is Apptainer's own dependency; the squashfs tools mount and unpack .sif images.
    needed = {"patchelf": "patchelf", "newuidmap": "uidmap", "squashfuse": "squashfuse", "unsquashfs": "squashfs-tools"}
    missing = [needed[command] for command in missing_commands(list(needed))]
    if not DEBIAN_KEYRING.is_file():
        missing.append("debian-archive-keyring")
    if missing:
        apt_install(missing, log=log, progress=progress)
    _store(cache).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=_store(cache)) as name:
        partial = Path(name)
        progress("fetching Apptainer and its libraries")
        debs = _download(partial / "apt", mirror=mirror, log=log)
        tree = partial / "tree"
        for package in ("apptainer", *_PRIVATE_LIBRARIES):
            run_logged(["dpkg-deb", "-x", debs[package], tree if package == "apptainer" else tree / "libs"], log=log)
        version = debs["apptainer"].name.split("_")[1].replace("%3a", "-")
        final = _store(cache) / version
        progress(f"preparing Apptainer {version}")
        _relocate(tree, final, log=log)
        tree.chmod(0o755)
        tree.rename(final)


def _download(folder: Path, *, mirror: str, log: Path) -> dict[str, Path]:
    """The deb of each package by its name. apt itself fetches and checks the archive's signatures, in lists of its own."""
    for part in ("state/lists/partial", "cache/archives/partial", "debs"):
        (folder / part).mkdir(parents=True)
    (folder / "status").touch()
    suites = (_NEWER_SUITE, _LIBRARY_SUITE)
    sources = folder / "sources.list"
    sources.write_text("".join(f"deb [signed-by={DEBIAN_KEYRING}] {mirror} {suite} main\n" for suite in suites), encoding="utf-8")
    options = {
        "Dir::State": folder / "state",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "/dev/null",
        "Acquire::Languages": "none",
        # Fetching as user _apt would need our folder to be open to it.
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "-q", *(word for key, value in options.items() for word in ("-o", f"{key}={value}"))]
    run_logged([*apt, "update"], log=log)
    packages = [f"apptainer/{_NEWER_SUITE}", *(f"{name}/{_LIBRARY_SUITE}" for name in _PRIVATE_LIBRARIES)]
    run_logged(["env", "-C", folder / "debs", *apt, "download", *packages], log=log)
    return {deb.name.split("_")[0]: deb for deb in (folder / "debs").glob("*.deb")}


def _relocate(tree: Path, final: Path, *, log: Path) -> None:
    """Make the unpacked ``tree`` work at ``final``: own loader and libraries, configuration and session folder in place.

    Apptainer looks for etc and var beside its executable; its starter, which lies one folder deeper, looks in usr/lib.
    """
    loader = next((tree / "libs" / "usr").glob("lib*/*/ld-linux*.so.*"), None) or next(
        (tree / "libs" / "usr").glob("lib*/ld-linux*.so.*")
    )
    libraries = next((tree / "libs" / "usr").glob("lib*/*/libc.so.6")).parent
    starter = next((tree / "usr" / "lib").glob("*/apptainer/bin/starter"))
    for binary in (tree / "usr" / "bin" / "apptainer", starter):
        run_logged(["patchelf", "--set-interpreter", final / loader.relative_to(tree), binary], log=log)
        # DT_RPATH, not RUNPATH: it must hold for the libraries of libraries as well.
        run_logged(["patchelf", "--force-rpath", "--set-rpath", final / libraries.relative_to(tree), binary], log=log)
    (tree / "etc").rename(tree / "usr" / "etc")
    (tree / "usr" / "var" / "lib" / "apptainer" / "mnt" / "session").mkdir(parents=True)
    (tree / "usr" / "lib" / "etc").symlink_to("../etc")
    (tree / "usr" / "lib" / "var").symlink_to("../var")
    for unused in ("share/doc", "share/man", "share/bash-completion"):
        shutil.rmtree(tree / "usr" / unused, ignore_errors=True)
