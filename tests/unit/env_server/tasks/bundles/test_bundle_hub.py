"""Web applications that bundles name and do not bring: their names, what of them travels, and what is wrong with one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from computerrl.common.errors import ConfigError
from computerrl.env_server.tasks.bundles import hub, imported
from computerrl.env_server.tasks.bundles.checks import applications, refusals
from computerrl.env_server.tasks.bundles.format import read_bundle
from computerrl.env_server.tasks.bundles.hub import Hub
from computerrl.env_server.tasks.osworld.abilities import TOOLS_IMAGE
from computerrl.env_server.tasks.osworld.format import OpenTabsStep
from tests.support.tasks.bundles import write_bundle, write_hub

NAMES_SHOP = "url = '__CUA_GYM_SHOP_URL__'\n"


@pytest.mark.parametrize(
    ("text", "names", "filled"),
    [
        ("ask('__CUA_GYM_SHOP_URL__/go')", ["shop"], "ask('http://127.0.0.1:8101/go')"),
        ("ask('https://cua-gym-shop.xlang.ai/go')", ["shop"], "ask('http://127.0.0.1:8101/go')"),
        ("host = '__CUA_GYM_SHOP_HOST__'", ["shop"], "host = '127.0.0.1:8101'"),
        ("host = 'cua-gym-shop.xlang.ai'", ["shop"], "host = '127.0.0.1:8101'"),
        (
            "__CUA_GYM_GOOGLE_MAPS_URL__ __CUA_GYM_SHOP_URL__",
            ["google_maps", "shop"],
            "http://127.0.0.1:8101 http://127.0.0.1:8102",
        ),
        ("https://cua-gym-google-maps.xlang.ai/", ["google_maps"], "http://127.0.0.1:8101/"),
        ("CUA_GYM_SHOP_URL https://xlang.ai", [], "CUA_GYM_SHOP_URL https://xlang.ai"),
    ],
)
def test_applications_are_known_by_every_spelling(text: str, names: list[str], filled: str) -> None:
    assert hub.named([text]) == names
    assert hub.filled(text, hub.ports(names)) == filled


@pytest.mark.parametrize("files", [{}, {"web/index.html": "x"}], ids=["of the hub", "its own"])
def test_what_instruction_and_set_up_name_are_addresses_on_the_desktop(files: dict[str, str], tmp_path: Path) -> None:
    opens = {"type": "chrome_open_tabs", "parameters": {"urls_to_open": ["__CUA_GYM_SHOP_URL__/?sid=1"]}}
    place = write_bundle(
        tmp_path, "one", instruction="Buy it at __CUA_GYM_SHOP_HOST__.", config=[opens], files={**files}, app_type="chrome"
    )
    bundle = read_bundle(place)
    port = 8080 if files else 8101
    assert bundle.instruction == f"Buy it at 127.0.0.1:{port}." and bundle.web_names == ([] if files else ["shop"])
    assert bundle.steps[0].parameters == OpenTabsStep(urls_to_open=[f"http://127.0.0.1:{port}/?sid=1"])
    assert refusals(bundle, place, image=TOOLS_IMAGE, hub=Hub(write_hub(tmp_path / "hub"))) == []
    missing = [str(one) for one in refusals(bundle, place, image=TOOLS_IMAGE)]
    assert len(missing) == (not files)
    assert files or missing[0].startswith("network: task.json: needs web application shop: give a built CUA-Gym-Hub")


@pytest.mark.parametrize("folder", ["shop_mock", "Shop_mock", "shop"])
def test_bundle_is_imported_with_the_applications_that_it_names_alone(folder: str, tmp_path: Path) -> None:
    write_bundle(tmp_path / "in", "one", setup=NAMES_SHOP, app_type="mock_websites")
    write_bundle(tmp_path / "in", "two")
    shops = write_hub(write_hub(tmp_path / "hub", folder), "other_mock")
    index = imported.import_bundles(tmp_path / "in", tmp_path / "out", image=TOOLS_IMAGE, web_apps=shops)
    assert [bool(entry.broken) for entry in index.tasks] == [False, False]
    assert [bool(entry.hub_digest) for entry in index.tasks] == [True, False] and index.tasks[0].apps == ("browser",)
    kept = tmp_path / "out/web_apps"
    assert [place.name for place in (kept / "websites").iterdir()] == ["shop"] and not list(kept.rglob("node_modules"))
    files = Hub(kept).files(["shop"])
    assert {"preview.mjs", "shared/plain.mjs", "websites/shop/dist/index.html", "node_modules/vite/index.js"} <= files.keys()
    assert b"not to be loaded" not in files["node_modules/vite/index.js"] and not any(
        "node_modules" in name[13:] for name in files
    )
    assert Hub(kept).digest(["shop"]) == index.tasks[0].hub_digest
    family = imported.families(tmp_path / "out")["cua-gym-one"]
    assert family.needs_tools and family.make(0).digest is not None


def test_other_build_of_an_application_is_another_task(tmp_path: Path) -> None:
    write_bundle(tmp_path / "in", "one", setup=NAMES_SHOP)
    shops = write_hub(tmp_path / "hub")
    digests = set()
    for number in range(2):
        (shops / "websites/shop_mock/dist/index.html").write_text(f"<h1>{number}</h1>")
        imported.import_bundles(tmp_path / "in", tmp_path / str(number), image=TOOLS_IMAGE, web_apps=shops)
        digest = imported.families(tmp_path / str(number))["cua-gym-one"].make(0).digest
        assert digest is not None
        digests.add(digest())
    assert len(digests) == 2


SPOIL: dict[str, tuple[Callable[[Path], object], str]] = {
    "gone": (shutil.rmtree, "there is no web application shop among --web-apps"),
    "not built": (lambda place: shutil.rmtree(place / "dist"), "web application shop_mock is not built: run `npm install"),
    "other configuration": (
        lambda place: (place / "vite.config.js").rename(place / "vite.config.ts"),
        "web application shop_mock has no vite.config.js: run `npx esbuild vite.config.* --bundle",
    ),
}


@pytest.mark.parametrize("name", SPOIL)
def test_application_that_cannot_be_served_is_a_reason_of_the_bundle(name: str, tmp_path: Path) -> None:
    spoil, reason = SPOIL[name]
    shops = write_hub(tmp_path / "hub")
    spoil(shops / "websites/shop_mock")
    place = write_bundle(tmp_path / "in", "one", setup=NAMES_SHOP)
    found = [str(one) for one in refusals(read_bundle(place), place, image=TOOLS_IMAGE, hub=Hub(shops))]
    assert len(found) == 1 and found[0].startswith("app: initial_setup.py: ") and reason in found[0]


def test_image_without_node_is_a_reason(tmp_path: Path) -> None:
    place = write_bundle(tmp_path / "in", "one", reward=NAMES_SHOP + "print('REWARD: 0')\n")
    bundle = read_bundle(place)
    assert applications(bundle) == ["os", "chrome"]
    (found,) = refusals(bundle, place, image="full", hub=Hub(write_hub(tmp_path / "hub")))
    assert found.reason == "program node, which image full lacks"


def test_folder_without_applications_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--web-apps: .* holds no folder websites/"):
        Hub.open(tmp_path, field="--web-apps")
