"""Logs of several processes as one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from computerrl.common.errors import ConfigError
from computerrl.common.log import Line, parse_line
from computerrl.launch.watch import logs
from computerrl.launch.watch.logs import Choice, RunLogs, show_logs


def put(path: Path, *records: dict[str, Any] | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines((record if isinstance(record, str) else json.dumps(record)) + "\n" for record in records)


def said(second: int, event: str, level: str = "info", **fields: Any) -> dict[str, Any]:
    return {"role": "x", "event": event, "level": level, "timestamp": f"2026-01-01T00:00:{second:02}Z", **fields}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    latest = tmp_path / "logs" / "latest"
    put(latest / "learner-0.log", said(1, "update.done", update=1), said(5, "update.done", update=2))
    put(latest / "actor-0.log", "a library says hello", said(2, "engine.ready"), "Traceback", "  at line 1")
    put(latest / "actor-0.log", said(4, "bye", "error"))
    return tmp_path


def shown(run: Path, *processes: str, level: str = "info", num_lines: int = 40) -> list[str]:
    lines: list[str] = []
    show_logs(run, processes=processes, level=level, follow=False, num_lines=num_lines, write=lines.append)
    return lines


def test_lines_of_all_processes_are_in_the_order_of_time_and_others_stay_where_they_were(run: Path) -> None:
    texts = [line.text for line in RunLogs(run, Choice()).read()]
    assert texts == [
        "a library says hello",
        "update.done update=1",
        "engine.ready",
        "Traceback",
        "  at line 1",
        "bye",
        "update.done update=2",
    ]


def test_filters_take_names_roles_levels_and_the_end(run: Path) -> None:
    assert [line.split()[-1] for line in shown(run, "learner")] == ["update=1", "update=2"]
    assert len(shown(run, "actor-0")) == 5
    assert len(shown(run, "actor", "learner-0", level="warning")) == 1
    assert len(shown(run, num_lines=2)) == 2
    assert shown(run, num_lines=0) == []


def test_what_is_added_is_read_once_and_a_torn_line_when_it_is_whole(run: Path) -> None:
    reader = RunLogs(run, Choice())
    reader.read()
    path = run / "logs" / "latest" / "learner-0.log"
    with path.open("a") as file:
        file.write('{"event": "update')
    assert reader.read() == []
    with path.open("a") as file:
        file.write('.done", "timestamp": "2026-01-01T00:00:09Z"}\n')
    put(run / "logs" / "joined-1000" / "actor-1000.log", said(8, "joined"))
    assert [(line.process, line.text) for line in reader.read()] == [("actor-1000", "joined"), ("learner-0", "update.done")]
    assert reader.read() == []


def test_long_log_is_read_from_a_whole_line_of_its_end(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_TAIL_BYTES", 150)
    assert [line.text for line in RunLogs(run, Choice(("learner",))).read()] == ["update.done update=2"]


def test_exception_and_texts_with_blanks_are_shown_whole() -> None:
    record = said(1, "it.failed", why="two words", share=0.123456789, exception="Traceback\nboom")
    line = parse_line(json.dumps(record), process="a", before=0)
    assert line.text == "it.failed why='two words' share=0.123457\nTraceback\nboom"
    assert parse_line('{"timestamp": 7}', process="a", before=3.0) == Line(3.0, "a", "info", '{"timestamp": 7}')


def test_unknown_process_and_a_run_without_logs_are_named(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"(?s)no log of actor-9.*actor-0, learner-0"):
        shown(run, "actor-9")
    with pytest.raises(ConfigError, match="no logs yet"):
        shown(tmp_path / "elsewhere")
