"""Shared by all tests: switches for golden files and long repetitions, and logging that one test does not leave to the next."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

from tests.desktops import SharedDesktops

GOLDEN = Path(__file__).parent / "golden"

CheckGolden = Callable[[str, bytes], None]


# `make test-release` chooses the second one (--hypothesis-profile=release).
settings.register_profile("default", max_examples=60, deadline=None)
settings.register_profile("release", max_examples=400, deadline=None)
settings.load_profile("default")

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


LONGEST_FIRST = (
    "desktop-full", "test_engine_contract", "test_cluster_jobs", "test_arm_studies", "test_train_process", "desktop-core",
    "test_fault_benchmarks", "test_loop_kill_resume", "test_learner_ranks", "test_weight_broadcast",
)  # fmt: skip
"""Groups that take longest, the longest first: begun late, one of them would end the run alone."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group tests for `--dist loadgroup` and sort the groups: a worker plays all tests of a group one after the other.

    A group is a file, or the files that share a desktop. The longest come first. Of the others, tests of desktops mostly wait
    and the rest compute: mixed, workers share the cores better than with one kind after the other. Short files of one kind
    come last, so that all workers end at about the same time.
    """
    groups: dict[bool, dict[str, None]] = {True: {}, False: {}}
    group_of: dict[pytest.Item, str] = {}
    for item in items:
        marker = item.get_closest_marker("xdist_group")
        if marker is None:
            item.add_marker(marker := pytest.mark.xdist_group(item.path.stem))
        group_of[item] = marker.args[0]
        groups["integration" in item.path.parts][marker.args[0]] = None
    place = {
        group: number / len(names) * (0.8 if waits else 1.0)
        for waits, names in groups.items()
        for number, group in enumerate(names)
    }
    place |= {group: number - len(LONGEST_FIRST) for number, group in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: place[group_of[item]])


@pytest.fixture(scope="session")
def shared_desktops(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedDesktops]:
    """The desktops that files of this worker play on in turn."""
    desktops = SharedDesktops(lambda image: tmp_path_factory.mktemp(f"desktop-{image}"))
    yield desktops
    desktops.close()


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
