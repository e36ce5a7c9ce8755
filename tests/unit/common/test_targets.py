"""Naming an element by number or by text."""

import pytest

from computerrl.common.actions import parse_action
from computerrl.common.actions.targets import MAX_LABEL_CHARS, find_target, named_alone, named_element, places_of, same_action
from computerrl.common.messages import MAX_PLACES, Action, Element
from computerrl.env_server.tasks.targets import name_of


def element(number: int, text: str, role: str = "push-button") -> Element:
    return Element(number=number, role=role, text=text, x=number, y=0, width=10, height=10, states=())


def element_at(number: int, text: str, *, x: int, y: int) -> Element:
    return Element(number=number, role="push-button", text=text, x=x, y=y, width=20, height=10, states=())


SCREEN = (
    element(1, "Click on OK", "static"),
    element(2, "OK", "static"),
    element(4, "OK"),
    element(5, "No"),
    element(6, "No"),
    element(7, "", "entry"),
    element(8, " two\n words "),
    element(9, "long" * 10),
    element(10, "3"),
)


def message(target: int | str) -> str:
    with pytest.raises(LookupError) as caught:
        find_target(SCREEN, target)
    return str(caught.value.args[0])


@pytest.mark.parametrize(
    ("target", "number"), [(4, 4), ("OK", 4), ("Click on OK", 1), ("two words", 8), ("  OK ", 4), ("3", 10), (7, 7)]
)
def test_find_target_by_number_and_by_text(target: int | str, number: int) -> None:
    assert find_target(SCREEN, target).number == number


def test_find_target_errors_tell_the_agent_what_to_do() -> None:
    assert message(3) == "there is no element 3"
    assert message("ok") == "there is no element 'ok'"
    assert message("No") == "2 elements are 'No': give one's number (5, 6)"
    assert message("") == "there is no element ''"
    assert len(message("x" * 5000)) < 120


def test_name_of_is_a_text_only_where_it_finds_the_element_again() -> None:
    names = {element.number: name_of(SCREEN, element) for element in SCREEN}
    assert names == {1: "Click on OK", 2: 2, 4: "OK", 5: 5, 6: 6, 7: 7, 8: "two words", 9: 9, 10: "3"}
    assert all(find_target(SCREEN, name).number == number for number, name in names.items())
    assert named_alone(SCREEN) == {number for number, name in names.items() if isinstance(name, str)}
    assert MAX_LABEL_CHARS < 40


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"target": 3, "y": None}, {"target": "OK", "y": None}, True),
        ({"target": " OK ", "y": None}, {"target": "OK", "y": None}, True),
        ({"target": 102, "y": 48}, {"target": 98, "y": 52}, True),
        ({"target": 102, "y": 48}, {"target": 3, "y": None}, True),
        ({"target": 300, "y": 48}, {"target": 98, "y": 52}, False),
        ({"target": 300, "y": 400}, {"target": 300, "y": 400}, True),
        ({"target": 3, "y": None}, {"target": 4, "y": None}, False),
        ({"target": 77, "y": None}, {"target": 77, "y": None}, True),
        ({"target": 3, "y": None, "button": "left"}, {"target": "OK", "y": None, "button": "right"}, False),
    ],
)
def test_actions_that_name_the_same_element_are_the_same(one: dict, other: dict, same: bool) -> None:
    shown = [element_at(3, "OK", x=100, y=50), element_at(4, "Cancel", x=300, y=50)]
    assert same_action(shown, Action("click", one), Action("click", other)) == same
    assert not same_action(shown, Action("click", one), Action("double_click", other))


@pytest.mark.parametrize(
    ("action", "places"),
    [
        ("click(4)", (4, 0)),
        ('click("OK")', (4, 0)),
        ("click(30, 7)", (30, 7)),
        ('scroll("3", direction="down")', (10, 0)),
        ("hover(0, 0)", (0, 0)),
        ('type("x")', ()),
        ('type("x", target=7)', (7, 0)),
        ('type("x", target=9, y=8)', (9, 8)),
        ("drag(4, 5)", (4, 0, 5, 0)),
        ("drag_pixels([1, 2, 3, 4, 5, 6])", (1, 2, 3, 4, 5, 6)),
        ("wait()", ()),
        ("done()", ()),
        ('key("ctrl+s")', ()),
        ('files.copy("a", "b")', ()),
        # Nothing to show: no such element, not on the screen, no column of pixels.
        ("click(3)", ()),
        ('click("No")', ()),
        ("click(800, 7)", ()),
        ("click(-1, 7)", ()),
        ("drag_pixels([1, 2, 3, 600])", ()),
        ('click("OK", 7)', ()),
    ],
)
def test_places_are_the_pixels_at_which_an_action_points(action: str, places: tuple[int, ...]) -> None:
    assert places_of(parse_action(action), SCREEN, width=800, height=600) == places


def test_places_of_a_long_path_are_its_beginning_and_its_end() -> None:
    path = [number for place in range(100) for number in (place, 2 * place)]
    found = places_of(Action("drag_pixels", {"path": path}), (), width=800, height=600)
    assert len(found) == 2 * MAX_PLACES and found[:4] == (0, 0, 1, 2) and found[-2:] == (99, 198)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ('click("OK")', 4),
        ("double_click(7)", 7),
        ('scroll("OK", direction="down")', 4),
        ("click(4, 5)", None),
        ("click(99)", None),
        ('click("No")', None),
        ('drag("OK", 7)', None),
        ('type("OK")', None),
        ('files.copy("OK", "b")', None),
        ("done()", None),
    ],
)
def test_element_that_an_action_points_at_is_the_one_it_names(text: str, number: int | None) -> None:
    found = named_element(SCREEN, parse_action(text))
    assert (found.number if found else None) == number
