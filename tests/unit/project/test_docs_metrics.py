"""docs/reference/metrics.md names every field that is written."""

import re
from pathlib import Path

import pytest

from computerrl.broker.journal.file import MemoryJournal
from computerrl.broker.service import BrokerService
from computerrl.common.messages import Status, StatusRequest
from computerrl.common.metrics import read_json_lines
from computerrl.common.wire.refusals import Refusals
from tests.support.data.broker_data import core
from tests.support.loop_fakes import Bench, make_config

ROOT = Path(__file__).parents[3]
SOURCES = (
    "actor/worker.py",
    "actor/process.py",
    "actor/serving/host.py",
    "actor/serving/server.py",
    "actor/engines/transformers_engine.py",
    "env_server/serving/service.py",
    "learner/weights/sender.py",
    "learner/conductor.py",
)


@pytest.fixture(scope="module")
def documented() -> set[str]:
    text = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
    return set(re.findall(r"`([^`]+)`", text))


def test_metrics_of_a_whole_run_are_all_in_the_tables(tmp_path: Path, documented: set[str]) -> None:
    bench = Bench(tmp_path, make_config(entropulse={"force_after_fraction": 0.5, "check_episodes_per_family": 1}))
    loop = bench.run(bench.start())
    written = set(loop.metrics())
    folder = bench.folder
    for path in (folder.metrics_path, folder.folder / "ledger.jsonl", folder.episodes_path, folder.samples_path):
        for line in read_json_lines(path):
            written |= set(line)
            written |= {f"steps[].{name}" for step in line.get("steps", ()) for name in step}
    assert written - documented <= {"steps"}


@pytest.mark.parametrize("source", SOURCES)
def test_metrics_named_in_the_code_are_all_in_the_tables(source: str, documented: set[str]) -> None:
    names = re.findall(r'"((?:actor|engine|env_server|learner)/\w+)"', (ROOT / source).read_text(encoding="utf-8"))
    assert set(names) <= documented


def test_counters_and_gauges_of_a_status_are_all_in_the_tables(documented: set[str]) -> None:
    service = BrokerService(core(), MemoryJournal())
    service.transport_counters = Refusals().counters
    status = service(StatusRequest(), "supervisor-0:display")
    assert isinstance(status, Status)
    assert "transport/malformed" in status.counters and "journal_bytes" in status.gauges
    assert {*status.counters, *status.gauges} <= documented
