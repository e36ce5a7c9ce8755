"""msgspec learns a type when it first decodes one; two threads that do so at once crash the process. Ours are known before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.project.test_import_rule import PACKAGES, ROOT

_LIST_UNKNOWN = """
import importlib, sys
import msgspec

for module in sys.argv[1:]:
    importlib.import_module(module)

calls = []

def watch(frame, event, _):
    if event == "call" and frame.f_code is msgspec._utils.get_class_annotations.__code__:
        calls.append(1)

def is_known(kind):
    calls.clear()
    sys.setprofile(watch)
    msgspec.json.Decoder(kind)
    sys.setprofile(None)
    return not calls

def below(kind):
    return [found for sub in kind.__subclasses__() for found in (sub, *below(sub))]

class Fresh(msgspec.Struct):
    pass

assert not is_known(Fresh) and is_known(Fresh), "this check sees nothing"
kinds = [kind for kind in below(msgspec.Struct) if kind.__module__.startswith("computerrl.")]
print(len(kinds), *(kind.__qualname__ for kind in kinds if not is_known(kind)))
"""


@pytest.mark.parametrize("first", ["computerrl.common.messages", ""])
def test_every_type_is_known_once_its_module_is_imported(first: str) -> None:
    modules = [first] if first else _modules_that_define_types()
    listed = subprocess.run([sys.executable, "-c", _LIST_UNKNOWN, *modules], cwd=ROOT, capture_output=True, text=True)
    assert listed.returncode == 0, listed.stderr
    number, *unknown = listed.stdout.split()
    assert int(number) > 60
    # Bases of messages are decoded by no one.
    assert set(unknown) <= {"Wire"}, "give it a Decoder right behind its class"


def _modules_that_define_types() -> list[str]:
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return [_module(path) for path in files if "msgspec.Struct" in path.read_text()]


def _module(path: Path) -> str:
    return ".".join(("computerrl", *path.relative_to(ROOT).with_suffix("").parts))
