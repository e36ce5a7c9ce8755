"""Virtual environments with published packages, from the package index that pip is configured for."""

from __future__ import annotations

import subprocess
import venv
from pathlib import Path


def make_environment(folder: Path, *requirements: Path) -> Path:
    """A virtual environment with exactly the packages of these files; gives its Python."""
    venv.create(folder, with_pip=True)
    python = folder / "bin/python"
    command = [str(python), "-m", "pip", "install", "--quiet", "--no-deps"]
    for file in requirements:
        command += ["--requirement", str(file)]
    subprocess.run(command, check=True, timeout=3000)
    return python
