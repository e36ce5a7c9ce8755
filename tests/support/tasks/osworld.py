"""Parts of OSWorld task files, and their verdicts, for tests."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from computerrl.common.messages import Evaluation
from computerrl.env_server.driver import TaskInstance
from computerrl.env_server.tasks.osworld import load_task
from computerrl.env_server.tasks.osworld.abilities import abilities_of
from tests.support.desktops import Player

_CLICK = re.compile(r'click\("([^"]+)"\)')
_EFFECT_LIMIT_S = 120.0
"""For what the last action has begun; far more than it takes, on a busy machine too."""


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


@dataclass(frozen=True)
class Case:
    """One kind of task: its file's parts, and what an agent does to solve it."""

    evaluator: Mapping[str, Any]
    solve: tuple[str, ...]
    config: tuple[Mapping[str, Any], ...] = field(default=())


def require_right_verdicts(player: Player, case: Case, folder: Path, *, image: str, mirror: Path | None = None) -> None:
    """Untouched the task pays nothing, solved all, and untouched again nothing."""
    apps = ["os", "chrome"]
    task = {"id": "made", "instruction": "Do it.", "related_apps": apps, "config": case.config, "evaluator": case.evaluator}
    (folder / "made.json").write_text(json.dumps(task))
    loaded = load_task(folder / "made.json", None, mirror=mirror, abilities=abilities_of(image))
    for actions in ((), case.solve, ()):
        instance = loaded.as_instance()
        player.desktop.reset(instance)
        for action in actions:
            _do(player, action)
        verdict, deadline = judged(player, instance), time.monotonic() + _EFFECT_LIMIT_S
        while actions and not verdict.success and time.monotonic() < deadline:
            player.do("wait()")
            verdict = judged(player, instance)
        assert verdict.success is bool(actions), (actions, verdict.detail)


def _do(player: Player, action: str) -> None:
    """Carry out ``action``; what it clicks by its text may still be about to appear on a busy machine."""
    if named := _CLICK.fullmatch(action):
        player.wait_for(lambda seen: any(element.text == named[1] for element in seen.elements))
    player.do(action)
