"""The applications by name, and which of them have something open."""

from __future__ import annotations

from typing import Any

import pytest

from computerrl.env_server.guest.applications import Applications
from computerrl.env_server.guest.faults import Refused


@pytest.fixture
def apps() -> Applications:
    parts: dict[str, Any] = dict.fromkeys(("chromium", "calc", "writer", "impress", "documents", "editor", "files"))
    on_demand: Any = {"vlc": None, "browser": None}
    return Applications(on_demand=on_demand, **parts)


@pytest.mark.parametrize(
    ("text", "name"), [("calc", "calc"), (" LibreOffice  Writer", "writer"), ("VLC", "vlc"), ("Google Chrome", "browser")]
)
def test_application_is_found_by_any_of_its_names(apps: Applications, text: str, name: str) -> None:
    assert apps.name_of(text) == name


def test_unknown_application_is_refused_with_those_there_are(apps: Applications) -> None:
    with pytest.raises(Refused, match=r"there is no application 'solitaire'; there are: browser, calc, .*, vlc, writer$"):
        apps.name_of("solitaire")


def test_application_opened_again_is_the_last(apps: Applications) -> None:
    for name in ("calc", "vlc", "calc"):
        apps.note_open(name)
    assert apps.open == ["vlc", "calc"] and apps.is_office_open()
    apps.note_closed("calc")
    apps.note_closed("editor")
    assert apps.open == ["vlc"] and not apps.is_office_open()
    with pytest.raises(Refused, match="calc is not open"):
        apps.require_open("calc")
