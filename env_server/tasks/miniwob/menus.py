"""Demonstrators of pages with menus, trees, calendars and search: things that open other things."""

from __future__ import annotations

import re

from computerrl.common.messages import Action
from computerrl.env_server.tasks.elements import role_of
from computerrl.env_server.tasks.miniwob.feeds import reach
from computerrl.env_server.tasks.miniwob.scene import ANY, ENTRY, Demonstrator, Scene, click_at, ordinal, plain, write
from computerrl.env_server.tasks.miniwob.text import choose_offer

_PLAYBACK = ("Prev", "Stop", "Play", "Next")
_ICON_LABELS = {
    "ui-icon-disk": "Save",
    "ui-icon-seek-start": "Prev",
    "ui-icon-stop": "Stop",
    "ui-icon-play": "Play",
    "ui-icon-seek-end": "Next",
    "ui-icon-zoomin": "Zoom In",
    "ui-icon-zoomout": "Zoom Out",
}
_MONTHS = "January February March April May June July August September October November December".split()  # noqa: SIM905
_DAY = frozenset({"link", "table cell"})


def _menu_path(scene: Scene) -> Action:
    """Hover opens what is below an item; a click on one that is no leaf would be the answer already."""
    path = scene.said(r"Select (.+)")[0].split(">")
    item = scene.one(ANY, path[min(scene.step, len(path) - 1)])
    return scene.click(item) if scene.step >= len(path) - 1 else scene.hover(item)


def _menu_item(scene: Scene) -> Action:
    match = re.search(r'item labeled "(.+)"', scene.instruction)
    if match:
        label = match.group(1)
    else:
        icon = scene.shape(lambda shape: shape.kind.startswith("ui-icon ") and shape.y < 50 * scene.scale)
        label = _ICON_LABELS[icon.kind.split()[1]]
    path = ["Menu", *(["Playback"] if label in _PLAYBACK else []), label]
    return scene.click(scene.one(ANY, path[min(scene.step, len(path) - 1)]))


def _tree(scene: Scene) -> Action:
    """Open folders top to bottom until the name shows."""
    name = scene.said(r'Navigate through the file tree\. Find and click on the folder or file named "(.+)"\.')[0]
    if scene.all(ANY, name):
        return scene.click(scene.one(ANY, name))
    closed = scene.shape(lambda shape: "expandable-hitarea" in shape.kind)
    return click_at(closed.x, closed.y)


def pick_date(scene: Scene, field_id: str, date: str) -> Action | None:
    """The next step of picking ``date`` (MM/DD/YYYY) in a calendar that opens below a field; None when it is picked."""
    heading = next((shape.text for shape in scene.shapes if shape.kind == "ui-datepicker-month"), None)
    if heading is None:  # an open one may cover the field
        field = scene.shape(lambda shape: shape.id == field_id)
        entry = min(scene.all(ENTRY), key=lambda element: abs(element.y - field.y))
        return None if plain(entry.text) == date else scene.click(entry)
    month, day, year = (int(part) for part in date.split("/"))
    shown = int(next(shape.text for shape in scene.shapes if shape.kind == "ui-datepicker-year")) * 12 + _MONTHS.index(heading)
    wanted = year * 12 + month - 1
    if shown != wanted:
        return scene.click(scene.one(ANY, "Prev" if shown > wanted else "Next"))
    return scene.click(scene.one(_DAY, str(day)))


def _choose_date(scene: Scene) -> Action:
    date = scene.said(r"Select (\d\d/\d\d/\d{4}) as the date and hit submit\.")[0]
    return pick_date(scene, "datepicker", date) or scene.press()


def _search(scene: Scene) -> Action:
    words, nth = scene.said(r'Use the textbox to enter "(.+)" and press "Search", then find and click the (\w+) search result\.')
    page, place = divmod(ordinal(nth), 3)
    if scene.step < 3:
        return scene.in_turn(scene.enter, lambda: write(words), lambda: scene.press("Search"))
    if page and scene.step == 3:
        return scene.click(scene.one(frozenset({"link"}), str(page + 1)))
    return scene.click_on(scene.nth_shape(place, lambda shape: shape.kind == "search-title"))


def _phone_book(scene: Scene) -> Action:
    name, wanted = scene.said(r"Find (.+) in the contact book and click on their (phone|email|address)(?: number)?\.")
    shown = scene.shape(lambda shape: shape.kind == "name")
    if plain(shown.text) == name:
        return scene.click_on(scene.shape(lambda shape: shape.kind == wanted))
    return scene.click(scene.one(frozenset({"link"}), ">"))


def _book_flight(scene: Scene) -> Action:
    wish, start, end, date = scene.said(r"Book the (\w+) one-way flight from: (.+) to: (.+) on (\d\d/\d\d/\d{4})\.")
    flights = [shape for shape in scene.shapes if shape.kind == "flight-price"]
    if flights:
        durations = [shape.text for shape in scene.shapes if shape.kind == "time-duration"]
        worth = [int(f.text.rpartition("$")[2]) for f in flights] if wish == "cheapest" else list(map(_minutes, durations))
        return reach(scene, flights[worth.index(min(worth))], bottom=190)
    # The calendar covers both fields: they are filled by the time it opens.
    is_calendar_open = any(shape.kind == "ui-datepicker-month" for shape in scene.shapes)
    for nth, place in enumerate(() if is_calendar_open else (start, end)):
        field = scene.one(ENTRY, nth=nth)
        if not _names(field.text, place):
            items = [e for e in scene.area if _names(e.text, place) and role_of(e) not in ENTRY]
            return choose_offer(scene, field, place, items)
    return pick_date(scene, "datepicker", date) or scene.press("Search")


def _names(text: str, place: str) -> bool:
    """Is ``text`` an airport such as `Anvik, AK (ANV)` of this city or with this code?"""
    return text.strip().endswith(f"({place})") or text.strip().startswith(f"{place} (")


def _minutes(text: str) -> int:
    hours, minutes = re.findall(r"\d+", text)
    return 60 * int(hours) + int(minutes)


DEMONSTRATORS: dict[str, Demonstrator] = {
    "click-menu": _menu_path,
    "click-menu-2": _menu_item,
    "navigate-tree": _tree,
    "choose-date": _choose_date,
    "choose-date-easy": _choose_date,
    "choose-date-medium": _choose_date,
    "choose-date-nodelay": _choose_date,
    "search-engine": _search,
    "phone-book": _phone_book,
    "book-flight": _book_flight,
    "book-flight-nodelay": _book_flight,
}
