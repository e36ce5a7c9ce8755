"""The stages of set-up: what is finished is skipped, an error of one lane is reported when both have ended."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest

from common.config import RunConfig
from common.errors import ConfigError, SetupError
from common.model_folder import is_model_folder
from launch import machine_setup
from launch.local import make_model
from launch.machine_setup import REPOSITORY, run_setup


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_constraints_every_line_is_exact_and_torch_is_the_one_installed_first() -> None:
    lines = [line for line in (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").split("\n") if line and line[0] != "#"]
    assert all(re.fullmatch(r"[a-z0-9._-]+==[^+\s]+", line) for line in lines)
    assert f"torch=={machine_setup.TORCH}" in lines


def test_constraints_cover_every_declared_dependency() -> None:
    pinned = {canonical(line.split("==")[0]) for line in (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").split("\n")}
    settings = configparser.ConfigParser()
    settings.read(REPOSITORY / "setup.cfg", encoding="utf-8")
    extras = settings["options.extras_require"]
    listed = "\n".join([settings["options"]["install_requires"], extras["cpu"], extras["offline"], extras["test"]])
    declared = {canonical(name) for name in re.findall(r"^([A-Za-z][\w.-]*)", listed, flags=re.MULTILINE)}
    assert len(declared) > 30
    assert declared <= pinned, declared - pinned


def test_run_setup_everything_there_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    venv = tmp_path / "venv"
    venv.mkdir()
    monkeypatch.setattr(machine_setup, "has_cuda_gpu", lambda: False)
    (venv / ".computerrl-setup").write_text(machine_setup._packages_digest(gpu=False), encoding="utf-8")
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    (model / "model.safetensors").write_bytes(b"x")
    (model / "tokenizer.json").write_text("{}", encoding="utf-8")
    run_setup(venv=venv, cache=tmp_path, image=None, model=str(model))
    said = capsys.readouterr().out
    assert "python packages ready" in said
    assert "set-up          complete" in said


def test_run_setup_errors_of_both_lanes_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine_setup, "_apptainer", lambda cache, mirror, progress: "one")
    with pytest.raises(ConfigError, match="no model of that name"):
        run_setup(cache=tmp_path, image=str(tmp_path / "none.sif"), model=str(tmp_path / "nothing"))
    assert "no recipe and no file or folder" in capsys.readouterr().out


def test_packages_other_python_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_setup, "_PYTHONS", ((3, 8), (3, 9)))
    with pytest.raises(SetupError, match=r"make setup PYTHON="):
        machine_setup._packages(tmp_path / "venv", tmp_path, lambda line: None)


def test_main_wrong_option_ends_with_two() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "launch.machine_setup", "--model", "/nowhere", "--image", "/nowhere"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert answer.returncode in (2, 3)
    assert "error:" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_model_that_is_not_there_is_made_before_the_processes_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COMPUTERRL_CACHE", str(tmp_path))
    config = RunConfig.model_validate({"name": "trial", "model": {"name": "tiny-random"}})
    make_model(config)
    assert is_model_folder(tmp_path / "models" / "tiny-random")
    assert capsys.readouterr().out == "model tiny-random: converting tiny-random\n"
    make_model(config)
    assert capsys.readouterr().out == ""
