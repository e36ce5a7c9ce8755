"""The learner's append-only files over restarts."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from PIL import Image

from computerrl.common.messages import ScreenshotRef
from computerrl.common.metrics import read_json_lines
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.env_server.drivers.screenshots import ScreenshotStore
from computerrl.launch.web.episodes import prompt_tokens
from computerrl.learner.accounts.records import LEDGER_FILE, Records, make_film_strip
from tests.support.data.broker_data import assignment, step, trajectory_for


def lines(folder: RunFolder) -> list[int]:
    return [line["n"] for line in read_json_lines(folder.folder / LEDGER_FILE)]


def test_lines_after_the_checkpoint_are_gone_and_those_before_stay(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    first = Records(folder, positions={})
    first.ledger_line({"n": 1})
    positions = first.positions()
    first.ledger_line({"n": 2})
    first.close()
    second = Records(folder, positions=positions)
    second.ledger_line({"n": 3})
    second.close()
    assert lines(folder) == [1, 3]


def test_a_learner_replaced_in_its_sleep_writes_where_nobody_reads(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    frozen = Records(folder, positions={})
    frozen.ledger_line({"n": 1})
    newer = Records(folder, positions=frozen.positions())
    frozen.ledger_line({"n": 2})
    newer.ledger_line({"n": 3})
    frozen.ledger_line({"n": 4})
    assert lines(folder) == [1, 3]
    for records in (frozen, newer):
        records.close()
    assert not list(folder.folder.glob(".*"))


def test_a_file_shorter_than_the_checkpoint_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, dict[str, object]]] = []
    logger = SimpleNamespace(error=lambda event, **fields: said.append((event, fields)))
    monkeypatch.setattr("computerrl.learner.accounts.records.log.get_logger", lambda: logger)
    folder = RunFolder(tmp_path)
    records = Records(folder, positions={})
    records.ledger_line({"n": 1})
    records.close()
    Records(folder, positions={"ledger": 1000}).close()
    path = folder.folder / LEDGER_FILE
    assert said == [("records.shorter_than_checkpoint", {"path": str(path), "size": 8, "expected": 1000})]
    assert lines(folder) == [1]


IMAGE = 99
"""The image token."""


def shown(number: int, size: tuple[int, int] = (80, 60)) -> ScreenshotRef:
    return ScreenshotRef(f"screen-{number}", "segment-0.bin", number, 1, *size)


@pytest.mark.parametrize(
    ("prompt", "images", "expected", "counts"),
    [
        ([5, IMAGE, IMAGE, 6], [shown(1)], [5, -1, 6], [2]),
        ([IMAGE, IMAGE, 5, IMAGE, IMAGE], [shown(1), shown(2)], [-1, 5, -2], [2, 2]),
        # Rows and columns between the pieces of an image belong to it.
        ([5, IMAGE, 7, IMAGE, 6, IMAGE, 7, IMAGE], [shown(1), shown(2)], [5, -1, 6, -2], [2, 2]),
        ([5, 6], [], [5, 6], []),
        # A prompt that its images do not fit stays as it is.
        ([5, IMAGE, IMAGE, IMAGE], [shown(1), shown(2)], [5, IMAGE, IMAGE, IMAGE], []),
        ([5, IMAGE, IMAGE], [shown(1), shown(2, (8, 6))], [5, IMAGE, IMAGE], []),
        ([5, 6], [shown(1)], [5, 6], []),
    ],
)
def test_samples_name_each_image_of_a_prompt_once(
    tmp_path: Path, prompt: list[int], images: list[ScreenshotRef], expected: list[int], counts: list[int]
) -> None:
    one = replace(step(), prompt_tokens=np.array(prompt, np.int32), images=tuple(images), places=(3, 4))
    folder = RunFolder(tmp_path)
    folder.trajectories.mkdir()
    records = Records(folder, positions={}, image_token=IMAGE)
    records.episode(trajectory_for(assignment(), steps=[one]), "evaluated")
    records.close()
    (line,) = read_json_lines(folder.samples_path)
    sample = line["steps"][0]
    assert prompt_tokens(sample["prompt"]) == expected
    named = [{"content_hash": f"screen-{k + 1}", "width": 80, "height": 60, "num_tokens": n} for k, n in enumerate(counts)]
    assert sample.get("images", []) == named
    (episode,) = read_json_lines(folder.episodes_path)
    assert episode["steps"][0]["places"] == [3, 4]


def test_film_strip_shows_where_the_action_pointed(tmp_path: Path) -> None:
    store = ScreenshotStore(tmp_path, picture_format="png", incarnation="x")
    ref = store.put(np.full((600, 800, 3), 128, np.uint8))
    store.close()

    def pixel(places: tuple[int, ...]) -> tuple[int, ...]:
        found = make_film_strip(trajectory_for(assignment(), steps=[replace(step(), screenshot=ref, places=places)]), tmp_path)
        assert found is not None
        with Image.open(io.BytesIO(found[0])) as strip:
            shade = strip.convert("RGB").getpixel((120, 45))
        assert isinstance(shade, tuple)
        return shade

    plain, marked = pixel(()), pixel((400, 150))
    assert abs(plain[0] - plain[1]) < 10 and marked[0] - marked[1] > 60


@pytest.mark.parametrize(("variable", "mode"), [(None, "offline"), ("online", "online")])
def test_wandb_run_has_one_id_over_restarts_and_another_one_in_another_folder(
    variable: str | None, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[dict[str, Any]] = []

    def init(**fields: Any) -> SimpleNamespace:
        opened.append(fields)
        return SimpleNamespace(finish=lambda: None)

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, Settings=lambda **fields: fields))
    monkeypatch.delenv("WANDB_MODE", raising=False)
    if variable is not None:
        monkeypatch.setenv("WANDB_MODE", variable)
    for parent in ("mine", "mine", "theirs"):
        (tmp_path / parent / "quickstart").mkdir(parents=True, exist_ok=True)
        Records(RunFolder(tmp_path / parent / "quickstart"), positions={}, has_wandb=True).close()
    first, again, other = (fields["id"] for fields in opened)
    assert first == again != other and first.startswith("quickstart-")
    assert {fields["settings"]["mode"] for fields in opened} == {mode}
