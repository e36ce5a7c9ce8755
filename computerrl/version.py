"""The version of this distribution: from git's tags, else as it was recorded in what was made of a clone.

Standard library only, and nothing of this package is imported: the build reads `VERSION` before anything is installed.
"""

from __future__ import annotations

import re
import subprocess
from importlib import metadata
from pathlib import Path

NEXT = "0.1.0"
"""The next release: development versions come before it. Raised after each release."""
RECORD_FILE = "PKG-INFO"
"""File of a source archive that records its version, as setuptools writes it."""
_DESCRIBED = re.compile(r"v(\d+)\.(\d+)\.(\d+)-(\d+)-g([0-9a-f]+)")


def version_of(described: str, commit: str, num_commits: int) -> str:
    """Version of a clone. ``described``: what ``git describe --tags --long --match 'v[0-9]*'`` prints, empty without a tag;
    ``commit``: the short hash, ``num_commits``: number of commits until then.

    A tagged commit has the tag's version, and later ones are development versions of the next release.
    """
    found = _DESCRIBED.fullmatch(described)
    if found is None:
        return f"{NEXT}.dev{num_commits}+g{commit}"
    tagged = tuple(int(part) for part in found.groups()[:3])
    distance = int(found[4])
    if not distance:
        return ".".join(map(str, tagged))
    following = max(tuple(map(int, NEXT.split("."))), (*tagged[:2], tagged[2] + 1))
    return f"{'.'.join(map(str, following))}.dev{distance}+g{found[5]}"


def find_version(root: Path) -> str:
    """Version of the source tree in ``root``: git's, else the recorded one, else that of the installed package."""
    if (root / ".git").exists():
        commit = _git(root, "rev-parse", "--short", "HEAD")
        if commit:
            described = _git(root, "describe", "--tags", "--long", "--match", "v[0-9]*")
            return version_of(described, commit, int(_git(root, "rev-list", "--count", "HEAD")))
    record = root / RECORD_FILE
    if record.is_file():
        found = re.search(r"^Version: (\S+)$", record.read_text(encoding="utf-8"), flags=re.MULTILINE)
        if found:
            return found[1]
    try:
        return metadata.version("computerrl")
    except metadata.PackageNotFoundError:
        return f"{NEXT}.dev0"


def _git(root: Path, *words: str) -> str:
    """What git prints; empty where it fails or is not installed."""
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def __getattr__(name: str) -> str:
    """`VERSION` is found when it is asked for, because git takes a moment."""
    if name != "VERSION":
        raise AttributeError(name)
    return find_version(Path(__file__).resolve().parents[1])
