"""The warm sheet gets its name by being stored in the agent's folder, and leaves no file there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from computerrl.env_server.guest.office.calc.sheet import FILE_NAME, Calc
from computerrl.env_server.guest.office.process import OfficeGone


class StoringOffice:
    """An office with one document, which it stores as the real one does: into a file of another name, which is renamed."""

    def __init__(self, folder: Path, *, dies: bool) -> None:
        self._folder, self._dies = folder, dies
        self.num_starts = 1
        self.program = SimpleNamespace(running=True)

    def connect(self, *, timeout_s: float) -> None:
        """It has started."""

    def call(self, work: Callable[[], Any], *, timeout_s: float) -> Any:
        return work()

    on_main = call

    def create(self, service: str) -> Any:
        found = iter([SimpleNamespace(CurrentController=object(), storeAsURL=self._store)])
        return SimpleNamespace(
            Components=SimpleNamespace(
                createEnumeration=lambda: SimpleNamespace(hasMoreElements=lambda: True, nextElement=lambda: next(found))
            )
        )

    def _store(self, address: str, properties: tuple[()]) -> None:
        temporary = self._folder / "lu12ab.tmp"
        temporary.write_bytes(b"half of it")
        if self._dies:
            raise OfficeGone("bridge disposed during call")
        temporary.rename(self._folder / Path(address.removeprefix("file://")).name)


@pytest.mark.parametrize("dies", [False, True], ids=["", "dies"])
@pytest.mark.parametrize("files", [{}, {FILE_NAME: b"mine"}, {"lu1.tmp": b"mine", FILE_NAME: b""}], ids=["none", "sheet", "both"])
def test_naming_the_sheet_changes_no_file(tmp_path: Path, files: dict[str, bytes], dies: bool) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    office: Any = StoringOffice(tmp_path, dies=dies)
    calc = Calc(office, folder=tmp_path)
    if dies:
        with pytest.raises(OfficeGone):
            calc.connect(timeout_s=5.0)
    else:
        calc.connect(timeout_s=5.0)
    assert {place.name: place.read_bytes() for place in tmp_path.iterdir()} == files
