"""The study of faults: a job that is killed is started again under its name, one that ends by itself with an error is not."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from computerrl.benchmarks.studies import _runs, faults
from computerrl.benchmarks.studies._designs import QUICK

NAME = "job-restarted-0"
SETTINGS = {**QUICK, "seed": 0}
JOB = """\
#!{python}
import pathlib, sys, time
run = pathlib.Path("runs", "{name}")
if not pathlib.Path("was-started").exists():
    run.mkdir()
    for name in {written!r}:
        (run / name).touch()
    pathlib.Path("was-started").touch()
    time.sleep(600)
if {fails!r} or run.exists() is not ("--resume" in sys.argv):
    sys.exit(3)
run.mkdir(exist_ok=True)
(run / "report.json").write_text('{{"finished": true}}')
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What stands in for `computerrl train`: its first start waits to be killed, the second is done if it finds what it needs."""
    monkeypatch.setattr(faults, "QUICK_EVERY_S", 0.1)
    monkeypatch.setattr(faults, "QUICK_KILLS", 1)
    script = tmp_path / "job"

    def write(*, written: tuple[str, ...] = (), fails: bool = False) -> None:
        script.write_text(JOB.format(python=sys.executable, name=NAME, written=written, fails=fails))
        script.chmod(0o700)

    monkeypatch.setattr(_runs, "sys", SimpleNamespace(executable=str(script)))
    return SimpleNamespace(write=write, folder=tmp_path)


@pytest.mark.parametrize("written", [(), (_runs.CONFIG_FILE,), (".lock",)], ids=["nothing", "config", "lock"])
def test_job_that_is_killed_goes_on_under_its_name_whatever_it_had_written(
    job: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, written: tuple[str, ...]
) -> None:
    kill_all, was_started = faults.kill_all, job.folder / "was-started"
    monkeypatch.setattr(faults, "kill_all", lambda process: was_started.exists() and kill_all(process))
    job.write(written=written)
    run = faults.disturbed(job.folder, NAME, SETTINGS)
    assert len(json.loads((run / _runs.KILLS_FILE).read_text())["kills"]) == 1
    assert [path.name for path in (job.folder / "runs").iterdir() if path.is_dir()] == [NAME]


def test_job_that_ends_with_an_error_of_its_own_is_not_started_for_ever(job: SimpleNamespace) -> None:
    (job.folder / "was-started").touch()
    job.write(fails=True)
    with pytest.raises(_runs.RunFailed, match="exit code 3"):
        faults.disturbed(job.folder, NAME, SETTINGS)


def test_time_until_a_role_is_back_is_that_from_its_kill_to_its_sign(tmp_path: Path) -> None:
    logs = tmp_path / "logs" / "latest"
    logs.mkdir(parents=True)
    (tmp_path / "config.yaml").write_text("desktop: {num_desktops: 2}\nname: x\n")

    def write(process: str, *events: tuple[float, str]) -> None:
        lines = [
            json.dumps({"event": name, "timestamp": f"1970-01-01T00:{int(at) // 60:02d}:{at % 60:06.3f}Z"}) for at, name in events
        ]
        (logs / f"{process}.log").write_text("\n".join(["not JSON", *lines]) + "\n")

    write("broker-0", (1, "broker.started"), (5, "version.announced"), (31.5, "broker.started"), (64, "version.announced"))
    write("env_server-0", *((at, "desktop.started") for at in (2, 3, 92, 95, 122, 152, 158)))
    write("actor-0", (4, "engine.ready"))
    kills = [("broker-0", 30.0), ("learner-0", 60.0), ("env_server-0", 90.0), ("env_server-0", 120.0), ("env_server-0", 150.0)]
    # Of the second kill one desktop came back before the third, and no actor was killed.
    assert faults.back_s(tmp_path, kills) == {"broker": 1.5, "learner": 4.0, "env_server": 6.5}
