"""An agent of your own: a Python class with `predict`, here one that reads the screen's rows and needs no model.

    computerrl eval first_button --agent first_button:Agent --config smoke --tasks web-click-button --episodes 2

It clicks the button that the instruction quotes. A copy of this file in the current folder is found by that name;
docs/how-to/agents.md says what an observation holds, and how the model of such an agent is trained.
"""

from __future__ import annotations

import re
from typing import Any


class Agent:
    """One object plays one episode."""

    def predict(self, instruction: str, observation: dict[str, Any]) -> str:
        """The next action's text. ``observation``: rows, elements, screenshot, the last action's result and error."""
        quoted = re.search(r'"([^"]+)"', instruction)
        if quoted is None or observation["error"]:
            return "fail()"
        is_shown = any(quoted[1] in row for row in observation["rows"])
        return f'click("{quoted[1]}")' if is_shown else "wait()"
