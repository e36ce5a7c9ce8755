"""Static checks of a bundle: every reason to refuse it that can be found without running it."""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from computerrl.env_server.tasks.bundles.format import REWARD, TASK_FILE, Bundle
from computerrl.env_server.tasks.osworld.abilities import Abilities, Refusal, application, command_refusals, step_refusals
from computerrl.env_server.tasks.osworld.assets import Assets
from computerrl.env_server.tasks.osworld.format import DownloadStep, SetupStep, UploadStep

PLACEHOLDER = re.compile(r"__CUA_GYM_[A-Z0-9_]+_URL__")
"""Stands in scripts for the address of a web application."""
_OUR_IMAGES = ("core", "full")
"""Images whose programs and Python modules are known. What another image holds shows when a desktop runs the bundle."""
_IMAGE_MODULES = frozenset({"Xlib", "gi", "msgpack", "pkg_resources", "py", "six", "uno", "unohelper", "zmq"})
"""Python modules of these images besides the standard library."""
_MOCK = "_mock"
"""Ending of the name of an application that is a web page."""
_ANY_APP = "multi_apps"


def refusals(bundle: Bundle, folder: Path, *, image: str) -> list[Refusal]:
    """Everything that keeps ``bundle``, which lies in ``folder``, from being played on desktops of ``image``."""
    return list(dict.fromkeys(_refusals(bundle, folder, image)))


def applications(bundle: Bundle) -> list[str]:
    """The applications of a bundle by OSWorld's names."""
    given = [name for name in bundle.apps if name != _ANY_APP]
    named = ["chrome" if name.lower().endswith(_MOCK) else application(name) for name in given]
    return list(dict.fromkeys([*named, *(["chrome"] if bundle.web else [])]))


def _refusals(bundle: Bundle, folder: Path, image: str) -> Iterator[Refusal]:
    abilities = Abilities()
    for app in applications(bundle):
        if app not in abilities.apps:
            yield Refusal("app", TASK_FILE, f"application {app}")
    if bundle.web and bundle.web.entry and image in _OUR_IMAGES:
        yield Refusal("app", "web_app", f"program node, which image {image} lacks")
    for name in bundle.scripts:
        text = bundle.files[name].decode("utf-8-sig")
        placeholder = PLACEHOLDER.search(text)
        if placeholder and bundle.web is None:
            yield Refusal("network", name, f"{placeholder.group()} stands for a web application, and the bundle brings none")
        if name.endswith(".py"):
            yield from _of_python(name, text, bundle, image)
        else:
            yield from command_refusals(text, name, abilities, shell=True)
    hidden = {REWARD, bundle.solution, TASK_FILE}
    for index, step in enumerate(bundle.steps):
        where = f"config.{index} ({step.type})"
        yield from step_refusals(step, where, Assets(folder), abilities)
        for url in _brought(step):
            if (name := urlsplit(url).path) in hidden:
                yield Refusal("broken", where, f"brings {name} onto the desktop, where the agent could read it")


def _brought(step: SetupStep) -> list[str]:
    """Addresses of the files that a step brings onto the desktop."""
    parameters = step.parameters
    if isinstance(parameters, DownloadStep):
        return [file.url for file in parameters.files]
    return [file.local_path for file in parameters.files] if isinstance(parameters, UploadStep) else []


def _of_python(name: str, text: str, bundle: Bundle, image: str) -> Iterator[Refusal]:
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        yield Refusal("broken", name, f"is no Python: {error}")
        return
    except (RecursionError, MemoryError):
        yield Refusal("broken", name, "is nested too deeply")
        return
    if image in _OUR_IMAGES:
        beside = {path.partition("/")[0].removesuffix(".py") for path in bundle.plain_files}
        for module in dict.fromkeys(_imports(tree)):
            if module in sys.stdlib_module_names | _IMAGE_MODULES or (module in beside and name != REWARD):
                continue
            lacks = "and a reward script finds no module beside itself" if module in beside else f"which image {image} lacks"
            yield Refusal("unsupported", name, f"imports {module}, {lacks}")


def _imports(tree: ast.Module) -> Iterator[str]:
    """Top-level names of the modules that a script always imports; those that it only tries to import are left out."""
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            yield statement.module.partition(".")[0]
