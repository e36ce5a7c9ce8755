"""One task bundle as validated values. Reads files, follows no link, runs nothing."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, field_validator

from computerrl.common.errors import ConfigError, Problem
from computerrl.env_server.tasks.bundles import hub
from computerrl.env_server.tasks.osworld.assets import MAX_ASSET_BYTES
from computerrl.env_server.tasks.osworld.format import (
    Download,
    DownloadStep,
    ExecuteStep,
    LaunchStep,
    SetupStep,
    Upload,
    UploadStep,
)

TASK_FILES, REWARD = ("task.json", "config.json"), "reward.py"
"""Names of the file that describes the task: as collections are published, and as the programs that make them write it."""
_SETUP = "initial_setup"
_SCRIPT_ENDINGS = (".py", ".sh")
_SOLUTIONS = tuple(f"{name}{ending}" for name in ("solution", "golden_patch") for ending in _SCRIPT_ENDINGS)
_WEB_FOLDERS = ("web_app", "web", "mock_app", "mock")
"""Folders that hold a web application where ``task.json`` names none."""
_NODE_FILES = ("server.js", "index.js", "app.js")

MAX_BUNDLE_BYTES = MAX_ASSET_BYTES
"""A folder of a bundle travels to the desktop in one frame, as a file does."""
MAX_FILES = 5000
"""Maximum number of files and folders of one bundle."""
MAX_SCRIPT_BYTES = 1_000_000
"""Maximum size of ``task.json`` and of each script. Honest ones have some kilobytes."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*")
_MAX_NAME_CHARS = 100
_NEXT_STEP = "correct the bundle, or leave it out of the folder"


class WebSettings(BaseModel):
    """``web_app`` of a task file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: str
    port: int = Field(8080, ge=1024, le=65535)
    entry: str = ""
    """File that Node runs; empty: told by ``package.json`` or a usual name, else the folder's pages are static."""
    path: str = Field("/", pattern=r"^/[\x21-\x7e]*$")
    """Page that the task begins with."""

    @field_validator("folder", "entry")
    @classmethod
    def _inside(cls, value: str) -> str:
        if value and (value.startswith("/") or ".." in PurePosixPath(value).parts):
            raise ValueError("must lie inside the bundle")
        return value


class _TaskJson(BaseModel):
    """``task.json``. Unknown fields are ignored, because collections add their own."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str = Field("", validation_alias=AliasChoices("id", "task_id"))
    instruction: str = Field(pattern=r"\S", max_length=20_000, validation_alias=AliasChoices("instruction", "task_instruction"))
    apps: list[str] = Field([], validation_alias=AliasChoices("related_apps", "apps", "app_type", "app"))
    config: list[SetupStep] = []
    web_app: WebSettings | None = Field(None, validation_alias=AliasChoices("web_app", "mock_app"))
    max_reward: float = Field(1.0, gt=0.0, allow_inf_nan=False)

    @field_validator("apps", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @field_validator("config", mode="before")
    @classmethod
    def _nested(cls, value: Any) -> Any:
        """Steps as the makers' programs write them have their parameters beside the type."""
        if not isinstance(value, list):
            return value
        flat = [isinstance(one, dict) and isinstance(one.get("type"), str) and "parameters" not in one for one in value]
        return [
            {"type": one["type"], "parameters": {key: one[key] for key in one if key != "type"}} if is_flat else one
            for one, is_flat in zip(value, flat, strict=True)
        ]

    @field_validator("web_app", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return {"folder": value} if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class WebApp:
    """A web application that is served on the desktop's own loopback."""

    folder: str
    port: int
    entry: str
    """File that Node runs, relative to ``folder``; empty: the pages are static."""
    path: str

    @property
    def address(self) -> str:
        """Where it is served, without the page."""
        return f"http://127.0.0.1:{self.port}"


@dataclass(frozen=True)
class Bundle:
    """One bundle with all of its files."""

    id: str
    instruction: str
    apps: tuple[str, ...]
    """Names of applications as the bundle spells them."""
    steps: tuple[SetupStep, ...]
    """Set-up steps of OSWorld's format, carried out after the set-up script."""
    web: WebApp | None
    max_reward: float
    """Reward that counts as 1."""
    files: Mapping[str, bytes] = field(repr=False)
    """Path relative to the bundle -> content, for every file."""

    @property
    def task_file(self) -> str:
        """Name of the file that describes the task."""
        return _task_file(self.files)

    @property
    def setup(self) -> str:
        """The set-up script; empty where there is none."""
        return _setup_of(self.files)

    @property
    def documents(self) -> list[str]:
        """Files that the task begins with, such as ``initial_setup.xlsx``."""
        return sorted(name for name in self.files if name.startswith(f"{_SETUP}.") and not name.endswith(_SCRIPT_ENDINGS))

    @property
    def solution(self) -> str:
        """The script that solves the task; empty where there is none."""
        return _solution_of(self.files)

    @property
    def scripts(self) -> list[str]:
        """All scripts that run on the desktop."""
        return _scripts_of(self.files)

    @property
    def web_names(self) -> list[str]:
        """Names of web applications that the task file and the scripts name and the bundle does not bring."""
        return [] if self.web else _web_names(self.files)

    @property
    def plain_files(self) -> dict[str, bytes]:
        """Files that accompany a script: all but the scripts, the documents and the web application."""
        own = {self.task_file, *self.scripts, *self.documents}
        return {name: data for name, data in self.files.items() if name not in own and not self._is_web(name)}

    @property
    def web_files(self) -> dict[str, bytes]:
        """Files of the web application, relative to its folder."""
        return {name[len(self.web.folder) + 1 :]: data for name, data in self.files.items() if self.web and self._is_web(name)}

    @property
    def digest(self) -> str:
        """Hash of all names and contents."""
        digest = hashlib.sha256()
        for name, data in sorted(self.files.items()):
            for part in (name.encode(), data):
                digest.update(len(part).to_bytes(8, "big") + part)
        return digest.hexdigest()

    def _is_web(self, name: str) -> bool:
        return self.web is not None and name.startswith(f"{self.web.folder}/")


def read_bundle(folder: Path) -> Bundle:
    """The bundle in ``folder``. Raises `ConfigError` that names each wrong file or field and what to do."""
    files = _read_files(folder)
    _require(folder, _wrong_scripts(files))
    task_file = _task_file(files)
    text = files[task_file].decode("utf-8-sig")
    task = _read_task(folder, task_file, text)
    name = task.id or folder.name
    if not is_task_name(name):
        reason = f"{name!r:.120} is no name of a task: letters, digits, `_`, `-` and single dots, at most {_MAX_NAME_CHARS}"
        _require(folder, [("id", reason)])
    web, wrong = _web_app(task.web_app, files)
    _require(folder, wrong)
    # What the agent is told and what the set-up opens may name web applications as well.
    if (with_addresses := with_web_addresses(text, web, files)) != text:
        task = _read_task(folder, task_file, with_addresses)
    steps = [_with_own_files(step, files) for step in task.config]
    steps = [step for step in steps if not _is_about(step, _setup_of(files))]
    return Bundle(name, task.instruction, tuple(task.apps), tuple(steps), web, task.max_reward, files)


def _task_file(files: Mapping[str, bytes]) -> str:
    return next((name for name in TASK_FILES if name in files), TASK_FILES[0])


def _scripts_of(files: Mapping[str, bytes]) -> list[str]:
    return [name for name in (_setup_of(files), REWARD, _solution_of(files)) if name]


def _solution_of(files: Mapping[str, bytes]) -> str:
    return next((name for name in _SOLUTIONS if name in files), "")


def _web_names(files: Mapping[str, bytes]) -> list[str]:
    return hub.named([files[name].decode("utf-8-sig") for name in (_task_file(files), *_scripts_of(files))])


def with_web_addresses(text: str, web: WebApp | None, files: Mapping[str, bytes]) -> str:
    """``text`` of a bundle with the addresses of its web applications in place of their names: of ``web``, which it brings, or of
    those that ``files`` name."""
    return hub.filled(text, {}, other=web.port) if web else hub.filled(text, hub.ports(_web_names(files)))


def _setup_of(files: Mapping[str, bytes]) -> str:
    return next((name for name in (f"{_SETUP}{ending}" for ending in _SCRIPT_ENDINGS) if name in files), "")


def is_task_name(name: str) -> bool:
    """Whether a task may have this name, which is also the name of its folder."""
    return len(name) <= _MAX_NAME_CHARS and _NAME.fullmatch(name) is not None


def _require(folder: Path, wrong: Iterable[tuple[str, str]]) -> None:
    problems = [Problem(f"{folder}: {where}", reason, _NEXT_STEP) for where, reason in wrong]
    if problems:
        raise ConfigError(problems)


def _read_files(folder: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    num_entries = num_bytes = 0
    pending = [os.fspath(folder)]
    try:
        while pending:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    name = os.path.relpath(entry.path, folder)
                    num_entries += 1
                    if not name.isprintable() or "\\" in name:
                        _require(folder, [(repr(name)[:200], "has a name with characters that cannot be shown")])
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    elif not entry.is_file(follow_symlinks=False):
                        kind = "a link" if entry.is_symlink() else "a pipe, socket or device"
                        _require(folder, [(name, f"is {kind}; a bundle holds files and folders alone")])
                    else:
                        num_bytes += entry.stat(follow_symlinks=False).st_size
                        if num_bytes <= MAX_BUNDLE_BYTES:
                            found[name] = _content(entry.path)
                    if num_bytes > MAX_BUNDLE_BYTES:
                        _require(folder, [(name, f"makes the bundle larger than {MAX_BUNDLE_BYTES} bytes")])
                    if num_entries > MAX_FILES:
                        _require(folder, [(name, f"is one of more than {MAX_FILES} files and folders")])
    except OSError as error:
        _require(folder, [("files", f"cannot be read: {error.strerror}")])
    return found


def _content(path: str) -> bytes:
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
        return file.read(MAX_BUNDLE_BYTES + 1)


def _wrong_scripts(files: Mapping[str, bytes]) -> Iterator[tuple[str, str]]:
    for name in (_task_file(files), REWARD):
        if name not in files:
            yield name, "is missing"
    setups = [f"{_SETUP}{ending}" for ending in _SCRIPT_ENDINGS]
    for names, what in ((setups, "set-up"), (_SOLUTIONS, "solution")):
        there = [name for name in names if name in files]
        if len(there) > 1:
            yield there[1], f"is a second {what} script beside {there[0]}"
    for name in (_task_file(files), REWARD, *setups, *_SOLUTIONS):
        data = files.get(name, b"")
        if len(data) > MAX_SCRIPT_BYTES:
            yield name, f"has {len(data)} bytes; at most {MAX_SCRIPT_BYTES} are read"
        elif b"\0" in data:
            yield name, "holds a NUL byte: it is no text"
        elif not _is_utf8(data):
            yield name, "is no text in UTF-8"


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _read_task(folder: Path, name: str, text: str) -> _TaskJson:
    try:
        return _TaskJson.model_validate(json.loads(text))
    except ValidationError as error:
        wrong = []
        for found in error.errors(include_url=False):
            where = ".".join(map(str, found["loc"])) or "the file"
            given = "" if found["type"] == "missing" else f", found {found['input']!r:.80}"
            wrong.append((f"{name}: {where}", f"{found['msg']}{given}"))
    except (ValueError, RecursionError) as error:
        wrong = [(name, f"is no JSON that can be read: {error}")]
    _require(folder, wrong)
    raise AssertionError("unreachable")


def _web_app(settings: WebSettings | None, files: Mapping[str, bytes]) -> tuple[WebApp | None, list[tuple[str, str]]]:
    """The web application, and what is wrong with it."""
    tops = {name.partition("/")[0] for name in files if "/" in name}
    named = [name for name in _WEB_FOLDERS if name in tops]
    if settings is None and len(named) > 1:
        return None, [("web_app", f"{' and '.join(named)} could each be the web application: name one in {_task_file(files)}")]
    if settings is None and not named:
        return None, []
    settings = settings or WebSettings(folder=named[0])
    folder = PurePosixPath(settings.folder).as_posix()
    inside = {name[len(folder) + 1 :]: data for name, data in files.items() if name.startswith(f"{folder}/")}
    if not inside:
        return None, [("web_app", f"there is no file in the folder {folder!r}")]
    try:
        entry = settings.entry or _node_entry(inside)
    except ValueError as error:
        return None, [("web_app", f"{folder}/package.json is no JSON that can be read: {error}")]
    if entry and entry not in inside:
        return None, [("web_app", f"there is no file {entry!r} in {folder!r}")]
    if not entry and "index.html" not in inside:
        return None, [("web_app", f"{folder!r} has neither index.html nor a program for Node ({', '.join(_NODE_FILES)})")]
    return WebApp(folder, settings.port, entry, settings.path), []


def _node_entry(inside: Mapping[str, bytes]) -> str:
    """The file that Node runs; empty: static pages. Raises `ValueError` for a ``package.json`` that cannot be read."""
    if "package.json" in inside:
        try:
            package = json.loads(inside["package.json"])
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error
        main = package.get("main") if isinstance(package, dict) else None
        if isinstance(main, str) and main:
            return os.path.normpath(main)
    return next((name for name in _NODE_FILES if name in inside), "")


def _is_about(step: SetupStep, setup: str) -> bool:
    """Does the step bring or run the set-up script, which runs in any case?"""
    parameters = step.parameters
    if not setup:
        return False
    if isinstance(parameters, DownloadStep):
        return [file.url for file in parameters.files] == [setup]
    if isinstance(parameters, UploadStep):
        return [file.local_path for file in parameters.files] == [setup]
    if isinstance(parameters, (LaunchStep, ExecuteStep)):
        words = parameters.command.split() if isinstance(parameters.command, str) else list(parameters.command)
        return len(words) == 2 and words[0] in _INTERPRETERS and PurePosixPath(words[1]).name == setup
    return False


_INTERPRETERS = frozenset({"python", "python3", "bash", "sh"})


def _with_own_files(step: SetupStep, files: Mapping[str, bytes]) -> SetupStep:
    """``step`` with the bundle's own file wherever an address ends in its name."""

    def own(url: str) -> str:
        try:
            name = PurePosixPath(unquote(urlsplit(url).path)).name
        except ValueError:  # no address at all
            return url
        return name if name in files else url

    parameters = step.parameters
    if isinstance(parameters, DownloadStep):
        downloads = [Download(url=own(file.url), path=file.path) for file in parameters.files]
        return step.model_copy(update={"parameters": parameters.model_copy(update={"files": downloads})})
    if isinstance(parameters, UploadStep):
        uploads = [Upload(local_path=own(file.local_path), path=file.path) for file in parameters.files]
        return step.model_copy(update={"parameters": parameters.model_copy(update={"files": uploads})})
    return step
