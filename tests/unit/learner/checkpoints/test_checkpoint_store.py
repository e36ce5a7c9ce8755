"""Checkpoints: whole or not there."""

import errno
import json
import resource
import shutil
from pathlib import Path

import pytest
import torch

from computerrl.common.errors import ResumeError, Superseded
from computerrl.learner.checkpoints.checkpoint import CheckpointStore, join_state, split_state


def save(store: CheckpointStore, value: int) -> None:
    store.save({"trainer": {"w": torch.full((4,), float(value))}}, {"value": value}, cursor=10 * value)
    store.wait()


def test_store_saved_then_loaded_is_the_same(tmp_path: Path) -> None:
    save(CheckpointStore(tmp_path, num_kept=2), 3)
    found = CheckpointStore(tmp_path, num_kept=2).load()
    assert found is not None and found.state == {"value": 3}
    assert torch.equal(found.sections["trainer"]["w"], torch.full((4,), 3.0))


def test_store_empty_folder_loads_nothing(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path / "new", num_kept=2).load() is None


def test_store_keeps_as_many_as_told_and_latest_points_to_newest(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, num_kept=2)
    for value in range(5):
        save(store, value)
    assert len(list(tmp_path.glob("checkpoint-*"))) == 2
    assert json.loads((tmp_path / "latest" / "state.json").read_text())["state"] == {"value": 4}
    assert store.covered_cursor == 30  # Of the older one: falling back to it must find its groups.


def test_store_numbers_continue_after_restart(tmp_path: Path) -> None:
    save(CheckpointStore(tmp_path, num_kept=3), 1)
    store = CheckpointStore(tmp_path, num_kept=3)
    store.load()
    save(store, 2)
    assert store.covered_cursor == 10
    assert CheckpointStore(tmp_path, num_kept=3).load().state == {"value": 2}


@pytest.mark.parametrize("harm", ["flip", "truncate", "delete", "no_list"])
def test_store_newest_damaged_falls_back_to_the_one_before(tmp_path: Path, harm: str) -> None:
    store = CheckpointStore(tmp_path, num_kept=2)
    save(store, 1)
    save(store, 2)
    file = (tmp_path / "latest").resolve() / "trainer.safetensors"
    data = bytearray(file.read_bytes())
    if harm == "flip":
        data[-1] ^= 1
        file.write_bytes(data)
    elif harm == "truncate":
        file.write_bytes(data[:-3])
    elif harm == "delete":
        file.unlink()
    else:
        (file.parent / "files.json").unlink()
    store = CheckpointStore(tmp_path, num_kept=2)
    assert store.load().state == {"value": 1}
    save(store, 3)
    assert CheckpointStore(tmp_path, num_kept=2).load().state == {"value": 3}


def test_store_all_damaged_is_a_resume_error(tmp_path: Path) -> None:
    save(CheckpointStore(tmp_path, num_kept=2), 1)
    ((tmp_path / "latest").resolve() / "state.json").write_text("{}")
    with pytest.raises(ResumeError, match="damaged"):
        CheckpointStore(tmp_path, num_kept=2).load()


def test_store_half_written_draft_is_ignored_and_removed(tmp_path: Path) -> None:
    save(CheckpointStore(tmp_path, num_kept=2), 1)
    draft = tmp_path / ".000001-0.incomplete"
    draft.mkdir()
    (draft / "state.json").write_text("{")
    assert CheckpointStore(tmp_path, num_kept=2).load().state == {"value": 1}
    assert not draft.exists()


def test_save_is_a_snapshot_later_changes_do_not_reach_it(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, num_kept=2)
    weights = torch.zeros(1000, 1000)
    store.save({"trainer": {"w": weights}}, {}, cursor=0)
    weights += 1
    store.wait()
    assert CheckpointStore(tmp_path, num_kept=2).load().sections["trainer"]["w"].sum() == 0


def test_save_write_failed_raises_at_next_wait(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "sub", num_kept=2)
    (tmp_path / "sub").rmdir()
    (tmp_path / "sub").write_text("a file in the way")
    store.save({}, {}, cursor=0)
    with pytest.raises(OSError):
        store.wait()


def test_save_file_that_the_system_cuts_off_raises_the_systems_error(tmp_path: Path) -> None:
    """safetensors hides the number of the error; a full disk must be told from other mishaps by it."""
    store = CheckpointStore(tmp_path, num_kept=2)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        store.save({"trainer": {"w": torch.zeros(100_000)}}, {}, cursor=0)
        with pytest.raises(OSError) as caught:
            store.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert list(tmp_path.iterdir()) == []


def resave(store: CheckpointStore, value: int) -> None:
    """With the tensors of the newest one."""
    assert store.has_newest()
    store.save({"pool": {"p": torch.tensor([value])}}, {"value": value}, cursor=10 * value, unchanged=["trainer"])
    store.wait()


@pytest.mark.parametrize("has_links", [True, False])
def test_unchanged_sections_move_to_the_new_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool) -> None:
    if not has_links:
        monkeypatch.setattr("os.link", refuse_link)
    store = CheckpointStore(tmp_path, num_kept=2)
    for value in (1, 2):
        save(store, value)
    number = (tmp_path / "latest" / "trainer.safetensors").stat().st_ino
    for value in (3, 4):
        resave(store, value)
    if has_links:
        assert (tmp_path / "latest" / "trainer.safetensors").stat().st_ino == number
    assert store.covered_cursor == 10, "one whose tensors are others is kept beside it"
    found = CheckpointStore(tmp_path, num_kept=2).load()
    assert found is not None and found.state == {"value": 4}
    assert found.sections["trainer"]["w"].tolist() == [2.0] * 4 and found.sections["pool"]["p"].tolist() == [4]


def refuse_link(*_: object) -> None:
    raise PermissionError(errno.EPERM, "no links here")


def test_damage_to_shared_tensors_leaves_the_checkpoint_with_others(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, num_kept=2)
    for value in (1, 2):
        save(store, value)
    for value in (3, 4, 5):
        resave(store, value)
    file = tmp_path / "latest" / "trainer.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert CheckpointStore(tmp_path, num_kept=2).load().state == {"value": 1}


def test_time_to_write_is_that_of_a_whole_one(tmp_path: Path) -> None:
    """By it a learner that is stopped decides whether there is time for another."""
    store = CheckpointStore(tmp_path, num_kept=2)
    save(store, 1)
    took_s = store.last_write_s
    resave(store, 2)
    assert store.last_write_s == took_s > 0
    save(store, 3)
    assert store.last_write_s != took_s


class TwoShards:
    """A section that several ranks write."""

    def write(self, folder: Path, *, section: str) -> None:
        for rank in range(2):
            (folder / f"{section}-{rank:05d}-of-00002.safetensors").write_bytes(b"of rank %d" % rank)


def test_unchanged_section_moves_with_all_its_shards(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, num_kept=2)
    store.save({"trainer": TwoShards(), "pool": {"p": torch.zeros(1)}}, {"value": 1}, cursor=10)
    resave(store, 2)
    found = {path.name: path.read_bytes() for path in (tmp_path / "latest").resolve().glob("trainer*")}
    assert found == {f"trainer-{rank:05d}-of-00002.safetensors": b"of rank %d" % rank for rank in range(2)}
    assert set(json.loads((tmp_path / "latest" / "files.json").read_text())) == {*found, "pool.safetensors", "state.json"}
    assert len(list(tmp_path.glob("checkpoint-*"))) == 1


def test_newest_checkpoint_that_somebody_deleted_is_not_built_upon(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, num_kept=2)
    assert not store.has_newest()
    save(store, 1)
    assert store.has_newest()
    shutil.rmtree((tmp_path / "latest").resolve())
    assert not store.has_newest()


def test_split_state_nested_values_come_back_equal() -> None:
    tensor = torch.arange(3)
    state = {"a": [1, (2.5, None)], "b": {0: {"t": tensor}, 1: "x"}, "c": tensor, "d": True}
    tensors, rest = split_state(state)
    back = join_state(tensors, json.loads(json.dumps(rest)))
    assert torch.equal(back["b"][0].pop("t"), tensor) and torch.equal(back.pop("c"), tensor)
    assert back == {"a": [1, (2.5, None)], "b": {0: {}, 1: "x"}, "d": True}


def test_split_state_unknown_value_is_refused() -> None:
    with pytest.raises(TypeError, match="object"):
        split_state({"x": object()})


def numbers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_store_that_was_replaced_in_its_sleep_can_write_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    frozen = CheckpointStore(folder, num_kept=1)
    frozen.load()
    save(frozen, 1)
    newer = CheckpointStore(folder, num_kept=1)
    assert newer.load().state == {"value": 1}
    with pytest.raises(Superseded, match="newer learner"):
        save(frozen, 2)
    assert numbers(folder) == ["checkpoint-000000", "latest"], "and what the newer one may still need was not pruned"
    save(newer, 3)
    with pytest.raises(Superseded):
        save(frozen, 4)
    assert CheckpointStore(folder, num_kept=1).load().state == {"value": 3}
    assert numbers(tmp_path) == ["checkpoints"]


@pytest.mark.parametrize("num_moved", [0, 1, 2])
def test_store_killed_while_it_takes_over_leaves_all_to_the_next(tmp_path: Path, num_moved: int) -> None:
    folder, before = tmp_path / "checkpoints", tmp_path / ".checkpoints-before"
    store = CheckpointStore(folder, num_kept=2)
    save(store, 1)
    save(store, 2)
    (folder / ".000002-0.incomplete").mkdir()
    folder.rename(before)
    if num_moved:
        folder.mkdir()
    for path in sorted(before.glob("checkpoint-*"))[:num_moved]:
        path.rename(folder / path.name)
    found = CheckpointStore(folder, num_kept=2)
    assert found.load().state == {"value": 2} and found.covered_cursor == 10
    assert numbers(folder) == ["checkpoint-000000", "checkpoint-000001", "latest"] and numbers(tmp_path) == ["checkpoints"]
    assert (folder / "latest" / "state.json").is_file()
