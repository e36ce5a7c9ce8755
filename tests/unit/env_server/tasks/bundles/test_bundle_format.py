"""Reading task bundles: right ones, and every kind of wrong one named with its file or field."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from computerrl.common.errors import ConfigError
from computerrl.env_server.tasks.bundles import format as bundle_format
from computerrl.env_server.tasks.bundles.checks import applications, refusals
from computerrl.env_server.tasks.bundles.format import read_bundle
from computerrl.env_server.tasks.osworld.abilities import TOOLS_IMAGE
from tests.support.tasks.bundles import CHECKS, write_bundle

INDEX = {"web/index.html": "x"}


def test_bundle_is_read_with_the_part_of_each_file(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "initial_setup.xlsx": b"PK",
        "gold.txt": "g",
        "data/a.csv": "1",
        "web/index.html": "<h1>",
        "web/js/a.js": "2",
    }
    place = write_bundle(
        tmp_path, "one", setup="pass", solution="pass", files=files, task_id="t.1", app_type="gmail_mock, Writer"
    )
    bundle = read_bundle(place)
    assert (bundle.id, bundle.instruction) == ("t.1", "Make one.")
    assert applications(bundle) == ["chrome", "libreoffice_writer"]
    assert (bundle.setup, bundle.solution, bundle.documents) == ("initial_setup.py", "solution.py", ["initial_setup.xlsx"])
    assert bundle.plain_files == {"gold.txt": b"g", "data/a.csv": b"1"}
    assert bundle.web is not None and (bundle.web.entry, bundle.web.address) == ("", "http://127.0.0.1:8080")
    assert bundle.web_files == {"index.html": b"<h1>", "js/a.js": b"2"}
    assert refusals(bundle, place, image="full") == []


def test_bundle_as_its_makers_write_it_is_the_same_one(tmp_path: Path) -> None:
    """``config.json``, whose first step runs the set-up script, in place of ``task.json``."""
    runs = {"type": "execute", "command": ["python3", "initial_setup.py"]}
    brings = {"type": "download", "parameters": {"files": [{"url": "https://h.invalid/initial_setup.py", "path": "/tmp/i.py"}]}}
    waits = {"type": "sleep", "parameters": {"seconds": 1}}
    place = write_bundle(tmp_path, "one", setup="pass", config=[brings, runs, waits])
    (place / "task.json").rename(place / "config.json")
    bundle = read_bundle(place)
    assert bundle.task_file == "config.json" and [step.type for step in bundle.steps] == ["sleep"] and not bundle.plain_files
    assert refusals(bundle, place, image="full") == []
    (place / "task.json").write_text('{"instruction": "Other."}')
    bundle = read_bundle(place)
    assert bundle.instruction == "Other." and bundle.plain_files.keys() == {"config.json"}


@pytest.mark.parametrize(
    ("files", "entry"),
    [
        ({"web/server.js": "x"}, "server.js"),
        ({"web/package.json": '{"main": "./src/main.js"}', "web/src/main.js": "x"}, "src/main.js"),
        ({"web/package.json": '{"scripts": {}}', "web/index.html": "x"}, ""),
        ({"site/index.html": "x", "web/index.html": "x"}, ""),
    ],
)
def test_web_application_is_told_by_its_files(files: dict[str, str | bytes], entry: str, tmp_path: Path) -> None:
    fields = {"web_app": "site"} if "site/index.html" in files else {}
    web = read_bundle(write_bundle(tmp_path, "one", files=files, **fields)).web
    assert web is not None and web.entry == entry and web.folder == (fields.get("web_app") or "web")


WRONG_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no task file": (lambda place: (place / "task.json").unlink(), "task.json: is missing"),
    "no reward script": (lambda place: (place / "reward.py").unlink(), "reward.py: is missing"),
    "link out of the bundle": (lambda place: (place / "data").symlink_to("/etc"), "data: is a link"),
    "link to a file outside": (lambda place: (place / "passwd").symlink_to("/etc/passwd"), "passwd: is a link"),
    "link inside": (lambda place: (place / "again.py").symlink_to("reward.py"), "again.py: is a link"),
    "link in place of a script": (
        lambda place: ((place / "reward.py").unlink(), (place / "reward.py").symlink_to("/etc/passwd")),
        "reward.py: is a link",
    ),
    "pipe": (lambda place: os.mkfifo(place / "pipe"), "pipe: is a pipe, socket or device"),
    "name with a line break": (lambda place: (place / "a\nb").touch(), "characters that cannot be shown"),
    "name that is no UTF-8": (lambda place: open(os.fsencode(place) + b"/\xff", "wb").close(), "characters that cannot be shown"),
    "script that is no UTF-8": (lambda place: (place / "reward.py").write_bytes(b"# \xff\n"), "reward.py: is no text in UTF-8"),
    "script with a NUL": (lambda place: (place / "reward.py").write_bytes(b"x = 1\0"), "reward.py: holds a NUL byte"),
    "task file that is no UTF-8": (lambda place: (place / "task.json").write_bytes(b'"\xff"'), "task.json: is no text in UTF-8"),
    "task file that is no JSON": (lambda place: (place / "task.json").write_text("{"), "task.json: is no JSON"),
    "task file that is nested": (lambda place: (place / "task.json").write_text("[" * 100_000), "task.json: is no JSON"),
    "task file that is a list": (lambda place: (place / "task.json").write_text("[]"), "task.json: the file"),
    "huge script": (lambda place: (place / "reward.py").write_bytes(b"#" * 1_000_001), "reward.py: has 1000001 bytes"),
    "two set-up scripts": (
        lambda place: [(place / f"initial_setup.{ending}").touch() for ending in ("py", "sh")],
        "initial_setup.sh: is a second set-up script",
    ),
    "two solutions": (
        lambda place: [(place / name).touch() for name in ("solution.py", "golden_patch.py")],
        "golden_patch.py: is a second solution script",
    ),
    "huge file": (lambda place: os.truncate((place / "reward.py"), 0) or _sparse(place / "big", 46 << 20), "larger than"),
}


def _sparse(path: Path, num_bytes: int) -> None:
    path.touch()
    os.truncate(path, num_bytes)


@pytest.mark.parametrize("name", WRONG_FILES)
def test_bundle_with_a_wrong_file_is_refused_by_its_name(name: str, tmp_path: Path) -> None:
    spoil, named = WRONG_FILES[name]
    place = write_bundle(tmp_path, "one")
    spoil(place)
    with pytest.raises(ConfigError) as error:
        read_bundle(place)
    assert named in str(error.value) and all(problem.next_step for problem in error.value.problems)


@pytest.mark.parametrize(
    ("fields", "files", "named"),
    [
        ({"instruction": " "}, {}, "task.json: instruction"),
        ({"instruction": None}, {}, "task.json: instruction"),
        ({"id": "../other"}, {}, "id: '../other' is no name of a task"),
        ({"id": "a..b"}, {}, "id: 'a..b'"),
        ({"id": "/etc"}, {}, "id: '/etc'"),
        ({"id": "a" * 101}, {}, "at most 100"),
        ({"id": "a\u202eb"}, {}, "is no name of a task"),
        ({"max_reward": 0}, {}, "task.json: max_reward"),
        ({"max_reward": "NaN"}, {}, "task.json: max_reward"),
        ({"config": [{"type": "sleep", "parameters": {"seconds": -1}}]}, {}, "task.json: config.0.parameters"),
        ({"web_app": "../up"}, {}, "must lie inside the bundle"),
        ({"web_app": {"folder": "web", "entry": "../up.js"}}, INDEX, "must lie inside the bundle"),
        ({"web_app": {"folder": "web", "port": 80}}, INDEX, "task.json: web_app.port"),
        ({"web_app": {"folder": "web", "root": True}}, INDEX, "task.json: web_app.root"),
        ({"web_app": "nowhere"}, {}, "web_app: there is no file in the folder 'nowhere'"),
        ({"web_app": {"folder": "web", "entry": "main.js"}}, INDEX, "there is no file 'main.js' in 'web'"),
        ({}, {"web/a.css": ""}, "neither index.html nor a program for Node"),
        ({}, {"web/package.json": "{"}, "web/package.json is no JSON"),
        ({}, {"web/package.json": '{"main": "../../x.js"}'}, "there is no file '../../x.js'"),
        ({}, {"web/index.html": "", "mock/index.html": ""}, "web and mock could each be the web application"),
    ],
)
def test_bundle_with_a_wrong_field_is_refused_by_its_name(fields: Any, files: Any, named: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        read_bundle(write_bundle(tmp_path, "one", files=files, **fields))
    assert named in str(error.value)


def test_bundle_of_too_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_format, "MAX_FILES", 20)
    with pytest.raises(ConfigError, match="more than 20 files"):
        read_bundle(write_bundle(tmp_path, "one", files={f"data/{number}": "" for number in range(20)}))


def _step(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"config": [{"type": kind, "parameters": parameters}]}


def _downloads(name: str) -> dict[str, Any]:
    return _step("download", files=[{"url": f"https://h.invalid/x/{name}?raw=1", "path": "/home/user/x"}])


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"app_type": "vscode"}, "app: task.json: application vs_code"),
        ({"reward": "import openpyxl\n" + CHECKS}, "unsupported: reward.py: imports openpyxl, which image full lacks"),
        ({"reward": "import help\n" + CHECKS, "files": {"help.py": ""}}, "a reward script finds no module beside itself"),
        ({"setup": "import help", "files": {"help.py": ""}}, ""),
        ({"reward": "try:\n    import docx\nexcept ImportError:\n    docx = None\n" + CHECKS}, ""),
        ({"reward": "print('REWARD:'"}, "broken: reward.py: is no Python"),
        ({"reward": "-" * 200_000 + "1"}, "broken: reward.py: "),
        ({"solution": "f(\n"}, "broken: solution.py: is no Python"),
        (
            {"setup": "ask('__CUA_GYM_GMAIL_URL__')"},
            "network: initial_setup.py: needs web application gmail",
        ),
        ({"setup": "ask('__CUA_GYM_GMAIL_URL__')", "files": INDEX}, ""),
        ({"files": {"initial_setup.sh": "sudo true\n"}}, "root: initial_setup.sh: command uses sudo"),
        ({"files": {"web/server.js": ""}}, "app: web_app: program node, which image full lacks"),
        (_step("login", platform="x"), "account: config.0 (login)"),
        (_step("no_such_step"), "unsupported: config.0 (no_such_step): unknown step no_such_step"),
        (_downloads("in.xlsx"), "asset: config.0 (download)"),
        ({**_downloads("in.xlsx"), "files": {"in.xlsx": "x"}}, ""),
        (_downloads("reward.py"), "broken: config.0 (download): brings reward.py onto the desktop"),
        ({**_downloads("solution.py"), "solution": "pass"}, "brings solution.py onto the desktop"),
    ],
)
def test_what_keeps_a_bundle_from_being_played_is_found_without_running_it(changes: Any, refusal: str, tmp_path: Path) -> None:
    place = write_bundle(tmp_path, "one", **changes)
    found = [str(one) for one in refusals(read_bundle(place), place, image="full")]
    assert len(found) == bool(refusal) and (not refusal or refusal in found[0]), found


def test_image_with_more_programs_plays_what_the_others_lack(tmp_path: Path) -> None:
    reward = "import docx, lxml, numpy, openpyxl, requests, yaml\nfrom PIL import Image\nimport pptx\n" + CHECKS
    place = write_bundle(tmp_path, "one", reward=reward, files={"web/server.js": "", "initial_setup.sh": "sudo -S unzip a.zip\n"})
    (found,) = refusals(read_bundle(place), place, image=TOOLS_IMAGE)
    assert found.reason == "imports pptx, which image osworld lacks"


def test_what_another_image_holds_is_left_to_its_desktops(tmp_path: Path) -> None:
    place = write_bundle(tmp_path, "one", reward="import openpyxl\n" + CHECKS, files={"web/server.js": ""})
    assert refusals(read_bundle(place), place, image="images/of-mine") == []


def test_digest_is_that_of_every_name_and_content(tmp_path: Path) -> None:
    def digest(name: str, **changes: Any) -> str:
        return read_bundle(write_bundle(tmp_path / name, "one", **changes)).digest

    files: dict[str, str | bytes] = {"a": "1", "b": "2"}
    others: list[dict[str, Any]] = [
        {"files": {"a": "2", "b": "1"}},
        {"files": {"a": "12", "b": ""}},
        {"files": {"ab": "12"}},
        {"files": files, "instruction": "Other."},
        {"files": files, "solution": "pass"},
        {"files": files, "reward": CHECKS + "\n"},
    ]
    assert digest("first", files=files) == digest("again", files=dict(reversed(files.items())))
    assert len({digest("first", files=files), *(digest(str(number), **one) for number, one in enumerate(others))}) == 7


@pytest.mark.parametrize("seed", range(20))
def test_task_file_of_any_values_is_read_or_refused(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    values = [None, True, -1, 1e308, "", "x", "../y", [], [None], {}, {"folder": 3}, [{"type": 1}], "\ud800"]
    names = ["id", "task_id", "instruction", "app_type", "related_apps", "config", "web_app", "max_reward", "note"]
    place = write_bundle(tmp_path, "one")
    refused = []
    for _ in range(20):
        (place / "task.json").write_text(json.dumps({name: rng.choice(values) for name in rng.sample(names, 5)}))
        try:
            refusals(read_bundle(place), place, image="full")
        except ConfigError as error:
            refused.append(str(error))
    assert refused and all(text.startswith(str(place)) for text in refused)
