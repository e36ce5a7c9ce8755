"""Task bundles made for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MADE = "/home/user/made"
CHECKS = f"import os\nprint('looks for it')\nprint('REWARD:', 1.0 if os.path.exists('{MADE}') else 0.0)\n"
"""A reward script that pays for the file `MADE`."""
MAKES = f"open('{MADE}', 'w').close()\n"
"""A solution of it."""


def write_bundle(
    folder: Path,
    name: str,
    *,
    reward: str | bytes | None = CHECKS,
    setup: str | None = None,
    solution: str | None = None,
    files: dict[str, str | bytes] | None = None,
    **fields: Any,
) -> Path:
    """Write the bundle ``name`` into ``folder``; None leaves a script out. ``fields`` go into its task file."""
    place = folder / name
    task = {"instruction": f"Make {name}.", "app_type": "os", **fields}
    scripts = {"reward.py": reward, "initial_setup.py": setup, "solution.py": solution, "task.json": json.dumps(task)}
    for path, content in (scripts | (files or {})).items():
        if content is not None:
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_bytes(content if isinstance(content, bytes) else content.encode())
    return place
