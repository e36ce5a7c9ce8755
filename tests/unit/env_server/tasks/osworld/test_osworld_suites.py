"""A task's test suite judges an agent's program, which can neither say its verdict nor sway what it is compared with."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from computerrl.env_server.tasks.osworld.desktop import RunResult
from computerrl.env_server.tasks.osworld.on_desktop import check_python_file_by_test_suite
from tests.support.osworld_fake import FakeDesktop


class _Desktop(FakeDesktop):
    """Runs python3 commands for real, with its files under a folder."""

    root: Path

    def run(self, command: Any, *, timeout_s: float = 30.0) -> RunResult:
        if command[0] != "python3":
            return RunResult(0, "", "")
        for path, data in self.files.items():
            place = Path(f"{self.root}{path}")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        words = [f"{self.root}{word}" if word.startswith("/home/user/") else word for word in command[1:]]
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=timeout_s, check=False)
        return RunResult(done.returncode, done.stdout, done.stderr)


def judged(tmp_path: Path, program: str, suite: str, **others: str) -> float:
    """The reward of ``program``, a file ``tetris.py``; ``others`` are modules that were fetched with it."""
    (tmp_path / "product").mkdir(parents=True)
    for name, text in {"tetris": program, **others}.items():
        (tmp_path / "product" / f"{name}.py").write_text(textwrap.dedent(text))
    (tmp_path / "suite.py").write_text(textwrap.dedent(suite))
    desktop = _Desktop()
    desktop.root = tmp_path / "desktop"
    return check_python_file_by_test_suite(desktop, str(tmp_path / "product/tetris.py"), str(tmp_path / "suite.py"))


RIGHT = """
    def rotate(x):
        return x + 1
    class Box:
        side = 3
        def area(self):
            return self.side ** 2
"""
ALIKE = """
    def rotate(x):
        return E()
    class Box:
        side = E()
        area = lambda self: E()
"""
WRONG = {
    "wrong": RIGHT.replace("x + 1", "x"),
    "does not compile": "rotate = (",
    "ends": "import os; os._exit(0)",
    "says the verdict": "import os, sys; print('1.0', flush=True); os.write(1, b'1.0'); os._exit(0)",
    "says it at the end": "import sys, atexit; atexit.register(print, '1.0'); sys.exit(0)",
    "is a number that equals everything": """
    class E(int):
        __eq__ = __lt__ = __gt__ = __ge__ = __le__ = lambda self, other: True
        __ne__ = lambda self, other: False
        __hash__ = int.__hash__
    """
    + ALIKE,
    "is an object that equals everything": """
    class E:
        __eq__ = lambda self, other: True
    """
    + ALIKE,
    "writes to all descriptors": """
    import os
    for n in range(64):
        try:
            os.write(n, b'1.0')
        except OSError:
            pass
    os._exit(0)
    """,
    "writes to its parent's descriptors": """
    import os
    for n in range(16):
        try:
            os.write(os.open(f'/proc/{os.getppid()}/fd/{n}', os.O_WRONLY), b'1.0')
        except OSError:
            pass
    os.kill(os.getppid(), 9)
    """,
    "changes what compares": """
    import builtins, sys
    builtins.bool = lambda *_: True
    sys.modules['suite'] = None
    def rotate(x):
        return x
    class Box:
        side = 0
        area = lambda self: 0
    """,
    "looks for the suite": """
    import glob, os
    paths = glob.glob('/proc/*/cmdline') + glob.glob('../**', recursive=True)
    found = [open(path).read() for path in paths if os.path.isfile(path) and os.access(path, os.R_OK)]
    known = any('se' + 'cret' in text for text in found)
    def rotate(x):
        return 2 if known else 0
    class Box:
        side = 3
        area = lambda self: 9
    """,
}
SUITES = {
    "by name": """
    import tetris
    def test():  # secret
        return tetris.rotate(1) == 2 and tetris.Box().side == 3 and tetris.Box().area() == 9
    """,
    "by its names": """
    from tetris import *
    def test():
        return rotate(1) == 2 and Box().side == 3 and Box().area() == 9
    """,
    "by its path": """
    import importlib.util
    def test(path):
        spec = importlib.util.spec_from_file_location('x', path)
        tetris = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(tetris)
        return tetris.rotate(1) == 2 and tetris.Box().side == 3 and tetris.Box().area() == 9
    """,
    "as a script": """
    import runpy
    def test(path):
        known = runpy.run_path(path)
        return known['rotate'](1) == 2 and known['Box']().side == 3 and known['Box']().area() == 9
    """,
}


@pytest.mark.parametrize("suite", SUITES)
def test_right_program_is_right_however_the_suite_imports_it(suite: str, tmp_path: Path) -> None:
    assert judged(tmp_path, RIGHT, SUITES[suite]) == 1.0


@pytest.mark.parametrize("program", WRONG)
def test_program_can_neither_say_nor_sway_its_verdict(program: str, tmp_path: Path) -> None:
    assert [judged(tmp_path / str(number), WRONG[program], suite) for number, suite in enumerate(SUITES.values())] == [0.0] * 4


@pytest.mark.parametrize(
    ("program", "test", "wanted"),
    [
        ("def sort(items): items.sort()", "items = [2, 1]; tetris.sort(items); return items == [1, 2]", 1.0),
        ("class Box: pass", "box = tetris.Box(); box.side = 4; return box.side == 4 and isinstance(box, tetris.Box)", 1.0),
        ("rows = [[1, 2], (3,), {4}, {'a': b'5'}]", "return tetris.rows == [[1, 2], (3,), {4}, {'a': b'5'}]", 1.0),
        ("def fail(): return int('x')", "return raises(ValueError, tetris.fail)", 1.0),
        ("class Own(Exception): pass\ndef fail(): raise Own", "return raises(Exception, tetris.fail)", 1.0),
        ("import helper\nx = helper.y", "import helper; return tetris.x == helper.y == 7", 1.0),
        ("x = 1", "return 0.5", 0.5),
        ("x = 1", "return None", 0.0),
        ("x = 1", "raise AssertionError", 0.0),
    ],
)
def test_suite_works_with_what_the_program_has(program: str, test: str, wanted: float, tmp_path: Path) -> None:
    suite = f"""
    def raises(kind, work):
        try:
            work()
        except kind:
            return True
    def test():
        import tetris
        {test}
    """
    assert judged(tmp_path, program, suite, helper="y = 7") == wanted


MODULE_OF_THE_SUITE = """
    {setup}
    open({file!r}, 'w').write('def wanted(*args): return 0')
    def rotate(x):
        return 0
"""
ANSWER = """
    class Answer:
        __eq__ = __contains__ = lambda self, other: True
        __getattr__ = lambda self, name: lambda *args: True
    def rotate(x):
        return Answer()
"""
LENIENT = {
    "module that the suite imports later": (
        MODULE_OF_THE_SUITE.format(setup="", file="colorsys.py"),
        "import colorsys; return tetris.rotate(1) == colorsys.wanted()",
    ),
    "package that the suite imports later": (
        MODULE_OF_THE_SUITE.format(setup="import os; os.mkdir('statistics')", file="statistics/__init__.py"),
        "import statistics; return tetris.rotate(1) == statistics.wanted()",
    ),
    "object that holds everything": (ANSWER, "return 2 in tetris.rotate(1)"),
    "own comparison by its name": (ANSWER, "return tetris.rotate(1).__eq__(2)"),
    "own comparison that is derived": (ANSWER, "return tetris.rotate(1).__array_ufunc__(2)"),
}


@pytest.mark.parametrize("way", LENIENT)
def test_program_lends_the_suite_neither_modules_nor_comparisons(way: str, tmp_path: Path) -> None:
    program, test = LENIENT[way]
    assert judged(tmp_path, program, f"import tetris\ndef test():\n    tetris.rotate\n    {test}\n") == 0.0


@pytest.mark.parametrize("item", ["2", "tetris.box"])
def test_collection_of_the_programs_holds_what_it_lists(item: str, tmp_path: Path) -> None:
    program = """
    class Box: pass
    box = Box()
    class Row:
        items = [1, 2, box]
        __contains__ = lambda self, item: item in self.items
        __iter__ = lambda self: iter(self.items)
    row = Row()
    """
    suite = f"import tetris\ndef test():\n    return {item} in tetris.row and 3 not in tetris.row\n"
    assert judged(tmp_path, program, suite) == 1.0


@pytest.mark.parametrize("error", ["StopIteration", "StopAsyncIteration", "GeneratorExit", "SystemExit", "KeyboardInterrupt"])
@pytest.mark.parametrize(
    "test",
    [
        "return all(map(lambda x: tetris.rotate(x) == x + 1, [1, 2]))",
        "return all(a == b for a, b in zip(map(tetris.rotate, [1, 2]), [2, 3]))",
        "return list(filter(lambda x: tetris.rotate(x) != x + 1, [1, 2])) == []",
    ],
)
def test_program_cannot_end_the_loops_of_the_suite(error: str, test: str, tmp_path: Path) -> None:
    program = f"def rotate(x): raise {error}"
    assert judged(tmp_path, program, f"import tetris\ndef test():\n    {test}\n") == 0.0
