"""Metrics that run what the agent wrote: inside the container, as the agent's user, never on the host."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from env_server.tasks.osworld.desktop import HOME, OsworldDesktop

_LIMIT_S = 30.0

_RUNNER = """
import importlib.util, inspect, os, sys
folder, name, program, mark = sys.argv[1:]
spec = importlib.util.spec_from_file_location("suite", os.path.join(folder, "suite.py"))
suite = importlib.util.module_from_spec(spec)
sys.path.insert(0, folder)
os.chdir(folder)
spec.loader.exec_module(suite)
test = getattr(suite, name)
answer = test(program) if inspect.signature(test).parameters else test()
print(mark + ("1" if answer else "0"))
"""


def check_python_file_by_test_suite(
    desktop: OsworldDesktop, result: str, expected: str, *, test_function_name: str = "test", **_: Any
) -> float:
    """The function of the task's test suite says that the agent's program is right.

    The suite runs beside all files that were fetched with the program, so that either can import them; a function that takes an
    argument gets the program's path. The verdict counts only behind a mark that the program cannot know before it runs; a suite
    that raises says no.
    """
    folder = f"{HOME}/.cache/suite-{secrets.token_hex(8)}"
    mark = secrets.token_hex(16)
    program = f"{folder}/{Path(result).name}"
    for place in Path(result).parent.iterdir():
        desktop.put_file(f"{folder}/{place.name}", place.read_bytes())
    desktop.put_file(f"{folder}/suite.py", Path(expected).read_bytes())
    answer = desktop.run(["python3", "-c", _RUNNER, folder, test_function_name, program, mark], timeout_s=_LIMIT_S)
    desktop.run(["rm", "-rf", folder])
    return 1.0 if answer.stdout.rstrip().endswith(f"{mark}1") and answer.returncode == 0 else 0.0


RUN_ON_DESKTOP: Mapping[str, Callable[..., float]] = {"check_python_file_by_test_suite": check_python_file_by_test_suite}
"""Metric -> function that also gets the desktop."""
