"""Logs on a disk that takes nothing more."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from computerrl.common import log

FULL = Path("/dev/full")


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def test_log_line_that_the_disk_refuses_is_lost_without_an_error() -> None:
    log.configure(json_file=FULL)
    log.get_logger().error("journal.disk_full", reason="no space")
    log.get_logger().info("journal.segment_begun")


def test_log_line_with_space_is_one_json_object(tmp_path: Path) -> None:
    log.configure(json_file=tmp_path / "role.jsonl")
    log.get_logger().info("group.completed", group_id="rl-1/3")
    text = (tmp_path / "role.jsonl").read_text(encoding="utf-8")
    assert text.count("\n") == 1 and '"event": "group.completed"' in text
