"""Families in the text editor: type and save with the keyboard."""

from __future__ import annotations

import random
from collections.abc import Sequence

from computerrl.common.messages import Action, Evaluation, Observation
from computerrl.env_server.driver import Getter, SetupStep, TaskInstance
from computerrl.env_server.tasks.family import DONE, Family, type_text, verdict
from computerrl.env_server.tasks.words import nouns

SAVE = Action(name="key", args={"keys": "ctrl+s"})


def _build_type_save(rng: random.Random) -> TaskInstance:
    path = f"{nouns(rng, 1)[0]}.txt"
    parts = nouns(rng, 2)
    parts.insert(rng.randrange(3), str(rng.randrange(10, 1000)))
    text = " ".join(parts)

    def evaluate(get: Getter) -> Evaluation:
        found = get("file_text", path=path)
        # An editor may end the file with a newline of its own.
        return verdict(text, found.rstrip("\n") if isinstance(found, str) else found)

    def demonstrate(said: str, observation: Observation, actions: Sequence[Action], get: Getter) -> Action:
        return (type_text(text), SAVE, DONE)[min(len(actions), 2)]

    step = SetupStep("editor_open", {"path": path, "text": ""})
    return TaskInstance(f'Type "{text}" and save the file.', (step,), evaluate, demonstrate)


FAMILIES = (Family("editor-type-save", "editor", "type a text into the open file and save it", _build_type_save),)
