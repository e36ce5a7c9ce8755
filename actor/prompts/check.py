"""Whether prompts can be made with a configuration's model folder, found out before a run starts.

A process of its own does it, within limits: a chat template is a program of the folder's, and may run without end or fill all
memory. `prompt_problems` starts it; no tokenizer is loaded in the caller.

    echo '{"model": "FOLDER", "prompt": {}, "actions": "api_gui", "screen_size": [800, 600], "max_cpu_s": 60}' |
        python -m computerrl.actor.prompts.check
"""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import subprocess
import sys
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

from computerrl import SOURCE_ROOT
from computerrl.common.errors import ConfigError, Problem
from computerrl.common.models.folder import model_folder

if TYPE_CHECKING:
    from computerrl.common.config import RunConfig

MAX_CPU_S = 120
"""Processor time, not the clock's: other programs of the machine do not count. Importing transformers takes up to 5 s of it."""
MAX_DATA_BYTES = 8 << 30
_NEXT_STEP = "look at the chat template, or use actor.prompt.format: compact with chat_template: false"


def prompt_problems(config: RunConfig, *, max_cpu_s: int = MAX_CPU_S) -> list[Problem]:
    """What keeps an actor from making prompts; ``config.model`` names a whole model folder."""
    folder, prompt = model_folder(config.model.name).absolute(), config.actor.prompt.model_dump(mode="json")
    asked = {"model": str(folder), "prompt": prompt, "actions": config.tasks.actions, "max_cpu_s": max_cpu_s}
    asked["screen_size"] = [config.desktop.screen_width, config.desktop.screen_height]
    command = [sys.executable, "-m", __spec__.name]
    done = subprocess.run(
        command, input=json.dumps(asked), capture_output=True, encoding="utf-8", errors="replace", cwd=SOURCE_ROOT, check=False
    )
    if done.returncode == 0:
        return [Problem(*found) for found in json.loads(done.stdout)]
    if done.returncode == -signal.SIGXCPU:
        reason = f"the chat template in {folder} does not end within {max_cpu_s} s of processor time"
    else:
        last = "".join(done.stderr.strip().splitlines()[-1:])
        reason = f"making a prompt with the files in {folder} ended with code {done.returncode}: {last:.300}"
    return [Problem("model.name", reason, _NEXT_STEP)]


def _find(asked: dict[str, Any]) -> list[Problem]:
    from computerrl.actor.prompts.builder import FolderTokenizer, make_builder, unreadable
    from computerrl.common.config import PromptConfig

    try:
        folder = Path(asked["model"])
        make_builder(
            folder,
            FolderTokenizer(folder),
            PromptConfig(**asked["prompt"]),
            actions=asked["actions"],
            screen_size=tuple(asked["screen_size"]),
            read=unreadable,
        )
    except ConfigError as error:
        return list(error.problems)
    return []


def _main() -> None:
    asked = json.load(sys.stdin)
    for limit, number in (
        (resource.RLIMIT_CPU, asked["max_cpu_s"]),
        (resource.RLIMIT_DATA, MAX_DATA_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(limit)
        resource.setrlimit(limit, (number if hard == resource.RLIM_INFINITY else min(number, hard), hard))
    with contextlib.redirect_stdout(sys.stderr):  # Warnings of the log.
        found = _find(asked)
    json.dump([astuple(problem) for problem in found], sys.stdout)


if __name__ == "__main__":
    _main()
