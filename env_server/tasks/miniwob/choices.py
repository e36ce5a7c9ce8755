"""Demonstrators of pages where given choices have to be made: boxes, lists, radio buttons, marks."""

from __future__ import annotations

from computerrl.common.messages import Action, Element
from computerrl.env_server.tasks.elements import CHECK, RADIO, select
from computerrl.env_server.tasks.miniwob.scene import ANY, BUTTON, Demonstrator, Scene, ordinal, plain, turn_wheel, write

COMBO = frozenset({"combo box"})
OPTION = frozenset({"list item", "menu item", "option"})

_SYNONYMS = (
    "big large huge enormous gigantic", "small tiny little mini petite", "red scarlet crimson vermillion",
    "happy cheerful joyful gleeful delighted", "sad unhappy sorrowful miserable tragic", "angry mad furious irritated",
    "evil wicked immoral sinful corrupt depraved", "wrong incorrect mistaken erroneous", "real genuine actual",
    "strange odd peculiar unusual weird", "stop cease halt end finish", "scared terrified panicked fearful frightened afraid",
    "quiet calm peaceful serene mild", "old aged archaic", "love like adore favor", "kill murder assassinate",
    "keep retain preserve sustain maintain", "hide conceal camouflage", "hate despise loathe detest dislike",
    "funny humorous amusing comical laughable", "fat fleshy plump chubby", "stupid dumb dull unwise",
    "delicious savory delectable appetizing", "cut slice carve chop", "brave courageous fearless", "begin start initiate launch",
    "answer reply response", "television televisions TV TVs", "house home houses homes", "fire flame fires flames",
    "pig pork swine", "rabbit rabbits bunny bunnies", "car cars automobile automobiles vehicle vehicles", "water",
)  # fmt: skip

_DIGITS = (
    "0110 1001 1001 1001 1001 1001 0110",
    "0010 0110 0010 0010 0010 0010 0010",
    "0110 1001 1001 0010 0100 1000 1111",
    "0110 1001 0001 0110 0001 1001 0110",
    "1000 1010 1010 1111 0010 0010 0010",
    "1111 1000 1000 1110 0001 1001 0110",
    "0110 1001 1000 1110 1001 1001 0110",
    "1111 1001 0001 0010 0010 0100 0100",
    "0110 1001 1001 0110 1001 1001 0110",
    "0110 1001 1001 0111 0001 1001 0110",
)
"""The page's digits, drawn in rows of four boxes."""


def _check_all(scene: Scene) -> Action:
    named = scene.said(r"Select (.+) and click Submit\.")[0]
    wanted = [] if named == "nothing" else named.split(", ")
    for text in wanted:
        unchecked = [box for box in scene.all(CHECK, text) if "checked" not in box.states]
        if unchecked:
            return scene.click(unchecked[0])
    return scene.press()


def _check_similar(scene: Scene) -> Action:
    wanted = scene.said(r"Select words similar to (.+) and click Submit\.")[0].split(", ")
    similar = {word for group in _SYNONYMS for word in group.split() if set(wanted) & set(group.split())}
    for box in scene.all(CHECK):
        if plain(box.text) in similar and "checked" not in box.states:
            return scene.click(box)
    return scene.press()


def _draw_digit(scene: Scene) -> Action:
    pattern = _DIGITS[int(scene.said(r'Draw the number "(\d)" .*')[0])].replace(" ", "")
    boxes = sorted(scene.all(CHECK), key=lambda box: (round(box.y / 10), box.x))
    for box, mark in zip(boxes, pattern, strict=True):
        if mark == "1" and "checked" not in box.states:
            return scene.click(box)
    return scene.press()


def _choose(scene: Scene) -> Action:
    """A closed list: open it, click the item or, where it is out of sight, type its name."""
    wanted = scene.said(r"Select (.+) from the list and click Submit\.")[0]

    def choose() -> Action:
        shown = [item for item in select(scene.observation, OPTION) if plain(item.text) == wanted]
        return scene.click(shown[0]) if shown else Action("type", {"text": wanted, "enter": True})

    return scene.in_turn(lambda: scene.click(scene.one(COMBO)), choose, scene.press)


def _choose_several(scene: Scene) -> Action:
    """An open list: click the first, then the others with Ctrl held; what is out of sight is scrolled to."""
    wanted = scene.said(r"Select (.+) from the scroll list and click Submit\.")[0].split(", ")
    frame = scene.shape(lambda shape: shape.tag == "select")
    num_chosen = scene.num("click")
    if num_chosen == len(wanted):
        return scene.press()
    shown = [item for item in scene.all(OPTION, wanted[num_chosen]) if frame.top < item.y < frame.bottom]
    if not shown:
        return turn_wheel(frame.x, frame.y, "down" if scene.num("scroll") // 3 % 2 == 0 else "up", clicks=1)
    return scene.click(shown[0], hold="ctrl" if num_chosen else "")


def _radio_and_number(scene: Scene) -> Action:
    radio, number, field = scene.said(r'Check the (\w+) radio button and enter the number "(-?\d+)" into the (\w+) textbox\.')
    return scene.in_turn(
        lambda: scene.click(scene.one(RADIO, nth=ordinal(radio))),
        lambda: scene.enter(ordinal(field)),
        lambda: write(number),
        scene.press,
    )


def _odd_or_even(scene: Scene) -> Action:
    numbers = sorted((element for element in scene.all(ANY) if _is_number(element)), key=lambda element: element.y)
    if scene.step < len(numbers):
        text = "Odd" if int(plain(numbers[scene.step].text)) % 2 else "Even"
        return scene.press(text, nth=scene.step)
    return scene.press()


def _is_number(element: Element) -> bool:
    return plain(element.text).removeprefix("-").isdigit() and element.is_plain_text


def _height_and_answer(scene: Scene) -> Action:
    height, answer = scene.said(r'Choose (.+) from the dropdown, then click the button labeled "(\w+)"\.')
    if scene.step == 0:
        return scene.click_on(scene.shape(lambda shape: shape.kind == "selectric" or shape.kind == "label"))
    if scene.num("click") == 1:
        item = scene.shape(lambda shape: shape.tag == "li" and plain(shape.text) == height)
        items = scene.shape(lambda shape: shape.kind.startswith("selectric-items"))
        if item.y > items.bottom - 10:
            return turn_wheel(items.x, items.y, "down", clicks=1)
        return scene.click_on(item)
    return scene.click(scene.one(BUTTON, answer))


def _best_ticket(scene: Scene) -> Action:
    wish = scene.said(r"Buy the ticket with the (.+)\.")[0]
    buttons = sorted((b for b in scene.all(BUTTON) if "$" in b.text), key=lambda button: button.y)
    durations = sorted((e for e in scene.all(ANY) if _minutes(plain(e.text)) is not None), key=lambda element: element.y)
    worth = [int(b.text.rpartition("$")[2]) for b in buttons] if "cost" in wish else [_minutes(plain(e.text)) for e in durations]
    known = [value for value in worth if value is not None]
    best = min(known) if wish.startswith(("cheapest", "shortest")) else max(known)
    return scene.click(buttons[known.index(best)])


def _minutes(text: str) -> int | None:
    hours, _, minutes = text.partition("h ")
    if hours.isdigit() and minutes.endswith("m") and minutes[:-1].isdigit():
        return 60 * int(hours) + int(minutes[:-1])
    return None


DEMONSTRATORS: dict[str, Demonstrator] = {
    "click-checkboxes-large": _check_all,
    "click-checkboxes-transfer": _check_all,
    "click-checkboxes-soft": _check_similar,
    "number-checkboxes": _draw_digit,
    "choose-list": _choose,
    "click-scroll-list": _choose_several,
    "form-sequence-2": _radio_and_number,
    "form-sequence-3": _height_and_answer,
    "odd-or-even": _odd_or_even,
    "buy-ticket": _best_ticket,
}
