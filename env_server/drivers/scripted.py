"""An imitation desktop without processes, for serial mode and unit tests: the same tasks, actions and observations.

It imitates what the task families need of four applications (`env_server.drivers.scripted_apps`) and draws its elements into a
picture. It never stands in for a real desktop: only `driver: scripted` in the configuration makes one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageDraw

from computerrl.common.actions.targets import find_target
from computerrl.common.config import DesktopConfig
from computerrl.common.errors import TaskFailed
from computerrl.common.messages import Action, Element, Observation, ScreenshotRef, StepResult
from computerrl.env_server.driver import GetterKind, SetupStep, TaskInstance
from computerrl.env_server.drivers.screenshots import Screenshots
from computerrl.env_server.drivers.scripted_apps import (
    ActionFailed,
    CalcApp,
    EditorApp,
    FilesApp,
    FileTree,
    PageApp,
    ScriptedApp,
    ScriptedRow,
    require_app,
)
from computerrl.env_server.tasks.pages import page

_LEFT, _TOP, _ROW_HEIGHT, _COLUMN_WIDTH = 20, 60, 28, 120
"""Pixels."""

_MENUS = ("File", "Edit", "View")


class ScriptedDriver:
    """One imitation desktop."""

    pid: int | None = None
    """There is no process."""

    def __init__(self, config: DesktopConfig, *, screenshots: Screenshots | None = None) -> None:
        self._config = config
        self._screenshots = screenshots if config.observation != "tree" else None
        self._tree = FileTree()
        self._apps: dict[str, ScriptedApp] = {}
        self._front: ScriptedApp | None = None
        self._closed = False

    # --- DesktopDriver -----------------------------------------------------------------------------------------------

    def reset(self, task: TaskInstance) -> tuple[str, Observation]:
        """See `DesktopDriver`."""
        self._tree, self._apps, self._front = FileTree(), {}, None
        try:
            for setup_step in task.setup:
                self._set_up(setup_step)
            if task.prepare is not None:
                task.prepare(self.get)
            observation = self.observe()
        except (ActionFailed, KeyError) as error:
            self._front = None
            raise TaskFailed(f"cannot be set up: {error}") from error
        return task.instruction_of(self.get), observation

    def step(self, action: Action) -> StepResult:
        """See `DesktopDriver`."""
        error, result = "", ""
        try:
            result = self._perform(action)
        except ActionFailed as failure:
            error = str(failure)
        finished = isinstance(self._front, PageApp) and self._front.done
        return StepResult(observation=self.observe(result), action_error=error, finished=finished)

    def observe(self, result: str = "") -> Observation:
        """See `DesktopDriver`."""
        elements = self._elements()
        return Observation(
            app=self._front.name if self._front else "",
            window_title=self._front.title if self._front else "",
            elements=elements if self._config.observation != "screenshot" else (),
            screenshot=self._screenshot(elements),
            screen_width=self._config.screen_width,
            screen_height=self._config.screen_height,
            settled_by="none",
            settle_s=0.0,
            result=result,
        )

    def get(self, kind: GetterKind, **args: Any) -> Any:
        """See `DesktopDriver`."""
        if kind == "web_page":
            return require_app(self._apps, "chromium").state()
        if kind == "calc_cells":
            return require_app(self._apps, "calc").read(args["range"])
        if kind == "file_text":
            return self._tree.files.get(args["path"])
        if kind == "folder_listing":
            return self._tree.listing(args.get("path", "."))
        if kind == "editor_text":
            return require_app(self._apps, "editor").text
        raise TaskFailed(f"unknown getter {kind!r}")

    def healthy(self) -> bool:
        """See `DesktopDriver`."""
        return not self._closed

    def close(self) -> None:
        """See `DesktopDriver`."""
        self._closed = True

    # --- set-up and actions ------------------------------------------------------------------------------------------

    def _set_up(self, step: SetupStep) -> None:
        args = step.args
        app: ScriptedApp | None = None
        if step.kind == "write_file":
            self._tree.write(args["path"], args["text"])
        elif step.kind == "make_folder":
            self._tree.make_folder(args["path"])
        elif step.kind == "web_page":
            app = PageApp(args["page"], page(args["page"], args["seed"]))
        elif step.kind == "calc_open":
            app = CalcApp(dict(args["cells"]), args["active_cell"])
        elif step.kind == "editor_open":
            self._tree.write(args["path"], args["text"])
            app = EditorApp(args["path"], args["text"], self._tree)
        elif step.kind == "files_open":
            app = FilesApp(args["folder"], self._tree)
        else:
            raise TaskFailed(f"unknown setup step {step.kind!r}")
        if app is not None:
            self._apps[app.name] = self._front = app

    def _perform(self, action: Action) -> str:
        if self._front is None:
            raise ActionFailed("nothing is open")
        area, _, name = action.name.partition(".")
        args = dict(action.args)
        if name:
            return self._call_api(area, name, args)
        if action.name in ("click", "double_click", "triple_click"):
            self._click(args["target"], args.get("y"))
        elif action.name == "type":
            if args.get("target") is not None:
                self._click(args["target"], args.get("y"))
            if args.get("overwrite"):
                self._front.clear()
            self._front.type(args["text"] + ("\n" if args.get("enter") else ""))
        elif action.name == "quote":
            return str(args["content"])
        elif action.name == "key":
            for _ in range(args.get("times", 1)):
                self._front.key(args["keys"].replace(" ", ""))
        elif action.name not in ("hover", "scroll", "wait"):
            raise ActionFailed(f"{action.name} does nothing here")
        return ""

    def _call_api(self, area: Literal["calc", "files", "editor", "apps"] | str, name: str, args: dict[str, Any]) -> str:
        if area == "apps" and name == "switch":
            if args["app"] not in self._apps:
                raise ActionFailed(f"{args['app']!r} is not open")
            self._front = self._apps[args["app"]]
            return ""
        if area == "files":
            if name == "list":
                return "\n".join(self._tree.listing(args["folder"]))
            if not hasattr(self._tree, name):
                raise ActionFailed(f"files.{name} does nothing here")
            method: Callable[..., str | None] = getattr(self._tree, name)
            return method(**args) or ""
        app = self._apps.get(area)
        if isinstance(app, CalcApp) and name in ("set_cell", "get_cell"):
            if name == "set_cell":
                app.set(args["cell"], args["value"])
                return ""
            return app.read(f"{args['cell']}:{args['cell']}")[0][0]
        if isinstance(app, EditorApp) and name == "save":
            app.save()
        elif not (isinstance(app, CalcApp) and name == "save"):
            raise ActionFailed(f"{area}.{name} does nothing here" if area == "apps" else f"{area} is not open")
        return ""

    def _click(self, target: int | str, y: int | None) -> None:
        assert self._front is not None
        row = self._target(target, y)
        if row.key:  # menus open nothing here
            self._front.click(row.key)

    def _target(self, target: int | str, y: int | None) -> ScriptedRow:
        assert self._front is not None
        elements = self._elements()
        try:
            element = find_target(elements, target) if y is None else next(e for e in elements if _covers(e, target, y))
        except LookupError as error:
            raise ActionFailed(str(error.args[0])) from None
        except StopIteration:
            raise ActionFailed(f"nothing at {target}, {y}") from None
        rows = self._front.rows()
        return rows[element.number - 1] if element.number <= len(rows) else ScriptedRow("", "menu", "")

    # --- what is on screen -------------------------------------------------------------------------------------------

    def _elements(self) -> tuple[Element, ...]:
        rows = self._front.rows() if self._front else []
        elements = [self._element(number, row) for number, row in enumerate(rows, start=1)]
        for index, menu in enumerate(_MENUS):
            elements.append(
                Element(
                    number=len(rows) + index + 1,
                    role="menu",
                    text=menu,
                    x=30 + 60 * index,
                    y=20,
                    width=50,
                    height=20,
                    states=(),
                    in_content=False,
                )
            )
        return tuple(elements[: self._config.max_elements])

    @staticmethod
    def _element(number: int, row: ScriptedRow) -> Element:
        width = min(_COLUMN_WIDTH - 10, 20 + 7 * max(4, len(row.text)))
        x, y = _LEFT + _COLUMN_WIDTH * row.column + width // 2, _TOP + _ROW_HEIGHT * row.line + 10
        return Element(number=number, role=row.role, text=row.text, x=x, y=y, width=width, height=22, states=row.states)

    def _screenshot(self, elements: tuple[Element, ...]) -> ScreenshotRef | None:
        return None if self._screenshots is None else self._screenshots.put(self._draw(elements))

    def handles(self) -> None:
        """See `LiveDesktop`."""

    def frame(self) -> np.ndarray:
        """See `LiveScreen`."""
        return self._draw(self._elements())

    def _draw(self, elements: tuple[Element, ...]) -> np.ndarray:
        image = Image.new("RGB", (self._config.screen_width, self._config.screen_height), "white")
        draw = ImageDraw.Draw(image)
        draw.rectangle((0, 0, self._config.screen_width, 40), fill=(225, 225, 230))
        for element in elements:
            left, top = element.x - element.width // 2, element.y - element.height // 2
            fill = (200, 220, 255) if element.states else (245, 245, 245)
            draw.rectangle((left, top, left + element.width, top + element.height), fill=fill, outline=(120, 120, 120))
            draw.text((left + 4, top + 5), element.text[:40].encode("latin-1", "replace").decode("latin-1"), fill="black")
        return np.array(image)


def _covers(element: Element, x: int | str, y: int) -> bool:
    return isinstance(x, int) and abs(x - element.x) <= element.width / 2 and abs(y - element.y) <= element.height / 2
