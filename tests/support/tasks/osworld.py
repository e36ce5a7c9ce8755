"""Parts of OSWorld task files, and their verdicts, for tests."""

from __future__ import annotations

import time
from typing import Any

from computerrl.common.messages import Evaluation
from computerrl.env_server.driver import TaskInstance
from tests.support.desktops import Player


def rule(**rules: Any) -> dict[str, Any]:
    return {"type": "rule", "rules": rules}


def shell(command: str) -> dict[str, Any]:
    return {"type": "execute", "parameters": {"command": command, "shell": True}}


def says_whether(command: str) -> dict[str, Any]:
    return {"type": "vm_command_line", "command": f"{command} && echo yes || echo no", "shell": True}


def typed(text: str) -> str:
    """In a terminal, by an agent."""
    return f"type({text!r}, enter=True)"


def judged(player: Player, instance: TaskInstance) -> Evaluation:
    def get(kind: str, **args: Any) -> Any:
        if kind == "pause":
            return time.sleep(args["seconds"])
        if kind == "osworld":
            return player.desktop.get(kind, **args)
        return {"final_action": "done", "outputs": instance.outputs}[kind]

    return instance.evaluate(get)  # type: ignore[arg-type]
