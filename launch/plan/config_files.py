"""Which configuration file a command line means: a path, or the name of a file in configs/.

configs/ is looked for in the current folder, then in this package. Imports the standard library only, so that a wrong name is
refused at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from computerrl import PACKAGE
from computerrl.common.errors import ConfigError, Problem

FOLDER = "configs"
EXAMPLE = f"{FOLDER}/quickstart.yaml"
_NO_RUNS = frozenset({"hosts", "prometheus"})
"""Files of configs/ that configure something other than a run."""
_OVERRIDE = re.compile(r"[A-Za-z_]\w*(\.[\w-]+)*=.*", re.DOTALL)


def find_config(text: str, *, roots: Sequence[Path] | None = None) -> Path:
    """The file that ``text`` means: `quickstart`, `algorithms/dapo`, `configs/quickstart.yaml` or any path.

    ``roots``: folders that may hold configs/; None: those of this machine. Raises `ConfigError` with the nearest name.
    """
    if os.path.isfile(text):  # False for a name that no file can have, too.
        return Path(text)
    name = text.removeprefix(f"{FOLDER}/").removesuffix(".yaml")
    for root in _roots() if roots is None else roots:
        path = root / FOLDER / f"{name}.yaml"
        if not Path(text).is_absolute() and os.path.isfile(path):
            return path
    if os.path.exists(text):
        kind = "folder" if os.path.isdir(text) else "pipe or device, not a file"
        raise ConfigError([Problem("CONFIG", f"{text!r} is a {kind}", f"give a YAML file, for example {EXAMPLE}")])
    names = config_names(roots)
    raise ConfigError([Problem("CONFIG", f"there is no file {text!r}", _advice(name, names))])


def find_site(text: str) -> str:
    """The path of the site profile ``text`` in configs/sites/; ``text`` where it is a path, or there is no such profile."""
    for root in _roots() if "/" not in text else ():
        path = root / FOLDER / "sites" / f"{text}.yaml"
        if os.path.isfile(path):
            return str(path)
    return text


def site_names() -> list[str]:
    """Names of the site profiles in configs/sites/."""
    return list(dict.fromkeys(path.stem for root in _roots() for path in sorted((root / FOLDER / "sites").glob("*.yaml"))))


def config_names(roots: Sequence[Path] | None = None) -> list[str]:
    """Names of the run configurations below ``roots``: those in configs/ first, then those of algorithms. None: ours."""
    roots = list(_roots()) if roots is None else roots
    found: dict[str, None] = {}
    for pattern in ("*.yaml", "algorithms/*.yaml"):
        for root in roots:
            for path in sorted((root / FOLDER).glob(pattern)):
                name = path.relative_to(root / FOLDER).with_suffix("").as_posix()
                if name not in _NO_RUNS:
                    found[name] = None
    return list(found)


def is_override(word: str) -> bool:
    """Whether ``word`` of a command line is KEY=VALUE."""
    return _OVERRIDE.fullmatch(word) is not None and not os.path.isfile(word)


def _advice(name: str, names: Sequence[str]) -> str:
    if not names:
        return f"give the path of a YAML file, for example {EXAMPLE} of the source tree"
    import difflib

    short = {known.rpartition("/")[2]: known for known in reversed(names)}
    near = difflib.get_close_matches(name, names, n=1) or difflib.get_close_matches(name.rpartition("/")[2], short, n=1)
    if near:
        return f"did you mean {FOLDER}/{short.get(near[0], near[0])}.yaml?"
    at_the_top = [known for known in names if "/" not in known]
    return f"use one of {', '.join(at_the_top)}, algorithms/NAME, or the path of a YAML file"


def _roots() -> Sequence[Path]:
    return Path(), (PACKAGE / FOLDER).resolve().parent  # A link in the source tree: messages name the file itself.
