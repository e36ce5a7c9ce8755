"""An imitation of an OSWorld desktop in memory, for tests: files, windows, scripted answers; every call is written down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from computerrl.env_server.tasks.osworld.desktop import Command, InputEvent, Playing, RunResult, Tab, Window


@dataclass(slots=True)
class FakeDesktop:
    """See `OsworldDesktop`."""

    files: dict[str, bytes] = field(default_factory=dict)
    answers: Mapping[str, RunResult] = field(default_factory=dict)
    """What commands give, by a part of their text; others end with nothing printed."""
    titles: list[str] = field(default_factory=list)
    pages: list[Tab] = field(default_factory=list)
    players: list[Playing] = field(default_factory=list)
    xml: str = "<desktop-frame/>"
    size: tuple[int, int] = (1280, 720)
    is_fullscreen: bool = False
    """Of all windows."""
    judged_with: dict[str, bytes] = field(default_factory=dict)
    """Files that came with the last command that had some."""
    serves: bool = True
    """Does the task's server run?"""
    calls: list[tuple[Any, ...]] = field(default_factory=list)

    def put_file(self, path: str, data: bytes) -> None:
        """See `OsworldDesktop`."""
        self.calls.append(("put_file", path))
        self.files[path] = data

    def bring_own_files(self) -> None:
        """See `OsworldDesktop`."""
        self.calls.append(("bring_own_files", None))

    def playing(self) -> Sequence[Playing]:
        """See `OsworldDesktop`."""
        return self.players

    def read_file(self, path: str) -> bytes | None:
        """See `OsworldDesktop`."""
        return self.files.get(path)

    def run(self, command: Command, *, timeout_s: float = 30.0, files: Mapping[str, bytes] | None = None) -> RunResult:
        """See `OsworldDesktop`."""
        self.calls.append(("run", command))
        self.judged_with = dict(files or self.judged_with)
        text = command if isinstance(command, str) else " ".join(command)
        return next((answer for part, answer in self.answers.items() if part in text), RunResult(0, "", ""))

    def launch(self, command: Command) -> None:
        """See `OsworldDesktop`."""
        self.calls.append(("launch", command))

    def serve(self, command: Command, port: int) -> bool:
        """See `OsworldDesktop`."""
        self.calls.append(("serve", command, port))
        return self.serves

    def end_programs(self) -> None:
        """See `OsworldDesktop`."""
        self.calls.append(("end_programs", None))

    def open(self, path: str) -> bool:
        """See `OsworldDesktop`."""
        self.calls.append(("open", path))
        return path in self.files

    def activate_window(self, title: str, *, strict: bool, by_class: bool) -> bool:
        """See `OsworldDesktop`."""
        self.calls.append(("activate_window", title))
        return any(title == found if strict else title.lower() in found.lower() for found in self.titles)

    def close_window(self, title: str, *, strict: bool, by_class: bool) -> bool:
        """See `OsworldDesktop`."""
        self.calls.append(("close_window", title))
        kept = [found for found in self.titles if (title != found if strict else title.lower() not in found.lower())]
        closed = len(kept) < len(self.titles)
        self.titles = kept
        return closed

    def windows(self) -> Sequence[Window]:
        """See `OsworldDesktop`."""
        return [Window(title, title.split(" ")[-1].lower(), 0, 0, *self.size, self.is_fullscreen) for title in self.titles]

    def input(self, events: Sequence[InputEvent]) -> None:
        """See `OsworldDesktop`."""
        self.calls += [("input", event) for event in events]

    def tree(self) -> str:
        """See `OsworldDesktop`."""
        return self.xml

    def screen_size(self) -> tuple[int, int]:
        """See `OsworldDesktop`."""
        return self.size

    def pointer(self) -> tuple[int, int]:
        """See `OsworldDesktop`."""
        return self.size[0] // 2, self.size[1] // 2

    def tabs(self) -> Sequence[Tab]:
        """See `OsworldDesktop`."""
        return self.pages

    def open_tabs(self, urls: Sequence[str]) -> None:
        """See `OsworldDesktop`."""
        self.pages = [Tab(url, url) for url in reversed(urls)] + self.pages

    def close_tabs(self, urls: Sequence[str]) -> None:
        """See `OsworldDesktop`."""
        self.pages = [page for page in self.pages if page.url not in urls]

    def answer(self, kind: str, **args: Any) -> Any:
        """What a guest answers to `CalledDesktop`: the getter kind ``osworld`` over this desktop."""
        import base64
        from dataclasses import asdict

        if kind != "osworld":
            return ""
        name = args.pop("call")
        if name == "put_file":
            args["data"] = base64.b64decode(args["data"])
        if name == "input":
            args["events"] = [InputEvent(**event) for event in args["events"]]
        value = getattr(self, name)(**args)
        if name == "read_file" and value is not None:
            return base64.b64encode(value).decode("ascii")
        if isinstance(value, RunResult):
            return asdict(value)
        return [asdict(row) for row in value] if name in ("windows", "tabs", "playing") else value
