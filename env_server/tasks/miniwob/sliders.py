"""Demonstrators of pages with sliders, spinners, scroll areas and things to resize."""

from __future__ import annotations

import json

from computerrl.common.actions.tables.gui import MAX_KEY_TIMES
from computerrl.common.messages import Action
from computerrl.env_server.tasks.elements import CHECK
from computerrl.env_server.tasks.miniwob.scene import (
    BUTTON,
    ENTRY,
    Demonstrator,
    Scene,
    Shape,
    click_at,
    drag,
    key,
    ordinal,
    plain,
    turn_wheel,
    write,
)


def _slide(scene: Scene, track: Shape, shown: int, wanted: int) -> Action:
    """Focus the handle by a click on it, then step by arrow keys."""
    handles = [s for s in scene.shapes if "ui-slider-handle" in s.kind and track.left - 20 < s.x < track.right + 20]
    handle = min(handles, key=lambda s: abs(s.y - track.y))
    clicks = [action for action in scene.actions if action.name == "click"]
    if not clicks or not _is_on(clicks[-1], track):
        return click_at(handle.x, handle.y)
    return key("right" if wanted > shown else "left", min(MAX_KEY_TIMES, abs(wanted - shown)))


def _is_on(action: Action, track: Shape) -> bool:
    x, y = action.args.get("target"), action.args.get("y")
    beyond = 25  # pixels that a handle stands out
    return (
        isinstance(x, int)
        and isinstance(y, int)
        and track.left - beyond < x < track.right + beyond
        and track.top - beyond < y < track.bottom + beyond
    )


def _use_slider(scene: Scene) -> Action:
    wanted = int(scene.said(r"Select (-?\d+) with the slider and hit Submit\.")[0])
    shown = int(scene.shape(lambda shape: shape.id == "val").text)
    if shown == wanted:
        return scene.press()
    return _slide(scene, scene.shape(lambda shape: shape.id == "slider"), shown, wanted)


def _use_three_sliders(scene: Scene) -> Action:
    wanted = json.loads(scene.said(r"Set the sliders to the combination (\[.*\]) and submit\.")[0])
    for nth, value in enumerate(wanted, start=1):
        shown = int(scene.shape(lambda shape, name=f"val-{nth}": shape.id == name).text)  # type: ignore[misc]
        if shown != value:
            return _slide(scene, scene.shape(lambda shape, name=f"slider-{nth}": shape.id == name), shown, value)  # type: ignore[misc]
    return scene.press()


def _slider_then_box(scene: Scene) -> Action:
    number, box = scene.said(r"Select (-?\d+) with the slider, click the (\w+) checkbox, then hit Submit\.")
    shown = int(scene.shape(lambda shape: shape.id == "val").text)
    if shown != int(number):
        return _slide(scene, scene.shape(lambda shape: shape.id == "slider"), shown, int(number))
    wanted = scene.one(CHECK, nth=ordinal(box))
    return scene.press() if "checked" in wanted.states else scene.click(wanted)


def _use_spinner(scene: Scene) -> Action:
    number = int(scene.said(r"Select (-?\d+) with the spinner and hit Submit\.")[0])
    field = scene.shape(lambda shape: shape.id == "spinner")
    moves = [lambda: click_at(field.x, field.y), lambda: key("up" if number > 0 else "down", abs(number)), scene.press]
    return scene.in_turn(*(moves if number else moves[2:]))


def _scroll_area(scene: Scene) -> Action:
    direction = scene.said(r"Scroll the textarea to the (bottom|top) of the text hit submit\.")[0]
    area = scene.shape(lambda shape: shape.id == "text-area")
    return scene.in_turn(lambda: turn_wheel(area.x, area.y, "down" if direction == "bottom" else "up", clicks=30), scene.press)


def _sign(scene: Scene) -> Action:
    if "Click the cancel button" in scene.instruction:
        return scene.press("Cancel")
    name, button = scene.said(r'Scroll to the bottom of the textarea, enter the name "(.+)" then press "(\w+)"')
    area = scene.shape(lambda shape: shape.id == "text-area")
    fields = [entry for entry in scene.all(ENTRY) if entry.y > area.bottom]
    if not fields or "disabled" in fields[0].states:
        return turn_wheel(area.x, area.y, "down", clicks=30)
    if plain(fields[0].text) == name:
        return scene.click(scene.one(BUTTON, button))
    return write(name) if "focused" in fields[0].states else scene.click(fields[0])


def _resize(scene: Scene) -> Action:
    side, size = scene.said(r"Resize the textarea so that the (\w+) is (\w+) than its initial size then press Submit\.")
    if scene.step:
        return scene.press()
    area = scene.shape(lambda shape: shape.id == "tt")
    way = (15 if size == "larger" else -15) * scene.scale
    corner = (area.right - 3 * scene.scale, area.bottom - 3 * scene.scale)
    end = (corner[0] + way, corner[1]) if side == "width" else (corner[0], corner[1] + way)
    return drag(corner, end)


DEMONSTRATORS: dict[str, Demonstrator] = {
    "use-slider": _use_slider,
    "use-slider-2": _use_three_sliders,
    "form-sequence": _slider_then_box,
    "use-spinner": _use_spinner,
    "scroll-text-2": _scroll_area,
    "sign-agreement": _sign,
    "resize-textarea": _resize,
}
