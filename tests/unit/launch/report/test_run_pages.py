"""What a run's pages are given: pure parts, and the server with runs that are whole, old, torn, or not there."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import os
import re
import stat
import time
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from computerrl.common.errors import ConfigError, ResumeError, SetupError
from computerrl.common.messages import DesktopView, PeerEntry, Status, TaskRef
from computerrl.common.run_files import requests
from computerrl.common.run_files.recordings import FORMAT_VERSION, RecordedStep, Recording, write_recording
from computerrl.common.run_files.run_folder import ADDRESS_FILE, RunFolder
from computerrl.launch.report import report_data
from computerrl.launch.report.compare import write_comparison
from computerrl.launch.report.report_data import ActiveTime, Attempt
from computerrl.launch.report.write import report_of, write_attempt, write_report
from computerrl.launch.run.local import watched
from computerrl.launch.watch.run_state import RunState
from computerrl.launch.web import controls, snapshot
from computerrl.launch.web.episodes import Episodes, Wanted, prompt_tokens
from computerrl.launch.web.recording import recording_page
from computerrl.launch.web.serve import tunnel, write_episode, write_recording_page
from computerrl.launch.web.server import RunPages, serve_run
from tests.support.data.actor_data import make_observation
from tests.support.data.synthetic_run import write_run

TOKEN = "t" * 32


def view(desktop: int, **fields: Any) -> DesktopView:
    known = {
        "state": "leased",
        "reason": "",
        "holder": "actor-0:i1",
        "task": TaskRef("calc", 7, "training"),
        "instruction": "Do it.",
        "num_steps": 2,
        "action": "click(1)",
        "completion": "click(1)",
        "action_error": "",
        "reward": None,
        "screenshot": None,
    }
    return DesktopView(desktop=desktop, **(known | fields))


def status(**counters: int) -> Status:
    peer = PeerEntry("env_server", 0, "i1", "host-1", 41, {"desktops": "tcp://127.0.0.1:1"}, 0.5)
    silent = PeerEntry("actor", 0, "i2", "host-1", 42, {}, 9.0)
    metrics = {"actor-0": {"actor/generate_fraction": 0.75, "actor/desktop_fraction": 0.25}}
    return Status("run", 3, counters, {"groups_waiting": 4.0}, (peer, silent), metrics, {"actor-0": "playing"})


# --- pure ------------------------------------------------------------------------------------------------------------


def test_tiles_say_nothing_that_is_not_known_and_the_newest_of_what_is() -> None:
    values = {row["title"]: row["value"] for row in snapshot.tiles(RunState(), max_age=4)}
    assert values["policy age"] == values["held-out success"] == values["time left"] == "–"
    state = RunState().take_all(
        [
            {"event": "evaluation", "phase": "eval-before", "success": 0.25},
            {"event": "update", "update": 2, "policy_age_min": 0.0, "policy_age_mean": 0.5, "policy_age_max": 2.0},
        ]
    )
    rows = {row["title"]: row for row in snapshot.tiles(state, max_age=4)}
    assert rows["held-out success"]["value"] == "25%" and rows["policy age"]["value"] == "0 / 0.50 / 2"
    assert "bound 4" in rows["policy age"]["remark"]
    state = state.take_all([{"event": "evaluation", "phase": "check-1-before", "success": 0.5, "split": "tuning"}])
    assert {row["title"]: row["value"] for row in snapshot.tiles(state, max_age=4)}["tuning success"] == "50%"


def test_desktops_are_in_the_order_of_their_numbers() -> None:
    rows = snapshot.desktop_rows({"10/0": view(0), "2/11": view(11), "2/3": view(3, state="broken", reason="gone", holder="")})
    assert [row["id"] for row in rows] == ["2/3", "2/11", "10/0"]
    assert (rows[0]["state"], rows[0]["why"], rows[0]["holder"]) == ("broken", "gone", "")
    assert rows[1]["task"] == "calc #7" and rows[1]["holder"] == "actor-0"


def test_processes_are_those_heard_of_and_those_supervised() -> None:
    supervised = {"actor-0": {"state": "running", "restarts": 2, "pid": 42}, "learner-0": {"state": "restarting", "restarts": 1}}
    rows = {row["name"]: row for row in snapshot.process_rows(status(), supervised)}
    assert rows["actor-0"]["state"] == "silent for 9 s" and rows["actor-0"]["restarts"] == 2
    assert rows["learner-0"]["state"] == "restarting" and rows["env_server-0"]["host"] == "host-1"


def test_flow_shares_add_up_and_drops_are_of_both_sides() -> None:
    waste = {"lost": {"no_signal": {"trajectories": 5}}}
    state = RunState().take_all([{"event": "update", "train_s": 1.0, "wait_s": 3.0, "waste": waste}])
    state.status = status(**{"rejected/duplicate": 2, "rejected/malformed": 0})
    found = snapshot.flow(state)
    assert {row["reason"]: row["count"] for row in found["drops"]} == {"no signal": 5, "duplicate": 2}
    for row in found["time"]:
        assert sum(part["share"] for part in row["shares"]) == pytest.approx(1.0)
    assert {row["name"]: row["value"] for row in found["queues"]}["groups waiting for the learner"] == 4.0


def test_ages_are_shown_up_to_the_bound_even_where_nothing_is_that_old() -> None:
    assert snapshot.age_histogram(RunState(), max_age=4) is None
    state = RunState().take_all([{"event": "update", "num_steps_by_age": {"0": 3, "1": 2}}] * 2)
    drawn = snapshot.age_histogram(state, max_age=4)
    assert drawn is not None
    assert re.findall(r"<title>(\d: \d)", drawn) == ["0: 6", "1: 4", "2: 0", "3: 0", "4: 0", "5: 0"]
    assert 'x1="83.333%" x2="83.333%"' in drawn, "a line after age 4, the bound, of 6 bars"


def test_curves_have_the_age_histogram_and_a_chart_for_each_family() -> None:
    update = {"event": "update", "time": 60.0, "success": 0.5, "num_steps_by_age": {"0": 1}, "success_by_family": {"calc": 0.5}}
    found = snapshot.curves(RunState().take_all([update]), ActiveTime([Attempt(0.0, None)], last_record=60.0), max_age=4)
    assert "Age of trained steps" in [row["title"] for row in found["charts"]]
    assert [row["title"] for row in found["families"]] == ["calc"]


# --- controls --------------------------------------------------------------------------------------------------------


def refusals(folder: Path, **state: Any) -> dict[str, str]:
    return {row["name"]: row["refusal"] for row in controls.available(folder, **{"is_live": True, "phase": "rl-1", **state})}


def test_controls_ask_once_and_are_written_down(tmp_path: Path) -> None:
    assert set(refusals(tmp_path, is_live=False).values()) == {"the run is not under way"}
    assert refusals(tmp_path)["resume"] == "not paused" and "only during RL" in refusals(tmp_path, phase="bc")["sft"]
    controls.press(tmp_path, "pause", is_live=True, phase="rl-1")
    assert requests.asked(tmp_path, "pause") is not None and refusals(tmp_path)["pause"] == "paused already"
    controls.press(tmp_path, "resume", is_live=True, phase="rl-1")
    assert requests.asked(tmp_path, "pause") is None
    controls.press(tmp_path, "drain", is_live=True, phase="rl-1")
    assert requests.asked(tmp_path, "end") == "drain"
    assert refusals(tmp_path)["drain"].startswith("asked for") and refusals(tmp_path)["stop"] == ""
    assert [row["control"] for row in controls.pressed(tmp_path)] == ["drain", "resume", "pause"]
    assert all("@" in row["by"] for row in controls.pressed(tmp_path))
    with pytest.raises(SetupError, match="no 'dance'"):
        controls.press(tmp_path, "dance", is_live=True, phase="rl-1")
    with pytest.raises(SetupError, match="not under way"):
        controls.press(tmp_path, "stop", is_live=False, phase="rl-1")


# --- episodes --------------------------------------------------------------------------------------------------------


def samples_line(name: str, *, logprobs: list[float]) -> str:
    prompt = base64.b64encode(zlib.compress(np.arange(3, dtype="<i4").tobytes())).decode()
    step = {"prompt": prompt, "tokens": [5, 6], "logprobs": logprobs, "versions": [1, 2]}
    return json.dumps({"trajectory_id": name, "steps": [step], "advantages": [0.5]}, separators=(",", ":")) + "\n"


def test_episodes_are_listed_filtered_and_read_while_more_are_added(tmp_path: Path) -> None:
    run = RunFolder(write_run(tmp_path / "run"))
    episodes = Episodes(run, model="tiny-random")
    episodes.refresh()
    everything = episodes.list(Wanted())
    assert everything["total"] == everything["of"] == len(everything["rows"]) > 10
    solved = episodes.list(Wanted(success="yes", family="calc-set-cell"))
    assert 0 < solved["total"] < everything["total"]
    assert all(row["success"] and row["family"] == "calc-set-cell" for row in solved["rows"])
    assert episodes.list(Wanted(min_age=1))["total"] == 0
    assert episodes.list(Wanted(text="LISBON"))["total"] == everything["total"]

    name = everything["rows"][0]["trajectory_id"]
    old = episodes.get(name)
    assert old["steps"][0]["prompt"] is None and old["steps"][0]["advantage"] is None
    with run.samples_path.open("a") as file:
        file.write(samples_line(name, logprobs=[-0.5, -1.5]))
        file.write('{"trajectory_id":"' + name)  # torn: it is being written
    with run.episodes_path.open("a") as file:
        added = {"trajectory_id": "rl-1/0/0", "kind": "training", "family": "calc", "success": True, "age_max": 3, "steps": []}
        file.write(f"\n{json.dumps(added)}\n")
    episodes.refresh()
    step = episodes.get(name)["steps"][0]
    assert [(token["logprob"], token["version"]) for token in step["tokens"]] == [(-0.5, 1), (-1.5, 2)]
    assert [type(part) for part in step["prompt"]] == [str] and step["advantage"] == 0.5
    assert [row["trajectory_id"] for row in episodes.list(Wanted(min_age=3))["rows"]] == ["rl-1/0/0"]


def test_episodes_file_that_was_cut_back_is_read_anew(tmp_path: Path) -> None:
    run = RunFolder(write_run(tmp_path / "run"))
    episodes = Episodes(run, model="tiny-random")
    episodes.refresh()
    first = run.episodes_path.read_text().splitlines(keepends=True)[0]
    run.episodes_path.write_text(first)
    episodes.refresh()
    assert episodes.list(Wanted())["of"] == 1


def test_prompt_is_what_the_records_wrote() -> None:
    packed = base64.b64encode(zlib.compress(np.array([4, 2], "<i4").tobytes())).decode()
    assert prompt_tokens(packed) == [4, 2]


def test_prompt_is_shown_as_texts_and_images_in_its_order(tmp_path: Path) -> None:
    run = RunFolder(write_run(tmp_path / "run"))
    name = json.loads(run.episodes_path.read_text().splitlines()[0])["trajectory_id"]
    images = [{"content_hash": f"h{number}", "width": 800, "height": 600, "num_tokens": 7} for number in range(2)]
    prompt = np.array([-1, 40, 41, -2, 42], "<i4")
    packed = base64.b64encode(zlib.compress(prompt.tobytes())).decode()
    step = {"prompt": packed, "images": images, "tokens": [43], "logprobs": [-0.5], "versions": [1]}
    line = json.dumps({"trajectory_id": name, "steps": [step], "advantages": []}, separators=(",", ":"))
    run.samples_path.write_text(f"{line}\n")
    episodes = Episodes(run, model="/nowhere")  # Without the tokenizer, tokens are numbers.
    episodes.refresh()
    assert episodes.get(name)["steps"][0]["prompt"] == [images[0], "40 41", images[1], "42"]


def test_screenshots_of_an_episode_are_found_by_their_names(tmp_path: Path) -> None:
    run = RunFolder(write_run(tmp_path / "run"))
    episodes = Episodes(run, model="tiny-random")
    episodes.refresh()
    name = next(iter(episodes.rows))
    record = episodes.get(name)
    hashes = {step["screenshot"]["content_hash"] for step in record["steps"]} | {record["final_screenshot"]["content_hash"]}
    assert episodes.refs(name).keys() == hashes
    assert all(episodes.ref(name, one) == episodes.refs(name)[one] for one in hashes)
    assert episodes.ref(name, "other") is None and episodes.ref("other", next(iter(hashes))) is None


def test_recorded_demonstration_is_shown_as_a_page_with_the_pixels_of_its_clicks(tmp_path: Path) -> None:
    task = TaskRef("web-click-button", 3, "demonstration")
    picture = base64.b64encode(b"RIFF").decode()
    steps = (
        RecordedStep('click("</script>")', {}, make_observation(), picture, (12, 34)),
        RecordedStep("done()", {}, make_observation(), ""),
    )
    path = write_recording(tmp_path, Recording(FORMAT_VERSION, task, "Click <b>it</b>.", steps, 1.0, "scripted:core"))
    told = write_recording_page(path, out=tmp_path / "one.html")
    assert told.endswith(f": {(tmp_path / 'one.html').stat().st_size / 1e3:,.0f} kB, everything in it")
    page = (tmp_path / "one.html").read_text()
    data = page.partition('id="shared">')[2].partition("</script>")[0]
    tree = json.loads(data)
    assert tree["episodes"][0]["steps"][0]["places"] == [12, 34] and tree["episodes"][0]["instruction"] == "Click <b>it</b>."
    assert tree["pictures"] == {"0": f"data:image/webp;base64,{picture}", "1": ""}
    assert page.count("<script") == 3 and "<b>it</b>" not in page, "nothing in it is markup"
    linked = recording_page(path, is_linked=True)
    assert '<script src="episode.js">' in linked and "function episodeOf" not in linked and "<style>" not in linked
    path.write_text("{")
    with pytest.raises(ConfigError, match="no recorded demonstration"):
        recording_page(path)


def test_shared_file_has_everything_in_it(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    rows = Episodes(RunFolder(folder), model="tiny-random")
    rows.refresh()
    name = next(iter(rows.rows))
    told = write_episode(folder, [name], out=tmp_path / "one.html")
    assert told.endswith(f": {(tmp_path / 'one.html').stat().st_size / 1e3:,.0f} kB, everything in it")
    assert stat.S_IMODE((tmp_path / "one.html").stat().st_mode) == 0o600, "prompts and pictures are in it"
    text = (tmp_path / "one.html").read_text()
    assert "data:image/webp;base64," in text and "https://" not in text and 'src="' not in text.partition("<script")[0]


# --- server ----------------------------------------------------------------------------------------------------------


def visit(folder: Path, work: Callable[[aiohttp.ClientSession, str], Awaitable[None]]) -> None:
    async def main() -> None:
        run, stop = asyncio.Event(), asyncio.Event()
        address: list[str] = []

        def ready(found: str) -> None:
            address.append(found)
            run.set()

        serving = asyncio.create_task(
            serve_run(folder, host="127.0.0.1", port=0, command="computerrl dashboard", on_ready=ready, stop=stop)
        )
        await asyncio.wait({serving, asyncio.create_task(run.wait())}, return_when=asyncio.FIRST_COMPLETED)
        try:
            if address:
                async with aiohttp.ClientSession() as http:
                    await work(http, address[0])
        finally:
            stop.set()
            await serving

    asyncio.run(main())


def tree_of(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def test_finished_run_is_shown_and_nothing_is_changed_by_looking(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    before = tree_of(folder)

    async def work(http: aiohttp.ClientSession, address: str) -> None:
        async with http.get(f"{address}state.json") as answer:
            state = await answer.json()
        assert not state["is_live"] and state["is_ended"] and state["ended"].startswith("This run finished at ")
        assert not state.keys() & {"desktops", "processes", "controls", "flow"}
        report = report_of(folder)
        assert [tile["value"] for tile in state["tiles"]] == [tile["value"] for tile in report_data.tiles(report)]
        assert {"91%", "7.39"} <= {tile["value"] for tile in state["tiles"]}
        async with http.get(f"{address}curves.json?have=x") as answer:
            assert len((await answer.json())["charts"]) >= 5
        async with http.get(f"{address}curves.json?have={state['num_records']}") as answer:
            assert answer.status == 304
        async with http.get(f"{address}episodes.json?success=yes") as answer:
            (row, *_) = (await answer.json())["rows"]
        async with http.get(f"{address}episode.json", params={"id": row["trajectory_id"]}) as answer:
            image = (await answer.json())["steps"][0]["screenshot"]["content_hash"]
        wanted = {"episode": row["trajectory_id"], "image": image, "small": "1"}
        async with http.get(f"{address}frame", params=wanted) as answer:
            assert answer.status == 200 and answer.content_type == "image/webp" and "immutable" in answer.headers["Cache-Control"]
        async with http.get(f"{address}share", params={"id": row["trajectory_id"]}) as answer:
            assert "attachment" in answer.headers["Content-Disposition"]
        for path in ("", "replay.html", "dashboard.js", "charts.css", "style.css", "episode.js", "icon.svg"):
            async with http.get(f"{address}{path}") as answer:
                assert answer.status == 200 and "default-src 'none'" in answer.headers["Content-Security-Policy"]

    visit(folder, work)
    assert tree_of(folder) == before


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("frame?episode=no&image=0", "no such picture"),
        ("frame?image=0", "no such picture"),
        ("thumb/0", "no such picture"),
        ("episode.json?id=no", "there is no"),
        ("episode.json", "there is no"),
        ("share?id=no", "there is no"),
        ("desktop/0/0", "no such desktop"),
        ("../secret", "404"),
        ("config.yaml", "404"),
    ],
)
def test_what_is_not_there_is_named(tmp_path: Path, path: str, said: str) -> None:
    async def work(http: aiohttp.ClientSession, address: str) -> None:
        async with http.get(f"{address}{path}") as answer:
            assert answer.status in (403, 404) and (said in await answer.text() or answer.status == 403)

    visit(write_run(tmp_path / "run"), work)


def test_others_are_not_let_in_and_other_sites_press_no_button(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")

    async def work(http: aiohttp.ClientSession, address: str) -> None:
        base = address.rstrip("/").rpartition("/")[0]
        for wrong in (f"{base}/", f"{base}/{'x' * 32}/", f"{base}/{'x' * 32}/state.json"):
            async with http.get(wrong) as answer:
                assert answer.status == 403 and "whole address" in await answer.text()
        async with http.get(f"{address}state.json", headers={"Host": "elsewhere.example"}) as answer:
            assert answer.status == 403
        async with http.post(f"{address}control/stop", headers={"Origin": "http://elsewhere.example"}) as answer:
            assert answer.status == 403
        async with http.post(f"{address}control/stop") as answer:
            assert answer.status == 403
        origin = {"Origin": base}
        async with http.post(f"{address}control/stop", headers=origin) as answer:
            assert answer.status == 409 and "not under way" in (await answer.json())["refused"]

    visit(folder, work)
    assert not (folder / controls.CONTROLS_FILE).exists() and requests.asked(folder, "end") is None


@pytest.mark.parametrize(("outcome", "said"), [("stopped", "was stopped (by a person)"), ("failed", "failed (by a person)")])
def test_run_that_ended_otherwise_is_shown_as_ended(tmp_path: Path, outcome: str, said: str) -> None:
    folder = write_run(tmp_path / "run", until="rl")
    write_attempt(folder / "logs" / "1", Attempt(1.0, 2.0, outcome, "by a person"))

    async def work(http: aiohttp.ClientSession, address: str) -> None:
        async with http.get(f"{address}state.json") as answer:
            state = await answer.json()
        assert state["is_ended"] and said in state["ended"] and not state["has_report"]
        async with http.get(f"{address}report.html") as answer:
            assert answer.status == 404 and "computerrl report" in await answer.text()

    visit(folder, work)


def test_report_is_served_with_a_policy_of_its_own(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    write_report(folder)

    async def work(http: aiohttp.ClientSession, address: str) -> None:
        async with http.get(f"{address}report.html") as answer:
            assert (await answer.text()) == (folder / "report.html").read_text()
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy and "script-src" not in policy
            assert answer.headers["Content-Encoding"] == "deflate" or answer.headers["Content-Encoding"] == "gzip"

    visit(folder, work)


def test_files_are_compressed_and_known_again_by_their_content(tmp_path: Path) -> None:
    async def work(http: aiohttp.ClientSession, address: str) -> None:
        for name in ("", "dashboard.js", "style.css", "charts.css"):
            async with http.get(f"{address}{name}", headers={"Accept-Encoding": "identity"}) as answer:
                plain, tag = await answer.read(), answer.headers["ETag"]
                assert "Content-Encoding" not in answer.headers
            async with http.get(f"{address}{name}", headers={"Accept-Encoding": "gzip"}, auto_decompress=False) as answer:
                packed = await answer.read()
                assert answer.headers["Content-Encoding"] == "gzip" and gzip.decompress(packed) == plain
                assert answer.headers["ETag"] == tag and answer.headers["Cache-Control"] == "private, no-cache"
            async with http.get(f"{address}{name}", headers={"If-None-Match": tag}) as answer:
                assert answer.status == 304 and await answer.read() == b""
        async with http.get(f"{address}curves.json", headers={"Accept-Encoding": "gzip"}, auto_decompress=False) as answer:
            packed = await answer.read()
            assert answer.headers["Content-Encoding"] == "gzip"
            assert len(packed) < len(gzip.decompress(packed)) / 4 and answer.headers["Cache-Control"] == "no-store"

    visit(write_run(tmp_path / "run"), work)


def test_address_of_a_page_beside_a_run_is_in_a_file_for_its_owner_alone(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    before = os.umask(0)
    try:
        with watched(folder):
            place = folder / ADDRESS_FILE
            for _ in range(1200):
                if place.exists():
                    break
                time.sleep(0.1)
            address = place.read_text()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/\n", address)
            assert stat.S_IMODE(place.stat().st_mode) == 0o600
    finally:
        os.umask(before)
    assert not place.exists()


def test_run_of_another_version_is_named(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "config.yaml").write_text("name: run\nmodel: {}\n")
    with pytest.raises(ResumeError, match="made by another version"):
        RunPages(folder)


def test_half_written_files_are_shown_as_far_as_they_go(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", until="start")
    for name in ("metrics.jsonl", "trajectories/episodes.jsonl", "trajectories/samples.jsonl", "controls.jsonl", "status.json"):
        (folder / name).write_bytes(b'{"event": "upd\xff\n[1,2]\n{"trajectory_id": 7}\n{"torn')

    async def work(http: aiohttp.ClientSession, address: str) -> None:
        for path in ("state.json", "curves.json", "episodes.json"):
            async with http.get(f"{address}{path}") as answer:
                assert answer.status == 200, await answer.text()

    visit(folder, work)


def test_figures_that_are_no_numbers_do_not_break_the_page(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"event":"update","time":1.0,"update":99,"success":NaN,"entropy":Infinity,"train_s":1.0}\n')

    async def work(http: aiohttp.ClientSession, address: str) -> None:
        for path in ("state.json", "curves.json"):
            async with http.get(f"{address}{path}") as answer:
                text = await answer.text()
                json.loads(text, parse_constant=lambda word: pytest.fail(f"JSON has no {word}"))

    visit(folder, work)


def test_server_that_cannot_listen_says_so(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")

    async def main() -> None:
        await serve_run(folder, host="192.0.2.1", port=0, command="computerrl dashboard", on_ready=print, stop=asyncio.Event())

    with pytest.raises(SetupError, match=r"cannot listen on 192\.0\.2\.1"):
        asyncio.run(main())


def test_tunnel_is_told_to_those_who_came_by_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    assert tunnel("http://127.0.0.1:4000/t/") == ""
    monkeypatch.setenv("SSH_CONNECTION", "1 2 3 4")
    assert "-L 4000:127.0.0.1:4000" in tunnel("http://127.0.0.1:4000/t/")
    assert "-L 4000:[::1]:4000" in tunnel("http://[::1]:4000/t/")
    assert tunnel("http://10.0.0.1:4000/t/") == ""


# --- comparison ------------------------------------------------------------------------------------------------------


def test_comparison_shows_both_runs_and_what_differs(tmp_path: Path) -> None:
    one, other = write_run(tmp_path / "one"), write_run(tmp_path / "other", num_updates=12)
    text = (other / "config.yaml").read_text()
    (other / "config.yaml").write_text(text.replace("eta: 1", "eta: 3"))
    assert "one, other" in write_comparison([one, other], out=tmp_path / "compare.html")
    page = (tmp_path / "compare.html").read_text()
    assert "broker.eta" in page and "<td>24</td><td>12</td>" in page
    first = page.split("<figure>")[1].partition("</figure>")[0]
    assert set(re.findall(r'<polyline [^>]*stroke="var\(--(\w+)\)', first)) == {"s1", "s2"}


def test_comparison_with_a_run_that_has_not_begun(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "one", until="start"), write_run(tmp_path / "other", until="start")]
    write_comparison(runs, out=tmp_path / "compare.html")
    assert "None of them has made an update yet." in (tmp_path / "compare.html").read_text()
