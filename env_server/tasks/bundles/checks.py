"""Static checks of a bundle: every reason to refuse it that can be found without running it."""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from computerrl.env_server.tasks.bundles.format import REWARD, Bundle
from computerrl.env_server.tasks.bundles.hub import Hub, named
from computerrl.env_server.tasks.osworld.abilities import (
    TOOLS_IMAGE,
    Refusal,
    abilities_of,
    application,
    command_refusals,
    step_refusals,
)
from computerrl.env_server.tasks.osworld.assets import Assets
from computerrl.env_server.tasks.osworld.format import DownloadStep, SetupStep, UploadStep

_PLAIN_MODULES = frozenset({"Xlib", "gi", "msgpack", "pkg_resources", "py", "six", "uno", "unohelper", "zmq"})
_MORE_MODULES = frozenset(
    {"PIL", "bs4", "docx", "lxml", "numpy", "odf", "openpyxl", "pypdf", "requests", "urllib3", "yaml", "certifi", "idna"}
)
_IMAGE_MODULES = {"core": _PLAIN_MODULES, "full": _PLAIN_MODULES, TOOLS_IMAGE: _PLAIN_MODULES | _MORE_MODULES}
"""Image of ours -> its Python modules besides the standard library. What another image holds shows when a desktop runs the
bundle."""
_MOCK = "_mock"
"""Ending of the name of an application that is a web page."""
_MOCKS = "mock_websites"
"""Stands for any of them."""
_ANY_APP = "multi_apps"


def refusals(bundle: Bundle, folder: Path, *, image: str, hub: Hub | None = None) -> list[Refusal]:
    """Everything that keeps ``bundle``, which lies in ``folder``, from being played on desktops of ``image``. ``hub``: the web
    applications that are at hand."""
    return list(dict.fromkeys(_refusals(bundle, folder, image, hub)))


def applications(bundle: Bundle) -> list[str]:
    """The applications of a bundle by OSWorld's names."""
    given = [name for name in bundle.apps if name != _ANY_APP]
    named = ["chrome" if name.lower().endswith(_MOCK) or name.lower() == _MOCKS else application(name) for name in given]
    return list(dict.fromkeys([*named, *(["chrome"] if bundle.web or bundle.web_names else [])]))


def _refusals(bundle: Bundle, folder: Path, image: str, hub: Hub | None) -> Iterator[Refusal]:
    abilities = abilities_of(image)
    for app in applications(bundle):
        if app not in abilities.apps:
            yield Refusal("app", bundle.task_file, f"application {app}")
    needs_node = bundle.web_names if hub else bundle.web and bundle.web.entry
    if needs_node and not abilities.has_tools:
        yield Refusal("app", "web_app", f"program node, which image {image} lacks")
    yield from _of_web_apps(bundle, hub)
    for name in bundle.scripts:
        text = bundle.files[name].decode("utf-8-sig")
        if name.endswith(".py"):
            yield from _of_python(name, text, bundle, image)
        else:
            yield from command_refusals(text, name, abilities, shell=True)
    hidden = {REWARD, bundle.solution, bundle.task_file}
    for index, step in enumerate(bundle.steps):
        where = f"config.{index} ({step.type})"
        yield from step_refusals(step, where, Assets(folder), abilities)
        for url in _brought(step):
            if (name := urlsplit(url).path) in hidden:
                yield Refusal("broken", where, f"brings {name} onto the desktop, where the agent could read it")


def _of_web_apps(bundle: Bundle, hub: Hub | None) -> Iterator[Refusal]:
    for name in (bundle.task_file, *bundle.scripts) if bundle.web is None else ():
        for web in named([bundle.files[name].decode("utf-8-sig")]):
            if hub is None:
                yield Refusal("network", name, f"needs web application {web}: give a built CUA-Gym-Hub with --web-apps")
            elif lacks := hub.lacks(web):
                yield Refusal("app", name, lacks)


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
    if image in _IMAGE_MODULES:
        beside = {path.partition("/")[0].removesuffix(".py") for path in bundle.plain_files}
        for module in dict.fromkeys(_imports(tree)):
            if module in sys.stdlib_module_names | _IMAGE_MODULES[image] or (module in beside and name != REWARD):
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
