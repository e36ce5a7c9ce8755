"""Texts, settings and mails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.oracle.pairs import Judge, Pair, each_alone, each_with_base, write

TEXT = "alpha\nbeta gamma\n  delta\n12:30:01 end\n"
TEXTS: dict[str, bytes | str] = {
    "base": TEXT,
    "no last line end": TEXT[:-1],
    "more line ends": TEXT + "\n\n",
    "windows line ends": TEXT.replace("\n", "\r\n"),
    "capitals": TEXT.upper(),
    "line more": TEXT + "epsilon\n",
    "line less": "alpha\nbeta gamma\n",
    "other order": "beta gamma\nalpha\n  delta\n12:30:01 end\n",
    "tabs": TEXT.replace("  ", "\t"),
    "blanks": TEXT.replace("beta gamma", "beta  gamma "),
    "near miss": TEXT.replace("delta", "delte"),
    "empty": "",
    "blank": "\n",
    "byte order mark": b"\xef\xbb\xbf" + TEXT.encode(),
    "utf-16": TEXT.encode("utf-16"),
    "form feed": TEXT.replace("beta gamma", "beta\x0cgamma"),
    "line separator": TEXT.replace("beta gamma", "beta\u2028gamma"),
    "letters": TEXT + "José\n",
    "letters, latin-1": (TEXT + "José\n").encode("latin-1"),
    "other letters, latin-1": (TEXT + "Josè\n").encode("latin-1"),
    "no text": b"\x00\x01\xff\xfe" * 20,
    "long": "line\nother\n" * 150 + "end\n",
}
TABLE = "name,price\nink,1.5\npen,2\n"
TABLES: dict[str, bytes | str] = {
    "base": TABLE,
    "no last line end": TABLE[:-1],
    "windows line ends": TABLE.replace("\n", "\r\n"),
    "capitals": TABLE.upper(),
    "blanks at line ends": TABLE.replace("\n", " \n"),
    "blanks around commas": TABLE.replace(",", " , "),
    "empty line": TABLE + "\n",
    "quoted": '"name","price"\n"ink","1.5"\n"pen","2"\n',
    "row more": TABLE + "cup,3\n",
    "row less": "name,price\nink,1.5\n",
    "other value": TABLE.replace("1.5", "1.50"),
    "semicolons": TABLE.replace(",", ";"),
    "comma in a cell": 'name,price\n"ink, blue",1.5\n',
    "line break in a cell": 'name,price\n"ink\nblue",1.5\n',
    "only a head": "name,price\n",
    "empty": "",
    "byte order mark": b"\xef\xbb\xbf" + TABLE.encode(),
    "utf-16": TABLE.encode("utf-16"),
}
NUMBERS = {
    "base": "12.5",
    "close": "12.50001",
    "not close": "12.6",
    "in a text": "C: 12.5 s",
    "part of a number": "112.57",
    "line end": "12.5\n",
    "word": "twelve",
}
_STYLE = "<html><head><style>{}</style></head><body>text</body></html>"
PAGES: dict[str, bytes | str] = {
    "set": _STYLE.format("body { background-image: url('a.png'); }"),
    "two": "<style>p {}</style>" + _STYLE.format("\nbackground-image: url('a.png')"),
    "other image": _STYLE.format("body { background-image: url('b.png'); }"),
    "no quotes": _STYLE.format("body { background-image: url(a.png); }"),
    "in an attribute": "<body style=\"background-image: url('a.png')\"></body>",
    "in a remark": "<!-- <style>background-image: url('a.png')</style> -->",
    "without end": "<style>background-image: url('a.png')",
    "empty": "",
    "no text": b"\x00\x01\xff\xfe",
}
CODE = "#!/usr/bin/env python3\n# -*- coding: utf-8 -*-\nimport os\n\nif os:\n    print(1)\n"
CODES: dict[str, bytes | str] = {
    "base": CODE,
    "no remarks": CODE.partition("utf-8 -*-\n")[2],
    "tabs": CODE.replace("    ", "\t"),
    "blanks at line ends": CODE.replace("\n", "  \n"),
    "empty lines": CODE.replace("\n", "\n\n"),
    "other indent": CODE.replace("    ", "  "),
    "remark more": CODE + "# done\n",
    "other code": CODE.replace("print(1)", "print(2)"),
    "in Markdown": f"```python\n{CODE}```\n",
    "empty": "",
}


def texts(folder: Path) -> Iterator[Pair]:
    """Files of text."""
    files = write(folder / "texts", ".txt", TEXTS)
    loose = {"ignore_blanks": True}
    yield from each_with_base(
        (
            Judge("compare_text_file"),
            Judge("compare_text_file", loose, word="blanks"),
            Judge("compare_text_file", {"ignore_case": True}, word="case"),
            Judge("diff_text_file"),
            Judge("compare_csv", word="text"),
            Judge("compare_result_files"),
            Judge("compare_python_pure_text"),
        ),
        files,
    )
    alone = (
        Judge("compare_config", rules={"expected": TEXT}),
        Judge("file_contains", rules={"expected": ["beta", "delta"]}),
        Judge("file_contains", rules={"expected": []}, word="nothing"),
        Judge("check_list", rules={"expect": ["^alpha$", r"\d{2}:"], "unexpect": ["epsilon"]}),
        Judge("check_list", rules={"unexpect": ["gamma$"]}, word="unexpect"),
        Judge("check_line_number", rules={"expected": "1"}),
        Judge("check_line_number", rules={"expected": 0}, word="none"),
        Judge("compare_terminal_and_txt", rules=TEXT),
    )
    yield from each_alone(alone, files)
    tables = write(folder / "tables", ".csv", TABLES)
    yield from each_with_base(
        (
            Judge("compare_csv"),
            Judge("compare_csv", {"strict": False}, word="not strict"),
            Judge("compare_csv", {"ignore_case": True}, word="case"),
        ),
        tables,
    )
    yield from each_alone(
        (
            Judge("check_csv", rules={"expect": [{"name": "ink", "price": "1.5"}]}),
            Judge("check_csv", rules={"expect": [{"name": "pen"}], "unexpect": [{"name": "cup"}]}, word="unexpect"),
        ),
        tables,
    )
    for name, path in tables.items():
        yield Pair("compare_csv", f"{name} = base or row more", (path, [tables["base"], tables["row more"]]))
    yield from each_with_base((Judge("compare_result_files", word="numbers"),), write(folder / "numbers", ".txt", NUMBERS))
    yield from each_with_base((Judge("compare_python_pure_text", word="code"),), write(folder / "codes", ".py", CODES))
    yield from each_alone(
        (Judge("check_html_background_image", rules={"value": "a.png"}),), write(folder / "pages", ".html", PAGES)
    )


# --- JSON, settings, mails -------------------------------------------------------------------------------------------

_DATA = {"a": {"b": [1, 2]}, "c": "text", "n": 5, "t": True, "z": None, "list": "x,y"}
JSONS: dict[str, bytes | str] = {
    "base": json.dumps(_DATA),
    "other values": json.dumps({**_DATA, "a": {"b": [3]}, "c": "Text", "n": 5.05}),
    "keys less": json.dumps({"a": 1}),
    "a list": json.dumps([{"key": "ctrl+j"}, {"key": "ctrl+k"}]),
    "remark in the first line": "// keys\n" + json.dumps([{"key": "ctrl+j"}]),
    "remarks": '{"a": {"b": [1, 2]}, // c\n "c": "text",}',
    "byte order mark": b"\xef\xbb\xbf" + json.dumps(_DATA).encode(),
    "null": "null",
    "empty": "",
    "no JSON": "{a",
    "two": "{}{}",
}
_RULES: dict[str, Any] = {
    "eq": {"key": ["a", "b", 0], "method": "eq", "ref": 1},
    "ne": {"key": ["n"], "method": "ne", "ref": 6},
    "lt": {"key": ["n"], "method": "lt", "ref": 6},
    "ge": {"key": ["n"], "method": "ge", "ref": 5},
    "re": {"key": ["c"], "method": "re", "ref": "^tex"},
    "re.I": {"key": ["c"], "method": "re.I", "ref": "^TEX"},
    "approx": {"key": ["n"], "method": "approx:0.1", "ref": 5},
    "range": {"key": ["n"], "method": "range.te", "ref": [4, 5]},
    "list": {"key": ["list"], "method": "str_list_eq", "ref": ["x", "y"]},
    "set": {"key": ["list"], "method": "str_set_eq", "ref": ["y", "x"]},
    "truth": {"key": ["t"], "method": "eq", "ref": 1},
    "missing": {"key": ["q", "r"], "method": "eq", "ref": 1},
    "null": {"key": ["z"], "method": "eq", "ref": None},
}
YAMLS = {
    "base": "a:\n  b: [1, 2]\nc: text\nn: 5\n",
    "other": "a: {b: [3]}\n",
    "empty": "",
    "no YAML": "a: [",
    "tabs": "a:\n\tb: 1\n",
}
_XCU = (
    '<oor:items xmlns:oor="http://openoffice.org/2001/registry">{}</oor:items>',
    '<item oor:path="{}"><prop oor:name="{}" oor:op="fuse"><value>{}</value></prop></item>',
)
_SAVE, _START, _FONT = (
    "/org.openoffice.Office.Common/Save/Document",
    "/org.openoffice.Office.Impress/Misc/Start",
    "/org.openoffice.Office.Writer/DefaultFont",
)


def _xcu(*items: tuple[str, str, str]) -> str:
    return _XCU[0].format("".join(_XCU[1].format(*item) for item in items))


XCUS = {
    "right": _xcu(
        (_SAVE, "AutoSaveTimeIntervall", "3"), (_START, "EnablePresenterScreen", "false"), (_FONT, "Standard", "Arial")
    ),
    "other": _xcu((_SAVE, "AutoSaveTimeIntervall", "5"), (_START, "EnablePresenterScreen", "true"), (_FONT, "Standard", "Ari")),
    "other names": _xcu((_SAVE, "AutoSave", "3"), (_START, "Enable", "false"), (_FONT, "Heading", "Arial")),
    "switched off": _xcu((_SAVE, "AutoSaveTimeIntervall", "3"), (_SAVE, "AutoSave", "false")),
    "nothing": _xcu(),
    "empty": "",
    "no XML": "<oor:items",
    "capital": _xcu((_START, "EnablePresenterScreen", "FALSE")),
}
_VLC = (
    "input-record-path=/home/user\nqt-bgcone=0\nqt-max-volume=200\nqt-minimal-view=1\nglobal-key-play-pause=Space\n"
    "qt-slider-colours=1;2;3;20;20;20\none-instance-when-started-from-file=0\n"
)
VLCS: dict[str, bytes | str] = {
    "set": _VLC,
    "remarks": "".join(f"#{line}\n" for line in _VLC.splitlines()),
    "other": _VLC.replace("=0", "=1").replace("200", "20").replace("/home/user", "/home/user/Desktop").replace("Space", ""),
    "slash": _VLC.replace("/home/user", "/home/user/"),
    "windows line ends": _VLC.replace("\n", "\r\n"),
    "twice": _VLC + _VLC.replace("=0", "=1"),
    "colours 60": _VLC.replace("1;2;3;20;20;20", "60;60;60;99;0;0"),
    "colours 100": _VLC.replace("1;2;3;20;20;20", "60;60;60;100;0;0"),
    "empty": "",
    "no text": b"\xff\xfe\x00",
}
_GIMP = '# remark\n(theme "Light")\n(undo-levels 100)\n(tool (name "x") (size 5))\n(color-management (mode none))\n'
GIMPS = {
    "set": _GIMP,
    "other": _GIMP.replace("Light", "Dark").replace("100", "10"),
    "remark": "#(undo-levels 100)\n",
    "empty": "",
    "blank line": "\n\n" + _GIMP,
    "longer key": "(undo-levels-max 100)\n",
    "more words": "(undo-levels x 100)\n",
}
PREFS = {
    "set": 'user_pref("a.b", "x y");\nuser_pref("n", 5);\nuser_pref("t", true);\n',
    "other": 'user_pref("a.b", "x");\n',
    "no blank": 'user_pref("a.b","x y");\n',
    "indented": '  user_pref("a.b", "x y");  \n',
    "remark": '// user_pref("a.b", "x y");\n',
    "quote": 'user_pref("a.b", "x \\"y\\"");\n',
    "twice": 'user_pref("a.b", "z");\nuser_pref("a.b", "x y");\n',
    "empty": "",
    "no JSON": 'user_pref("a.b", x y);\n',
}
_FILTER = 'version="9"\nname="f"\nenabled="yes"\ntype="17"\naction="Mark read"\ncondition="AND (subject,contains,sale)"\n'
FILTERS = {
    "set": _FILTER,
    "other condition": _FILTER.replace("sale", "sales"),
    "off": _FILTER.replace("yes", "no"),
    "two conditions": _FILTER.replace("sale)", "sale) OR (from,is,a@b.c)"),
    "quotes": _FILTER.replace("sale", '\\"big sale\\"'),
    "all": _FILTER.replace("AND (subject,contains,sale)", "ALL"),
    "two filters": _FILTER + _FILTER.replace("sale", "x")[12:],
    "two actions": _FILTER.replace('action="Mark read"', 'action="Move to folder"\nactionValue="m"\naction="Mark read"'),
    "empty": "",
    "no filter": "x\n",
}
_MAIL = "From - Sat Jan 1 00:00:00 2022\nX-Mozilla-Status: {}\nSubject: {}\n\nText\n\n"
MAILS: dict[str, bytes | str] = {
    "base": _MAIL.format("0001", "a") + _MAIL.format("0001", "b"),
    "other order": _MAIL.format("0001", "b") + _MAIL.format("0001", "a"),
    "other mail": _MAIL.format("0001", "a") + _MAIL.format("0001", "c"),
    "mail less": _MAIL.format("0001", "a"),
    "deleted mail": _MAIL.format("0001", "a") + _MAIL.format("0001", "b") + _MAIL.format("0008", "c"),
    "other status": _MAIL.format("0000", "a") + _MAIL.format("0001", "b"),
    "twice": _MAIL.format("0001", "a") * 2,
    "empty": "",
}
HTMLS = {
    "base": "<html><body><p class='x'>a <b>b</b></p></body></html>",
    "no body": "<p class='x'>a <b>b</b></p>",
    "blanks": "<html><body><p class='x'>a  <b>b</b> </p>\n</body></html>",
    "other class": "<p class='y'>a <b>b</b></p>",
    "other text": "<p class='x'>a <b>c</b></p>",
    "element more": "<p class='x'>a <b>b</b></p><p>more</p>",
    "element less": "<p class='x'>a b</p>",
    "sdnum": "<p class='x' sdnum='1033'>a <b>b</b></p>",
    "empty": "",
    "only text": "a b",
}


def settings(folder: Path) -> Iterator[Pair]:
    """JSON, YAML and applications' settings."""
    files = write(folder / "json", ".json", JSONS)
    judges = [Judge("check_json", rules={"expect": [rule]}, word=name) for name, rule in _RULES.items()]
    judges += [Judge("check_json", rules={"unexpect": [rule]}, word=f"not {name}") for name, rule in _RULES.items()]
    judges += [
        Judge("check_json_settings", rules={"expected": {"c": "text", "n": 5}}),
        Judge("check_json_settings", rules={"expected": {}}, word="nothing"),
        Judge("check_json_keybindings", rules={"expected": {"key": "ctrl+j"}}),
    ]
    yield from each_alone(judges, files)
    yaml = [Judge("check_json", {"is_yaml": True}, {"expect": [_RULES["eq"]]}, "yaml")]
    yield from each_alone(yaml, write(folder / "yaml", ".yaml", YAMLS))
    yield from each_alone(
        (
            Judge("check_auto_saving_time", rules={"minutes": 3}),
            Judge("check_presenter_console_disable"),
            Judge("find_default_font", rules={"font_name": "Arial"}),
        ),
        write(folder / "xcu", ".xcu", XCUS),
    )
    vlc = [Judge("is_vlc_recordings_folder", rules={"recording_file_path": "/home/user"})]
    for name in ("qt_bgcone", "qt_max_volume", "qt_minimal_view", "global_key_play_pause", "one_instance_when_started_from_file"):
        for value in (0, 1, "1", 200) if name == "qt_max_volume" else (0, 1, "1"):
            vlc.append(Judge(f"check_{name}", rules={f"expected_{name}": value}, word=repr(value)))
    vlc += [
        Judge("check_qt_slider_colours", rules={"type": "blackish"}, word="blackish"),
        Judge("check_qt_slider_colours", rules={"type": "match", "expected_qt_slider_colours": "1;2;3;20;20;20"}, word="match"),
    ]
    yield from each_alone(vlc, write(folder / "vlc", "", VLCS))
    yield from each_alone(
        (
            Judge("check_config_status", rules={"key": "theme", "value": '"Light"'}, word="text"),
            Judge("check_config_status", rules={"key": "undo-levels", "value": "100"}, word="number"),
            Judge("check_config_status", rules={"key": ["color-management", "mode"], "value": "none"}, word="nested"),
            Judge("check_config_status", rules={"key": ["color-management", "(mode"], "value": "none"}, word="nested, bracket"),
        ),
        write(folder / "gimp", "", GIMPS),
    )
    prefs = [
        {"expect": {"a.b": {"method": "eq", "ref": "x y"}}},
        {"unexpect": {"a.b": {"method": "re", "ref": "x"}}},
        {"expect": {"n": {"method": "ge", "ref": 5}, "t": {"method": "eq", "ref": True}}},
    ]
    places = write(folder / "prefs", ".js", PREFS)
    yield from each_alone([Judge("check_thunderbird_prefs", rules=rule, word=str(n)) for n, rule in enumerate(prefs)], places)
    wishes = [
        {"expect": [{"enabled": "yes", "condition": ["AND (subject,contains,sale)"]}]},
        {"expect": [{"action": "Mark read"}]},
        {"unexpect": [{"enabled": "no"}]},
        {"expect": [{"name": "f", "condition": ["ALL"]}]},
    ]
    places = write(folder / "filters", ".dat", FILTERS)
    yield from each_alone([Judge("check_thunderbird_filter", rules=rule, word=str(n)) for n, rule in enumerate(wishes)], places)
    yield from each_with_base(
        (Judge("check_thunderbird_folder"), Judge("check_thunderbird_folder", {"ignore_status": True}, word="status")),
        write(folder / "mails", "", MAILS),
    )
    yield from each_with_base(
        (Judge("compare_htmls"), Judge("compare_htmls", {"ignore_sdnum": True}, word="sdnum")),
        write(folder / "html", ".html", HTMLS),
    )
