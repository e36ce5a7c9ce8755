"""OSWorld's own `DesktopEnv` and a published agent on a desktop of ours, in an environment that has nothing of ours.

python osworld_player.py PROVIDER < {"note": PATH}: PROVIDER is the folder of osworld_provider.py; prints what it saw as JSON.
The agent is AgentS2_5 of gui-agents, whose model's answers are written down here; everything else of it runs as published.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

NOT_INSTALLED = {
    "easyocr": (),
    "borb": (),
    "borb.pdf": ("Document", "PDF"),
    "playwright": (),
    "playwright.sync_api": ("sync_playwright", "TimeoutError", "expect"),
    "pydrive": (),
    "pydrive.auth": ("GoogleAuth",),
    "pydrive.drive": ("GoogleDrive", "GoogleDriveFile", "GoogleDriveFileList"),
    "pytesseract": ("Output",),
    "anthropic": ("Anthropic",),
    "openai": ("AzureOpenAI", "OpenAI", "APIConnectionError", "APIError", "RateLimitError"),
}
"""Imported by the packages, with what they take from it, and used by nothing that is played here."""
MIDDLE = "There: (400, 300)"
"""An answer of the model that finds places on the screen."""
PLAN = (
    "(Grounded Action)\n```python\nagent.click('The text of the note', 1, 'left')\n```",
    "(Grounded Action)\n```python\nagent.hotkey(['ctrl', 'end'])\n```",
    "(Grounded Action)\n```python\nagent.type(text=' more <b> words')\n```",
    "(Grounded Action)\n```python\nagent.hotkey(['ctrl', 's'])\n```",
    "(Grounded Action)\n```python\nagent.done()\n```",
)
"""Answers of the model that plans."""


def stub_packages() -> None:
    """Put empty modules where packages are imported that are not here."""
    for name, wanted in NOT_INSTALLED.items():
        module: Any = types.ModuleType(name)
        for part in wanted:
            setattr(module, part, type(part, (Exception,), {}))
        sys.modules[name] = module


def task_with(note: str) -> dict[str, Any]:
    """A task in OSWorld's format about a file on this machine."""
    place = "/home/user/Desktop/note.txt"
    config: list[dict[str, Any]] = [
        {"type": "upload_file", "parameters": {"files": [{"local_path": note, "path": place}]}},
        {"type": "open", "parameters": {"path": place}},
        {"type": "activate_window", "parameters": {"window_name": "note.txt"}},
    ]
    text = {"type": "vm_command_line", "command": ["cat", place]}
    expected = {"type": "rule", "rules": {"expected": "some more <b> words"}}
    evaluator = {"func": "exact_match", "result": text, "expected": expected}
    return {"id": "note", "instruction": "Append the words.", "config": config, "evaluator": evaluator}


def play_agent(env: Any, task: dict[str, Any]) -> list[str]:
    """Have the published agent play until it says that it is done; returns its actions."""
    from gui_agents.s2_5.agents.agent_s import AgentS2_5
    from gui_agents.s2_5.agents.grounding import OSWorldACI
    from gui_agents.s2_5.core.engine import LMMEngineOpenAI

    answers = iter(PLAN)

    def generate(engine: Any, _messages: Any, **_: Any) -> str:
        return MIDDLE if engine.model == "places" else next(answers)

    LMMEngineOpenAI.generate = generate
    plans, places = {"engine_type": "openai", "model": "plans"}, {"engine_type": "openai", "model": "places"}
    places |= {"grounding_width": 800, "grounding_height": 600}  # type: ignore[dict-item]
    size = env.vm_screen_size
    grounding = OSWorldACI("linux", plans, places, width=size["width"], height=size["height"])
    agent = AgentS2_5(plans, grounding, platform="linux", enable_reflection=False)
    seen, actions = env._get_obs(), []
    while True:
        _, (action,) = agent.predict(task["instruction"], seen)
        actions.append(action)
        seen, _, done, _ = env.step(action, pause=0.5)
        if done:
            return actions


def play_controllers(env: Any) -> dict[str, Any]:
    """What the controllers' other calls return, and what their actions leave."""
    controller, setup = env.controller, env.setup_controller
    setup._launch_setup(["gnome-terminal"])
    setup._activate_window_setup("Terminal")
    for action in (
        {"action_type": "MOVE_TO", "parameters": {"x": 300, "y": 200}},
        {"action_type": "CLICK", "parameters": {"button": "left", "x": 310, "y": 210}},
        {"action_type": "TYPING", "parameters": {"text": "echo 'it''s'"}},
        {"action_type": "KEY_DOWN", "parameters": {"key": "shift"}},
        {"action_type": "PRESS", "parameters": {"key": "a"}},
        {"action_type": "KEY_UP", "parameters": {"key": "shift"}},
        {"action_type": "PRESS", "parameters": {"key": "enter"}},
        {"action_type": "MOUSE_DOWN", "parameters": {"button": "left"}},
        {"action_type": "MOUSE_UP", "parameters": {"button": "left"}},
        {"action_type": "DRAG_TO", "parameters": {"x": 500, "y": 400}},
        {"action_type": "SCROLL", "parameters": {"dx": 0, "dy": -2}},
    ):
        controller.execute_action(action)
    found = {
        "terminal": controller.get_terminal_output(),
        "platform": env.vm_platform,
        "desktop": controller.get_vm_desktop_path(),
        "pointer": controller.execute_python_command("pyautogui.moveTo(123, 45)"),
        "size": env.vm_screen_size,
        "window": controller.get_vm_window_size("xfce4-terminal"),
        "script": controller.run_python_script("print(6 * 7)"),
        "bash": controller.run_bash_script("pwd; false", working_dir="/tmp"),
        "missing": controller.execute_python_command("pass; pyautogui.locateOnScreen('a'); pyautogui.press('a')"),
        "tree": controller.get_vm_directory_tree("/home/user/Desktop"),
        "picture": len(controller.get_screenshot()),
    }
    setup._close_window_setup("Terminal")
    return found


def main() -> None:
    """Everything, with one desktop."""
    sys.path.insert(0, sys.argv[1])
    stub_packages()
    asked = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        import osworld_provider  # noqa: F401
        from desktop_env.desktop_env import DesktopEnv

        with tempfile.TemporaryDirectory() as cache:
            task, env = task_with(asked["note"]), DesktopEnv(provider_name="computerrl", cache_dir=cache)
            seen = env.reset(task_config=task)
            found: dict[str, Any] = {"tree": seen["accessibility_tree"][:200], "picture": seen["screenshot"][:8].hex()}
            found["untouched"] = env.evaluate()
            env.controller.start_recording()
            found["actions"] = play_agent(env, task)
            film = Path(cache, "recording.mp4")
            env.controller.end_recording(str(film))
            found["film"] = film.read_bytes()[4:8].decode()
            found["solved"] = env.evaluate()
            found["controllers"] = play_controllers(env)
            env.reset(task_config=task)
            found["after_reset"] = env.evaluate()
            env.step("FAIL")
            found["given_up"] = env.evaluate()
            env.close()
    Path(sys.argv[2]).write_text(json.dumps(found), encoding="utf-8")


main()
