"""What a task does by its instruction, and applications by any of their names."""

from __future__ import annotations

from typing import Any

import pytest

from computerrl.env_server.tasks.osworld.abilities import application, refusals
from computerrl.env_server.tasks.osworld.assets import Assets
from computerrl.env_server.tasks.osworld.format import TaskFile
from computerrl.env_server.tasks.osworld.network.wishes import missing_programs, network_wishes

NEEDS_NETWORK = (
    "Fetch the picture at https://pictures.example/a/b.png and put it on the Desktop.",
    "Play http://films.example/master.m3u8 in VLC.",
    "Please download the PDF of the second paper in my list.",
    "I have some chapters already. Help me in downloading the next one.",
    "Clone the project of my friend to ~/code.",
    "Go to the web store and get me a dark theme.",
    "Install the grammar checking extension for LibreOffice.",
    "Please install all these plug-ins in my browser.",
    "Please install the whale extension in VS Code.",
    "Find the homepage of each author and bookmark it.",
    "Fill in the phone numbers; the website links are in column B.",
    "Collect last week's papers on robots from arXiv.",
    "Please search the Internet for a tutorial on tabs and set them up in my editor.",
    "Measure my connection through speedtest.net and save the figures.",
    'My shell says "terraform: command not found". Make it work.',
)
NEEDS_NOTHING = (
    "Open http://localhost:8000/report.html and bookmark it.",
    "I downloaded some pictures yesterday: move those in Downloads to Pictures.",
    "Move all downloaded files into a folder called Old.",
    "Warn me about unsafe websites in Chrome.",
    "Make Bing my search engine for the internet.",
    "Add a bookmark folder named Websites to the bookmarks bar.",
    'Add the footnote "Taken from Wikipedia" to the first heading.',
    "Write “seen on YouTube in 2020” into cell B2.",
    "Forward all mail for anna@example.com to berta@example.org with a filter.",
    "Save the address of the shop in cell B2 of the sheet.",
    "Set the default text size of web pages to the largest.",
    "Delete my browsing data whenever I close the browser.",
    "Rename the installed fonts list to fonts.txt.",
    "Change the folder of downloads to Desktop.",
    'Please install an extension in VS Code from the local file "/home/user/whale.vsix".',
)


@pytest.mark.parametrize("instruction", NEEDS_NETWORK)
def test_instruction_that_only_the_network_fulfils_says_why(instruction: str) -> None:
    reasons = [wish.reason for wish in network_wishes(instruction)]
    assert reasons and all("agent" in reason or "instruction" in reason for reason in reasons)


@pytest.mark.parametrize("instruction", NEEDS_NOTHING)
def test_instruction_that_needs_no_network_is_taken(instruction: str) -> None:
    assert list(network_wishes(instruction)) == []


def test_programs_that_no_image_has_are_named() -> None:
    assert list(missing_programs("Measure the load with sar of sysstat for ten seconds, sysstat is there.")) == ["sysstat"]
    assert list(missing_programs("Use the terminal.")) == []


@pytest.mark.parametrize(
    ("spelt", "meant"),
    [
        ("libreoffice_calc", "libreoffice_calc"),
        ("calc", "libreoffice_calc"),
        ("LibreOffice Calc", "libreoffice_calc"),
        ("Writer", "libreoffice_writer"),
        ("libreoffice-writer", "libreoffice_writer"),
        ("libreoffice", "libreoffice_writer"),
        ("browser", "chrome"),
        ("Google Chrome", "chrome"),
        ("vs code", "vs_code"),
        ("VS-Code", "vs_code"),
        (" os ", "os"),
        ("Thunderbird", "thunderbird"),
        ("blender", "blender"),
    ],
)
def test_application_is_known_by_any_spelling(spelt: str, meant: str) -> None:
    assert application(spelt) == meant


def _kinds(instruction: str, **changes: Any) -> set[str]:
    values = {
        "id": "x",
        "instruction": instruction,
        "related_apps": ["Writer"],
        "config": [],
        "evaluator": {
            "func": "exact_match",
            "result": {"type": "vm_file", "path": "/home/user/a", "dest": "a"},
            "expected": {"type": "rule", "rules": {"expected": "x"}},
        },
        **changes,
    }
    return {refusal.kind for refusal in refusals(TaskFile.model_validate(values), assets=Assets(None))}


def test_task_is_refused_by_what_it_does() -> None:
    assert _kinds("Write a letter.") == set()
    assert _kinds("Download the logo of our university.") == {"network"}
    assert _kinds("Use sysstat to write a report.") == {"app"}
    assert _kinds("Download the logo of our university.", evaluator={"func": "infeasible"}) == set()


def test_flags_of_a_browser_of_another_year_are_refused() -> None:
    result = {"type": "enabled_experiments"}
    expected = {"type": "rule", "rules": {"type": "names", "names": ["some-refresh-2023"]}}
    evaluator = {"func": "check_enabled_experiments", "result": result, "expected": expected}
    assert _kinds("Use the old design.", evaluator=evaluator) == {"unsupported"}


@pytest.mark.parametrize(
    ("rule", "kinds"),
    [
        ({"selectors": ['application[name=Mail] page-tab[name="Profiles"]']}, {"unsupported"}),
        ({"selectors": ["label[attr|class=pill]", "label[name=To]"]}, {"unsupported"}),
        ({"xpath": "//label[@attr:id='To']"}, {"unsupported"}),
        ({"selectors": ['page-tab[name="Profiles"]', "label[st|focused=true]"]}, set()),
        ({"xpath": "//label[@st:focused='true']"}, set()),
    ],
)
def test_rule_over_what_trees_do_not_tell_is_refused(rule: dict[str, Any], kinds: set[str]) -> None:
    expected = {"type": "rule", "rules": [rule]}
    evaluator = {"func": "check_accessibility_tree", "result": {"type": "accessibility_tree"}, "expected": expected}
    assert _kinds("Open the profiles.", evaluator=evaluator) == kinds
