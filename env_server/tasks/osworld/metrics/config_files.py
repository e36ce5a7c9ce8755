"""Metrics over applications' settings files: GIMP, VS Code, LibreOffice, VLC."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

from computerrl.env_server.tasks.osworld.metrics.files import load, read_json, read_lines, read_text, xml_of
from computerrl.env_server.tasks.osworld.metrics.general import Rules, score
from computerrl.env_server.tasks.osworld.metrics.matching import BadRule, whole_number

_OOR = "{http://openoffice.org/2001/registry}"


# --- GIMP and VS Code ------------------------------------------------------------------------------------------------


def check_config_status(result: str, rules: Rules) -> float:
    """A line of GIMP's settings, such as ``(theme "Light")``, has the key (or keys, nested) and ends with the value."""
    keys = [rules["key"]] if isinstance(rules["key"], str) else list(rules["key"])
    # Published rules name nested keys with the bracket in front of them.
    keys = [key.strip("()") for key in keys]
    for line in read_lines(result):
        if line.startswith("#"):
            continue
        words = line.strip().lstrip("(").rstrip(")\n").replace("(", " ").replace(")", " ").split()
        if words[: len(keys)] == keys and words[-1] == str(rules["value"]):
            return 1.0
    return 0.0


def check_json_settings(result: str, rules: Rules) -> float:
    """The settings have all expected keys with the expected values."""
    data = read_json(result)
    if not isinstance(data, Mapping):
        return 0.0
    return score(all(key in data and data[key] == value for key, value in rules["expected"].items()))


def check_json_keybindings(result: str, rules: Rules) -> float:
    """The expected binding is one of the file's."""
    data = read_json(result)
    return score(isinstance(data, list) and rules["expected"] in data)


def compare_config(result: str, rules: Rules) -> float:
    """The file has exactly the expected text."""
    return score(read_text(result) == rules["expected"])


def check_html_background_image(result: str, rules: Rules) -> float:
    """A style sheet of the page names the image as a background, in single quotes."""
    page = _StyleSheets()
    page.feed(read_text(result))
    page.close()
    return score(any(f"background-image: url('{rules['value']}')" in text for text in page.texts))


class _StyleSheets(HTMLParser):
    """The texts of a page's elements `style`."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._inside = tag == "style"
        if self._inside:
            self.texts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.texts[-1] += data


def is_extension_installed(result: str, rules: Rules) -> float:
    """The list of extensions names the expected one, or (``not_contain``) does not."""
    if rules["type"] not in ("contain", "not_contain"):
        raise BadRule(f"is_extension_installed of type {rules['type']!r}")
    return score((rules["expected"] in str(result)) == (rules["type"] == "contain"))


# --- LibreOffice -----------------------------------------------------------------------------------------------------


def _properties(path: str) -> list[tuple[str, str, str]]:
    """(item path, property name, value) of a ``registrymodifications.xcu``."""
    root = load(path, lambda place: xml_of(place.read_bytes()))
    found = []
    for item in root.iter("item"):
        for prop in item.iter("prop"):
            value = prop.find("value")
            found.append(
                (item.get(f"{_OOR}path", ""), prop.get(f"{_OOR}name", ""), (value.text or "") if value is not None else "")
            )
    return found


def check_auto_saving_time(result: str, rules: Rules) -> float:
    """LibreOffice saves by itself every so many minutes."""
    minutes = [value for _, name, value in _properties(result) if name == "AutoSaveTimeIntervall"]
    switches = [value for _, name, value in _properties(result) if name == "AutoSave"]
    return score(minutes == [str(rules["minutes"])] and switches != ["false"])


def check_presenter_console_disable(result: str) -> float:
    """Impress's presenter console is switched off."""
    values = [value for _, name, value in _properties(result) if name == "EnablePresenterScreen"]
    return score([value.lower() for value in values] == ["false"])


def find_default_font(result: str, rules: Rules) -> float:
    """Writer's standard font is the expected one."""
    for path, name, value in _properties(result):
        if path.endswith("Writer/DefaultFont") and name == "Standard":
            return score(value == rules["font_name"])
    return 0.0


# --- VLC -------------------------------------------------------------------------------------------------------------


def _vlc_setting(path: str, name: str, default: str) -> str:
    """A setting of VLC; a line that begins with # is what applies anyway."""
    found = default
    for line in read_lines(path):
        if line.startswith(f"{name}="):
            found = line.partition("=")[2].strip()
    return found


def is_vlc_recordings_folder(result: str, rules: Rules) -> float:
    """VLC records into the expected folder."""
    return score(_vlc_setting(result, "input-record-path", "").rstrip("/") == str(rules["recording_file_path"]).rstrip("/"))


def _same_setting(result: str, name: str, default: str, wanted: Any) -> float:
    found = _vlc_setting(result, name, default)
    return score(found == str(wanted))


def check_qt_bgcone(result: str, rules: Rules) -> float:
    """The cone in VLC's window is on (1) or off (0)."""
    return _same_setting(result, "qt-bgcone", "1", rules["expected_qt_bgcone"])


def check_qt_max_volume(result: str, rules: Rules) -> float:
    """VLC's largest volume in percent."""
    return _same_setting(result, "qt-max-volume", "125", rules["expected_qt_max_volume"])


def check_qt_minimal_view(result: str, rules: Rules) -> float:
    """VLC's minimal view is on or off."""
    return _same_setting(result, "qt-minimal-view", "0", rules["expected_qt_minimal_view"])


def check_one_instance_when_started_from_file(result: str, rules: Rules) -> float:
    """VLC opens files in the running instance, or not."""
    wanted = rules["expected_one_instance_when_started_from_file"]
    return _same_setting(result, "one-instance-when-started-from-file", "1", wanted)


def check_play_and_exit(result: str, rules: Rules) -> float:
    """VLC ends after the last medium of its playlist, or stays open."""
    return _same_setting(result, "play-and-exit", "0", rules["expected_play_and_exit"])


def check_global_key_play_pause(result: str, rules: Rules) -> float:
    """There is a key for play/pause that works everywhere (1), or none (0)."""
    is_set = bool(_vlc_setting(result, "global-key-play-pause", ""))
    return score(is_set == bool(whole_number(rules["expected_global_key_play_pause"])))


_BLACKISH = 100
"""A colour is blackish when each part of it is below this, of 255."""


def check_qt_slider_colours(result: str, rules: Rules) -> float:
    """The volume slider's colours: ``match`` the expected ones, or are all ``blackish``."""
    text = _vlc_setting(result, "qt-slider-colours", "153;210;153;20;210;20;255;199;15;245;39;29")
    if rules["type"] == "match":
        return score(text == rules["expected_qt_slider_colours"])
    if rules["type"] != "blackish":
        raise BadRule(f"check_qt_slider_colours of type {rules['type']!r}")
    numbers = re.findall(r"\d+", text)
    return score(bool(numbers) and all(int(number) < _BLACKISH for number in numbers))
