"""Demonstrators of pages where the named thing has to be clicked: buttons, widgets, tabs, links, dialogs, fields to focus."""

from __future__ import annotations

from computerrl.common.messages import Action, Element
from computerrl.env_server.tasks.elements import CHECK, RADIO
from computerrl.env_server.tasks.miniwob.scene import ANY, BUTTON, ENTRY, Demonstrator, Scene, Shape, click_at, ordinal

TAB = frozenset({"page tab"})


def _only_button(scene: Scene) -> Action:
    return scene.click(scene.one(BUTTON))


def _named_button(scene: Scene) -> Action:
    return _uncovered(scene, scene.said(r'Click (?:on the |button )?"?(.+?)"?(?: button)?\.')[0])


def _uncovered(scene: Scene, text: str) -> Action:
    """Buttons lie at random places: a later one may cover the middle of an earlier one."""
    button = scene.one(BUTTON, text)
    above = [other for other in scene.all(BUTTON) if other != button]
    if not any(_covers(other, button.x, button.y) for other in above):
        return scene.click(button)
    for part_x, part_y in ((-0.4, -0.4), (0.4, -0.4), (-0.4, 0.4), (0.4, 0.4), (-0.4, 0), (0.4, 0), (0, -0.4), (0, 0.4)):
        x, y = button.x + part_x * button.width, button.y + part_y * button.height
        if not any(_covers(other, x, y) for other in above):
            return click_at(x, y)
    return scene.click(button)


def _covers(element: Element, x: float, y: float) -> bool:
    return abs(x - element.x) <= element.width / 2 and abs(y - element.y) <= element.height / 2


def _button_sequence(scene: Scene) -> Action:
    return scene.in_turn(lambda: _uncovered(scene, "ONE"), lambda: _uncovered(scene, "TWO"))


def _widget(scene: Scene) -> Action:
    kind = scene.said(r'Click on a "(\w+)" widget\.')[0]
    roles = {"radio": RADIO, "checkbox": CHECK, "button": BUTTON}.get(kind)
    if roles:
        return scene.click(scene.one(roles))
    areas = [shape for shape in scene.shapes if shape.tag == "textarea"]
    if kind == "textarea":
        return scene.click_on(areas[0])
    fields = [entry for entry in scene.all(ENTRY) if not any(_covers(entry, area.x, area.y) for area in areas)]
    return scene.click(fields[0])


def _tab(scene: Scene) -> Action:
    return scene.click(scene.one(TAB, scene.said(r"Click on (Tab #\d)\.")[0]))


def _link_on(scene: Scene, text: str) -> Shape | None:
    """The visible link with this text; plain words of the page may read the same."""
    return next((shape for shape in scene.shapes if "alink" in shape.kind.split() and shape.text == text), None)


def _link(scene: Scene) -> Action:
    link = _link_on(scene, scene.said(r'Click on the link "(.+)"\.')[0])
    assert link is not None, "the page made this link"
    return scene.click_on(link)


def _link_behind_tabs(scene: Scene) -> Action:
    link = _link_on(scene, scene.said(r'.* find and click on the link "(.+)"\.')[0])
    if link is not None:
        return scene.click_on(link)
    tabs = scene.all(TAB)
    # Tabs show their first page at once, sections are all closed in the beginning.
    first = 1 if "tabs" in scene.instruction else 0
    return scene.click(tabs[min(scene.step + first, len(tabs) - 1)])


def _expand_and_submit(scene: Scene) -> Action:
    return scene.in_turn(
        lambda: scene.click(scene.one(TAB)), lambda: scene.click_on(scene.shape(lambda shape: shape.tag == "button"))
    )


def _close_dialog(scene: Scene) -> Action:
    return scene.press("Close")


def _dialog_button(scene: Scene) -> Action:
    text = scene.said(r'Click the button in the dialog box labeled "(.+)"\.')[0]
    return scene.press("Close" if text == "x" else text)


def _focus(scene: Scene) -> Action:
    return scene.enter()


def _focus_nth(scene: Scene) -> Action:
    return scene.enter(ordinal(scene.said(r"Focus into the (\w+) input textbox\.")[0]))


def _generate(scene: Scene) -> Action:
    shown = [text for text in scene.texts(ANY) if text.isdigit()]
    if shown and _fits(int(shown[0]), scene.instruction):
        return scene.press()
    return scene.press("Generate")


def _fits(number: int, wish: str) -> bool:
    words = wish.rstrip(".").replace(",", "").split()
    if "less" in words:
        return number < int(words[words.index("than") + 1])
    if "greater" in words:
        return number > int(words[words.index("than") + 1])
    return number % 2 == ("odd" in words)


DEMONSTRATORS: dict[str, Demonstrator] = {
    "click-test": _only_button,
    "click-test-2": _named_button,
    "click-test-transfer": _named_button,
    "click-button-sequence": _button_sequence,
    "unicode-test": _named_button,
    "click-widget": _widget,
    "click-tab": _tab,
    "click-tab-2": _link_behind_tabs,
    "click-tab-2-easy": _link_behind_tabs,
    "click-tab-2-medium": _link_behind_tabs,
    "click-tab-2-hard": _link_behind_tabs,
    "click-link": _link,
    "click-collapsible": _expand_and_submit,
    "click-collapsible-nodelay": _expand_and_submit,
    "click-collapsible-2": _link_behind_tabs,
    "click-collapsible-2-nodelay": _link_behind_tabs,
    "click-dialog": _close_dialog,
    "click-dialog-2": _dialog_button,
    "focus-text": _focus,
    "focus-text-2": _focus_nth,
    "generate-number": _generate,
}
