"""The task file format of OSWorld and OfficeWorld, as validated types. Reads files; decides nothing about what can be run.

A file is taken as it is. Unknown fields of a task are ignored, because collections add their own. Unknown fields of an
evaluator or of a step's parameters are kept, so that the task is refused by their names: they may change the verdict. Every field
that has a meaning is checked, so that a broken file is an error when it is loaded and never a wrong reward later.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from computerrl.common.errors import ConfigError, Problem

Command = str | list[str]

_NEXT_STEP = "correct the task file, or leave it out of the folder"
_MAX_FILE_BYTES = 4_000_000
"""A task file has a few kilobytes; something larger is no task file."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Strict(_Part):
    """A part whose unknown fields are kept, to be refused by name."""

    model_config = ConfigDict(frozen=True, extra="allow")

    @property
    def unknown_fields(self) -> list[str]:
        """Names of the fields that this version of the format lacks. A name that begins with an underscore is a remark."""
        return sorted(name for name in self.model_extra or {} if not name.startswith("_"))


# --- set-up steps ----------------------------------------------------------------------------------------------------


class Download(_Part):
    """One file that a step brings onto the desktop."""

    url: str
    path: str


class DownloadStep(_Strict):
    """``download``: files from the asset folder onto the desktop."""

    files: list[Download]


class Upload(_Part):
    """One file beside the task files."""

    local_path: str
    path: str


class UploadStep(_Strict):
    """``upload_file``: the same, files named by a path in the asset folder."""

    files: list[Upload]


class LaunchStep(_Strict):
    """``launch``: start a program and do not wait for it."""

    command: Command
    shell: bool = False


class Until(_Part):
    """What a repeated command must give; everything that is set."""

    returncode: int | None = None
    stdout: str | None = None
    stderr: str | None = None


class ExecuteStep(_Strict):
    """``execute``, ``command``: run a command to its end; with ``until`` again and again."""

    command: Command
    shell: bool = False
    stdout: str = ""
    """Name under which the output is kept for the getter ``cache_file``."""
    stderr: str = ""
    until: Until | None = None


class Verification(_Part):
    """What must hold after the command."""

    window_exists: str | None = None
    command_success: str | None = None


class VerifiedStep(_Strict):
    """``execute_with_verification``: run a command, then wait until something holds."""

    command: Command
    shell: bool = False
    verification: Verification = Verification()
    max_wait_time: float = Field(10, ge=0, le=120)
    check_interval: float = Field(1, gt=0, le=60)


class OpenStep(_Strict):
    """``open``: a file with its application."""

    path: str


class SleepStep(_Strict):
    """``sleep``."""

    seconds: float = Field(ge=0, le=120)


class WindowStep(_Strict):
    """``activate_window``, ``close_window``."""

    window_name: str
    strict: bool = False
    """The whole title, not a part of it."""
    by_class: bool = False
    """`window_name` is a window class."""


class OpenTabsStep(_Strict):
    """``chrome_open_tabs``."""

    urls_to_open: list[str]


class CloseTabsStep(_Strict):
    """``chrome_close_tabs``."""

    urls_to_close: list[str]


class WallpaperStep(_Part):
    """``change_wallpaper``."""

    path: str


class Visit(_Part):
    """One line of the browser's history."""

    url: str
    title: str = ""
    visit_time_from_now_in_seconds: float = 0


class HistoryStep(_Strict):
    """``update_browse_history``."""

    history: list[Visit]


class AnyStep(_Part):
    """A step that is refused whatever its parameters are."""


STEPS: dict[str, type[_Part]] = {
    "download": DownloadStep,
    "upload_file": UploadStep,
    "launch": LaunchStep,
    "execute": ExecuteStep,
    "command": ExecuteStep,
    "execute_with_verification": VerifiedStep,
    "open": OpenStep,
    "sleep": SleepStep,
    "activate_window": WindowStep,
    "close_window": WindowStep,
    "chrome_open_tabs": OpenTabsStep,
    "chrome_close_tabs": CloseTabsStep,
    "change_wallpaper": WallpaperStep,
    "update_browse_history": HistoryStep,
    "login": AnyStep,
    "googledrive": AnyStep,
    "proxy": AnyStep,
    "tidy_desktop": AnyStep,
    "act": AnyStep,
    "replay": AnyStep,
}
"""Every step type of the format and what its parameters are."""


class SetupStep(_Part):
    """One step of ``config`` or ``postconfig``; unknown types are kept and refused by name later."""

    type: str
    parameters: Any = Field(default_factory=dict)

    @field_validator("parameters", mode="before")
    @classmethod
    def _parameters(cls, value: Any, info: Any) -> Any:
        model = STEPS.get(info.data.get("type", ""))
        return value if model is None else model.model_validate(value)


# --- evaluator -------------------------------------------------------------------------------------------------------


class Source(BaseModel):
    """Where a metric's input comes from: a getter's name and its arguments."""

    model_config = ConfigDict(frozen=True, extra="allow")

    type: str

    @property
    def args(self) -> dict[str, Any]:
        """All fields but the name."""
        return dict(self.model_extra or {})


class Judge(_Part):
    """One metric with its inputs."""

    func: str
    result: Source | None
    expected: Source | list[Source] | None
    options: dict[str, Any]


class Evaluator(_Strict):
    """How the end state is judged."""

    func: str | list[str]
    result: Source | list[Source | None] | None = None
    expected: Source | list[Source | list[Source] | None] | None = None
    options: dict[str, Any] | list[dict[str, Any] | None] | None = None
    conj: Literal["and", "or"] = "and"
    postconfig: list[SetupStep] = Field(default_factory=list)

    @field_validator("result", "expected", mode="before")
    @classmethod
    def _nothing(cls, value: Any) -> Any:
        if isinstance(value, list):
            return [None if entry == {} else entry for entry in value]
        return None if value == {} else value

    @property
    def infeasible(self) -> bool:
        """The right answer is to say that it cannot be done."""
        return self.func == "infeasible" or self.func == ["infeasible"]

    def judges(self) -> list[Judge]:
        """The metrics, each with its own inputs. Raises `ValueError` when the lists do not fit together."""
        if isinstance(self.func, str):
            if isinstance(self.result, list) or isinstance(self.options, list):
                raise ValueError("`func` is one name, so `result` and `options` cannot be lists")
            expected = self.expected
            if isinstance(expected, list):
                expected = [entry for entry in expected if isinstance(entry, Source)]
            return [Judge(func=self.func, result=self.result, expected=expected, options=self.options or {})]
        results = self._spread("result", self.result)
        expecteds = self._spread("expected", self.expected)
        options = self._spread("options", self.options)
        return [
            Judge(func=name, result=result, expected=expected, options=option or {})
            for name, result, expected, option in zip(self.func, results, expecteds, options, strict=True)
        ]

    def _spread(self, name: str, value: Any) -> list[Any]:
        if not value:
            return [None] * len(self.func)
        if not isinstance(value, list):
            raise ValueError(f"`func` has {len(self.func)} names, so `{name}` must be a list of as many entries")
        if len(value) != len(self.func):
            raise ValueError(f"`func` has {len(self.func)} names, but `{name}` {len(value)} entries")
        return value


class TaskFile(_Part):
    """One task as its file says it."""

    id: str = Field(min_length=1)
    instruction: str = Field(min_length=1)
    snapshot: str = ""
    related_apps: list[str] = Field(default_factory=list)
    config: list[SetupStep] = Field(default_factory=list)
    evaluator: Evaluator
    proxy: bool = False
    """The task talks to sites that only a proxy reaches."""
    fixed_ip: bool = False

    @field_validator("evaluator")
    @classmethod
    def _fits(cls, evaluator: Evaluator) -> Evaluator:
        evaluator.judges()
        return evaluator


def read_task_file(path: Path) -> TaskFile:
    """The validated content of ``path``. Raises `ConfigError` that names the file, each wrong field and what to do."""
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise ConfigError([Problem(str(path), f"is larger than {_MAX_FILE_BYTES} bytes: no task file", _NEXT_STEP)])
        data = _with_cached_files(json.loads(path.read_text(encoding="utf-8-sig")))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ConfigError([Problem(str(path), f"is no JSON that can be read: {error}", _NEXT_STEP)]) from error
    try:
        return TaskFile.model_validate(data)
    except ValidationError as error:
        problems = []
        for found in error.errors(include_url=False):
            field = ".".join(str(part) for part in found["loc"]) or "the file"
            given = "" if found["type"] == "missing" else f", found {found['input']!r:.80}"
            problems.append(Problem(f"{path}: {field}", f"{found['msg']}{given}", _NEXT_STEP))
        raise ConfigError(problems) from error


def _with_cached_files(data: Any) -> Any:
    """``data`` with a place in the asset folder for every address that names no file.

    All of OfficeWorld's files have one such address. They come in a copy of the cache of OSWorld's program: one folder for each
    task, with its files by names of their own.
    """
    task_id = data.get("id") if isinstance(data, dict) else None
    return _named(data, task_id) if isinstance(task_id, str) else data


def _named(part: Any, task_id: str) -> Any:
    if isinstance(part, list):
        return [_named(entry, task_id) for entry in part]
    if not isinstance(part, dict):
        return part
    named = {key: _named(value, task_id) for key, value in part.items()}
    if named.get("type") == "cloud_file":
        given, dest = named.get("path"), named.get("dest")
        if isinstance(given, list) and isinstance(dest, list):
            named["path"] = [_cached(url, name, task_id) for url, name in zip(given, dest, strict=False)]
        else:
            named["path"] = _cached(given, dest, task_id)
    elif isinstance(named.get("url"), str) and isinstance(named.get("path"), str):
        url = named["url"]
        named["url"] = _cached(url, f"{uuid.uuid5(uuid.NAMESPACE_URL, url)}_{PurePosixPath(named['path']).name}", task_id)
    return named


def _cached(url: Any, name: Any, task_id: str) -> Any:
    """The place of the file that is kept as ``name``, where ``url`` names none."""
    try:
        names_no_file = isinstance(url, str) and "://" in url and urlsplit(url).path in ("", "/")
    except ValueError:  # no address at all
        return url
    return quote(f"{task_id}/{name}") if names_no_file and isinstance(name, str) else url
