"""Getters that fetch files: the agent's from the desktop, the task's from the asset folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

from computerrl.common.errors import TaskFailed
from computerrl.env_server.tasks.osworld.desktop import BACKGROUND, HOME
from computerrl.env_server.tasks.osworld.getters.context import Context, GetterSpec

_GIMP = f"{HOME}/.config/GIMP/2.10"
_EXTENSION_LIMIT_S = "10"
"""Time for an extension to write its file, which a busy machine may need."""
_VLC = f"{HOME}/.config/vlc/vlcrc"


def _several(args: Mapping[str, Any], fetch: Callable[[str, str], str | None]) -> Any:
    """``path`` and ``dest``, or with ``multi`` lists of them of which ``gives`` says the ones that the metric gets."""
    if not args.get("multi"):
        path = str(args["path"])
        return fetch(path, str(args.get("dest") or _name(path)))
    paths = list(args["path"])
    names = list(args.get("dest") or [_name(path) for path in paths])
    if len(paths) != len(names):
        raise TaskFailed(f"{len(paths)} paths but {len(names)} names in `dest`")
    places = [fetch(path, name) for path, name in zip(paths, names, strict=True)]
    wanted = [places[index] for index in args.get("gives", [0])]
    if any(place is None for place in wanted):
        return None
    return wanted[0] if len(wanted) == 1 else wanted


def _name(path: str) -> str:
    try:
        place = urlsplit(path).path
    except ValueError:
        place = path  # a player may be given an address that is none
    return PurePosixPath(unquote(place)).name


def _vm_file(context: Context, args: Mapping[str, Any]) -> Any:
    """Files of the desktop."""
    return _several(args, context.fetch)


def _cloud_file(context: Context, args: Mapping[str, Any]) -> Any:
    """Files of the asset folder."""

    def fetch(url: str, name: str) -> str:
        reason = context.assets.missing(url)
        place = context.assets.find(url)
        if reason or place is None:
            raise TaskFailed(f"cloud_file: {reason}")
        return context.keep_gold(name, place.read_bytes())

    return _several(args, fetch)


def _cache_file(context: Context, args: Mapping[str, Any]) -> str | None:
    """A file that another getter fetched, or what a set-up command printed."""
    name = str(args["path"])
    if name in context.outputs:
        return context.keep(name, context.outputs[name].encode())
    return context.find(name)


def _gimp_config_file(context: Context, args: Mapping[str, Any]) -> str | None:
    """A settings file of GIMP."""
    return context.fetch(f"{_GIMP}/{args['file_name']}", str(args.get("dest") or args["file_name"]))


def _vlc_config(context: Context, args: Mapping[str, Any]) -> str | None:
    """VLC's settings."""
    return context.fetch(_VLC, str(args.get("dest") or "vlcrc"))


def _vlc_playing_info(context: Context, args: Mapping[str, Any]) -> str | None:
    """What VLC plays, in the form of its web interface's status. The interface itself is not asked: its port may be anybody's."""
    found = context.desktop.playing()
    if not found:
        return None
    player = next((one for one in found if one.state == "playing"), found[0])
    root = ElementTree.Element("root")
    ElementTree.SubElement(root, "state").text = player.state
    about = ElementTree.SubElement(ElementTree.SubElement(root, "information"), "category", name="meta")
    for key, value in (("filename", _name(player.url)), ("url", player.url)):
        ElementTree.SubElement(about, "info", name=key).text = value
    return context.keep(str(args.get("dest") or "status.xml"), ElementTree.tostring(root))


def _vm_wallpaper(context: Context, args: Mapping[str, Any]) -> str | None:
    """The picture behind the windows, as GNOME's settings name it."""
    said = context.desktop.run(["gsettings", "get", *BACKGROUND]).stdout.strip().strip("'")
    path = unquote(said.removeprefix("file://"))
    return context.fetch(path, str(args.get("dest") or _name(path))) if path.startswith("/") else None


def _vscode_config(context: Context, args: Mapping[str, Any]) -> str | None:
    """A file that an extension writes when its command is given in the command palette."""
    from computerrl.env_server.tasks.osworld.desktop import InputEvent

    command, path = str(args["vscode_extension_command"]), str(args["path"])
    context.desktop.run(["rm", "-f", "--", path])  # one that the agent has written tells nothing
    context.desktop.input([InputEvent("key", "ctrl+shift+p"), InputEvent("type", command), InputEvent("key", "enter")])
    context.desktop.run(["timeout", _EXTENSION_LIMIT_S, "sh", "-c", 'until [ -s "$0" ]; do sleep 0.2; done', path])
    return context.fetch(path, str(args.get("dest") or _name(path)))


GETTERS = (
    GetterSpec("vm_file", _vm_file, ("path",)),
    GetterSpec("cloud_file", _cloud_file, ("path",)),
    GetterSpec("cache_file", _cache_file, ("path",)),
    GetterSpec("gimp_config_file", _gimp_config_file, ("file_name",), "gimp"),
    GetterSpec("vlc_config", _vlc_config, (), "vlc"),
    GetterSpec("vlc_playing_info", _vlc_playing_info, (), "vlc"),
    GetterSpec("vm_wallpaper", _vm_wallpaper),
    GetterSpec("vscode_config", _vscode_config, ("vscode_extension_command", "path"), "vs_code"),
)
