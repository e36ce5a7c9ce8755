"""The stages of set-up: what is finished is skipped, an error of one lane is reported when both have ended."""

from __future__ import annotations

import configparser
import errno
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from computerrl import SOURCE_ROOT
from computerrl.common.config import RunConfig
from computerrl.common.errors import ConfigError, Problem, SetupError
from computerrl.common.models.folder import is_model_folder
from computerrl.env_server.image.apptainer_install import Apptainer
from computerrl.env_server.image.build import Recipe
from computerrl.env_server.image.host import Progress
from computerrl.env_server.tasks.osworld.families import READERS
from computerrl.launch.run.local import make_model
from computerrl.launch.setup import machine_setup, packages
from computerrl.launch.setup.machine_setup import USUAL_S, Report, run_setup
from computerrl.launch.setup.package_plan import TORCH
from computerrl.launch.setup.packages import LISTS, PackageStage, Stamp, pinned

APPTAINER = Apptainer(Path("/nowhere/apptainer"), "1.4.5", (), network_none=True)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_lists_every_line_is_exact_stands_in_one_of_them_and_torch_is_the_one_installed_first() -> None:
    lines = pinned(SOURCE_ROOT, list(LISTS))
    assert all(re.fullmatch(r"[a-z0-9._-]+==[^+\s]+", line) for line in lines)
    assert f"torch=={TORCH}" in pinned(SOURCE_ROOT, ["run"])
    names = [canonical(line.split("==")[0]) for line in lines]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("name", "sections"),
    [("run", ("", "cpu", "offline", "lora")), ("develop", ("test",)), ("osworld", ("osworld",))],
)
def test_lists_cover_what_setup_cfg_declares(name: str, sections: tuple[str, ...]) -> None:
    listed = {canonical(line.split("==")[0]) for line in pinned(SOURCE_ROOT, [name])}
    settings = configparser.ConfigParser()
    settings.read(SOURCE_ROOT / "setup.cfg", encoding="utf-8")
    extras = settings["options.extras_require"]
    text = "\n".join(extras[section] if section else settings["options"]["install_requires"] for section in sections)
    declared = {canonical(name) for name in re.findall(r"^([A-Za-z][\w.-]*)", text, flags=re.MULTILINE)}
    assert len(declared) >= 5
    assert declared <= listed, declared - listed


def test_osworld_extra_is_what_the_judges_look_for() -> None:
    settings = configparser.ConfigParser()
    settings.read(SOURCE_ROOT / "setup.cfg", encoding="utf-8")
    assert settings["options.extras_require"]["osworld"].split() == list(READERS)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that passes for a model without being loaded."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    header = b'{"lm_head.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    return folder


def test_run_setup_everything_there_is_skipped(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(PackageStage, "_is_complete", lambda self: True)
    Stamp("3.11", "here", "cpu", {}).write(tmp_path)
    run_setup(venv=tmp_path, cache=tmp_path, image=None, model=str(model))
    said = capsys.readouterr().out
    assert "python packages ready" in said
    assert "set-up          complete" in said


def test_run_setup_errors_of_both_lanes_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine_setup, "_apptainer", lambda cache, mirror, progress: APPTAINER)
    with pytest.raises(ConfigError, match="no model of that name"):
        run_setup(cache=tmp_path, image=str(tmp_path / "none.sif"), model=str(tmp_path / "nothing"))
    assert "no recipe and no file or folder" in capsys.readouterr().out


def test_run_setup_image_in_which_the_guest_cannot_run_is_an_error(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = tmp_path / "image"
    (image / "usr" / "bin").mkdir(parents=True)
    (image / "usr" / "bin" / "Xvfb").touch()
    program = tmp_path / "apptainer"
    program.write_text("#!/bin/sh\necho \"No module named 'gi'\" >&2\nexit 1\n", encoding="utf-8")
    program.chmod(0o755)
    found = replace(APPTAINER, path=program)
    monkeypatch.setattr(machine_setup, "_apptainer", lambda cache, mirror, progress: found)
    with pytest.raises(SetupError, match="No module named 'gi'"):
        run_setup(cache=tmp_path, image=str(image), model=str(model))
    program.write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")
    run_setup(cache=tmp_path, image=str(image), model=str(model))


def test_run_setup_image_is_built_though_apptainer_fails_and_its_error_is_the_one_raised(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(cache: Path, mirror: str | None, progress: object) -> Apptainer:
        raise SetupError(Problem("Apptainer", "none on PATH", "ask an administrator"))

    def build(recipe: Recipe, folder: Path, *, check: Callable[[Path], None], **_: object) -> None:
        folder.mkdir(parents=True)
        check(folder)

    monkeypatch.setattr(machine_setup, "_apptainer", none)
    monkeypatch.setattr("computerrl.env_server.image.build._build", build)
    with pytest.raises(SetupError, match="none on PATH"):
        run_setup(cache=tmp_path, image="core", model=str(model), mirror="x")
    assert len(list((tmp_path / "images").glob("core-*"))) == 1


def test_packages_other_python_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "_PYTHONS", ((3, 8), (3, 9)))
    with pytest.raises(SetupError, match=r"make setup PYTHON="):
        PackageStage(tmp_path / "venv", tmp_path / "log", print).ensure()


def test_report_silence_is_broken_by_what_is_under_way_and_for_how_long(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(begun=0.0)

    def work(progress: Progress) -> str:
        progress("unpacking")
        said = report.last_said
        for later in (1.0, 3.0, 5.0, 6.0, 10.0):
            report.beat(said + later)
        return "done"

    report.stage("image", work)
    report.beat(report.last_said + 100)
    beats = [line.split("...")[1].strip() for line in capsys.readouterr().out.splitlines() if "..." in line]
    assert beats == ["image 5 s", "image 10 s"]


def test_report_time_left_is_unknown_at_first_and_then_that_of_the_longest_lane() -> None:
    report = Report(begun=0.0, lanes=[("python packages", "model"), ("apptainer",), ("desktop image",)])
    report.starts = {"python packages": 0.0, "apptainer": 0.0, "desktop image": 0.0}
    assert report.left_s(10.0) is None
    report.took_s["apptainer"] = 0.1  # It was there already, and tells nothing about the speed.
    assert report.left_s(10.0) is None
    report.took_s["python packages"], report.starts["model"] = 2 * USUAL_S["python packages"], 110.0
    assert report.left_s(110.0) == pytest.approx(2 * USUAL_S["desktop image"] - 110)
    assert report.left_s(120.0) == pytest.approx(2 * USUAL_S["desktop image"] - 120)
    report.took_s["model"] = 2 * USUAL_S["model"]
    assert report.left_s(10_000.0) is None  # The image takes longer than it should.
    report.took_s["desktop image"] = 300.0
    assert report.left_s(300.0) == 0.0


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_report_stage_that_fills_the_disk_ends_with_what_to_do(code: int) -> None:
    def work(_: Progress) -> str:
        raise OSError(code, "full")

    with pytest.raises(SetupError, match=r"the disk is full(.|\n)*COMPUTERRL_CACHE"):
        Report().stage("desktop image", work)


def test_main_says_what_to_type_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    given: dict[str, object] = {}
    monkeypatch.setattr(machine_setup, "run_setup", lambda **options: given.update(options))
    assert machine_setup.main(["--venv", ".venv", "--device", "cuda", "--with", "develop osworld"]) == 0
    assert (given["device"], given["lists"]) == ("cuda", ["develop", "osworld"])
    assert "source .venv/bin/activate" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        machine_setup.main(["--with", "nonsense"])


def test_main_wrong_option_ends_with_two() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "computerrl.launch.setup.machine_setup", "--model", "/nowhere", "--image", "/nowhere"],
        cwd=SOURCE_ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert answer.returncode in (2, 3)
    assert "error:" in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.release
def test_model_that_is_not_there_is_made_before_the_processes_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COMPUTERRL_CACHE", str(tmp_path))
    config = RunConfig.model_validate({"name": "trial", "model": {"name": "tiny-random"}})
    make_model(config)
    assert is_model_folder(tmp_path / "models" / "tiny-random")
    assert capsys.readouterr().out == "model tiny-random: converting tiny-random and trying it\n"
    make_model(config)
    assert capsys.readouterr().out == ""


def test_set_up_names_a_stage_that_is_silent_while_the_lanes_are_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine_setup, "_HEARTBEAT_S", 0.0)
    begun = threading.Event()
    beats: list[float] = []

    def bring(*_: object, **__: object) -> Path:
        begun.set()
        # Until a heartbeat has come, or for as long as no machine needs.
        deadline = time.monotonic() + 60.0
        while not beats and time.monotonic() < deadline:
            time.sleep(0.05)
        return Path("model")

    beat = machine_setup.Report.beat

    def noted(self: machine_setup.Report, now: float) -> None:
        beat(self, now)
        if begun.is_set():
            beats.append(now)

    monkeypatch.setattr(machine_setup, "bring_model", bring)
    monkeypatch.setattr(machine_setup.Report, "beat", noted)
    machine_setup.run_setup(image=None)
    assert beats
    assert re.search(r"\.\.\. +0 of 1 stages ready, time left unknown; model \d+ s\n", capsys.readouterr().out)
