"""Metrics that run what the agent wrote: inside the container, as the agent's user, never on the host."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from computerrl.env_server.tasks.osworld import suite_runner
from computerrl.env_server.tasks.osworld.desktop import HOME, OsworldDesktop, bring

_LIMIT_S = 30.0


def check_python_file_by_test_suite(
    desktop: OsworldDesktop, result: str, expected: str, *, test_function_name: str = "test", **_: Any
) -> float:
    """The function of the task's test suite says that the agent's program is right; a suite that raises says no.

    The suite finds all files that were fetched with the program; a function that takes an argument gets the program's path. The
    program runs in a process of its own and cannot say the verdict (`suite_runner`).
    """
    desktop.bring_own_files()
    folder = f"{HOME}/.cache/program-{secrets.token_hex(8)}"
    suite = f"{HOME}/.cache/suite-{secrets.token_hex(8)}.py"
    for place in Path(result).parent.iterdir():
        bring(desktop, f"{folder}/{place.name}", place.read_bytes())
    bring(desktop, suite, Path(expected).read_bytes())
    source = Path(suite_runner.__file__).read_text(encoding="utf-8")
    code = f"source = {source!r}\nexec(source)\nmain(source)"
    arguments = [folder, test_function_name, f"{folder}/{Path(result).name}", suite]
    answer = desktop.run(["python3", "-I", "-c", code, *arguments], timeout_s=_LIMIT_S)
    desktop.run(["rm", "-rf", folder, suite])
    try:
        return float(answer.stdout) if answer.returncode == 0 else 0.0
    except ValueError:
        return 0.0


RUN_ON_DESKTOP: Mapping[str, Callable[..., float]] = {"check_python_file_by_test_suite": check_python_file_by_test_suite}
"""Metric -> function that also gets the desktop."""
