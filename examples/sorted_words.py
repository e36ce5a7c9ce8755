"""A task family of your own: words, typed in alphabetical order into the open file, which is then saved.

    computerrl tasks prove sorted_words:SORTED_WORDS --image core

A copy of this file in the current folder is found by that name. docs/tutorials/task.md shows it; a test plays and trains it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from computerrl.common.messages import Action, Evaluation, Observation
from computerrl.env_server.driver import Getter, SetupStep, TaskInstance
from computerrl.env_server.tasks.family import DONE, Family, type_text, verdict

WORDS = ("apple", "bread", "cheese", "grape", "honey", "lemon", "olive", "pepper", "sugar", "tea")
SAVE = Action(name="key", args={"keys": "ctrl+s"})


def build(rng: random.Random) -> TaskInstance:
    """The instance that ``rng`` draws: same seed, same instance."""
    words = rng.sample(WORDS, 3)
    wanted = " ".join(sorted(words))

    def evaluate(get: Getter) -> Evaluation:
        found = get("file_text", path="words.txt")
        return verdict(wanted, found.rstrip("\n") if isinstance(found, str) else found)

    def demonstrate(said: str, observation: Observation, actions: Sequence[Action], get: Getter) -> Action:
        return (type_text(wanted), SAVE, DONE)[min(len(actions), 2)]

    setup = SetupStep("editor_open", {"path": "words.txt", "text": ""})
    instruction = f"Type the words {', '.join(words)} in alphabetical order with a space between them, and save the file."
    return TaskInstance(instruction, (setup,), evaluate, demonstrate)


SORTED_WORDS = Family("sorted-words", "editor", "type words in alphabetical order into the open file and save it", build)
