"""Shared by all tests: switches for golden files and long repetitions, and logging that one test does not leave to the next."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

GOLDEN = Path(__file__).parent / "golden"

CheckGolden = Callable[[str, bytes], None]


# Before anything imports torch or NumPy. Files are played side by side: threads of several processes that share two cores spin
# while they wait for each other, and a test of packs took three times the processor time.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure() -> None:
    """Shells start what runs in the background with SIGINT ignored, and processes that tests start would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="every seed of every web page and every near miss on desktops")
    parser.addoption("--regenerate-golden", action="store_true", help="rewrite tests/golden from what the code gives now")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of desktops mostly wait, the others compute: mixed, two workers share the cores better than one kind after the other.
    The last fifth are short files, so that both end at the same time."""
    kinds: dict[bool, dict[Path, None]] = {True: {}, False: {}}
    for item in items:
        kinds["integration" in item.path.parts][item.path] = None
    place = {
        path: number / len(paths) * (0.8 if waits else 1.0) for waits, paths in kinds.items() for number, path in enumerate(paths)
    }
    items.sort(key=lambda item: place[item.path])


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """What a role sets for its libraries, and tests run in this process, is not the next test's."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


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
