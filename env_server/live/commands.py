"""What the page may ask for, as checked types: anything else is refused with a reason. Pure."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from computerrl.common.actions import MAX_ACTION_CHARS
from computerrl.env_server.live.pointing import Button, Direction

Pixel = Annotated[int, Field(ge=0, le=10_000)]


class _Command(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Act(_Command):
    """Do an action written as an agent writes it."""

    do: Literal["act"]
    text: str = Field(max_length=MAX_ACTION_CHARS)


class Type(_Command):
    """Type what a person typed."""

    do: Literal["type"]
    text: str = Field(min_length=1, max_length=MAX_ACTION_CHARS // 2)
    enter: bool = False


class Key(_Command):
    """Press keys together."""

    do: Literal["key"]
    keys: str = Field(min_length=1, max_length=40)


class Click(_Command):
    """A mouse click."""

    do: Literal["click"]
    x: Pixel
    y: Pixel
    button: Button = "left"
    count: Literal[1, 2] = 1
    exact: bool = False


class Hover(_Command):
    """The pointer rests."""

    do: Literal["hover"]
    x: Pixel
    y: Pixel
    exact: bool = False


class Scroll(_Command):
    """The wheel turns."""

    do: Literal["scroll"]
    x: Pixel
    y: Pixel
    direction: Direction
    exact: bool = False


class Drag(_Command):
    """Pulled from one place to another."""

    do: Literal["drag"]
    x: Pixel
    y: Pixel
    to_x: Pixel
    to_y: Pixel
    exact: bool = False


class Choose(_Command):
    """Put that task on screen."""

    do: Literal["choose"]
    family: str = Field(max_length=100)
    seed: int = Field(ge=0, lt=2**53)


class Score(_Command):
    """Judge the desktop as it is."""

    do: Literal["score"]


class Save(_Command):
    """Keep what was done as a demonstration."""

    do: Literal["save"]


class Restart(_Command):
    """Start the desktop anew."""

    do: Literal["restart"]


Command = Act | Type | Key | Click | Hover | Scroll | Drag | Choose | Score | Save | Restart

_COMMAND: TypeAdapter[Command] = TypeAdapter(Annotated[Command, Field(discriminator="do")])


def pixels_of(command: Click | Hover | Scroll | Drag) -> tuple[int, ...]:
    """Where the pointer was: x, y, or x, y of both ends of a drag."""
    ends = (command.to_x, command.to_y) if isinstance(command, Drag) else ()
    return (command.x, command.y, *ends)


def parse_command(text: str) -> Command:
    """The command in a page's message. Raises `ValueError` that says what is wrong with it."""
    try:
        return _COMMAND.validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'message'}: {first['msg']}") from None
