"""Demonstrators of pages where text is entered: forms, log-ins, answers to small questions, copying, highlighting."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

from computerrl.common.messages import Action, Element
from computerrl.env_server.tasks.elements import role_of
from computerrl.env_server.tasks.miniwob.scene import (
    ANY,
    BUTTON,
    ENTRY,
    STATIC,
    Demonstrator,
    Scene,
    click_at,
    drag,
    key,
    ordinal,
    plain,
    write,
)

_SPIN = frozenset({"spin button", "entry", "text"})


def fill(scene: Scene, *texts: str, button: str = "Submit") -> Action:
    """One text into each field, top to bottom, then the button."""
    moves: list[Callable[[], Action]] = []
    for nth, text in enumerate(texts):
        moves += [_entering(scene, nth), _writing(text)]
    return scene.in_turn(*moves, lambda: scene.press(button))


def _entering(scene: Scene, nth: int) -> Callable[[], Action]:
    return lambda: scene.enter(nth)


def _writing(text: str) -> Callable[[], Action]:
    return lambda: write(text)


def _enter_text(scene: Scene) -> Action:
    return fill(scene, scene.said(r'Enter "(.+)" into the text field and press Submit\.')[0])


def _enter_in_case(scene: Scene) -> Action:
    text, case = scene.said(r'Type "(.+)" in all (upper|lower) case letters .*')
    return fill(scene, text.upper() if case == "upper" else text.lower())


def _password_twice(scene: Scene) -> Action:
    password = scene.said(r'Enter the password "(.+)" into both text fields and press submit\.')[0]
    return fill(scene, password, password)


_LOGIN = r'Enter the username "(.+)" and the password "(.+)" into the text fields and press login\.'


def _log_in(scene: Scene) -> Action:
    return fill(scene, *scene.said(_LOGIN), button="Login")


def _log_in_despite_popup(scene: Scene) -> Action:
    """What is typed comes from the fields' state: the pop-up may come at any click, and takes the focus away."""
    if scene.all(BUTTON, "Cancel"):
        return scene.press("Cancel")
    for nth, text in enumerate(scene.said(_LOGIN)):
        field = scene.one(ENTRY, nth=nth)
        if len(field.text.strip()) != len(text):
            return write(text) if "focused" in field.states else scene.click(field)
    return scene.press("OK")


def _nth_word(scene: Scene) -> Action:
    position = ordinal(scene.said(r"Find the (\w+) word in the paragraph, .*")[0])
    words = " ".join(scene.texts(STATIC)).split()
    return fill(scene, re.sub(r"[^a-zA-Z]", "", words[position]) if position < len(words) else "")


def _last_word(scene: Scene) -> Action:
    words = max(scene.texts(ENTRY), key=len).split()
    return scene.in_turn(lambda: scene.enter(1), lambda: write(re.sub(r"[^a-zA-Z0-9]", "", words[-1])), scene.press)


def _copy(scene: Scene) -> Action:
    match = re.search(r"from the (\w+) text area", scene.instruction)
    if match:
        source, target = ordinal(match.group(1)), 3
    else:
        lengths = [len(text) for text in scene.texts(ENTRY)]
        source = 0 if scene.shape(lambda shape: shape.tag in ("textarea", "input")).tag == "textarea" else 1
        target = len(lengths) - 1 - source
    return scene.in_turn(
        lambda: scene.enter(source),
        lambda: key("ctrl+a"),
        lambda: key("ctrl+c"),
        lambda: scene.enter(target),
        lambda: key("ctrl+v"),
        scene.press,
    )


def _highlight(scene: Scene) -> Action:
    match = re.search(r"in the (\w+) paragraph", scene.instruction)
    if scene.step:
        return scene.press()
    paragraph = [shape for shape in scene.shapes if shape.tag == "p" or shape.id == "randomText"]
    if match:
        paragraph = [shape for shape in paragraph if shape.tag == "p"]
    chosen = paragraph[ordinal(match.group(1)) if match else 0]
    half_line = 6 * scene.scale
    return drag((chosen.left + 1, chosen.top + half_line), (chosen.right - 1, chosen.bottom - half_line))


def _solve_for_x(scene: Scene) -> Action:
    text = next((text for text in scene.texts(ANY) if "x" in text and re.search(r"\d", text)), "")
    if match := re.fullmatch(r"x ([+-]) (\d+) = (\d+)", text):
        sign, number, result = match.group(1), int(match.group(2)), int(match.group(3))
        answer = result - number if sign == "+" else result + number
    else:
        match = re.fullmatch(r"(\d+) ([+-]) x = (\d+)", text)
        assert match, scene.seen()
        number, sign, result = int(match.group(1)), match.group(2), int(match.group(3))
        answer = result - number if sign == "+" else number - result
    return fill(scene, str(answer))


def _calculate(scene: Scene) -> Action:
    match = next(filter(None, (re.fullmatch(r"(\d) ([-+x]) (\d) =", text) for text in scene.texts(ANY))), None)
    assert match, scene.seen()
    first, second = int(match.group(1)), int(match.group(3))
    return fill(scene, str({"+": first + second, "-": first - second, "x": first * second}[match.group(2)]))


def _count_blocks(scene: Scene) -> Action:
    return fill(scene, str(sum(shape.kind == "addition-block" for shape in scene.shapes)))


def _letters(scene: Scene) -> Action:
    letters = [shape for shape in scene.shapes if shape.tag == "span" and len(shape.text) == 1]
    return fill(scene, "".join(shape.text for shape in sorted(letters, key=lambda shape: shape.x)))


def _two_of_a_table(scene: Scene) -> Action:
    words = [element for element in scene.area if element.is_plain_text or role_of(element) == "table cell"]
    labels = sorted((e for e in words if plain(e.text).endswith(":")), key=lambda element: element.y)
    values = []
    for label in labels:
        name = plain(label.text).rstrip(":")
        heading = min((e for e in words if plain(e.text) == name), key=lambda element: element.y)
        row = [e for e in words if abs(e.y - heading.y) < heading.height / 2 and e.x > heading.x and e != heading]
        values.append(plain(min(row, key=lambda element: element.x).text))
    return fill(scene, *values)


def _search_movies(scene: Scene) -> Action:
    genre, director, year = scene.said(r"Search for (.+) movies directed by (.+) from year (\d+)\.")
    value_of = {"genre": genre, "director": director, "year": year, "date": year}
    labels = sorted((e for e in scene.all(ANY) if _label_word(e)), key=lambda element: element.y)
    values = [value_of[_label_word(label)] for label in labels]
    moves: list[Callable[[], Action]] = []
    for nth, value in enumerate(values):
        moves += [_entering(scene, nth), _writing(value)]
    return scene.in_turn(*moves, lambda: scene.click(_last_named(scene, ("Submit", "Search", "Go!"))))


def _label_word(element: Element) -> str:
    words = re.findall(r"[a-z]+", element.text.lower())
    known = [word for word in ("genre", "director", "year", "date") if word in words]
    return known[0] if known and len(words) <= 2 and role_of(element) not in ENTRY else ""


def _last_named(scene: Scene, names: tuple[str, ...]) -> Element:
    return [element for element in scene.area if plain(element.text) in names][-1]


def _date(scene: Scene) -> Action:
    """The browser's own date field: its parts are typed one after the other, month first."""
    month, day, year = scene.said(r"Enter (\d\d)/(\d\d)/(\d{4}) as the date and hit submit\.")
    field = scene.shape(lambda shape: shape.id == "tt")
    return scene.in_turn(lambda: click_at(field.left + 6 * scene.scale, field.y), lambda: write(month + day + year), scene.press)


def _time(scene: Scene) -> Action:
    hour, minute, half = scene.said(r"Enter (\d+):(\d\d)\s*([AP]M) as the time and press submit\.")
    field = scene.shape(lambda shape: shape.id == "tt")
    return scene.in_turn(
        lambda: click_at(field.left + 6 * scene.scale, field.y), lambda: write(f"{int(hour):02}{minute}{half}"), scene.press
    )


def _guess(scene: Scene) -> Action:
    """Halving. What earlier answers said is seen from where the guesses went."""
    guesses = [int(str(action.args["text"])) for action in scene.actions if action.name == "type"]
    answers = [1 if later > earlier else -1 for earlier, later in itertools.pairwise(guesses)]
    if guesses:
        answers.append(1 if any("higher" in text for text in scene.texts(ANY)) else -1)
    low, high = 0, 9
    for guess, answer in zip(guesses, answers, strict=True):
        low, high = (guess + 1, high) if answer > 0 else (low, guess - 1)
    if scene.step == 0:
        field = scene.one(_SPIN)
        return click_at(field.x - 0.3 * field.width, field.y)  # its right part has arrows
    if scene.actions[-1].name == "type":
        return key("ctrl+a")
    return Action("type", {"text": str((low + high) // 2), "enter": True})


def choose_offer(scene: Scene, field: Element, text: str, offers: list[Element]) -> Action:
    """Into the field, type, choose the first of what it offers."""
    if offers:
        return scene.click(offers[0])
    if "focused" not in field.states:
        return scene.click(field)
    if plain(field.text) == plain(text):
        return key("down")  # shows the offers again
    return key("ctrl+a") if field.text.strip() and scene.actions[-1].name != "key" else write(text)


def _complete(scene: Scene) -> Action:
    start, end = scene.said(r'Enter an item that starts with "(.+?)"(?: and ends with "(.+)")?\.')
    field = scene.one(ENTRY)

    def fits(text: str) -> bool:
        return text.startswith(start.strip()) and text.rstrip().endswith((end or "").rstrip())

    offers = [e for e in scene.area if role_of(e) not in ENTRY and fits(e.text)]
    if not offers and fits(field.text) and field.text.strip() != start.strip():
        return scene.press()
    return choose_offer(scene, field, start, offers)


def _delete_file(scene: Scene) -> Action:
    wish = r"Use the terminal below to delete a file (?:ending with the extension (\..+)|that has no file extension\.)"
    ending = scene.said(wish)[0]
    if scene.step == 0:
        return scene.click(scene.all(STATIC)[0])
    if scene.step == 1:
        return Action("type", {"text": "ls", "enter": True})
    names = [name for text in scene.texts(ANY) for name in text.split()]
    listing = names[names.index("ls") + 1 :] if "ls" in names else names
    fits = [name for name in listing if (name.endswith(ending) if ending else "." not in name and name.isidentifier())]
    return Action("type", {"text": f"rm {fits[0]}", "enter": True})


DEMONSTRATORS: dict[str, Demonstrator] = {
    "enter-text-dynamic": _enter_text,
    "enter-text-2": _enter_in_case,
    "enter-password": _password_twice,
    "login-user": _log_in,
    "login-user-popup": _log_in_despite_popup,
    "find-word": _nth_word,
    "scroll-text": _last_word,
    "copy-paste": _copy,
    "copy-paste-2": _copy,
    "highlight-text": _highlight,
    "highlight-text-2": _highlight,
    "simple-algebra": _solve_for_x,
    "simple-arithmetic": _calculate,
    "visual-addition": _count_blocks,
    "text-transform": _letters,
    "read-table-2": _two_of_a_table,
    "multi-layouts": _search_movies,
    "multi-orderings": _search_movies,
    "enter-date": _date,
    "enter-time": _time,
    "guess-number": _guess,
    "use-autocomplete": _complete,
    "use-autocomplete-nodelay": _complete,
    "terminal": _delete_file,
}
