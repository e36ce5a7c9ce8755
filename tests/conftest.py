"""Shared by all tests: the one switch that rewrites golden files, and logging that one test does not leave to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

GOLDEN = Path(__file__).parent / "golden"

CheckGolden = Callable[[str, bytes], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--regenerate-golden", action="store_true", help="rewrite tests/golden from what the code gives now")


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Commands that a test runs in its own process configure logging for all that follows."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def check_golden(request: pytest.FixtureRequest) -> CheckGolden:
    """`check_golden(name, data)`: data must equal tests/golden/name, or becomes it under --regenerate-golden."""

    def check(name: str, data: bytes) -> None:
        path = GOLDEN / name
        if request.config.getoption("--regenerate-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        step = "if the change is meant, run pytest --regenerate-golden and raise SCHEMA_VERSION"
        assert path.exists(), f"{path.name} is missing; {step}"
        assert path.read_bytes() == data, f"{path.name} differs from what the code gives now; {step}"

    return check
