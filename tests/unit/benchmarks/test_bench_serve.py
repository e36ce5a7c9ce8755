"""`bench serve` refuses, before anything starts, what it cannot measure."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from computerrl.benchmarks.env.serve import run
from computerrl.common.errors import ConfigError

REFUSALS: dict[str, tuple[Callable[[Path], dict[str, Any]], str, str]] = {
    "a part that there is not": (lambda folder: {"part": ("steps", "stepz")}, "--part", "no part stepz"),
    "a folder without the program": (lambda folder: {"osworld_server": folder}, "--osworld-server", "has no main.py"),
    "packages of no program": (lambda folder: {"server_packages": folder}, "--server-packages", "no server"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_options_that_name_nothing_to_measure_are_refused_by_name(name: str, tmp_path: Path) -> None:
    options, field, reason = REFUSALS[name]
    with pytest.raises(ConfigError) as error:
        next(run(True, **options(tmp_path)))
    [problem] = error.value.problems
    assert problem.field == field and reason in problem.reason and problem.next_step
