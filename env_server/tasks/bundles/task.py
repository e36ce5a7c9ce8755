"""One imported bundle as a task: set up on a desktop, solved by its own solution, and judged by its reward script.

All scripts run inside the container. The reward script and the files beside it are on the desktop only while the script runs.
Programs of the agent have ended by then, and applications stand still meanwhile.
"""

from __future__ import annotations

import io
import secrets
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from computerrl.common.errors import ConfigError, TaskFailed
from computerrl.common.messages import Action, Evaluation, Observation
from computerrl.env_server.driver import Getter, TaskInstance
from computerrl.env_server.tasks.bundles import hub, stand_ins, static_server
from computerrl.env_server.tasks.bundles.format import REWARD, Bundle, WebApp, read_bundle, with_web_addresses
from computerrl.env_server.tasks.bundles.hub import Hub
from computerrl.env_server.tasks.bundles.verdicts import no_verdict, tail_of, verdict_of
from computerrl.env_server.tasks.family import DONE
from computerrl.env_server.tasks.osworld.assets import Assets
from computerrl.env_server.tasks.osworld.desktop import HOME, CalledDesktop, OsworldDesktop
from computerrl.env_server.tasks.osworld.format import OpenTabsStep
from computerrl.env_server.tasks.osworld.home import HOME_STEPS
from computerrl.env_server.tasks.osworld.steps import Carrier

PAGES_SEND_WITHIN_S = 1.0
"""Time in which the hub's pages have sent their state to their server: they do so 0.3 to 0.5 s after they have loaded, and after
each change."""
SETUP_LIMIT_S = 120.0
SOLUTION_LIMIT_S = 60.0
REWARD_LIMIT_S = 60.0
_MEMORY_BYTES = 1 << 30
"""Data of each process of a set-up or solution, and address space of each process of a reward script. The desktop as a whole has
`desktop.memory_limit_mb`, beyond which it is ended."""
_SCRIPT_FILE_BYTES, _REWARD_FILE_BYTES = 256 << 20, 64 << 20
"""Maximum size of each file that a script writes. All files of a desktop together have 1 GiB."""
_SCRIPT_LIMITS = ("prlimit", "--core=0", f"--fsize={_SCRIPT_FILE_BYTES}", f"--data={_MEMORY_BYTES}")
_REWARD_LIMITS = (
    "prlimit",
    "--core=0",
    f"--fsize={_REWARD_FILE_BYTES}",
    f"--as={_MEMORY_BYTES}",
    f"--cpu={REWARD_LIMIT_S:.0f}",
)
_PROGRAMS = {".py": "python3", ".sh": "bash"}
_RUNNING = ("false",)
"""Stands for the command of a server that was started before: `OsworldDesktop.serve` then tells whether it runs."""
_HIDDEN = f"{HOME}/.cache/bundle"
"""Beginning of the names of folders that hold a bundle's files for a while."""


@dataclass(frozen=True, slots=True)
class BundleTask:
    """An imported bundle. The same object may be used for any number of episodes."""

    folder: Path
    """The bundle's folder, which is read anew for each set-up and each judgement: thousands of bundles do not fit memory."""
    digest: str
    """`Bundle.digest` at the time of the import."""
    web_apps: Hub | None = None
    """Web applications that bundles name."""
    hub_digest: str = ""
    """`Hub.digest` of those that this one names."""

    def as_instance(self, instruction: str) -> TaskInstance:
        """The task as drivers play it; everything goes through the getter kind ``osworld`` (`CalledDesktop`).

        Its demonstration is the bundle's own solution, a program: no demonstration for a policy.
        """

        def demonstrate(said: str, observation: Observation, actions: Sequence[Action], get: Getter) -> Action:
            if not actions:
                self.solve(CalledDesktop(get))
            return DONE

        return TaskInstance(
            instruction,
            HOME_STEPS,
            lambda get: self.evaluate(CalledDesktop(get)),
            demonstrate,
            prepare=lambda get: self.set_up(CalledDesktop(get)),
            digest=lambda: self.digest + self.hub_digest,
        )

    def set_up(self, desktop: OsworldDesktop) -> None:
        """Bring the desktop into the task's start state. Raises `TaskFailed` with the script or step that failed."""
        bundle = self._read()
        if bundle.web:
            _serve(desktop, bundle, bundle.web)
        if bundle.web_names:
            self._serve_hub(desktop, bundle.web_names)
        for name in bundle.documents:
            desktop.put_file(f"{HOME}/{name}", bundle.files[name])
        if bundle.setup:
            for command in _run(desktop, bundle, bundle.setup, limit_s=SETUP_LIMIT_S):
                desktop.launch(command)
        carrier = Carrier(desktop, Assets(self.folder))
        for step in bundle.steps:
            carrier.carry_out(step)
        if not bundle.setup and not bundle.steps:
            for name in bundle.documents:
                if not desktop.open(f"{HOME}/{name}"):
                    raise TaskFailed(f"{name} did not open a window")
        if bundle.web and not any(isinstance(step.parameters, OpenTabsStep) for step in bundle.steps):
            desktop.open_tabs([bundle.web.address + bundle.web.path])
        if bundle.web_names:
            time.sleep(PAGES_SEND_WITHIN_S)  # What a solution does at once would be overwritten.

    def solve(self, desktop: OsworldDesktop) -> None:
        """Run the bundle's own solution. Raises `TaskFailed` when there is none, or it fails."""
        bundle = self._read()
        if not bundle.solution:
            raise TaskFailed("the bundle has no solution")
        _run(desktop, bundle, bundle.solution, limit_s=SOLUTION_LIMIT_S)

    def evaluate(self, desktop: OsworldDesktop) -> Evaluation:
        """The reward script's verdict. Whatever keeps the script from a verdict is a reward of 0, see `verdict_of`."""
        bundle = self._read()
        if bundle.web_names:
            time.sleep(PAGES_SEND_WITHIN_S)
        place = f"{_HIDDEN}-{secrets.token_hex(8)}"
        files = {**bundle.plain_files, REWARD: _filled(bundle, REWARD)}
        command = [*_REWARD_LIMITS, "env", "-C", place, "python3", f"{place}/{REWARD}"]
        desktop.bring_own_files()
        served = [bundle.web.port] if bundle.web else list(hub.ports(bundle.web_names).values())
        if not all(desktop.serve(_RUNNING, port) for port in served):
            return no_verdict("the task's web application has been ended")
        try:
            answer = desktop.run(
                command, timeout_s=REWARD_LIMIT_S, files={f"{place}/{name}": data for name, data in files.items()}
            )
        except TaskFailed as error:  # an agent may have filled the disk
            return no_verdict(f"the reward script cannot be brought: {error}")
        desktop.run(["rm", "-rf", place])
        return verdict_of(answer, max_reward=bundle.max_reward, limit_s=REWARD_LIMIT_S)

    def _serve_hub(self, desktop: OsworldDesktop, names: Sequence[str]) -> None:
        """Start web applications of the hub. Raises `TaskFailed`."""
        assert self.web_apps is not None, "a bundle that names applications is imported with them"
        _require_node(desktop)
        place = _unpack(desktop, self.web_apps.files(names))
        for name, port in hub.ports(names).items():
            desktop.serve(hub.command(place, name, port), port)

    def _read(self) -> Bundle:
        try:
            bundle = read_bundle(self.folder)
        except ConfigError as error:
            raise TaskFailed(f"the imported bundle cannot be read: {error.problems[0].reason}") from error
        if bundle.digest != self.digest:
            raise TaskFailed(f"the bundle {bundle.id} has changed since its import: import it again")
        return bundle


def _run(desktop: OsworldDesktop, bundle: Bundle, name: str, *, limit_s: float) -> Sequence[Sequence[str]]:
    """Run a script to its end in a folder with the bundle's plain files, which is gone afterwards. Returns the command lines of
    applications that it started, none of which has run. Raises `TaskFailed`."""
    place = _unpack(desktop, {**bundle.plain_files, **stand_ins.files(), name: _filled(bundle, name)})
    command = stand_ins.with_stand_ins([_PROGRAMS[Path(name).suffix], f"{place}/{name}"], place)
    answer = desktop.run([*_SCRIPT_LIMITS, "env", "-C", place, *command], timeout_s=limit_s)
    noted = desktop.read_file(stand_ins.notes(place))
    desktop.run(["rm", "-rf", place])
    if answer.returncode == 124:
        raise TaskFailed(f"{name} did not end within {limit_s:g} s")
    if answer.returncode != 0:
        raise TaskFailed(f"{name} ended with code {answer.returncode}{tail_of(answer)}")
    try:
        return list(stand_ins.started(noted or b""))
    except ValueError as error:
        raise TaskFailed(f"what {name} has started cannot be read: {error}") from error


def _serve(desktop: OsworldDesktop, bundle: Bundle, web: WebApp) -> None:
    """Start the web application. Raises `TaskFailed`."""
    place = _unpack(desktop, bundle.web_files)
    if web.entry:
        _require_node(desktop)
        command = ["prlimit", "--core=0", "env", "-C", place, f"PORT={web.port}", "HOST=127.0.0.1", "node", web.entry]
        desktop.serve(command, web.port)
        return
    source = f"{Path(static_server.__file__).read_text(encoding='utf-8')}\nmain()\n"
    desktop.serve(["python3", "-I", "-c", source, place, str(web.port)], web.port)
    desktop.run(["rm", "-rf", place])


def _require_node(desktop: OsworldDesktop) -> None:
    if desktop.run(["node", "--version"]).returncode != 0:
        raise TaskFailed("the web application needs the program node, which the desktop's image lacks: use image osworld")


def _filled(bundle: Bundle, name: str) -> bytes:
    """A script with addresses in place of the web applications' names."""
    return with_web_addresses(bundle.files[name].decode("utf-8-sig"), bundle.web, bundle.files).encode()


def _unpack(desktop: OsworldDesktop, files: Mapping[str, bytes]) -> str:
    """Put ``files`` into a new folder of the desktop; returns its path. Raises `TaskFailed`."""
    place = f"{_HIDDEN}-{secrets.token_hex(8)}"
    archive = f"{place}/{secrets.token_hex(8)}.tar"
    desktop.put_file(archive, _packed(files))
    answer = desktop.run(["tar", "-xf", archive, "-C", place])
    desktop.run(["rm", "-f", archive])
    if answer.returncode != 0:
        raise TaskFailed(f"the bundle's files do not fit the desktop{tail_of(answer)}")
    return place


def _packed(files: Mapping[str, bytes]) -> bytes:
    """A tar archive of ``files``, each of which everybody may read."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o755
            archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()
