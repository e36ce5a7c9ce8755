"""What getters work with: the desktop, the assets and one folder per evaluation in which fetched files lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from computerrl.common.errors import TaskFailed
from computerrl.env_server.tasks.osworld.assets import Assets
from computerrl.env_server.tasks.osworld.desktop import OsworldDesktop

Getter = Callable[["Context", Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class GetterSpec:
    """One getter: its name in task files and what it needs."""

    name: str
    read: Getter
    needs: tuple[str, ...] = ()
    """Arguments that must be there."""
    app: str = ""
    """Application without which it reads nothing."""


@dataclass(slots=True)
class Context:
    """One evaluation. The agent's files and ours lie apart: only a broken file of the agent's may cost it the reward."""

    desktop: OsworldDesktop
    assets: Assets
    folder: Path
    outputs: Mapping[str, str] = field(default_factory=dict)
    """What set-up commands printed, by the name under which the task keeps it."""

    def keep(self, name: str, data: bytes) -> str:
        """Write a file of the desktop's; gives its path on the host."""
        return self._write("product", name, data)

    def keep_gold(self, name: str, data: bytes) -> str:
        """Write a file of the task's."""
        return self._write("gold", name, data)

    def is_product(self, path: Path) -> bool:
        """Is this file the agent's doing?"""
        return path.resolve().is_relative_to((self.folder / "product").resolve())

    @property
    def has_product(self) -> bool:
        """True when a file of the agent's was read."""
        return (self.folder / "product").is_dir()

    def fetch(self, path: str, name: str) -> str | None:
        """A file of the desktop's as a file on the host; None when there is none."""
        data = self.desktop.read_file(path)
        return None if data is None else self.keep(name, data)

    def find(self, name: str) -> str | None:
        """A file that was kept before under this name."""
        for side in ("product", "gold"):
            place = self.folder / side / _safe(name)
            if place.is_file():
                return str(place)
        return None

    def _write(self, side: str, name: str, data: bytes) -> str:
        place = self.folder / side / _safe(name)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        return str(place)


def _safe(name: str) -> str:
    """A file name out of a task file: the last part, and never one that leads elsewhere."""
    base = Path(name).name
    if base in ("", ".", "..") or "\0" in base:
        raise TaskFailed(f"{name!r} is no file name")
    return base
