"""Families on files and folders, by API."""

from __future__ import annotations

import random
from collections.abc import Sequence

from computerrl.common.messages import Action, Evaluation, Observation
from computerrl.env_server.driver import Getter, SetupStep, TaskInstance
from computerrl.env_server.tasks.family import DONE, Family, verdict
from computerrl.env_server.tasks.words import FOLDERS, file_names


def _setup(files: Sequence[str], folders: Sequence[str]) -> tuple[SetupStep, ...]:
    return (
        *(SetupStep("make_folder", {"path": folder}) for folder in folders),
        *(SetupStep("write_file", {"path": path, "text": f"{path}\n"}) for path in files),
        SetupStep("files_open", {"folder": "."}),
    )


def _listing(files: Sequence[str], folders: Sequence[str]) -> list[str]:
    return sorted([*files, *(f"{folder}/" for folder in folders)])


def _task(
    instruction: str, setup: tuple[SetupStep, ...], action: Action, listing: list[str], moved: tuple[str, str]
) -> TaskInstance:
    """One API call changes the tree to ``listing``; ``moved`` = (old path, new path) whose content must have come along."""

    def evaluate(get: Getter) -> Evaluation:
        outcome = verdict(listing, list(get("folder_listing")))
        if not outcome.success:
            return outcome
        content = get("file_text", path=moved[1])
        return outcome if content == f"{moved[0]}\n" else verdict(f"content of {moved[0]}", content)

    def demonstrate(said: str, observation: Observation, actions: Sequence[Action], get: Getter) -> Action:
        return DONE if actions else action

    return TaskInstance(instruction, setup, evaluate, demonstrate, calls_applications=True)


def _build_move(rng: random.Random) -> TaskInstance:
    files, folders = file_names(rng, 4), rng.sample(FOLDERS, 3)
    path, folder = rng.choice(files), rng.choice(folders)
    after = _listing([f"{folder}/{path}", *(name for name in files if name != path)], folders)
    action = Action(name="files.move", args={"path": path, "folder": folder})
    instruction = f"Move {path} into the folder {folder}."
    return _task(instruction, _setup(files, folders), action, after, (path, f"{folder}/{path}"))


def _build_rename(rng: random.Random) -> TaskInstance:
    *files, new_name = file_names(rng, 6)
    path = rng.choice(files)
    after = _listing([new_name, *(name for name in files if name != path)], [])
    action = Action(name="files.rename", args={"path": path, "new_name": new_name})
    return _task(f"Rename {path} to {new_name}.", _setup(files, []), action, after, (path, new_name))


FAMILIES = (
    Family("files-move", "files", "move the named file into the named folder by the API", _build_move),
    Family("files-rename", "files", "rename the named file by the API", _build_rename),
)
