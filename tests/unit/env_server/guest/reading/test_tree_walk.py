"""Reading a tree with the last reading in mind gives what a reading from scratch gives, whatever happened between the two."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from computerrl.env_server.drivers import guest_answers
from computerrl.env_server.guest.reading.dbus import Call, DBusError, DBusTimeout
from computerrl.env_server.guest.reading.roles import ROLE_NAMES, SHOWING, VISIBLE
from computerrl.env_server.guest.reading.tree_walk import ROOT, Adopted, Node, Reading, TreeWalk, to_wire
from computerrl.env_server.guest.wire import MAX_DEPTH, MAX_NODES, MAX_OBSERVATION_BYTES, MAX_TREE_CHARS

_NUMBERS = {name: number for number, name in ROLE_NAMES.items()}
_READINGS = (
    Reading(),
    Reading(with_popups=True),
    Reading(never_entered=frozenset({"table"})),
    Reading(with_text=frozenset({"label"})),
    Reading(closed_below=frozenset({"frame"})),
    Reading(with_popups=True, items_never_show=True),
    Reading(with_popups=True, items_hold_menus=True),
)
NOWHERE = -(2**31)
_ROLES = ("panel", "button", "text", "menu", "menu-item", "table", "frame", "label", "document-web")


@dataclass
class Thing:
    """An object of an imitated application."""

    role: str = "panel"
    name: str = ""
    text: str = ""
    shows: bool = True
    place: int = 0
    children: list[str] = field(default_factory=list)


class FakeApp:
    """Answers a walk's calls out of a dictionary; counts rounds and calls."""

    def __init__(self, things: dict[str, Thing]) -> None:
        self.things = things
        self.num_rounds = 0
        self.asked: list[tuple[str, str]] = []

    def call_all(self, calls: Sequence[Call], *, timeout_s: float) -> list[list[Any] | DBusError]:
        assert timeout_s > 0
        self.num_rounds += bool(calls)
        self.asked += [(call.path, call.member) for call in calls]
        return [self._answer(call) for call in calls]

    def _answer(self, call: Call) -> list[Any] | DBusError:
        thing = self.things.get(call.path)
        if thing is None:
            return DBusError("no such object")
        if call.member == "GetState":
            return [[1 << VISIBLE | (1 << SHOWING if thing.shows else 0), 0]]
        if call.member == "GetRole":
            return [_NUMBERS[thing.role]]
        if call.member == "Get":
            return [thing.name]
        if call.member == "GetExtents":
            return [(thing.place, 0, 10, 10)]
        if call.member == "GetText":
            return [thing.text]
        assert call.member == "GetChildren"
        return [[("app", child) for child in thing.children]]


def read(walk: TreeWalk, reading: Reading | None = None) -> list[Any]:
    return walk.read(reading or Reading(), deadline=time.monotonic() + 10)


def make_walk(app: FakeApp) -> TreeWalk:
    return TreeWalk(app, "app")  # type: ignore[arg-type]  # a walk only makes calls


def named(name: str) -> Callable[[Sequence[Node]], set[str]]:
    """Picks top-level objects by their name."""
    return lambda tops: {top.path for top in tops if top.name == name}


def change(rng: random.Random, app: FakeApp) -> None:
    things = app.things
    for _ in range(rng.randrange(6)):
        path = rng.choice(sorted(things))
        thing = things[path]
        what = rng.randrange(8)
        if what == 0:
            child = f"/{len(app.asked)}/{rng.random()}"
            things[child] = Thing(role=rng.choice(_ROLES), name=child, shows=rng.random() < 0.7)
            thing.children.insert(rng.randrange(len(thing.children) + 1), child)
        elif what == 1 and thing.children:
            gone = thing.children.pop(rng.randrange(len(thing.children)))
            if gone != ROOT and gone in things and rng.random() < 0.5:  # else it lives on without a place in the tree
                del things[gone]
        elif what == 2 and path != ROOT:
            thing.shows = not thing.shows
        elif what == 3:
            thing.name, thing.place = f"name {rng.random()}", rng.choice((NOWHERE, rng.randrange(100)))
        elif what == 4:
            thing.text = f"text {rng.random()}"
        elif what == 5 and path != ROOT:
            thing.role = rng.choice(_ROLES)
        elif what == 6:
            rng.shuffle(thing.children)
        elif what == 7:  # now in two places, perhaps within itself
            thing.children.append(rng.choice(sorted(things)))


@pytest.mark.parametrize("seed", range(40))
def test_reading_again_finds_what_reading_from_scratch_finds(seed: int) -> None:
    rng = random.Random(seed)
    app = FakeApp({ROOT: Thing(role="application")})
    walk = make_walk(app)
    for _ in range(30):
        # A path removed from the middle leaves dangling ones behind, as a real application does for a moment.
        change(rng, app)
        reading = rng.choice(_READINGS)
        assert read(walk, reading) == read(make_walk(app), reading)


def test_an_unchanged_tree_is_read_in_one_round() -> None:
    things = {ROOT: Thing(role="application", children=["/0"])}
    for depth in range(12):
        things[f"/{depth}"] = Thing(children=[f"/{depth + 1}"], name=str(depth))
    things["/12"] = Thing(role="text", text="deep")
    app = FakeApp(things)
    walk = make_walk(app)
    first = read(walk)
    num_cold = app.num_rounds
    app.num_rounds = 0
    assert read(walk) == first
    assert (num_cold, app.num_rounds) == (2 * len(things), 1)
    assert first[-1].text == "deep"


def test_what_does_not_show_is_asked_for_its_state_alone() -> None:
    app = FakeApp({ROOT: Thing(role="application", children=["/a"]), "/a": Thing(shows=False, children=["/b"]), "/b": Thing()})
    walk = make_walk(app)
    read(walk)
    app.asked.clear()
    read(walk)
    assert [member for path, member in app.asked if path == "/a"] == ["GetState"]
    assert not [member for path, member in app.asked if path == "/b"]


@pytest.mark.parametrize(
    ("role", "num_hidden", "is_read"),
    [("document-web", 1, True), ("document-web", 8, True), ("document-web", 9, False), ("panel", 1, False)],
)
def test_content_longer_than_its_box_is_read_in_pages_when_the_box_does_not_show(
    role: str, num_hidden: int, is_read: bool
) -> None:
    boxes = [f"/box{number}" for number in range(num_hidden)]
    things = {ROOT: Thing(role="application", children=["/page"]), "/page": Thing(role=role, children=boxes)}
    things |= {box: Thing(shows=False, children=[f"{box}/shown", f"{box}/hidden"]) for box in boxes}
    things |= {f"{box}/shown": Thing(role="label") for box in boxes}
    things |= {f"{box}/hidden": Thing(shows=False, children=[f"{box}/shown"]) for box in boxes}
    walk = make_walk(FakeApp(things))
    for _ in range(2):
        shown = {node.path for node in read(walk) if node.states >> SHOWING & 1}
        assert shown == {ROOT, "/page", *(f"{box}/shown" for box in boxes if is_read)}


def test_an_object_listed_twice_or_within_itself_is_given_once() -> None:
    things = {
        ROOT: Thing(role="application", children=["/a", "/b"]),
        "/a": Thing(children=["/c"]),
        "/b": Thing(children=["/c", ROOT]),
        "/c": Thing(children=["/a"]),
    }
    walk = make_walk(FakeApp(things))
    for _ in range(2):
        assert [(node.path, node.parent) for node in read(walk)] == [(ROOT, -1), ("/a", 0), ("/b", 0), ("/c", 1)]


def test_objects_of_other_applications_are_not_followed() -> None:
    app = FakeApp({ROOT: Thing(role="application", children=["/plug"]), "/plug": Thing()})
    answer = app._answer
    app._answer = lambda call: [[("other", "/plug")]] if call.member == "GetChildren" else answer(call)  # type: ignore[method-assign]
    assert [node.path for node in read(make_walk(app))] == [ROOT]


def test_children_of_what_must_not_be_entered_are_not_asked_for() -> None:
    things = {ROOT: Thing("application", children=["/t"]), "/t": Thing("table", children=["/cell"]), "/cell": Thing()}
    app = FakeApp(things)
    walk = make_walk(app)
    reading = Reading(never_entered=frozenset({"table"}))
    for _ in range(2):
        assert [node.role for node in read(walk, reading)] == ["application", "table"]
    assert ("/t", "GetChildren") not in app.asked
    assert [node.path for node in read(walk)] == [ROOT, "/t", "/cell"]


def test_what_was_not_entered_is_not_entered_by_the_next_reading_unless_that_meets_it() -> None:
    things = {
        ROOT: Thing(role="application", children=["/letter", "/book"]),
        "/letter": Thing(role="frame", name="letter", children=["/words"]),
        "/words": Thing(role="text", text="words"),
        "/book": Thing(role="frame", name="book", children=["/sheet"]),
        "/sheet": Thing(role="table", children=["/cell"]),
        "/cell": Thing(),
    }
    app = FakeApp(things)
    walk = make_walk(app)
    read(walk, Reading(never_entered=frozenset({"table"})))
    app.asked.clear()
    read(walk, Reading(left_out=named("book")))
    assert ("/sheet", "GetChildren") not in app.asked
    assert [node.path for node in read(walk)] == [ROOT, "/letter", "/book", "/words", "/sheet", "/cell"]


def test_a_hidden_main_window_is_left_out_with_all_below_it() -> None:
    things = {
        ROOT: Thing(role="application", children=["/front", "/back"]),
        "/front": Thing(role="frame", name="front"),
        "/back": Thing(role="frame", name="back", children=["/below"]),
        "/below": Thing(name="below"),
    }
    walk = make_walk(FakeApp(things))
    for _ in range(2):
        assert [node.name for node in read(walk, Reading(left_out=named("back")))] == ["", "front"]
    assert [node.name for node in read(walk)] == ["", "front", "back", "below"]


def test_table_of_a_sheet_is_not_entered_and_other_tables_are() -> None:
    things = {
        ROOT: Thing("application", children=["/sheet", "/list"]),
        "/sheet": Thing("document-spreadsheet", children=["/cells"]),
        "/cells": Thing("table", children=["/cell"]),
        "/list": Thing("table", children=["/item"]),
        "/cell": Thing(),
        "/item": Thing(),
    }
    app = FakeApp(things)
    walk = make_walk(app)
    for _ in range(2):
        found = read(walk, Reading(closed_below=frozenset({"document-spreadsheet"})))
        assert [node.path for node in found] == [ROOT, "/sheet", "/list", "/cells", "/item"]
    assert ("/cells", "GetChildren") not in app.asked


def test_items_that_never_show_are_given_while_they_have_a_place() -> None:
    things = {
        ROOT: Thing("application", children=["/menu"]),
        "/menu": Thing("menu", children=["/open", "/closed", "/sub"]),
        "/open": Thing("menu-item", shows=False, place=3),
        "/closed": Thing("menu-item", shows=False, place=NOWHERE),
        "/sub": Thing("menu", shows=False, place=3, children=["/deep"]),
        "/deep": Thing("menu-item", shows=False, place=NOWHERE),
    }
    walk = make_walk(FakeApp(things))
    reading = Reading(with_popups=True, items_never_show=True)
    assert [node.path for node in read(walk, reading)] == [ROOT, "/menu", "/open", "/sub"]
    things["/deep"].place = 5
    assert [node.path for node in read(walk, reading)] == [ROOT, "/menu", "/open", "/sub", "/deep"]
    assert [node.path for node in read(walk, Reading(with_popups=True))] == [ROOT, "/menu"]


def test_menu_below_the_item_that_opens_it_is_entered_where_items_hold_menus() -> None:
    things = {
        ROOT: Thing("application", children=["/media"]),
        "/media": Thing("menu-item", children=["/popup"]),
        "/popup": Thing("popup-menu", children=["/open"]),
        "/open": Thing("menu-item"),
    }
    walk = make_walk(FakeApp(things))
    assert len(read(walk, Reading(with_popups=True, items_hold_menus=True))) == 4
    assert len(read(walk, Reading(items_hold_menus=True))) == len(read(walk, Reading(with_popups=True))) == 2


def test_adopted_objects_are_read_while_they_show() -> None:
    things = {
        ROOT: Thing("application", children=["/main"]),
        "/main": Thing("frame"),
        "/gtk": Thing("application", children=["/dialog"]),
        "/dialog": Thing("file-chooser"),
        "/context": Thing("popup-menu", children=["/item"]),
        "/item": Thing("menu-item"),
    }
    walk = make_walk(FakeApp(things))
    adopted = Adopted().with_more(roots={"/gtk", "/gone"}, orphans=["/main", "/context"])

    def found() -> list[tuple[str, int]]:
        nodes = walk.read(Reading(), deadline=time.monotonic() + 10, adopted=adopted)
        return [(node.path, node.parent) for node in nodes]

    assert found() == [(ROOT, -1), ("/gtk", -1), ("/main", 0), ("/dialog", 1), ("/context", 0), ("/item", 4)]
    things["/context"].shows = False
    things["/gtk"].children.clear()
    assert found() == [(ROOT, -1), ("/gtk", -1), ("/main", 0)]


def test_places_outside_of_documents_are_scaled() -> None:
    things = {
        ROOT: Thing("application", children=["/main"]),
        "/main": Thing("frame", place=2, children=["/page", "/bubble"]),
        "/page": Thing("document-web", place=10, children=["/button"]),
        "/button": Thing("button", place=20),
        "/bubble": Thing("alert", place=30),
        "/gtk": Thing("application", children=["/dialog"]),
        "/dialog": Thing("file-chooser", place=40),
    }
    walk = make_walk(FakeApp(things))
    adopted = Adopted(roots=("/gtk",))
    for _ in range(2):
        nodes = walk.read(Reading(scale=2.5), deadline=time.monotonic() + 10, adopted=adopted)
        found = {node.path: node.extents for node in nodes}
        assert found["/main"] == (5, 0, 25, 25) and found["/bubble"] == (75, 0, 25, 25)
        assert found["/page"][0] == 10 and found["/button"] == (20, 0, 10, 10) and found["/dialog"] == (40, 0, 10, 10)


def test_latest_adopted_objects_are_kept() -> None:
    adopted = Adopted()
    for number in range(200):
        adopted = adopted.with_more(roots=(), orphans=["/first", f"/{number}"])
    assert len(adopted.orphans) == 50 and adopted.orphans[-2:] == ("/first", "/199")


def test_past_the_deadline_nothing_is_asked() -> None:
    app = FakeApp({ROOT: Thing(role="application")})
    with pytest.raises(DBusTimeout):
        make_walk(app).read(Reading(), deadline=time.monotonic() - 1)
    assert app.num_rounds == 0


def test_what_is_sent_of_any_tree_the_host_takes() -> None:
    """Objects within each other, a great many objects, and texts of any length: none of it is a fault of the desktop."""
    chain = {f"/{n}": Thing(children=[f"/{n + 1}"]) for n in range(2 * MAX_DEPTH)}
    deep = FakeApp({ROOT: Thing(role="application", children=["/0"]), **chain})
    nodes = read(make_walk(deep))
    assert len(nodes) == MAX_DEPTH
    wide = [Node(f"/{n}", -1, "label", "\x01" * 1000, None, (0, 0, 1, 1), 0) for n in range(MAX_NODES + 10)]
    long = [Node("/0", -1, "text", "n", "\x01" * (2 * MAX_TREE_CHARS), (0, 0, 1, 1), 0)]
    for tree in (nodes, wide, long):
        frame = json.dumps({"nodes": to_wire(tree), "picture": 1}, separators=(",", ":")).encode()
        assert len(frame) < MAX_OBSERVATION_BYTES
        rows = guest_answers.decode(frame, index=0).nodes
        assert rows is not None and len(guest_answers.tree_of(rows, index=0)) == min(len(tree), MAX_NODES)
