"""Animations of a slide that start audio or video. Only inside the office's calls."""

from __future__ import annotations

from typing import Any

from .process import Office
from .uno_values import struct

_MAIN_SEQUENCE, _AFTER_PREVIOUS = 4, 3
"""com.sun.star.presentation.EffectNodeType."""
_MEDIA_CALL = 6
"""com.sun.star.presentation.EffectPresetClass.MEDIACALL."""
_PLAY = 2
"""com.sun.star.presentation.EffectCommands.PLAY."""


def start_with_slide(office: Office, slide: Any, box: Any) -> None:
    """Let ``box`` play when its slide appears, after the slide's other effects."""
    import uno

    main = _main_sequence(office, slide.AnimationNode)
    steps = [_timed(office, "ParallelTimeContainer") for _ in range(3)]
    steps[0].Begin = uno.Any("double", 0.0)  # not a click
    steps[1].Begin = uno.Any("double", 0.0)
    effect = steps[2]
    effect.Begin = uno.Any("double", 0.0)
    effect.UserData = _user_data(
        **{
            "node-type": uno.Any("short", _AFTER_PREVIOUS),
            "preset-class": uno.Any("short", _MEDIA_CALL),
            "preset-id": "ooo-media-start",
        }
    )
    command = _timed(office, "Command")
    command.Target = box
    command.Command = _PLAY
    effect.appendChild(command)
    steps[1].appendChild(effect)
    steps[0].appendChild(steps[1])
    main.appendChild(steps[0])


def _main_sequence(office: Office, root: Any) -> Any:
    children = root.createEnumeration()
    while children.hasMoreElements():
        node = children.nextElement()
        if any(item.Name == "node-type" and item.Value == _MAIN_SEQUENCE for item in node.UserData or ()):
            return node
    import uno

    node = _timed(office, "SequenceTimeContainer")
    node.UserData = _user_data(**{"node-type": uno.Any("short", _MAIN_SEQUENCE)})
    root.appendChild(node)
    return node


def _timed(office: Office, kind: str) -> Any:
    return office.create(f"com.sun.star.animations.{kind}")


def _user_data(**values: Any) -> tuple[Any, ...]:
    return tuple(struct("beans.NamedValue", name, value) for name, value in values.items())
