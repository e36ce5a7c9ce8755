"""Tasks of web sites on desktops without a network: which are played on stand-ins, which on a mirror, and what a mirror gives."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computerrl.env_server.driver import SitePage
from computerrl.env_server.tasks.osworld import load_task
from computerrl.env_server.tasks.osworld.abilities import refusals
from computerrl.env_server.tasks.osworld.assets import Assets
from computerrl.env_server.tasks.osworld.format import TaskFile
from computerrl.env_server.tasks.osworld.network.mirror import Mirror
from computerrl.env_server.tasks.osworld.network.sites import hosts_of

Rules = dict[str, Any]
NEWS, SHOP = "https://www.news.invalid/today.html", "https://shop.invalid"
FILE = {"type": "vm_file", "path": "/home/user/a.txt", "dest": "a.txt"}


def judge(func: str, result: str, **rules: Any) -> Rules:
    return {"func": func, "result": {"type": result}, "expected": {"type": "rule", "rules": rules}}


def both(*judges: Rules) -> Rules:
    return {name: [judge[name] for judge in judges] for name in ("func", "result", "expected")}


TABS = judge("is_expected_tabs", "open_tabs_info", type="url", urls=[NEWS, f"{SHOP}/"])
TEXT = {"func": "exact_match", "result": FILE, "expected": {"type": "rule", "rules": {"expected": "x"}}}
IN_FRONT = judge("is_expected_active_tab", "active_url_from_accessTree", type="url", url=f"{SHOP}/bags/red")


def task(evaluator: Rules, instruction: str = "Do it.", *, opens: tuple[str, ...] = (NEWS, SHOP), **changes: Any) -> TaskFile:
    config = [{"type": "chrome_open_tabs", "parameters": {"urls_to_open": list(opens)}}] if opens else []
    values = {"id": "x", "instruction": instruction, "related_apps": ["chrome"], "config": config, "evaluator": evaluator}
    return TaskFile.model_validate({**values, **changes})


def refused(file: TaskFile, mirror: Path | None = None) -> set[str]:
    return {one.kind for one in refusals(file, assets=Assets(), mirror=Mirror(mirror))}


def mirror_of(folder: Path, *hosts: str) -> Path:
    for host in hosts:
        (folder / host).mkdir(parents=True)
    return folder


# --- the loader's decisions ------------------------------------------------------------------------------------------

ON_STAND_INS = {
    "open pages": task(TABS, proxy=True),
    "open pages, one of them a file": task(
        both(judge("is_expected_tabs", "open_tabs_info", type="url", urls=[NEWS, "file:///home/user/a.html"]), TEXT)
    ),
    "first page of a site that a mail names": task(TABS, opens=(NEWS,)),
    "bookmark": task(judge("is_expected_bookmarks", "bookmarks", type="bookmark_bar_websites_urls", urls=[NEWS])),
    "history of a site that the instruction names": task(
        judge("check_history_deleted", "history", type="keywords", keywords=["youtube"]),
        "Remove YouTube from my history.",
        opens=(),
        proxy=True,
    ),
    "cookies": task(judge("is_cookie_deleted", "cookie_data", type="domains", domains=[".shop.invalid"])),
    "starter": task(judge("is_shortcut_on_desktop", "shortcuts_on_desktop", type="exec", exec="chrome --app-id=x")),
    "search": task(judge("is_expected_search_query", "active_tab_info", expect={"pattern": r"engine\.com/search\?q=x"})),
    "cannot be done": task({"func": "infeasible"}, proxy=True),
}
ON_A_MIRROR = {
    "page behind a link": task(IN_FRONT, proxy=True),
    "page behind a link, among the open ones": task(
        judge("is_expected_tabs", "open_tabs_info", type="url", urls=[f"{SHOP}/bags"])
    ),
    "bookmark of a page to be found": task(
        judge("is_expected_bookmarks", "bookmarks", type="bookmark_bar_websites_urls", urls=[f"{SHOP}/bags"])
    ),
    "file, written from what a page says": task(TEXT),
    "download from an open page": task(TEXT, "Download the manual."),
    "download, judged by an address as well": task(both(TABS, TEXT), "Download the manual."),
    "site that only the instruction names": task(
        TEXT, "Write down what https://shop.invalid/bags says, for www.news.invalid.", opens=()
    ),
}
ON_NEITHER = {
    "no site is named": task(TEXT, "Write it down.", opens=(), proxy=True),
    "the day decides": task(
        {**IN_FRONT, "expected": {"type": "rule_relativeTime", "rules": {"relativeTime": {"from": "tomorrow"}, "expected": {}}}}
    ),
    "another program loads it": task(TEXT, related_apps=["vlc"]),
    "clone": task(TEXT, "Clone the project to ~/code."),
    "extension": task(TEXT, "Install the extension for tabs."),
    "program on a site": task(TEXT, "Run it in Colab."),
    "content in an unknown form": task(judge("exact_match", "active_tab_html_parse", expected="x")),
}


@pytest.mark.parametrize("name", ON_STAND_INS)
def test_task_that_addresses_decide_needs_no_network(name: str) -> None:
    assert refused(ON_STAND_INS[name]) == set()


@pytest.mark.parametrize("name", ON_A_MIRROR)
def test_task_of_pages_contents_needs_all_its_sites_in_the_mirror(name: str, tmp_path: Path) -> None:
    file = ON_A_MIRROR[name]
    hosts = hosts_of(file)
    assert refused(file) == {"network"}
    assert refused(file, mirror_of(tmp_path / "one", *hosts[1:])) == {"network"}
    assert refused(file, mirror_of(tmp_path / "all", *hosts)) == set()


@pytest.mark.parametrize("name", ON_NEITHER)
def test_task_that_no_copy_helps_stays_refused(name: str, tmp_path: Path) -> None:
    mirror = mirror_of(tmp_path, "www.news.invalid", "shop.invalid", "colab.research.google.com")
    assert refused(ON_NEITHER[name], mirror) == {"network"}


def test_task_without_web_sites_has_no_hosts_and_its_browser_no_sites(tmp_path: Path) -> None:
    file = task(TEXT, opens=("file:///home/user/a.html", "http://localhost:8000/"))
    assert hosts_of(file) == ()
    instance = _loaded(file, tmp_path, mirror_of(tmp_path / "mirror", "shop.invalid"))
    assert instance.sites is None and not [step for step in instance.setup if step.kind == "web_sites"]


@pytest.mark.parametrize("has_mirror", [False, True])
def test_task_of_web_sites_shows_them_from_its_beginning_on(has_mirror: bool, tmp_path: Path) -> None:
    mirror = mirror_of(tmp_path / "mirror", "shop.invalid") if has_mirror else None
    instance = _loaded(task(TABS), tmp_path, mirror)
    assert instance.setup[0].kind == "web_sites" and instance.setup[0].args == {"of_copy": has_mirror}
    assert (instance.sites is not None) is has_mirror


def test_digest_is_another_one_after_a_change_of_a_site_that_the_task_names(tmp_path: Path) -> None:
    mirror = mirror_of(tmp_path / "mirror", "shop.invalid", "www.news.invalid", "other.invalid")

    def digest() -> str:
        instance = _loaded(task(IN_FRONT), tmp_path, mirror)
        assert instance.digest is not None
        return instance.digest()

    first = digest()
    (mirror / "other.invalid/a.html").write_text("a")
    assert digest() == first
    (mirror / "shop.invalid/a.html").write_text("a")
    assert digest() != first


def _loaded(file: TaskFile, folder: Path, mirror: Path | None) -> Any:
    (folder / "x.json").write_text(json.dumps(file.model_dump(mode="json", exclude_defaults=True)))
    return load_task(folder / "x.json", None, mirror=mirror).as_instance()


# --- the mirror ------------------------------------------------------------------------------------------------------

FILES = {
    "www.shop.invalid/index.html": b"<h1>Shop</h1>",
    "www.shop.invalid/bags": b"<!DOCTYPE html><p>bags",
    "www.shop.invalid/hats.html": b"<p>hats",
    "www.shop.invalid/gloves/index.html": b"<p>gloves",
    "www.shop.invalid/search?q=red bag&page=1": b"<html>red",
    "www.shop.invalid/search@q=blue.html": b"<p>blue",
    "www.shop.invalid/look.css": b"p {}",
    "www.shop.invalid/a b/manual.pdf": b"%PDF-1.7",
    "www.shop.invalid/data": b"\x00\x01",
    "shop.invalid:8443/index.html": b"<p>ports",
}


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    for name, content in FILES.items():
        place = tmp_path / "mirror" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    (tmp_path / "secret.html").write_bytes(b"<p>secret")
    (tmp_path / "mirror/www.shop.invalid/out.html").symlink_to(tmp_path / "secret.html")
    (tmp_path / "mirror/www.shop.invalid/away").symlink_to(tmp_path)
    (tmp_path / "mirror/www.shop.invalid/caps.html").symlink_to("hats.html")
    os.mkfifo(tmp_path / "mirror/www.shop.invalid/pipe")
    return Mirror(tmp_path / "mirror")


@pytest.mark.parametrize(
    ("address", "body", "kind"),
    [
        ("https://www.shop.invalid", b"<h1>Shop</h1>", "text/html"),
        ("https://www.shop.invalid/", b"<h1>Shop</h1>", "text/html"),
        ("http://WWW.shop.invalid:80/bags#top", b"<!DOCTYPE html><p>bags", "text/html"),
        ("https://www.shop.invalid/hats", b"<p>hats", "text/html"),
        ("https://www.shop.invalid/hats.html", b"<p>hats", "text/html"),
        ("https://www.shop.invalid/caps", b"<p>hats", "text/html"),
        ("https://www.shop.invalid/gloves/", b"<p>gloves", "text/html"),
        ("https://www.shop.invalid/search?q=red bag&page=1", b"<html>red", "text/html"),
        ("https://www.shop.invalid/search?q=blue", b"<p>blue", "text/html"),
        ("https://www.shop.invalid/look.css?v=3", b"p {}", "text/css"),
        ("https://www.shop.invalid/a%20b/manual.pdf", b"%PDF-1.7", "application/pdf"),
        ("https://www.shop.invalid/data", b"\x00\x01", "application/octet-stream"),
        ("https://shop.invalid:8443/", b"<p>ports", "text/html"),
    ],
)
def test_mirror_finds_pages_where_mirroring_tools_put_them(address: str, body: bytes, kind: str, mirror: Mirror) -> None:
    assert mirror.find(address) == SitePage(kind, body)


@pytest.mark.parametrize(
    ("address", "location"),
    [
        ("https://shop.invalid/bags?a=1", "https://www.shop.invalid/bags?a=1"),
        ("https://www.shop.invalid/gloves", "https://www.shop.invalid/gloves/"),
    ],
)
def test_mirror_leads_on_as_the_site_would(address: str, location: str, mirror: Mirror) -> None:
    assert mirror.find(address) == SitePage("text/html", b"", 301, location)


@pytest.mark.parametrize(
    "address",
    [
        "https://www.shop.invalid/none",
        "https://www.shop.invalid/bags?colour=red",
        "https://www.shop.invalid/out.html",
        "https://www.shop.invalid/away/secret.html",
        "https://www.shop.invalid/pipe",
        "https://www.shop.invalid/%2e%2e/%2e%2e/secret.html",
        "https://www.shop.invalid/../../secret.html",
        "https://www.shop.invalid/..%2f..%2fsecret.html",
        "https://../secret.html",
        "https://.../secret.html",
        "https://www.shop.invalid/" + "a" * 5000,
        "https://www.shop.invalid/a%00b",
        "https://[x/",
        "https://www.shop.invalid:port/",
        "https://other.invalid/",
        "",
    ],
)
def test_mirror_has_nothing_else(address: str, mirror: Mirror) -> None:
    assert mirror.find(address) is None
    assert Mirror().find(address) is None and not Mirror().has("www.shop.invalid")


_PART = st.sampled_from(
    ["..", ".", "", "away", "out.html", "secret.html", "www.shop.invalid", "%2e%2e", "/", "~", "mirror"]
) | st.text(max_size=4)
_SECRETS = {b"<p>secret"}


@given(
    host=st.sampled_from(["www.shop.invalid", "shop.invalid", "..", ".", "", "away"]) | st.text(max_size=6),
    parts=st.lists(_PART, max_size=6),
    query=st.text(max_size=5),
    quoted=st.booleans(),
)
def test_mirror_never_gives_what_lies_outside_of_it(
    tmp_path_factory: pytest.TempPathFactory, host: str, parts: list[str], query: str, quoted: bool
) -> None:
    folder = tmp_path_factory.getbasetemp() / "outside"
    if not folder.exists():
        (folder / "mirror/www.shop.invalid").mkdir(parents=True)
        (folder / "secret.html").write_bytes(b"<p>secret")
        (folder / "mirror/www.shop.invalid/away").symlink_to(folder)
        (folder / "mirror/www.shop.invalid/out.html").symlink_to("../../secret.html")
        (folder / "mirror/away").symlink_to(folder)
    path = "/".join(quote(part, safe="%") if quoted else part for part in parts)
    found = Mirror(folder / "mirror").find(f"https://{host}/{path}" + (f"?{query}" if query else ""))
    assert found is None or found.body not in _SECRETS
