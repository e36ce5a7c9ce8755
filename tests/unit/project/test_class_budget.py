"""The class budget: no class of the product or of the benchmarks has more than 250 lines or 20 methods."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("actor", "benchmarks", "broker", "common", "env_server", "launch", "learner")
MAX_LINES = 250
"""Lines of a class, from its `class` statement to its last line."""
MAX_METHODS = 20
"""Functions directly in a class's body."""

Size = tuple[int, int]
"""Lines and methods of a class."""


def classes(source: str) -> Iterator[tuple[str, Size]]:
    """(name, size) of every class in ``source``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            num_methods = sum(isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)) for part in node.body)
            yield node.name, ((node.end_lineno or node.lineno) - node.lineno + 1, num_methods)


def sizes() -> dict[tuple[str, str], Size]:
    return {
        (path.relative_to(ROOT).as_posix(), name): size
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name, size in classes(path.read_text(encoding="utf-8"))
    }


def test_no_class_exceeds_the_budget() -> None:
    too_large = [
        f"{file}: {name} has {size[0]} lines and {size[1]} methods"
        for (file, name), size in sizes().items()
        if size[0] > MAX_LINES or size[1] > MAX_METHODS
    ]
    assert not too_large, "\n".join(too_large)


@pytest.mark.parametrize(("num_methods", "num_fields"), [(21, 0), (1, 300)])
def test_class_above_either_limit_is_found(num_methods: int, num_fields: int) -> None:
    fields = "".join(f"    f{number} = 0\n" for number in range(num_fields))
    methods = "".join(f"    def m{number}(self): ...\n" for number in range(num_methods))
    [(name, size)] = classes(f"class Large:\n{fields}{methods}")
    assert name == "Large" and (size[0] > MAX_LINES or size[1] > MAX_METHODS)
