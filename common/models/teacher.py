"""The teacher of a run: a frozen model whose log-probs an algorithm compares with the policy's
(`learner.algorithms.distillation`).

An algorithm with a teacher names it in its option `teacher`; memory estimates, checks and the trainer find it there. Told from
file names and JSON alone, as `common.models.folder`: no torch and no transformers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from computerrl.common.config import RunConfig
from computerrl.common.errors import Problem
from computerrl.common.models.folder import (
    BUILT_IN_MODELS,
    context_problems,
    has_vision_tower,
    is_model_folder,
    model_folder,
    model_folder_problems,
    read_json,
    vocabulary_size,
)

FIELD = "learner.algorithm.options.teacher"

_TOKENIZER_FILE = "tokenizer.json"
_ANY_CLASS = frozenset({"PreTrainedTokenizer", "TokenizersBackend"})
"""Names of classes of transformers that hold a tokenizer of any model."""
_STEP = "use a teacher of the policy's family, or train the policy from a model that has the teacher's tokenizer"


def teacher_name(config: RunConfig) -> str | None:
    """Name of the teacher, as `model.name`. None: the algorithm has none, or nothing is trained with it (an evaluation)."""
    name = config.learner.algorithm.options.get("teacher")
    trains = config.learner.recipe.max_updates > 0 and config.actor.served_at is None
    return name if isinstance(name, str) and trains else None


def teacher_problems(config: RunConfig) -> list[Problem]:
    """Reasons for which the run's teacher cannot judge its policy's tokens; empty when it can, and without a teacher."""
    name = teacher_name(config)
    if name is None:
        return []
    folder, of_policy = model_folder(name), model_folder(config.model.name)
    if name not in BUILT_IN_MODELS and (missing := model_folder_problems(folder)):
        return [Problem(FIELD, reason, step.replace("model.name", FIELD)) for reason, step in missing]
    if config.actor.prompt.shows_images or has_vision_tower(folder):
        reason = "a teacher reads text, and " + ("prompts show images" if config.actor.prompt.shows_images else "it takes images")
        return [Problem(FIELD, reason, "use a prompt format of text and a teacher without a vision tower")]
    prompt = config.actor.prompt
    narrow = context_problems(name, max_prompt_tokens=prompt.max_prompt_tokens, max_new_tokens=config.actor.max_new_tokens)
    if not all(map(is_model_folder, (folder, of_policy))):
        return narrow  # Another check reports it, or the folder is made before the run starts.
    return [*narrow, *(Problem(FIELD, reason, _STEP) for reason in tokenizer_differences(folder, of_policy))]


def tokenizer_differences(teacher: Path, policy: Path) -> list[str]:
    """Differences of the tokenizers of two model folders that keep the model in ``teacher`` from judging tokens of the one in
    ``policy``: another class, tokens of the policy that the teacher has not or has under other ids, fewer rows of the embedding.
    """
    trees = {folder: read_json(folder / _TOKENIZER_FILE) or {} for folder in (teacher, policy)}
    lacking = [f"{str(folder)!r} holds no readable {_TOKENIZER_FILE}" for folder, tree in trees.items() if not _vocabulary(tree)]
    if lacking:
        return lacking
    found = []
    its_class, own_class = _tokenizer_class(teacher), _tokenizer_class(policy)
    if its_class is not None and own_class is not None and its_class != own_class:
        found.append(f"the teacher's tokenizer is a {its_class}, and the policy's a {own_class}")
    theirs, ours = _vocabulary(trees[teacher]), _vocabulary(trees[policy])
    unlike = [token for token, number in ours.items() if theirs.get(token) != number]
    if unlike:
        held = f"{unlike[0]!r:.60} is {ours[unlike[0]]} here and {theirs.get(unlike[0], 'no token')} there"
        found.append(f"{len(unlike)} of {len(ours)} tokens of the policy have another id or none in the teacher: {held}")
    its_rows, own_rows = vocabulary_size(teacher), vocabulary_size(policy)
    if its_rows is not None and own_rows is not None and its_rows < own_rows:
        found.append(f"the teacher knows {its_rows} tokens, and the policy may sample {own_rows}")
    return found


def _vocabulary(tree: dict[str, Any]) -> dict[str, int]:
    """Token -> id, those added to the model's included; empty where ``tree`` names none."""
    model, added = tree.get("model"), tree.get("added_tokens")
    held = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(held, list):  # A unigram model lists its tokens with their scores.
        held = {row[0]: number for number, row in enumerate(held) if isinstance(row, list) and row}
    if not isinstance(held, dict):
        return {}
    named = {one["content"]: one["id"] for one in added or () if isinstance(one, dict) and {"content", "id"} <= one.keys()}
    return {**held, **named}


def _tokenizer_class(folder: Path) -> str | None:
    """Name of the tokenizer's class without the word for its fast edition; None where the files name none of one family."""
    name = (read_json(folder / "tokenizer_config.json") or {}).get("tokenizer_class")
    return name.removesuffix("Fast") if isinstance(name, str) and name not in _ANY_CLASS else None
