"""Which changes of the office's profile a next task could notice, and which the office makes by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from computerrl.env_server.guest.office import profile

FIRST = profile.settings_file()
COMMON = "/org.openoffice.Office.Common"


def with_option(path: str, name: str, value: str) -> bytes:
    item = f'<item oor:path="{path}"><prop oor:name="{name}" oor:op="fuse"><value>{value}</value></prop></item>\n'
    return FIRST.replace("</oor:items>", f"{item}</oor:items>").encode()


def changes(registry: bytes) -> list[str]:
    return profile.changes(profile.read_registry(FIRST.encode()).options, profile.read_registry(registry).options)


def test_first_profile_has_no_changes() -> None:
    assert changes(FIRST.encode()) == []


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        ("/org.openoffice.UserProfile/Data", "givenname", "Eve"),
        (f"{COMMON}/Security/Scripting", "DisableMacrosExecution", "false"),
        (f"{COMMON}/SearchOptions", "IsMatchCase", "true"),
        (f"{COMMON}/UserColors", "RecentColor", "255"),
        ("/org.openoffice.Office.Calc/Input", "MoveSelection", "false"),
    ],
)
def test_option_that_was_set_is_a_change(path: str, name: str, value: str) -> None:
    assert changes(with_option(path, name, value)) == [f"{path} {name}"]


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        ("/org.openoffice.Office.UI.Sidebar/Content", "LastActiveDeck", "any,PropertyDeck"),
        ("/org.openoffice.Setup/Product", "LastTimeDonateShown", "1"),
        (f"{COMMON}/SearchOptions", "IsMatchCase", "false"),
        (f"{COMMON}/SearchOptions/Japanese", "IsMatch_KiKu", "true"),
        (f"{COMMON}/UserColors", "RecentColor", "-1"),
        (f"{COMMON}/Print/Dialog", "RangeSectionExpanded", "true"),
    ],
)
def test_what_the_office_writes_by_itself_is_no_change(path: str, name: str, value: str) -> None:
    assert changes(with_option(path, name, value)) == []


@pytest.mark.parametrize("text", [b"", b"<oor", b"\xff\xfe", b"<a><b/></a>"])
def test_registry_that_is_none_is_a_change(text: bytes) -> None:
    assert changes(text)


def test_what_dialogs_and_documents_leave_is_remembered_by_node_and_member() -> None:
    views, history = "/org.openoffice.Office.Views", "/org.openoffice.Office.Histories/Histories/org.openoffice.Office.Histories"
    pick_list = f"{history}:HistoryInfo['PickList']"
    items = f"""
    <item oor:path="{views}/TabDialogs"><node oor:name="modules/scalc/FormatCells" oor:op="replace"/></item>
    <item oor:path="{views}/TabPages/org.openoffice.Office.Views:TabPageType['modules/page']"><prop oor:name="x"/></item>
    <item oor:path="{COMMON}/Misc/FilePickerLastDirectory"><prop oor:name="CalcSaveAs" oor:op="replace"/></item>
    <item oor:path="{pick_list}/ItemList"><node oor:name="file:///tmp/a.ods" oor:op="replace"/></item>
    <item oor:path="{pick_list}/ItemList"><node oor:name="file:///tmp/taken-away.ods" oor:op="remove"/></item>
    <item oor:path="{pick_list}/OrderList/org.openoffice.Office.Histories:HistoryOrder['0']"><prop oor:name="x"/></item>
    </oor:items>"""
    found = profile.read_registry(FIRST.replace("</oor:items>", items).encode())
    assert found.remembered == [
        (f"{COMMON}/Misc/FilePickerLastDirectory", "CalcSaveAs"),
        (f"{pick_list}/ItemList", "file:///tmp/a.ods"),
        (f"{pick_list}/OrderList", "0"),
        (f"{views}/TabDialogs", "modules/scalc/FormatCells"),
        (f"{views}/TabPages", "modules/page"),
    ]
    assert profile.changes(profile.read_registry(FIRST.encode()).options, found.options) == []


def test_files_of_a_profile_are_all_but_those_that_any_use_makes(tmp_path: Path) -> None:
    for name in ("user/autocorr", "user/wordbook", "tmp/lu1.tmp", "user/basic"):
        (tmp_path / name).mkdir(parents=True)
    words = tmp_path / "user/wordbook/standard.dic"
    words.write_text("OOoUserDict1\nlang: <none>\ntype: positive\n---\n")
    assert profile.files(tmp_path) == {"user", "user/basic"}
    words.write_text(words.read_text() + "secret\n")
    (tmp_path / "user/basic/Standard.xba").touch()
    assert profile.files(tmp_path) == {"user", "user/basic", "user/basic/Standard.xba", "user/wordbook/standard.dic"}
