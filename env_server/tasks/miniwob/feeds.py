"""Demonstrators of long pages that have to be scrolled: posts of a social medium, a restaurant's menu, a day's calendar."""

from __future__ import annotations

from computerrl.common.messages import Action
from computerrl.env_server.tasks.miniwob.scene import (
    ENTRY,
    Demonstrator,
    Scene,
    Shape,
    click_at,
    drag,
    key,
    plain,
    turn_wheel,
    write,
)

_TOP, _BOTTOM = 52, 200
"""CSS pixels between which things can be clicked."""


def reach(scene: Scene, shape: Shape, *, bottom: int = _BOTTOM) -> Action:
    """Click on ``shape``, after scrolling to it where it is out of sight; ``bottom``: CSS pixels, above a scroll bar."""
    middle = (70 * scene.scale, 130 * scene.scale)
    if shape.y > bottom * scene.scale:
        return turn_wheel(*middle, "down", clicks=_clicks(scene, shape.y - bottom * scene.scale))
    if shape.y < _TOP * scene.scale:
        return turn_wheel(*middle, "up", clicks=_clicks(scene, _TOP * scene.scale - shape.y))
    return scene.click_on(shape)


def _clicks(scene: Scene, distance: float) -> int:
    """A click of the wheel scrolls by 120 CSS pixels."""
    return max(1, min(10, int(distance / (120 * scene.scale))))


def _posts(scene: Scene, user: str, icon: str) -> list[Shape]:
    """That icon of every post by ``user``, top to bottom."""
    names = [shape for shape in scene.shapes if shape.kind == "username"]
    icons = [shape for shape in scene.shapes if shape.kind.split()[:1] == [icon]]
    return [icon for name, icon in zip(names, icons, strict=True) if name.text == user]


_BUTTONS = {"Reply": "reply", "Retweet": "retweet", "Like": "like", "Share": "share"}


def _one_post(scene: Scene) -> Action:
    user, button = scene.said(r'For the user (@.+), click on the "(.+)" button\.')
    if button in _BUTTONS:
        return reach(scene, _posts(scene, user, _BUTTONS[button])[0])
    items = [shape for shape in scene.shapes if shape.tag == "li" and plain(shape.text).startswith(button)]
    return reach(scene, items[0] if items else _posts(scene, user, "more")[0])


def _several_posts(scene: Scene) -> Action:
    button, amount, user = scene.said(r'Click the "(\w+)" button on (all posts|\d+ posts?) by (@.+) and then click Submit\.')
    posts = _posts(scene, user, _BUTTONS[button])
    wanted = posts if amount == "all posts" else posts[: int(amount.split()[0])]
    for post in wanted:
        if "active" not in post.kind.split():
            return reach(scene, post)
    return reach(scene, scene.shape(lambda shape: shape.tag == "button" and shape.text == "Submit"))


def _order(scene: Scene) -> Action:
    """Dishes by name, or any that carry the asked sign."""
    dishes = [shape for shape in scene.shapes if shape.kind == "item-name"]
    adds = [shape for shape in scene.shapes if shape.kind == "add"]
    if scene.instruction.startswith("Order one of each item: "):
        names = scene.said(r"Order one of each item: (.+)")[0].split(", ")
        wanted = [place for place, dish in enumerate(dishes) if plain(dish.text) in names]
    else:
        amount, sign = scene.said(r"Order (\d) items that are (.+)")
        signs = [shape for shape in scene.shapes if shape.picture == sign]
        fits = [place for place, dish in enumerate(dishes) if any(0 < s.y - dish.y < 30 * scene.scale for s in signs)]
        wanted = [fits[turn % len(fits)] for turn in range(int(amount))]
    ordered = scene.num("click")
    if ordered < len(wanted):
        return reach(scene, adds[wanted[ordered]])
    return reach(scene, scene.shape(lambda shape: shape.tag == "button"))


_LENGTHS = {"30 mins": 1, "0.5 hours": 1, "60 mins": 2, "1 hour": 2, "90 mins": 3, "1.5 hours": 3}
"""Half hours."""
_WHEEL_TRIES = 6


def _calendar(scene: Scene) -> Action:
    """Drag over free half hours, then name the event."""
    length, name, begin, end = scene.said(r'Create a (.+) event named "(.+)", between (\d+[AP]M) and (\d+[AP]M)\.')
    if scene.has("event-name"):
        if scene.num("type"):
            return reach(scene, scene.shape(lambda shape: shape.text == "Create"), bottom=190)
        field = scene.one(ENTRY)
        return write(name) if "focused" in field.states else scene.click(field)
    slots = {int(shape.id.removeprefix("hh-")): shape for shape in scene.shapes if shape.kind == "half-hour"}
    events = [shape for shape in scene.shapes if "event" in shape.kind.split()]
    busy = {number for number, slot in slots.items() if any(_meet(slot, event, 6 * scene.scale) for event in events)}
    last_start = _half_hour(end) - _LENGTHS[length]
    free = [
        numbers
        for start in range(_half_hour(begin), last_start + 1)
        if not busy & set(numbers := range(start, start + _LENGTHS[length]))
    ]
    places = [(slots[numbers[0]], slots[numbers[-1]]) for numbers in free]
    for first, last in places:
        if first.top >= _TOP * scene.scale and last.bottom <= _BOTTOM * scene.scale:
            return drag((last.x, first.y), (last.x, last.y + 0.2 * last.height))
    way = "up" if places[0][0].top < _TOP * scene.scale else "down"
    if scene.num("scroll") < _WHEEL_TRIES:
        return turn_wheel(70 * scene.scale, 130 * scene.scale, way, clicks=1)
    # The wheel jumps past it: the arrow keys go in smaller steps, once the calendar has been clicked.
    return key(way) if scene.num("click") else click_at(15 * scene.scale, 130 * scene.scale)


def _half_hour(hour: str) -> int:
    return 2 * (int(hour[:-2]) % 12 + (12 if hour.endswith("PM") else 0))


def _meet(slot: Shape, event: Shape, least: float) -> bool:
    return slot.top < event.bottom - least and event.top < slot.bottom - least


DEMONSTRATORS: dict[str, Demonstrator] = {
    "social-media": _one_post,
    "social-media-all": _several_posts,
    "social-media-some": _several_posts,
    "order-food": _order,
    "daily-calendar": _calendar,
}
