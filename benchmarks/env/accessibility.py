"""Reading accessibility trees: our way, the usual way, and two ways that we did not take.

Ours asks the application directly, at once for all elements that it showed last time. The usual way goes level by level, over
the bus. The other two keep a tree that applications fill (their own list of all objects, `org.a11y.atspi.Cache.GetItems`), and
keep it right by their events. Real applications are played by demonstrators; after every action a fresh reading shows the
changes, and those of which no event told. Needs the image full.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from computerrl.benchmarks.env import playing
from computerrl.common.config import DesktopConfig
from computerrl.common.messages import Action, StepResult
from computerrl.env_server.driver import TaskInstance
from computerrl.env_server.drivers import make_driver
from computerrl.env_server.drivers.guest_driver import GuestDriver
from computerrl.env_server.drivers.memory import processes_below
from computerrl.env_server.drivers.screenshots import ScreenshotStore
from computerrl.env_server.guest.reading.dbus import Bus, Call, Connection, Signal, path_of
from computerrl.env_server.guest.reading.tree_walk import ACCESSIBLE, PROPERTIES, ROOT, Node, Reading, TreeWalk
from computerrl.env_server.tasks import FAMILIES

C = TypeVar("C", bound=Connection)
_REGISTRY = "org.a11y.atspi.Registry"
_FAMILIES = {
    "calc": ("soffice", ("calc-type-cell", "forge-calc-correct-value")),
    "writer": ("soffice", ("forge-writer-append-line", "forge-writer-emphasise-heading", "forge-writer-align-one")),
    "impress": ("soffice", ("forge-impress-type-title", "forge-impress-copy-slide", "forge-impress-add-point")),
    "editor": ("mousepad", ("editor-type-save",)),
    "files": ("thunar", ("files-move", "forge-files-rename-by-hand")),
    "chromium": (
        "Chromium",
        ("web-click-option", "web-click-collapsible", "web-search-engine", "web-email-inbox", "web-click-menu"),
    ),
}
"""Application -> its name on the bus, and the family that is played in it."""
_USUAL = "level by level, over the bus"
_SHEETS = frozenset({"document-spreadsheet"})
_NUM_READINGS = 15
_EVENTS_S = 0.3
"""After this long all events have come."""
_MEMBERS = {"name": "PropertyChange", "text": "TextChanged", "states": "StateChanged", "extents": "BoundsChanged"}
"""Property of an object that may change -> the event that tells of it."""
_KINDS = {
    "objects come or gone": ("new", "gone"),
    "states": ("states",),
    "names and texts": ("name", "text"),
    "places": ("extents",),
}


def run(quick: bool) -> list[dict[str, Any]]:
    """The rows; needs Apptainer and the image full."""
    with tempfile.TemporaryDirectory() as name:
        store = ScreenshotStore(Path(name), incarnation="bench")
        driver = make_driver(DesktopConfig(image="full"), index=0, folder=Path(name) / "logs", screenshots=store)
        assert isinstance(driver, GuestDriver)
        try:
            bus = _accessibility_bus(driver)
            for event in ("Object", "Window", "Document"):
                bus.add_match(f"type='signal',interface='org.a11y.atspi.Event.{event}'")
                # All there are: our own readings subscribe to fewer.
                _call(bus, _REGISTRY, "/org/a11y/atspi/registry", _REGISTRY, "RegisterEvent", "sass", (event.lower(), (), ""))
            return [row for app in _FAMILIES for row in _rows(driver, bus, app, num_seeds=1 if quick else 4)]
        finally:
            driver.close()
            store.close()


def _rows(driver: GuestDriver, bus: Bus, app: str, *, num_seeds: int) -> list[dict[str, Any]]:
    label, families = _FAMILIES[app]
    driver.reset(FAMILIES[families[0]].make(0))
    time.sleep(_EVENTS_S)
    name = _name_of(bus, label)
    reading = Reading(closed_below=_SHEETS if label == "soffice" else frozenset())
    own_address = _call(bus, name, ROOT, "org.a11y.atspi.Application", "GetApplicationBusAddress")
    direct = _connect(driver, Connection, own_address)
    warm, on_bus = TreeWalk(direct, name), TreeWalk(bus, name)
    nodes = _read(warm, reading)
    _read(on_bus, reading)
    again, passed, scratch, listed, items = [], [], [], [], []
    for _ in range(_NUM_READINGS):
        again.append(_timed(lambda: _read(warm, reading)))
        passed.append(_timed(lambda: _read(on_bus, reading)))
        scratch.append(_timed(lambda: _read(TreeWalk(bus, name), reading)))
        started = time.perf_counter()
        items = _call(bus, name, "/org/a11y/atspi/cache", "org.a11y.atspi.Cache", "GetItems")
        listed.append(time.perf_counter() - started)
    known = {item[0][1] for item in items}
    direct.close()
    told = _Told(driver, bus, name, reading)
    for family in families:
        for seed in range(num_seeds):
            told.play(FAMILIES[family].make(seed))
    changes = told.changes
    missing = sum(node.path not in known for node in nodes)
    rows = [
        _time_row(f"{app}: {len(nodes)} showing objects read again", again, peer=_USUAL, peer_values=scratch),
        _time_row(f"{app}: read again over the bus", passed, peer=_USUAL, peer_values=scratch),
        _time_row(f"{app}: GetItems, {len(items)} objects", listed),
        _count_row(f"{app}: showing objects that GetItems lacks", missing, len(nodes)),
    ]
    for title, parts in _KINDS.items():
        silent, announced = (sum(changes[part, is_told] for part in parts) for is_told in (False, True))
        rows.append(_count_row(f"{app}: changes of {title} without an event", silent, silent + announced))
    return rows


class _Told:
    """Plays tasks and counts, by kind, the changes that events told of and those they did not."""

    def __init__(self, driver: GuestDriver, bus: Bus, name: str, reading: Reading) -> None:
        self._driver, self._bus, self._name, self._reading = driver, bus, name, reading
        self.changes: Counter[tuple[str, bool]] = Counter()
        """(kind of change, did an event tell of it?) -> how often."""
        self._before: dict[str, tuple[Node, str]] = {}

    def play(self, task: TaskInstance) -> None:
        instruction, observation = self._driver.reset(task)
        time.sleep(_EVENTS_S)
        self._take_events()
        self._before = self._tree()
        playing.solve(self, task, instruction, observation)  # type: ignore[arg-type]  # it steps and gets, as a driver does

    def get(self, kind: Any, **args: Any) -> Any:
        return self._driver.get(kind, **args)

    def step(self, action: Action) -> StepResult:
        result = self._driver.step(action)
        time.sleep(_EVENTS_S)
        events = self._take_events()
        now = self._tree()
        self._compare(self._before, now, events)
        self._before = now
        return result

    def _take_events(self) -> dict[str, set[str]]:
        """Event names by object."""
        self._bus.pump()
        found: dict[str, set[str]] = defaultdict(set)
        signal: Signal
        for signal in self._bus.signals:
            if signal.sender == self._name:
                found[signal.path].add(signal.member)
        self._bus.signals.clear()
        return found

    def _tree(self) -> dict[str, tuple[Node, str]]:
        nodes = _read(TreeWalk(self._bus, self._name), self._reading)
        return {node.path: (node, nodes[node.parent].path if node.parent >= 0 else "") for node in nodes}

    def _compare(self, old: dict[str, tuple[Node, str]], new: dict[str, tuple[Node, str]], events: dict[str, set[str]]) -> None:
        for path in new.keys() - old.keys():
            self.changes["new", _is_told(path, new, old, events)] += 1
        for path in old.keys() - new.keys():
            self.changes["gone", _is_told(path, old, new, events)] += 1
        for path in old.keys() & new.keys():
            for kind, member in _MEMBERS.items():
                if getattr(old[path][0], kind) != getattr(new[path][0], kind):
                    self.changes[kind, member in events.get(path, ())] += 1


def _is_told(
    path: str, tree: dict[str, tuple[Node, str]], other: dict[str, tuple[Node, str]], events: dict[str, set[str]]
) -> bool:
    """Did it, or what it came or went with, change its state, or did the parent of that change its children?"""
    while path and path not in other:
        parent = tree[path][1]
        if "StateChanged" in events.get(path, ()) or "ChildrenChanged" in events.get(parent, ()):
            return True
        path = parent
    return False


def _read(walk: TreeWalk, reading: Reading) -> list[Node]:
    return walk.read(reading, deadline=time.monotonic() + 5.0)


def _accessibility_bus(driver: GuestDriver) -> Bus:
    session = _connect(driver, Bus, _session_bus(driver)[1])
    return _connect(driver, Bus, _call(session, "org.a11y.Bus", "/org/a11y/bus", "org.a11y.Bus", "GetAddress"))


def _session_bus(driver: GuestDriver) -> tuple[int, str]:
    """Process id and address of the desktop's session bus."""
    for pid in processes_below(driver.pid or 0):
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        if words[0].endswith("dbus-daemon") and any(word.endswith("session_bus.conf") for word in words):
            return pid, next(word.partition("=")[2] for word in words if word.startswith("--address="))
    raise RuntimeError("the desktop has no session bus")


def _connect(driver: GuestDriver, kind: type[C], address: str) -> C:
    """Connect to a socket on the desktop from outside its container, and as its user: a bus takes nobody else."""
    pid = _session_bus(driver)[0]
    socket = Path(f"/proc/{pid}/root{path_of(address)}")
    folder = os.open(socket.parent, os.O_PATH)  # root alone may go this way, and the desktop's user the rest of it
    before = os.geteuid()
    os.seteuid(os.stat(f"/proc/{pid}").st_uid)
    try:
        return kind(f"unix:path=/proc/self/fd/{folder}/{socket.name}")
    finally:
        os.seteuid(before)
        os.close(folder)


def _name_of(bus: Bus, label: str) -> str:
    for name, path in _call(bus, _REGISTRY, ROOT, ACCESSIBLE, "GetChildren"):
        if _call(bus, name, path, PROPERTIES, "Get", "ss", (ACCESSIBLE, "Name")) == label:
            return str(name)
    raise RuntimeError(f"{label} is not on the accessibility bus")


def _call(bus: Bus, *call: Any) -> Any:
    results = bus.call(Call(*call))
    return results[0] if results else None


def _timed(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _time_row(name: str, values: Sequence[float], *, peer: str = "", peer_values: Sequence[float] = ()) -> dict[str, Any]:
    ordered = sorted(values)
    spread = f"{ordered[len(ordered) // 10]:.3g}..{ordered[len(ordered) * 9 // 10]:.3g}"
    row: dict[str, Any] = {"name": name, "value": round(statistics.median(values), 5), "unit": "s", "spread": spread}
    row |= {"target": None, "better": "lower"}
    return row | ({"peer": peer, "peer_value": round(statistics.median(peer_values), 5)} if peer_values else {})


def _count_row(name: str, count: int, total: int) -> dict[str, Any]:
    return {"name": name, "value": count, "unit": f"of {total}", "target": None, "better": "lower"}
