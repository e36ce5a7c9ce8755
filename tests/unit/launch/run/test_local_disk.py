"""A disk that runs full ends a run with a clear word instead of a chain of restarts."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from computerrl.common.errors import DiskFull
from computerrl.launch.run.local import disk_outcome, naming_full_disk


def test_disk_outcome_with_room_is_none(tmp_path: Path) -> None:
    assert disk_outcome(tmp_path, min_free_bytes=1) is None


def test_disk_outcome_without_room_fails_and_says_what_to_do(tmp_path: Path) -> None:
    outcome = disk_outcome(tmp_path, min_free_bytes=1 << 62)
    assert outcome is not None and (outcome.kind, outcome.reason, outcome.exit_code) == ("failed", "disk_full", 9)
    assert str(tmp_path) in outcome.message and "--resume" in outcome.message


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_naming_full_disk_turns_the_systems_error_into_ours(tmp_path: Path, code: int) -> None:
    with pytest.raises(DiskFull, match="--resume"), naming_full_disk(tmp_path):
        raise OSError(code, os.strerror(code))


def test_naming_full_disk_leaves_other_errors_alone(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), naming_full_disk(tmp_path):
        raise PermissionError(errno.EACCES, "no")
