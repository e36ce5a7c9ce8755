"""Demonstrators of the inbox pages: find the sender, then star, delete, reply or forward."""

from __future__ import annotations

import re
from collections.abc import Mapping

from computerrl.common.messages import Action
from computerrl.env_server.tasks.miniwob.feeds import reach
from computerrl.env_server.tasks.miniwob.scene import ENTRY, Demonstrator, Scene, Shape, click_at, plain, write

_REQUESTS = (
    (r'Find the email by (?P<by>.+) and reply to them with the text "(?P<message>.+)"\.', "reply"),
    (r"Find the email by (?P<by>.+) and forward that email to (?P<to>.+)\.", "forward"),
    (r"Find the email by (?P<by>.+) and click the trash icon to delete it\.", "delete"),
    (r"Find the email by (?P<by>.+) and click the star icon to mark it as important\.", "star"),
)
_ICONS = {"star": "star", "delete": "delete", "reply": "reply", "forward": "forward"}


def _request(scene: Scene) -> tuple[str, Mapping[str, str]]:
    """What is to be done (star, delete, reply, forward), and the names it is about.

    Freely worded instructions come with their fields, which the page gives beside the text.
    """
    fields: Mapping[str, str] = scene.get("web_page")["fields"]
    if "by" in fields:
        return fields.get("task", "forward"), fields
    for pattern, task in _REQUESTS:
        match = re.fullmatch(pattern, scene.instruction)
        if match:
            return task, match.groupdict()
    raise scene.failure("asks for nothing known")


def _play(scene: Scene) -> Action:
    task, names = _request(scene)
    senders = [shape for shape in scene.shapes if shape.kind == "email-sender" and plain(shape.text) == plain(names["by"])]
    if scene.has("main-header"):
        return _in_list(scene, task, senders)
    send = [shape for shape in scene.shapes if shape.picture == "send"]
    if not send:
        icons = [shape for shape in scene.shapes if shape.picture == _ICONS[task]]
        return reach(scene, icons[-1])
    field = scene.one(ENTRY)
    text = names["message"] if task == "reply" else names["to"]
    if plain(field.text) != plain(text):
        return write(text) if "focused" in field.states else scene.click(field)
    return click_at(send[0].x, send[0].y)


def _in_list(scene: Scene, task: str, senders: list[Shape]) -> Action:
    sender = senders[0]
    if task in ("reply", "forward"):
        return reach(scene, sender)
    icons = [shape for shape in scene.shapes if shape.picture == _ICONS[task] and shape.y > sender.top]
    return reach(scene, min(icons, key=lambda icon: icon.y))


DEMONSTRATORS: dict[str, Demonstrator] = {
    name: _play
    for name in (
        "email-inbox",
        "email-inbox-delete",
        "email-inbox-forward",
        "email-inbox-forward-nl",
        "email-inbox-forward-nl-turk",
        "email-inbox-important",
        "email-inbox-nl-turk",
        "email-inbox-noscroll",
        "email-inbox-reply",
        "email-inbox-star-reply",
    )
}
