"""Makes a machine ready: Python packages, Apptainer, desktop image, model folder. Each stage skips what is already there.

Standard library only: `make` runs it as ``python3 -m computerrl.launch.setup.machine_setup --venv .venv`` before anything is
installed, and `computerrl setup` calls `run_setup` afterwards without the first stage. Lanes run side
by side, since some wait for the network while another unpacks: packages -> model, Apptainer, image. Each stage ends with a trial
of its result. This module does not train, and it never installs a Python package outside the virtual environment.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from computerrl import SOURCE_ROOT
from computerrl.common.errors import ComputerRLError, Problem, SetupError
from computerrl.common.models.folder import BUILT_IN_MODELS, cache_folder, check_model_folder, is_model_folder, model_folder
from computerrl.common.models.hub import download_model, is_of_hub
from computerrl.env_server.image.host import Progress, apt_install, missing_commands, no_progress, run_logged
from computerrl.launch.progress import duration
from computerrl.launch.setup.packages import LISTS, Device, PackageStage

if TYPE_CHECKING:
    from computerrl.env_server.image.apptainer_install import Apptainer

T = TypeVar("T")

TEST_PACKAGES = {"slurmctld": "slurm-wlm", "munged": "munge", "sshd": "openssh-server", "ip": "iproute2"}
"""Command -> Debian package of what only the tests of clusters need."""
TEST_SERVICES = {"slurmctld": ("slurmctld", "slurmd"), "munged": ("munge",), "sshd": ("ssh",)}
_QUIET_S = 0.5
"""A stage that took less had nothing to do."""
USUAL_S = {"python packages": 55.0, "apptainer": 26.0, "model": 69.0, "desktop image": 131.0}
"""Stage -> seconds that it took beside the others on two cores (docs/results/launch.md). Their ratios weigh the time left."""
_HEARTBEAT_S = 4.0
"""Longest silence, less the second between two looks at the clock."""


@dataclass
class Report:
    """Prints each stage's lines with the time since set-up began; all lanes share one."""

    begun: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)
    last_said: float = field(default_factory=time.monotonic)
    under_way: dict[str, float] = field(default_factory=dict)
    """Stage -> when its last line was printed."""
    lanes: Sequence[Sequence[str]] = ()
    """Names of the stages of each lane, in their order."""
    starts: dict[str, float] = field(default_factory=dict)
    """Stage that began -> when."""
    took_s: dict[str, float] = field(default_factory=dict)
    """Stage that is ready -> its duration."""

    def say(self, stage: str, line: str) -> None:
        """Print one line of ``stage`` at once."""
        with self.lock:
            self.last_said = time.monotonic()
            if stage in self.under_way:
                self.under_way[stage] = self.last_said
            print(f"  {self.last_said - self.begun:6.1f} s  {stage:<15} {line}", flush=True)

    def stage(self, name: str, work: Callable[[Progress], T], *, said: Callable[[T], str] = str) -> T:
        """Run ``work`` as stage ``name``; its result (as ``said`` words it) or its failure is printed at the end."""
        begun = time.monotonic()
        self.under_way[name] = begun
        self.starts[name] = begun
        try:
            result = work(lambda line: self.say(name, line))
        except ComputerRLError as error:
            # At once: other lanes may go on for minutes before `run_setup` can raise.
            self.say(name, f"failed: {error}")
            raise
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self.say(name, f"failed: {error}")
            step = "free some space, or set COMPUTERRL_CACHE to a folder on a larger disk; then run set-up again"
            raise SetupError(Problem(name, f"the disk is full ({error})", step)) from error
        finally:
            del self.under_way[name]
        spent_s = self.took_s[name] = time.monotonic() - begun
        took = f" ({spent_s:.1f} s)" if spent_s >= _QUIET_S else ""
        self.say(name, f"ready: {said(result)}{took}")
        return result

    @contextmanager
    def heartbeats(self) -> Iterator[None]:
        """While inside, a silence of five seconds ends with a line that names what is under way, and since when it is silent."""
        ended = threading.Event()

        def beat() -> None:
            while not ended.wait(1.0):
                self.beat(time.monotonic())

        thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def beat(self, now: float) -> None:
        """Print the heartbeat line if nothing was printed lately."""
        doing = [f"{stage} {now - since:.0f} s" for stage, since in list(self.under_way.items())]
        if doing and now - self.last_said >= _HEARTBEAT_S:
            self.last_said = now
            with self.lock:
                print(f"  {now - self.begun:6.1f} s  {'...':<15} {'; '.join([*self._outlook(now), *doing])}", flush=True)

    def _outlook(self, now: float) -> list[str]:
        """Number of stages that are ready, and the time left; nothing where the stages are not known."""
        stages = [stage for lane in self.lanes for stage in lane]
        if not stages:
            return []
        left_s = self.left_s(now)
        num_ready = sum(stage in self.took_s for stage in stages)
        left = "time left unknown" if left_s is None else f"about {duration(left_s)} left"
        return [f"{num_ready} of {len(stages)} stages ready, {left}"]

    def left_s(self, now: float) -> float | None:
        """Estimate of the time left: `USUAL_S` of what the longest lane still has to do, at the speed of the stages that are
        ready. None: unknown, because no stage with work is ready, or one under way already takes longer than that."""
        worked = [stage for stage, took_s in self.took_s.items() if took_s >= _QUIET_S and stage in USUAL_S]
        if not worked:
            return None
        slowness = sum(self.took_s[stage] for stage in worked) / sum(USUAL_S[stage] for stage in worked)
        lefts = []
        for lane in self.lanes:
            open_stages = [stage for stage in lane if stage not in self.took_s]
            spent_s = sum(now - self.starts[stage] for stage in open_stages if stage in self.starts)
            lefts.append(slowness * sum(USUAL_S.get(stage, 0.0) for stage in open_stages) - spent_s)
        return max(lefts) if min(lefts) >= 0 else None


def run_setup(
    *,
    venv: Path | None = None,
    cache: Path | None = None,
    image: str | None = "core",
    model: str = "smollm2-135m",
    mirror: str | None = None,
    for_tests: bool = False,
    device: Device | None = None,
    lists: Sequence[str] = (),
    download: bool = False,
) -> None:
    """Bring everything there that a run needs; raises the first `ComputerRLError` when all lanes have ended.

    ``venv``: make this virtual environment and install into it; None: this Python has the packages. ``image``: a recipe's
    name or the path of an image, None: no desktops on this machine. ``model``: as `model.name`. ``for_tests``:
    what the tests of clusters need, too. ``device``: which build of torch, None: what the environment has or this machine shows.
    ``lists``: package lists beside the one that running needs (`launch.setup.packages.LISTS`). ``download``: as in `bring_model`.
    """
    cache = cache or cache_folder()
    report = Report(lanes=_lanes(has_packages=venv is not None, for_tests=for_tests, has_image=image is not None))
    python = Path(sys.executable) if venv is None else venv.absolute() / "bin" / "python"

    def packages_then_model() -> None:
        if venv is not None:
            log = cache / "logs" / "packages.log"
            wanted = ("run", *lists)
            report.stage(
                "python packages",
                lambda progress: PackageStage(venv.absolute(), log, progress, device=device, lists=wanted).ensure(),
            )
        report.stage(
            "model",
            lambda progress: str(bring_model(model, cache=cache, python=python, progress=progress, download=download)),
        )

    def apptainer() -> Apptainer:
        return report.stage("apptainer", lambda progress: _apptainer(cache, mirror, progress), said=_described)

    def desktop_image(name: str, ready: Future[Apptainer]) -> None:
        report.stage("desktop image", lambda progress: _image(name, cache, mirror, ready, progress))

    # In this order: leaving the pool waits for the lanes, and they are what the heartbeat is for.
    with report.heartbeats(), ThreadPoolExecutor(max_workers=4) as pool:
        lanes: list[Future[None] | Future[str] | Future[Apptainer]] = [pool.submit(packages_then_model)]
        if for_tests:
            lanes.append(pool.submit(report.stage, "test cluster", lambda progress: _test_cluster(cache, progress)))
        if image is not None:
            ready = pool.submit(apptainer)
            lanes += [ready, pool.submit(desktop_image, image, ready)]
    for lane in lanes:
        lane.result()
    report.say("set-up", "complete")


def _lanes(*, has_packages: bool, for_tests: bool, has_image: bool) -> list[tuple[str, ...]]:
    """The stages of each lane of `run_setup`."""
    lanes: list[tuple[str, ...]] = [("python packages", "model") if has_packages else ("model",)]
    return [*lanes, *[("test cluster",)] * for_tests, *[("apptainer",), ("desktop image",)] * has_image]


def _apptainer(cache: Path, mirror: str | None, progress: Progress) -> Apptainer:
    from computerrl.env_server.image.apptainer_install import ensure_apptainer

    return ensure_apptainer(cache, mirror=mirror, progress=progress)


def _described(found: Apptainer) -> str:
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


def _image(image: str, cache: Path, mirror: str | None, ready: Future[Apptainer], progress: Progress) -> str:
    """Build the image if it is a recipe's and not there, and run the guest's imports in a container of it."""
    from computerrl.env_server.image.apptainer_install import try_image
    from computerrl.env_server.image.build import build_image, recipe_names
    from computerrl.env_server.image.find import image_path

    def check(path: Path) -> None:
        # Where Apptainer failed, its own lane reports that, and the next set-up tries the image.
        if ready.exception() is None:
            progress("trying the image in a container")
            try_image(ready.result(), path)

    if image in recipe_names():
        build_image(image, cache=cache, mirror=mirror, progress=progress, check=check)
    path = image_path(image, cache)
    check(path)
    return str(path)


def bring_model(
    name: str,
    *,
    cache: Path | None = None,
    python: Path | None = None,
    progress: Progress = no_progress,
    download: bool = False,
) -> Path:
    """The folder of model ``name``, a built-in one made first when it is not there. ``download``: fetch what the cache of the hub
    lacks of it. Raises `ConfigError`, `SetupError`.

    Torch is needed to convert a model, and launch never imports torch: another process of ``python`` (this one's) does it.
    """
    cache = cache or cache_folder()
    if download:
        progress(f"model {name}: fetching what the cache lacks" if is_of_hub(name) else f"model {name}: nothing to download")
        download_model(name)
    folder = model_folder(name, cache)
    if name not in BUILT_IN_MODELS:
        check_model_folder(folder)
    elif not is_model_folder(folder):
        progress(f"converting {name} and trying it")
        environment = {**os.environ, "COMPUTERRL_CACHE": str(cache), "PYTHONPATH": str(SOURCE_ROOT)}
        # The first start compiles what it imports: kept, so that later starts need not.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [python or sys.executable, "-m", "computerrl.learner.model_store", "ensure", name]
        run_logged(command, log=cache / "logs" / "model.log", environment=environment)
    return folder


_MORE_LISTS = ", ".join(name for name in LISTS if name != "run")


def main(arguments: Sequence[str]) -> int:
    """Command line of `make setup`; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python3 -m computerrl.launch.setup.machine_setup", description="Make this machine ready for ComputerRL."
    )
    parser.add_argument("--venv", type=Path, help="virtual environment to make and install into")
    parser.add_argument("--mirror", help="Debian archive to install from (default: the one in this machine's apt sources)")
    parser.add_argument("--image", default="core", help="recipe or path of the desktop image")
    parser.add_argument("--model", default="smollm2-135m", help="built-in model or path of a model folder")
    parser.add_argument("--device", default="", choices=("", "cpu", "cuda"), help="build of torch (default: what is here)")
    parser.add_argument("--with", default="", dest="lists", metavar="LISTS", help=f"more package lists: {_MORE_LISTS}")
    parser.add_argument("--for-tests", action="store_true", help="also install what the tests of clusters need (Slurm, sshd)")
    options = parser.parse_args(arguments)
    lists = options.lists.split()
    if unknown := set(lists) - set(LISTS):
        parser.error(f"--with (make: WITH): no list {', '.join(sorted(unknown))}; there are {_MORE_LISTS}")
    print("set-up: what is there already is skipped", flush=True)
    try:
        run_setup(
            venv=options.venv,
            image=options.image,
            model=options.model,
            mirror=options.mirror or None,
            for_tests=options.for_tests,
            device=options.device or None,
            lists=lists,
        )
    except ComputerRLError as error:
        print(f"\nerror: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("\nset-up stopped; the next one continues from the finished stages", file=sys.stderr)
        return 130
    if options.venv is not None:
        print(f"  next: source {options.venv}/bin/activate, then `computerrl train configs/quickstart.yaml`")
        print(f"        or, without activating: {options.venv}/bin/computerrl train configs/quickstart.yaml")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
