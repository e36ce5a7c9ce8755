"""Chromium, VLC, Visual Studio Code and GIMP: ComputerRL's BrowserTools, VLCTools, CodeTools, and our own for GIMP."""

from __future__ import annotations

from computerrl.common.actions.spec import Param, flag, number, table, text, whole

_PAGES = (
    "profile_settings",
    "password_settings",
    "privacy_settings",
    "appearance_settings",
    "search_engine_settings",
    "extensions",
    "bookmarks",
)
_VLC_SETTINGS = ("input-record-path", "qt-bgcone", "qt-max-volume", "qt-minimal-view", "global-key-play-pause")

CHROME = table(
    "chrome",
    *((f"open_{page}", (), f"open the page of {page.replace('_', ' ')}") for page in _PAGES),
    ("bring_back_last_tab", (), "open the tab that was closed last"),
    ("print", (), "print the page"),
    ("delete_browsing_data", (), "open the dialog that deletes browsing data"),
    ("bookmark_page", (), "bookmark the page"),
)

VLC = table(
    "vlc",
    ("env_info", (), "what is playing, where, how loud"),
    ("get_playlist", (), "the playlist"),
    ("play", (), "play"),
    ("pause", (), "pause"),
    ("next", (), "next in the playlist"),
    ("previous", (), "the one before in the playlist"),
    ("add_to_playlist", (text("uri"),), "add a file to the playlist"),
    ("get_current_time", (), "place in the medium, in seconds"),
    ("get_media_duration", (), "length of the medium, in seconds"),
    ("toggle_fullscreen", (flag("enable", None),), "full screen on or off"),
    ("get_settings", (), "the settings that can be set"),
    (
        "set_settings",
        (
            text(
                "field",
                choices=_VLC_SETTINGS,
            ),
            Param("value", (str, int, bool)),
        ),
        "change a setting",
    ),
    ("get_media_files", (text("path"), text("suffix", None)), "media files in a folder"),
)

CODE = table(
    "code",
    ("launch_vscode", (text("path"),), "open a file or folder"),
    ("compare_files", (text("file1"), text("file2")), "show the difference of two files"),
    ("add_folder", (text("folder"),), "add a folder to the workspace"),
    ("remove_folder", (text("folder"),), "remove a folder from the workspace"),
    ("goto_file", (text("file_path"), whole("line", 1), whole("character", 1)), "open a file at a place"),
    ("perform_merge", (text("path1"), text("path2"), text("base"), text("result")), "three-way merge"),
    ("install_extension", (text("extension_id"), flag("pre_release", False)), "install an extension"),
    ("uninstall_extension", (text("extension_id"),), "uninstall an extension"),
    ("list_extensions", (flag("show_versions", False), text("category", None)), "installed extensions"),
    ("update_extensions", (), "update all extensions"),
    ("disable_extension", (text("extension_id"),), "disable an extension from the next start on"),
    ("toggle_sync", (text("state", choices=("on", "off")),), "settings sync on or off"),
)

GIMP = table(
    "gimp",
    ("env_info", (), "the open image: size, mode, layers, file"),
    ("open", (text("path"),), "open an image"),
    ("export", (text("path"),), "export the image; the name's ending says the format"),
    ("scale", (whole("width"), whole("height")), "scale the image, in pixels"),
    ("crop", (whole("x"), whole("y"), whole("width"), whole("height")), "crop the image, in pixels"),
    ("rotate", (whole("degrees"),), "rotate by 90, 180 or 270 degrees"),
    ("flip", (text("direction", choices=("horizontal", "vertical")),), "mirror the image"),
    ("brightness_contrast", (number("brightness", 0), number("contrast", 0)), "each from -100 to 100"),
    ("saturation", (number("amount"),), "from -100 to 100"),
    ("set_mode", (text("mode", choices=("rgb", "gray", "indexed")),), "colour mode"),
    ("blur", (number("radius"),), "blur, radius in pixels"),
    ("fill", (text("color"),), "fill the active layer with a colour"),
    ("add_text", (text("text"), whole("x"), whole("y"), number("size", 24), text("color", "black")), "text on a new layer"),
    ("undo", (), "take the last change back"),
)
