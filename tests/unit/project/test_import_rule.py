"""The import rule: which folder may import which. Read from the source, so that an import inside a function counts as well."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("actor", "broker", "common", "env_server", "launch", "learner")
OURS = (*PACKAGES, "benchmarks")
NO_TORCH = ("broker", "common", "env_server", "launch")
SHARED_TOWER = "common/vision/tower.py"  # the learner and the engines, which import torch anyway, encode images alike
ZMQ_FOLDER = "common/wire/transport/"
MSGPACK_FILE = "common/wire/codec.py"
GUEST = "env_server/guest/"  # runs inside the container with Debian's own Python: nothing of ours is there

SIMULATION = "launch/simulation/"
MEASURING = "launch/commands/measure.py"

FLOORS = {
    "actor": "activity engines prompts grounding agents choosing episode live_images desktops serving worker process",
    "broker": (
        "events counters client_batches images orders delivery assignments trajectories peers core journal client service process"
    ),
    "env_server": "driver image guest tasks judging drivers client gym serving process live front",
    "launch": "progress plan setup simulation supervision watch report web grounding export imports run cluster commands",
    "learner": (
        "weight_bytes client poison images objective tiny_vision model_store pretraining weights algorithms model checkpoints"
        " rewards contracts training recipe supervised accounts phases conductor process"
    ),
}
"""Files and folders of each folder, from the ground up: each may import those before it, and none after it."""
IMPURE = frozenset(
    {
        "asyncio",
        "fcntl",
        "multiprocessing",
        "os",
        "select",
        "shutil",
        "socket",
        "subprocess",
        "tempfile",
        "threading",
        "time",
        "zmq",
    }
)
IMPURE_CALLS = frozenset({"glob", "mkdir", "monotonic", "open", "read_bytes", "read_text", "unlink", "write_bytes", "write_text"})
"""Modules and methods that a module whose head says that it is pure does without: no file, clock, process or socket."""
MAX_FILES = 15
CATALOGUES = {"learner/algorithms", "env_server/tasks/forge", "env_server/tasks/osworld/metrics"}
"""Folders of many files of one kind; `configs/algorithms` is the fourth."""
MERE_FORMATS = {"launch/watch/display_frame.py": {"time"}, "launch/web/snapshot.py": {"time"}}
"""Pure module -> modules of which it only formats with: `time.strftime` of a given time."""

MESSAGE = "{file}:{line} imports {module}: {rule}"


def imports(source: str, package: str) -> Iterator[tuple[int, str, bool]]:
    """(line, dotted name, at module level) of every import, relative ones made absolute in ``package``."""
    for node, eager in _statements(ast.parse(source).body, eager=True):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, eager) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*package.split(".")[: len(package.split(".")) + 1 - node.level], *filter(None, [node.module])])
            base = base if node.level else node.module or ""
            yield from ((node.lineno, f"{base}.{alias.name}", eager) for alias in node.names)


def _statements(nodes: Iterable[ast.AST], *, eager: bool) -> Iterator[tuple[ast.AST, bool]]:
    """All statements among and below ``nodes``, and whether they run at import: not in a function, nor for type checkers only."""
    for node in nodes:
        yield node, eager
        inside = eager and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        inside = inside and not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, part, [])
            if isinstance(inner, list):
                yield from _statements(inner, eager=inside)


def violations(file: str, source: str) -> list[str]:
    """What ``source``, lying at ``file`` (relative to the repository), imports against the rule."""
    found = []
    folder = file.split("/", maxsplit=1)[0]
    for line, module, eager in imports(source, ".".join(["computerrl", *file.split("/")[:-1]])):
        rule = _broken_rule(file, folder, module, eager=eager)
        if rule:
            found.append(MESSAGE.format(file=file, line=line, module=module, rule=rule))
    return found


def _broken_rule(file: str, folder: str, module: str, *, eager: bool) -> str:
    if module.split(".")[0] in OURS:
        return f"its name is computerrl.{module}"
    parts = module.removeprefix("computerrl.").split(".")
    module, top = ".".join(parts), parts[0]
    if file.startswith(GUEST) and top in PACKAGES and not module.startswith("env_server.guest."):
        return "the guest runs in the container, where nothing of ours is but itself"
    if module.startswith("com.sun.star"):
        return "its import keeps the office's objects alive: use uno_values.uno_class and struct"
    if top == folder and _floor(folder, parts[1:]) > _floor(folder, _parts_of(file)):
        return f"{parts[1]} stands on a floor above it"
    if top in PACKAGES and top not in (folder, "common"):
        if folder == "common":
            return "common imports no other folder"
        if folder == "launch":
            # The simulation is lazy as a whole: see the rule for it below.
            lazy = not eager or file.startswith(SIMULATION)
            return "" if lazy or not _heavy(parts) else "launch imports other folders inside functions only"
        if parts[1:2] != ["client"]:
            return f"of {top} only {top}/client.py may be imported from outside"
    if module.startswith("launch.simulation") and eager and not file.startswith(SIMULATION):
        return "launch imports its simulation inside functions only"
    if top == "benchmarks" and file != MEASURING:
        return f"only {MEASURING} imports benchmarks"
    if top == "torch" and folder in NO_TORCH and file != SHARED_TOWER:
        return f"{folder} never imports torch"
    if top == "vllm" and not file.startswith("actor/engines/vllm_"):
        return "only actor/engines/vllm_*.py may import vllm"
    if top == "zmq" and not file.startswith((ZMQ_FOLDER, GUEST)):
        return f"only {ZMQ_FOLDER} may import zmq"
    if module.startswith(("msgpack", "msgspec.msgpack")) and file != MSGPACK_FILE and not file.startswith(GUEST):
        return f"only {MSGPACK_FILE} packs and unpacks msgpack"
    return ""


def _parts_of(file: str) -> list[str]:
    return file.removesuffix(".py").split("/")[1:]


def _floor(folder: str, parts: list[str]) -> int:
    """The floor of a module of ``folder``, -1 for the folder itself and for a folder without floors."""
    floors = FLOORS.get(folder, "").split()
    return floors.index(parts[0]) if parts and parts[0] in floors else -1


def _heavy(parts: list[str]) -> bool:
    # Set-up's own helper of the host: standard library only, and set-up is launch's.
    return parts[:3] != ["env_server", "image", "host"]


@pytest.mark.parametrize("folder", FLOORS)
def test_floors_name_every_file_and_folder(folder: str) -> None:
    there = {path.stem for path in (ROOT / folder).glob("*.py")} | {
        path.parent.name for path in (ROOT / folder).glob("*/__init__.py")
    }
    assert sorted(FLOORS[folder].split()) == sorted(there - {"__init__"})


def test_modules_that_say_they_are_pure_touch_no_file_clock_process_or_socket() -> None:
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            file, source = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
            if re.search(r"\bPure\b", ast.get_docstring(ast.parse(source)) or ""):
                found += [f"{file} uses {name}" for name in _impurities(source) - MERE_FORMATS.get(file, set())]
    assert not found


def _impurities(source: str) -> set[str]:
    tree = ast.parse(source)
    called = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    called |= {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    imported = {module.split(".")[0] for _, module, _ in imports(source, "computerrl") if not module.startswith("os.path")}
    return imported & IMPURE | called & IMPURE_CALLS


@pytest.mark.parametrize("line", ["import os", "from time import monotonic", "def f(p):\n    return p.read_text()", "open('x')"])
def test_impurity_is_found(line: str) -> None:
    assert _impurities(line)


@pytest.mark.parametrize("folder", [*OURS, "tests"])
def test_no_folder_holds_more_than_fifteen_files(folder: str) -> None:
    folders = [path for path in (ROOT / folder).rglob("*") if path.is_dir()] + [ROOT / folder]
    crowded = {
        path.relative_to(ROOT).as_posix(): number
        for path in folders
        if (number := sum(not file.name.startswith("__init__") for file in path.glob("*.py"))) > MAX_FILES
    }
    assert not crowded.keys() - CATALOGUES


def test_no_files_import_each_other_in_a_circle() -> None:
    """Imports inside functions and for type checkers only count as well: they hide a circle, and do not undo it."""
    files = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for folder in OURS
        for path in sorted((ROOT / folder).rglob("*.py"))
    }
    assert circles(import_graph(files)) == {}


def import_graph(files: Mapping[str, str]) -> dict[str, set[str]]:
    """Module -> modules among ``files`` (path -> source) that it imports. A package that is only a parent is not imported."""
    names = {".".join(["computerrl", *file.removesuffix(".py").removesuffix("/__init__").split("/")]): file for file in files}
    graph: dict[str, set[str]] = {}
    for name, file in names.items():
        package = ".".join(["computerrl", *file.split("/")[:-1]])
        imported = {_module_of(found, names) for _, found, _ in imports(files[file], package)}
        graph[name] = {other for other in imported if other not in (None, name)}
    return graph


def _module_of(imported: str, names: Iterable[str]) -> str | None:
    """The module of a dotted name, which may be a module or a name in one."""
    return next((found for found in (imported, imported.rpartition(".")[0]) if found in names), None)


def circles(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The part of ``graph`` that lies on circles or between two."""
    left = dict(graph)
    while True:
        used = set().union(*left.values())
        kept = {name: others & left.keys() for name, others in left.items() if name in used and others & left.keys()}
        if kept == left:
            return kept
        left = kept


@pytest.mark.parametrize(
    "first", ["from .b import f", "if TYPE_CHECKING:\n    from computerrl.x.b import f", "def g():\n    from . import b"]
)
def test_circle_of_imports_is_found(first: str) -> None:
    files = {"x/__init__.py": "", "x/a.py": first, "x/b.py": "from computerrl.x.a import g", "x/c.py": "from .a import g"}
    assert circles(import_graph(files)) == {"computerrl.x.a": {"computerrl.x.b"}, "computerrl.x.b": {"computerrl.x.a"}}


def test_import_rule_holds_everywhere() -> None:
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            file = path.relative_to(ROOT).as_posix()
            found += violations(file, path.read_text(encoding="utf-8"))
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("actor/worker.py", "from computerrl.broker.core import Core"),
        ("actor/worker.py", "def f():\n    import computerrl.learner.training.trainer"),
        ("actor/worker.py", "from computerrl.learner.training import trainer"),
        ("actor/worker.py", "from common.messages import Step"),
        ("actor/worker.py", "def f():\n    import actor.prompt"),
        ("broker/core.py", "import torch.nn"),
        ("launch/commands/main.py", "from computerrl.learner.process import run_learner"),
        ("launch/report/write.py", "def f():\n    import torch"),
        ("launch/report/write.py", "def f():\n    from computerrl.launch.web.server import serve_run"),
        ("learner/recipe/pacing.py", "from computerrl.learner import conductor"),
        ("actor/prompts/builder.py", "from vllm import LLM"),
        ("broker/process.py", "import zmq"),
        ("launch/report/write.py", "def f():\n    from computerrl.benchmarks.studies import _study"),
        ("common/messages/base.py", "import msgpack"),
        ("broker/service.py", "from msgspec import msgpack"),
        ("common/wire/codec.py", "from computerrl.broker import client"),
        ("env_server/guest/main.py", "from computerrl.common.messages import Action"),
        ("env_server/guest/office/calc/sheet.py", "def f():\n    from com.sun.star.awt import Size"),
        ("common/wire/codec.py", "def f():\n    from computerrl.env_server.client import DesktopClient"),
    ],
)
def test_violations_forbidden_import_is_named(file: str, source: str) -> None:
    found = violations(file, source)
    assert len(found) == 1
    assert file in found[0]


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("actor/worker.py", "from computerrl.broker.client import BrokerClient\nfrom computerrl.common.messages import Step"),
        ("actor/worker.py", "import computerrl.actor.prompts.builder"),
        ("actor/worker.py", "from . import prompt\nfrom .engines import base"),
        ("launch/commands/main.py", "def f():\n    from computerrl.learner.process import run_learner"),
        (
            "launch/commands/main.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from computerrl.learner.process import X",
        ),
        ("learner/training/trainer.py", "import torch"),
        ("actor/engines/vllm_engine.py", "from vllm import LLM"),
        ("env_server/guest/main.py", "import zmq, msgpack"),
        ("common/wire/transport/server.py", "import zmq"),
    ],
)
def test_violations_allowed_import_is_silent(file: str, source: str) -> None:
    assert violations(file, source) == []


def test_help_imports_neither_torch_nor_vllm() -> None:
    program = (
        "import sys\n"
        "from computerrl.launch.commands.main import cli\n"
        "cli.main(args=['--help'], standalone_mode=False)\n"
        "heavy = {'torch', 'vllm', 'transformers', 'aiohttp', 'gymnasium'} & set(sys.modules)\n"
        "sys.exit(f'--help imported {sorted(heavy)}' if heavy else 0)\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "computerrl" in answer.stdout.lower() or "Usage" in answer.stdout
