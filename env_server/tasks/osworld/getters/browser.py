"""Getters over the browser: its pages, and what its profile's files say (they are up to date once it has ended)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from computerrl.common.errors import TaskFailed
from computerrl.env_server.tasks.osworld.desktop import HOME, Tab
from computerrl.env_server.tasks.osworld.getters.context import Context, GetterSpec
from computerrl.env_server.tasks.osworld.metrics.files import BrokenFile, read_json
from computerrl.env_server.tasks.osworld.metrics.matching import at
from computerrl.env_server.tasks.reading.databases import rows_of
from computerrl.env_server.tasks.reading.limits import MAX_TEXT_BYTES, Budget, within

_MAX_STARTERS = 200
PROFILE = f"{HOME}/.config/chromium"
"""The browser's folder inside the container, ``Default`` and ``Local State`` below it."""


# --- the profile -----------------------------------------------------------------------------------------------------


def _json(context: Context, name: str) -> Any:
    """A JSON file of the profile; None when there is none or the browser is just writing it."""
    path = context.fetch(f"{PROFILE}/{name}", f"browser-{Path(name).name}")
    try:
        return None if path is None else read_json(path)
    except BrokenFile:
        return None


def _preference(*keys: str, default: Any, file: str = "Default/Preferences") -> Callable[[Context, Mapping[str, Any]], Any]:
    def read(context: Context, args: Mapping[str, Any]) -> Any:
        data = _json(context, file)
        if data is None:
            return None
        try:
            return at(data, list(keys))
        except LookupError:
            return default

    return read


def _switch(name: str, *keys: str, on: Any = True, default: bool = False) -> GetterSpec:
    """A setting as the text ``true`` or ``false``."""
    read = _preference(*keys, default=on if default else None)

    def as_text(context: Context, args: Mapping[str, Any]) -> str | None:
        value = read(context, args)
        if _json(context, "Default/Preferences") is None:
            return None
        return "true" if value == on and value is not None else "false"

    return GetterSpec(name, as_text, (), "chrome")


def _bookmarks(context: Context, args: Mapping[str, Any]) -> Any:
    """The roots of all bookmarks; a browser that has never had one has no file."""
    data = _json(context, "Default/Bookmarks")
    return data["roots"] if isinstance(data, dict) and "roots" in data else {"bookmark_bar": {"children": []}}


def _query(context: Context, name: str, sql: str) -> list[tuple[Any, ...]] | None:
    path = context.fetch(f"{PROFILE}/Default/{name}", f"browser-{Path(name).name}")
    if path is None:
        return None
    try:
        return rows_of(path, sql)
    except sqlite3.DatabaseError:
        return None


def _history(context: Context, args: Mapping[str, Any]) -> Any:
    """(address, title, time) of every page in the history."""
    return _query(context, "History", "SELECT url, title, last_visit_time FROM urls")


def _cookie_data(context: Context, args: Mapping[str, Any]) -> Any:
    """(time, host, name) of every cookie."""
    sql = "SELECT creation_utc, host_key, name FROM cookies"
    return _query(context, "Network/Cookies", sql) or _query(context, "Cookies", sql)


def _extensions(context: Context) -> Mapping[str, Any]:
    for file in ("Default/Secure Preferences", "Default/Preferences"):
        settings = ((_json(context, file) or {}).get("extensions") or {}).get("settings")
        if settings:
            return dict(settings)
    return {}


def _extension_paths(context: Context, args: Mapping[str, Any]) -> list[str]:
    """Folders of all extensions, those that were loaded unpacked with their whole path."""
    return [entry["path"] for entry in _extensions(context).values() if "path" in entry]


def _extension_names(context: Context, args: Mapping[str, Any]) -> list[str]:
    """Names of all extensions."""
    return [entry["manifest"]["name"] for entry in _extensions(context).values() if "name" in entry.get("manifest", {})]


def _shortcuts_on_desktop(context: Context, args: Mapping[str, Any]) -> dict[str, str]:
    """File name -> content of the starters on the desktop."""
    answer = context.desktop.run(["find", f"{HOME}/Desktop", "-maxdepth", "1", "-name", "*.desktop", "-printf", r"%f\0"])
    *names, _ = answer.stdout.split("\0")  # the last one is empty, or was cut off
    within("starters on the desktop", len(names), _MAX_STARTERS)
    found, size = {}, Budget("bytes of starters on the desktop", MAX_TEXT_BYTES)
    for name in sorted(names):
        data = context.desktop.read_file(f"{HOME}/Desktop/{name}")
        if data is not None:
            size.spend(len(data))
            found[name] = data.decode("utf-8", "replace")
    return found


# --- pages -----------------------------------------------------------------------------------------------------------


def _front(context: Context) -> Tab | None:
    tabs = context.desktop.tabs()
    return tabs[0] if tabs else None


def _open_tabs_info(context: Context, args: Mapping[str, Any]) -> list[dict[str, str]]:
    """Address and title of every page."""
    return [{"url": tab.url, "title": tab.title} for tab in context.desktop.tabs()]


def _active_tab_info(context: Context, args: Mapping[str, Any]) -> dict[str, str] | None:
    """Address, title and content of the page in front."""
    tab = _front(context)
    return None if tab is None else {"url": tab.url, "title": tab.title, "content": tab.html}


def _active_url(context: Context, args: Mapping[str, Any]) -> str | None:
    """The address of the page in front; ``goto_prefix`` is put before an address without a scheme."""
    tab = _front(context)
    if tab is None:
        return None
    return tab.url if ":" in tab.url.split("/", 1)[0] else f"{args.get('goto_prefix', 'https://')}{tab.url}"


def _active_tab_url_parse(context: Context, args: Mapping[str, Any]) -> dict[str, Any] | None:
    """The parts ``parse_keys`` of the address's query, renamed by ``replace``; missing ones are empty. ``split_list``: each as
    the list of what stands between its commas."""
    url = _active_url(context, args)
    if url is None:
        return None
    # As `urlsplit` cuts it, which raises an error for brackets in what is no address of a web site.
    query = parse_qs(url.partition("#")[0].partition("?")[2], keep_blank_values=True)
    found: dict[str, Any] = {key: query.get(key, [""])[0] for key in args["parse_keys"]}
    if args.get("split_list"):
        found = {key: value.split(",") for key, value in found.items()}
    return {args.get("replace", {}).get(key, key): value for key, value in found.items()}


def _url_dash_part(context: Context, args: Mapping[str, Any]) -> Any:
    """Part ``partIndex`` of the address's path, without ``needDeleteId``'s query; as text or under ``key``."""
    url = _active_url(context, args)
    if url is None:
        return None
    parts = url.split("/")
    index = int(args["partIndex"])
    if not -len(parts) <= index < len(parts):
        return None
    part = parts[index].split("?")[0] if args.get("needDeleteId") else parts[index]
    kind = args.get("returnType", "string")
    if kind not in ("string", "json"):
        raise TaskFailed(f"url_dashPart: unknown returnType {kind!r}")
    return part if kind == "string" else {args["key"]: part}


def _page_info(context: Context, args: Mapping[str, Any]) -> dict[str, str] | None:
    """Address, title and content of the page at ``url``; it must be open."""
    for tab in context.desktop.tabs():
        if tab.url == args["url"]:
            return {"url": tab.url, "title": tab.title, "content": tab.html}
    return None


_APPEARANCE = "chrome://settings/appearance"
_MODES = {"0": "system", "1": "light", "2": "dark"}
"""Values of the browser's colour scheme."""


def _appearance_mode(context: Context, args: Mapping[str, Any]) -> str | None:
    """``light``, ``dark`` or ``system``: the mode on the browser's page of appearance.

    The browser ends first, which writes its settings. That page is in front afterwards, as after the published getter: rules
    over the address follow in task files.
    """
    with suppress(TaskFailed):  # a browser that an agent has broken says nothing more
        context.desktop.launch(["pkill", "chrome"])
    theme = _preference("browser", "theme", default={})(context, args)
    with suppress(TaskFailed):
        context.desktop.open_tabs([_APPEARANCE])
    if not isinstance(theme, Mapping):
        return None
    value = theme.get("color_scheme2", theme.get("color_scheme", 0))
    return _MODES.get(str(value), str(value))


_FONTS = {"default_fixed_font_size": 13, "default_font_size": 16, "minimum_font_size": 13}

GETTERS = (
    _switch("enable_do_not_track", "enable_do_not_track"),
    _switch("enable_enhanced_safety_browsing", "safebrowsing", "enhanced"),
    _switch("enable_safe_browsing", "safebrowsing", "enabled", default=True),
    # 4: cookies live until the browser ends.
    _switch("data_delete_automacally", "profile", "default_content_setting_values", "cookies", on=4),
    # 5: a new tab page.
    _switch("new_startup_page", "session", "restore_on_startup", on=5, default=True),
    GetterSpec("profile_name", _preference("profile", "name", default=None), (), "chrome"),
    GetterSpec("chrome_font_size", _preference("webkit", "webprefs", default=_FONTS), (), "chrome"),
    GetterSpec(
        "default_search_engine",
        _preference("default_search_provider_data", "template_url_data", "short_name", default="Google"),
        (),
        "chrome",
    ),
    GetterSpec("chrome_appearance_mode_ui", _appearance_mode, (), "chrome"),
    GetterSpec("chrome_language", _preference("intl", "app_locale", default="en-US", file="Local State"), (), "chrome"),
    GetterSpec(
        "enabled_experiments", _preference("browser", "enabled_labs_experiments", default=[], file="Local State"), (), "chrome"
    ),
    GetterSpec("bookmarks", _bookmarks, (), "chrome"),
    GetterSpec("history", _history, (), "chrome"),
    GetterSpec("cookie_data", _cookie_data, (), "chrome"),
    GetterSpec("find_unpacked_extension_path", _extension_paths, (), "chrome"),
    GetterSpec("find_installed_extension_name", _extension_names, (), "chrome"),
    GetterSpec("shortcuts_on_desktop", _shortcuts_on_desktop),
    GetterSpec("open_tabs_info", _open_tabs_info, (), "chrome"),
    GetterSpec("active_tab_info", _active_tab_info, (), "chrome"),
    GetterSpec("active_url_from_accessTree", _active_url, (), "chrome"),
    GetterSpec("active_tab_url_parse", _active_tab_url_parse, ("parse_keys",), "chrome"),
    GetterSpec("url_dashPart", _url_dash_part, ("partIndex",), "chrome"),
    GetterSpec("page_info", _page_info, ("url",), "chrome"),
)
