"""Shared by all tests: switches for golden files and long repetitions, and logging that one test does not leave to the next."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests.support.desktops import SharedDesktops
from tests.support.tiers import THINNED, thin

GOLDEN = Path(__file__).parent / "golden"

CheckGolden = Callable[[str, bytes], None]


# `make test-release` chooses the second one (--hypothesis-profile=release).
settings.register_profile("default", max_examples=30, deadline=None)
settings.register_profile("release", max_examples=400, deadline=None)
settings.load_profile("default")

# Before anything imports torch or NumPy. Files are played side by side: threads of several processes that share two cores spin
# while they wait for each other, and a test of packs took three times the processor time.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure() -> None:
    """Shells start what runs in the background with SIGINT ignored, and processes that tests start would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files without a test of the default tier are not even imported for it: each worker would."""
    return (config.option.markexpr == "not release" and THINNED.get(collection_path.stem) == 0) or None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="every seed of every web page and every near miss on desktops")
    parser.addoption("--regenerate-golden", action="store_true", help="rewrite tests/golden from what the code gives now")


SHARING_FILES = {
    "desktop-core": (
        "test_browser_tools",
        "test_calc_tools",
        "test_desktop_actions",
        "test_driver_contract",
        "test_osworld_on_desktop",
        "test_pointer_actions",
        "test_tasks_on_desktops",
        "test_visible_elements",
    ),
    "desktop-full": (
        "test_files_tools",
        "test_gimp_tools",
        "test_impress_tools",
        "test_osworld_settings",
        "test_osworld_sites",
        "test_visible_menus",
        "test_vlc_tools",
        "test_writer_tools",
    ),
    "desktop-osworld": ("test_code_on_desktop", "test_tools_image"),
}
"""Files that play on a worker's shared desktop, by its image: one worker plays all of them."""
LONGEST_FIRST = (
    "test_engine_contract",
    "test_train_process",
    "desktop-full",
    "test_cluster_jobs",
    "desktop-core",
    "test_setup_packages",
    "test_arm_studies",
    "test_fault_benchmarks",
    "test_loop_kill_resume",
    "test_learner_ranks",
    "test_weight_broadcast",
    "test_dashboard_page",
    "test_engine_memo",
)
"""Groups that take longest, the longest first: begun late, one of them would end the run alone."""
_GROUPS = {file: group for group, files in SHARING_FILES.items() for file in files}


def group_of(path: str | Path) -> str:
    """Group of a test file: a worker plays all tests of a group one after the other. Most files are groups of their own."""
    return _GROUPS.get(Path(path).stem, Path(path).stem)


class GroupScheduling(LoadScopeScheduling):
    """Hands out whole groups. The marker `xdist_group` of pytest-xdist 3.8 has no effect with pytest 9."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid.partition("::")[0])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling | None:
    """With `--dist loadfile`: files that share a desktop stay together."""
    return GroupScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)  # Before pytest deselects by markers.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Thin files out for the default tier, and sort groups: the longest first. Of the others, tests of desktops mostly wait and
    the rest compute: mixed, workers share the cores better than with one kind after the other. The last fifth are short files, so
    that all workers end at the same time.
    """
    thin(items)
    kinds: dict[bool, dict[str, None]] = {True: {}, False: {}}
    for item in items:
        kinds["integration" in item.path.parts][group_of(item.path)] = None
    place = {
        group: number / len(groups) * (0.8 if waits else 1.0)
        for waits, groups in kinds.items()
        for number, group in enumerate(groups)
    }
    place |= {group: float(number - len(LONGEST_FIRST)) for number, group in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: place[group_of(item.path)])


def pytest_sessionstart() -> None:
    """What is imported and collected stays: the collector would look through it again and again."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


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
def own_threads() -> Iterator[None]:
    """A policy or an engine that a test made with two threads sets them for the whole process. Beside other workers, threads of
    the tests after it would wait for each other: one took ten times the processor time."""
    yield
    torch = sys.modules.get("torch")
    if torch is not None and "OMP_NUM_THREADS" in os.environ:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


@pytest.fixture(autouse=True)
def own_niceness() -> Iterator[None]:
    """A process that gave way cannot take it back, unless it is root's: all tests after it would be slow."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    yield
    assert os.getpriority(os.PRIO_PROCESS, 0) == before, "the test changed the niceness of the process that plays all tests"


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
