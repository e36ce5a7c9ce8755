"""The account of an export: how many trajectories and steps were kept, changed and left out, and why. Pure."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Tally:
    """Counts of trajectories and steps by what became of them."""

    kept: Counter[str] = field(default_factory=Counter)
    """`trajectories` and `steps` that were written."""
    left_out: dict[str, Counter[str]] = field(default_factory=dict)
    """Reason -> `trajectories` left out whole, and `steps`, those of kept trajectories included."""

    def keep(self, num_steps: int) -> None:
        """A trajectory was written with ``num_steps`` steps."""
        self.kept.update(trajectories=1, steps=num_steps)

    def leave_out(self, reason: str, *, trajectories: int = 0, steps: int = 0) -> None:
        """Count what was left out for ``reason``."""
        self.left_out.setdefault(reason, Counter()).update(trajectories=trajectories, steps=steps)

    def as_dict(self) -> dict[str, Any]:
        """The counts as JSON has them."""
        return {
            "kept": {name: self.kept[name] for name in ("trajectories", "steps")},
            "left_out": {reason: dict(counts) for reason, counts in sorted(self.left_out.items())},
        }

    def as_json(self, out: Path) -> str:
        """The counts with the folder that they are of, as JSON."""
        return json.dumps({"folder": str(out), **self.as_dict()}, indent=2)

    def table(self) -> str:
        """The counts as a table for a terminal."""
        rows = [("kept", self.kept), *((f"left out: {reason}", counts) for reason, counts in sorted(self.left_out.items()))]
        width = max(len(name) for name, _ in rows)
        head = f"{'':{width}}  trajectories  steps"
        return "\n".join([head, *(f"{name:{width}}  {counts['trajectories']:12}  {counts['steps']:5}" for name, counts in rows)])
