"""The comparison of two fingerprints names each difference."""

from __future__ import annotations

from computerrl.env_server.guest.files.fingerprint import differences

FIRST = {"files": {"/tmp/a": "1", "/tmp/b": "2"}, "bus": {"org.a11y.Bus": "owned"}}


def test_equal_fingerprints_have_no_differences() -> None:
    assert differences(FIRST, {"bus": dict(FIRST["bus"]), "files": dict(FIRST["files"])}) == []


def test_each_difference_is_named() -> None:
    now = {"files": {"/tmp/a": "3", "/tmp/c": "4"}, "ipc": {"shm 7": "600"}}
    assert differences(FIRST, now) == [
        "bus: org.a11y.Bus is gone",
        "files: /tmp/a was 1 and is 3",
        "files: /tmp/b is gone",
        "files: /tmp/c is new: 4",
        "ipc: shm 7 is new: 600",
    ]
