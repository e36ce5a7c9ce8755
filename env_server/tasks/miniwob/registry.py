"""The MiniWoB++ tasks that the installed package registers, read from its source without importing it.

The package is installed as data only (`setup.cfg`, extra `offline`): importing it would need gymnasium and a browser driver. So
its registration and its environment classes are parsed: the list of tasks, their descriptions and their notes on rewards are the
package's own, whatever its version.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

_GRADED = ("get_thresholded_reward", "(from 0 to 1)")
"""What the package's documentation says of tasks whose raw reward is hardly ever exactly 1."""


@dataclass(frozen=True, slots=True)
class RegisteredPage:
    """One registered task."""

    name: str
    """Name of the page's file, without ending; a site of several files has a dot in it."""
    description: str
    """First sentence of the package's documentation."""
    is_graded: bool
    """The raw reward says how close an answer is; success is a threshold on it."""

    @property
    def is_site(self) -> bool:
        """Is it a copied web site (FlightWoB) instead of a page?"""
        return "." in self.name


def registered_pages(package: Path | None = None) -> tuple[RegisteredPage, ...]:
    """All tasks that ``package`` (None: the installed one) registers, by name; none where it is not installed."""
    package = package or _installed()
    if package is None:
        return ()
    pages = []
    documented = {entry: page for file in (package / "envs").glob("*_envs.py") for entry, page in _documented(file)}
    for name, entry_point in _registered(package / "registration.py"):
        subdomain, text = documented[entry_point.rpartition(":")[2]]
        assert subdomain == name, (subdomain, name)
        pages.append(RegisteredPage(name, _first_sentence(text) or name, any(word in text for word in _GRADED)))
    return tuple(sorted(pages, key=lambda page: page.name))


def _installed() -> Path | None:
    spec = find_spec("miniwob")
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def _registered(file: Path) -> Iterator[tuple[str, str]]:
    """(page, entry point) of every `register(id="miniwob/<page>-v1", entry_point=...)`."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "register":
            given = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords if keyword.arg}
            yield str(given["id"]).removeprefix("miniwob/").rpartition("-v")[0], str(given["entry_point"])


def _documented(file: Path) -> Iterator[tuple[str, tuple[str, str]]]:
    """(class, (page, documentation)) of every environment class."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for line in node.body:
            if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name) and line.targets[0].id == "subdomain":
                yield node.name, (str(ast.literal_eval(line.value)), ast.get_docstring(node) or "")


def _first_sentence(documentation: str) -> str:
    body = documentation.partition("## Description")[2].strip().partition("\n\n")[0]
    return " ".join(body.split()).rstrip(".")
