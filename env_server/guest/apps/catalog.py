"""All applications that run on demand, what people call them, and which file each opens."""

from __future__ import annotations

from pathlib import Path

from .browser import PAGE_ENDINGS, Browser
from .code import Code
from .gimp import IMAGE_ENDINGS, Gimp
from .on_demand import OnDemandApp, Surroundings
from .simple import Terminal, Thunderbird
from .vlc import MEDIA_ENDINGS, Vlc

OTHER_NAMES = {
    "chrome": "browser",
    "google chrome": "browser",
    "chromium browser": "browser",
    "vs code": "code",
    "vscode": "code",
    "libreoffice calc": "calc",
    "libreoffice writer": "writer",
    "libreoffice impress": "impress",
    "gedit": "editor",
    "text editor": "editor",
    "file manager": "files",
    "mail": "thunderbird",
}
"""What else an agent may call an application."""
AREAS = {"chrome": "browser", "vlc": "vlc", "gimp": "gimp", "code": "code"}
"""Area of the action table -> application."""
_BY_ENDING = {
    **dict.fromkeys(MEDIA_ENDINGS, "vlc"),
    **dict.fromkeys(IMAGE_ENDINGS, "gimp"),
    **dict.fromkeys(PAGE_ENDINGS, "browser"),
}


NAMES = frozenset({"browser", "vlc", "gimp", "thunderbird", "terminal", "code"})
"""All of them."""


def make_apps(around: Surroundings) -> tuple[OnDemandApp, ...]:
    """One of each."""
    return (Browser(around), Vlc(around), Gimp(around), Thunderbird(around), Terminal(around), Code(around))


def app_for(path: str) -> str | None:
    """The application on demand that opens a file of this name, None when there is none."""
    return _BY_ENDING.get(Path(path).suffix.lower())
