"""Runs a task's test suite against an agent's program, inside the container: ``python3 -I -c <this text> FOLDER FUNCTION ...``.

Two processes. The suite runs in the first one, which holds the only way to say a verdict; the program runs in the second, its
child, and gets nothing but requests: import this, call that. What comes back are plain values, or names of objects that stay
there. So the program neither sees what it is compared with nor compares: an object of its own equals nothing but itself. The
first process cannot be looked into (`PR_SET_DUMPABLE`), and its suite is off the disk before the program starts.

Standard library only; the container's Python runs it.
"""

from __future__ import annotations

import base64
import builtins
import contextlib
import ctypes
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import io
import json
import os
import runpy
import socket
import subprocess
import sys
import types
from typing import Any

_PR_SET_DUMPABLE = 4
_PLAIN = (type(None), bool, int, float, str)
_BASES: tuple[Any, ...] = (bool, int, float, str, bytes, list, tuple, dict, set, frozenset)
_CONTAINERS: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


def encoded(value: Any, other: Any) -> Any:
    """A value as JSON: plain ones as they are, containers with their kind, the rest by what ``other`` makes of them."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if kind is dict:
        return {"dict": [[encoded(key, other), encoded(item, other)] for key, item in value.items()]}
    for name, container in _CONTAINERS.items():
        if kind is container:
            return {name: [encoded(item, other) for item in value]}
    return other(value)


def decoded(value: Any, other: Any) -> Any:
    """The value of a JSON text; nothing but plain values, containers of them, and what ``other`` makes of a number."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "bytes":
        return base64.b64decode(content)
    if kind == "dict":
        return {decoded(key, other): decoded(item, other) for key, item in content}
    if kind in _CONTAINERS:
        return _CONTAINERS[kind](decoded(item, other) for item in content)
    return other(content)


# --- the program's process -------------------------------------------------------------------------------------------


def serve(connection: socket.socket, folder: str) -> None:
    """Carry out requests on the program's modules until the other process ends."""
    known: list[Any] = []

    def name(value: Any) -> Any:
        for base in _BASES:
            if isinstance(value, base):
                return encoded(base(value), name)
        known.append(value)
        return {"object": len(known) - 1}

    def load(module: str, path: str) -> Any:
        if not path:
            return importlib.import_module(module)
        spec = importlib.util.spec_from_file_location(module, path)
        assert spec is not None and spec.loader is not None
        made = sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
        return made

    def run(path: str, **options: Any) -> dict[str, Any]:
        return {key: item for key, item in runpy.run_path(path, **options).items() if key[:2] != "__"}

    work: dict[str, Any] = {
        "import": load,
        "run": run,
        "get": getattr,
        "set": setattr,
        "dir": lambda target: [key for key in vars(target) if key[:1] != "_"],
        "call": lambda target, *args, **named: target(*args, **named),
        "item": lambda target, key: target[key],
        "put": lambda target, key, item: target.__setitem__(key, item),
        "remove": lambda target, key: target.__delitem__(key),
        "len": len,
        "str": str,
        "bool": bool,
        "list": list,
        "is": isinstance,
        "has": lambda target, item: item in target,
    }
    sys.path.insert(0, folder)
    os.chdir(folder)
    stream = connection.makefile("rw", encoding="utf-8")
    for line in stream:
        request = json.loads(line)
        said = io.StringIO()
        args = [decoded(arg, known.__getitem__) for arg in request["args"]]
        named = {key: decoded(arg, known.__getitem__) for key, arg in request["named"].items()}
        answer: dict[str, Any] = {}
        try:
            with contextlib.redirect_stdout(said):
                answer["value"] = encoded(work[request["work"]](*args, **named), name)
        except BaseException as error:  # noqa: BLE001  (process boundary: whatever the program raises is the suite's to judge)
            answer["error"] = [type(error).__name__, str(error)]
        answer["said"], answer["args"] = said.getvalue(), [encoded(arg, name) for arg in args]
        stream.write(f"{json.dumps(answer)}\n")
        stream.flush()


# --- the suite's process ---------------------------------------------------------------------------------------------


_END_OF_A_LOOP = (StopIteration, StopAsyncIteration)
"""Raised within `map`, `zip` or `all` of the suite, they would end its loop before it has compared anything."""


class ProgramError(Exception):
    """The program raised something that is no error of Python's own."""


class Program:
    """The other process."""

    def __init__(self, source: str, folder: str) -> None:
        ours, theirs = socket.socketpair()
        code = f"{source}\nserve(socket.socket(fileno={theirs.fileno()}), {folder!r})"
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", code],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"},
        )
        theirs.close()
        self._stream = ours.makefile("rw", encoding="utf-8")

    def ask(self, work: str, *args: Any, **named: Any) -> Any:
        """One request; its value. Lists and dicts that the program changed are changed here, too."""
        request = {
            "work": work,
            "args": [encoded(arg, _number) for arg in args],
            "named": {key: encoded(arg, _number) for key, arg in named.items()},
        }
        self._stream.write(f"{json.dumps(request)}\n")
        self._stream.flush()
        line = self._stream.readline()
        if not line:
            raise ProgramError("the program has ended")
        answer = json.loads(line)
        sys.stdout.write(str(answer["said"]))
        for before, after in zip(args, answer["args"], strict=True):
            _update(before, decoded(after, self._object))
        if "error" in answer:
            kind, text = answer["error"]
            known = getattr(builtins, str(kind), None)
            is_error = isinstance(known, type) and issubclass(known, Exception) and not issubclass(known, _END_OF_A_LOOP)
            raise (known if is_error and known is not None else ProgramError)(str(text))
        return decoded(answer["value"], self._object)

    def _object(self, number: Any) -> Any:
        return Remote(self, int(number))


def _number(value: Any) -> Any:
    if isinstance(value, Remote):
        return {"object": object.__getattribute__(value, "_number")}
    raise TypeError(f"{type(value).__name__} cannot be given to the program")


def _update(before: Any, after: Any) -> None:
    if type(before) is list and type(after) is list and before != after:
        before[:] = after
    elif type(before) in (dict, set) and type(after) is type(before) and before != after:
        before.clear()
        before.update(after)


_TOLD = frozenset({"__all__", "__author__", "__doc__", "__file__", "__module__", "__name__", "__qualname__", "__version__"})
"""Special names that the program is asked for. The others are ways to compare, to copy or to import."""


class Remote(types.ModuleType):
    """An object, a function, a class or a module of the program. It equals nothing but itself, whatever the program says."""

    def __init__(self, program: Program, number: int) -> None:
        super().__init__("program")
        object.__setattr__(self, "_program", program)
        object.__setattr__(self, "_number", number)

    def __getattribute__(self, name: str) -> Any:
        if name[:2] == "__" and name not in _TOLD:
            return object.__getattribute__(self, name)
        ask = object.__getattribute__(self, "_program").ask
        return ask("dir", self) if name == "__all__" else ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name[:2] != "__":
            _ask(self, "set", name, value)

    def __call__(self, *args: Any, **named: Any) -> Any:
        return _ask(self, "call", *args, **named)

    def __getitem__(self, key: Any) -> Any:
        return _ask(self, "item", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        _ask(self, "put", key, value)

    def __delitem__(self, key: Any) -> None:
        _ask(self, "remove", key)

    def __len__(self) -> int:
        return int(_ask(self, "len"))

    def __iter__(self) -> Any:
        return iter(_ask(self, "list"))

    def __contains__(self, item: Any) -> bool:
        if isinstance(item, Remote):
            return bool(_ask(self, "has", item))
        return any(item == listed for listed in self)  # what the program would say, it would say of everything

    def __bool__(self) -> bool:
        return bool(_ask(self, "bool"))

    def __str__(self) -> str:
        return str(_ask(self, "str"))

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, Remote) and bool(object.__getattribute__(self, "_program").ask("is", value, self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and _number(self) == _number(other)

    def __hash__(self) -> int:
        return hash(_number(self)["object"])


def _ask(remote: Remote, work: str, *args: Any, **named: Any) -> Any:
    return object.__getattribute__(remote, "_program").ask(work, remote, *args, **named)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules of the program's folder are imported there, in its own process."""

    def __init__(self, program: Program, folder: str) -> None:
        self._program, self._folder = program, os.path.realpath(folder)
        # A module that the program adds later could take the place of one that the suite compares with.
        self._names = {os.path.splitext(name)[0] for name in os.listdir(folder)}
        self._find_in_file, self._run_path = importlib.util.spec_from_file_location, runpy.run_path
        self.paths: dict[str, str] = {}

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        parts = fullname.split(".")
        place = os.path.join(self._folder, *parts)
        if parts[0] in self._names and (os.path.isfile(f"{place}.py") or os.path.isdir(place)):
            return importlib.machinery.ModuleSpec(fullname, self)
        return None

    def spec_from_file(self, name: str, location: Any = None, **options: Any) -> Any:
        """In place of `importlib.util.spec_from_file_location`."""
        if location is not None and os.path.realpath(location).startswith(f"{self._folder}/"):
            self.paths[name] = os.path.realpath(location)
            return importlib.machinery.ModuleSpec(name, self)
        return self._find_in_file(name, location, **options)

    def run_path(self, path_name: str, init_globals: Any = None, run_name: Any = None) -> Any:
        """In place of `runpy.run_path`."""
        if os.path.realpath(path_name).startswith(f"{self._folder}/"):
            return self._program.ask("run", str(path_name), init_globals=init_globals, run_name=run_name)
        return self._run_path(path_name, init_globals, run_name)

    def create_module(self, spec: Any) -> Any:
        return self._program.ask("import", spec.name, self.paths.get(spec.name, ""))

    def exec_module(self, module: Any) -> None:
        """The import has done it."""


def judge(source: str, suite: str, folder: str, function: str, path: str) -> str:
    """The suite's verdict: a number between 0 and 1."""
    program = Program(source, folder)
    finder = _Finder(program, folder)
    sys.meta_path.insert(0, finder)
    importlib.util.spec_from_file_location = finder.spec_from_file
    runpy.run_path = finder.run_path
    module = types.ModuleType("suite")
    os.chdir(folder)
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(suite, "suite.py", "exec"), module.__dict__)
        test = getattr(module, function)
        answer = test(path) if inspect.signature(test).parameters else test()
    score = float(answer) if type(answer) in (int, float) else float(bool(answer))
    return repr(min(1.0, max(0.0, score)))


def main(source: str) -> None:
    """Read the suite, take it off the disk, shut the door, judge."""
    folder, function, path, suite_path = sys.argv[1:]
    with open(suite_path, encoding="utf-8") as file:
        suite = file.read()
    os.unlink(suite_path)
    verdict_fd = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise OSError("this process can be looked into by the program")
    os.write(verdict_fd, judge(source, suite, folder, function, path).encode())
