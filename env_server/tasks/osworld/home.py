"""What the home of a task file's user has before the task's own set-up: the folders and defaults of an ordinary desktop."""

from __future__ import annotations

import json

from computerrl.env_server.driver import SetupStep

_FOLDERS = {
    "DESKTOP": "Desktop",
    "DOWNLOAD": "Downloads",
    "TEMPLATES": "Templates",
    "PUBLICSHARE": "Public",
    "DOCUMENTS": "Documents",
    "MUSIC": "Music",
    "PICTURES": "Pictures",
    "VIDEOS": "Videos",
}
_USER_DIRS = "".join(f'XDG_{kind}_DIR="$HOME/{name}"\n' for kind, name in _FOLDERS.items())
_VIDEO_TYPES = (
    "mp4", "x-matroska", "webm", "x-msvideo", "quicktime", "mpeg", "ogg", "x-flv", "3gpp", "3gpp2", "x-ms-wmv", "x-m4v",
    "x-theora", "x-ogm", "x-theora+ogg", "x-ogm+ogg", "mp2t", "vnd.rn-realvideo", "dv", "x-anim", "x-flic", "x-nsv",
    "x-ms-asf", "x-mpeg",
)  # fmt: skip
_VIDEOS = "[Default Applications]\n" + "".join(f"video/{kind}=videos.desktop\n" for kind in _VIDEO_TYPES)
_VIDEOS_APP = """[Desktop Entry]
Type=Application
Name=Videos
Exec=vlc --started-from-file %U
MimeType={types}
""".format(types="".join(f"video/{kind};" for kind in _VIDEO_TYPES))
"""A task asks for VLC as the default player: it must not be the default before."""

HOME_STEPS: tuple[SetupStep, ...] = (
    *(SetupStep("make_folder", {"path": name}) for name in _FOLDERS.values()),
    SetupStep("write_file", {"path": ".config/user-dirs.dirs", "text": _USER_DIRS}),
    SetupStep("write_file", {"path": ".config/mimeapps.list", "text": _VIDEOS}),
    SetupStep("write_file", {"path": ".local/share/applications/videos.desktop", "text": _VIDEOS_APP}),
    # A task that opens nothing would begin with a window that an earlier task has left.
    SetupStep("files_open", {"folder": "Desktop"}),
)
_CODE_SETTINGS = ".config/Code/User"
_PREFERENCES = "/Default/Preferences"
_FIRST_PREFERENCES = json.dumps({"browser": {"check_default_browser": False, "has_seen_welcome_page": True}})


def home_steps(config: str) -> tuple[SetupStep, ...]:
    """`HOME_STEPS`, and for a set-up (as text) that changes an application's settings before its first start, the browser's
    settings or the folder of VS Code's: on the machines that task files are made for, both have run before."""
    written = []
    if "google-chrome/Default" in config and "Preferences" in config:
        written += [SetupStep("write_file", {"path": f".config/chromium{_PREFERENCES}", "text": _FIRST_PREFERENCES})]
    if _CODE_SETTINGS in config:
        written += [SetupStep("make_folder", {"path": _CODE_SETTINGS})]
    return (*HOME_STEPS[:-1], *written, HOME_STEPS[-1])


_OPENER = ".local/lib/open-page"
_OPENER_TEXT = """[ -L "$HOME/.config/chromium/SingletonLock" ] && exec /usr/bin/chromium --no-sandbox "$@"\n"""
"""Hands a page that another program opens over to the browser, if that runs. The image's own starter asks for a sandbox, which no
container has."""
_STARTER = f"""[Desktop Entry]
Type=Application
Name=Chromium Web Browser
Exec=sh /home/user/{_OPENER} %U
Icon=chromium
MimeType=x-scheme-handler/http;x-scheme-handler/https;
"""
_OPENS = "[MIME Cache]\nx-scheme-handler/http=chromium.desktop;\nx-scheme-handler/https=chromium.desktop;\n"


def site_steps(*, of_copy: bool) -> tuple[SetupStep, ...]:
    """The browser shows web sites: pages of the task's copy (``of_copy``), and stand-ins for all others. Links in other programs
    lead there."""
    return (
        SetupStep("web_sites", {"of_copy": of_copy}),
        SetupStep("write_file", {"path": _OPENER, "text": _OPENER_TEXT}),
        SetupStep("write_file", {"path": ".local/share/applications/chromium.desktop", "text": _STARTER}),
        SetupStep("write_file", {"path": ".local/share/applications/mimeinfo.cache", "text": _OPENS}),
    )
