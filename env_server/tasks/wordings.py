"""Other ways to ask for the same: what a task's instruction says stays, how it is said changes. Pure.

An instruction is put into a frame, and its first verb may be replaced by one that means the same. Frames and verbs that a policy
is trained on are none of those that it is tested on, so that success on unseen wordings tells reading from recalling.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from computerrl.common.config import TasksConfig, Wordings
from computerrl.common.messages import TaskRef
from computerrl.env_server.tasks.family import is_foreign

_FRAMES: Mapping[Wordings, Sequence[str]] = {
    "seen": (
        "{whole}",
        "Please {order}",
        "Your task: {whole}",
        "{whole} Thank you.",
        "I would like you to {order}",
        "This has to be done: {whole}",
        "Here is what I need. {whole}",
        "On this computer, {order}",
    ),
    "unseen": (
        "Kindly {order}",
        "{whole} That is all.",
        "What comes next: {whole}",
        "Could you do this for me? {whole}",
        "It would help me if you could {order}",
        "The following is left to do. {whole}",
    ),
}
"""``whole``: the instruction; ``order``: the same without its capital, where it begins with a verb."""

_VERBS: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "Add": (("Add",), ("Put in",)),
    "Align": (("Align",), ("Set out",)),
    "Append": (("Append",), ("Attach",)),
    "Buy": (("Buy", "Purchase"), ("Get",)),
    "Calculate": (("Calculate", "Work out"), ("Compute",)),
    "Change": (("Change", "Alter"), ("Modify",)),
    "Click": (("Click", "Press"), ("Hit",)),
    "Click on": (("Click on", "Press"), ("Hit",)),
    "Colour": (("Colour", "Paint"), ("Tint",)),
    "Copy": (("Copy", "Duplicate"), ("Make a copy of",)),
    "Correct": (("Correct", "Fix"), ("Repair",)),
    "Create": (("Create", "Make"), ("Produce",)),
    "Delete": (("Delete", "Remove"), ("Erase",)),
    "Draw": (("Draw", "Make"), ("Produce",)),
    "Enter": (("Enter", "Type"), ("Key in",)),
    "Expand": (("Expand", "Open"), ("Unfold",)),
    "Extract": (("Extract",), ("Take out",)),
    "Find": (("Find", "Look for"), ("Locate",)),
    "Freeze": (("Freeze",), ("Pin",)),
    "Hide": (("Hide",), ("Conceal",)),
    "Highlight": (("Highlight",), ("Shade",)),
    "Insert": (("Insert", "Add"), ("Put in",)),
    "Keep": (("Keep",), ("Hold",)),
    "Look up": (("Look up", "Find"), ("Search for",)),
    "Mark": (("Mark",), ("Flag",)),
    "Move": (("Move", "Shift"), ("Transfer",)),
    "Order": (("Order", "Request"), ("Ask for",)),
    "Pack": (("Pack",), ("Compress",)),
    "Put": (("Put", "Write"), ("Place",)),
    "Remove": (("Remove", "Delete"), ("Take away",)),
    "Rename": (("Rename",), ("Change the name of",)),
    "Replace": (("Replace",), ("Exchange",)),
    "Save": (("Save", "Store"), ("Preserve",)),
    "Select": (("Select", "Choose"), ("Pick",)),
    "Set": (("Set", "Change"), ("Switch",)),
    "Show": (("Show", "Display"), ("Present",)),
    "Sort": (("Sort", "Order"), ("Arrange",)),
    "Tick": (("Tick", "Check"), ("Put a tick at",)),
    "Turn": (("Turn", "Change"), ("Convert",)),
    "Type": (("Type", "Write"), ("Key in",)),
    "Unpack": (("Unpack", "Extract"), ("Decompress",)),
    "Use": (("Use", "Take"), ("Apply",)),
    "Write": (("Write", "Put"), ("Place",)),
}
"""First words of instructions -> (verbs that a policy is trained on, verbs that it is tested on)."""
_ORDERS = frozenset({"Fill", "Focus", "Format", "Give", "Let", "Make", "Navigate", "Search", "Solve", "Strike"})
"""Verbs without a replacement that says the same everywhere."""


def reworded(instruction: str, wordings: Wordings, *, seed: int) -> str:
    """``instruction`` as this seed says it; `plain`: as it is."""
    whole = instruction.strip()
    if wordings == "plain" or not whole:
        return instruction
    rng = random.Random(f"{seed}:{wordings}")
    verb = next((" ".join(words) for words in _beginnings(whole) if " ".join(words) in _VERBS), "")
    if verb:
        whole = rng.choice(_VERBS[verb][wordings == "unseen"]) + whole[len(verb) :]
    if whole[-1] not in ".!?":
        whole += "."
    is_order = bool(verb) or whole.split()[0] in _ORDERS
    frames = [frame for frame in _FRAMES[wordings] if is_order or "{order}" not in frame]
    return rng.choice(frames).format(whole=whole, order=whole[0].lower() + whole[1:])


def said_to_agents(instruction: str, task: TaskRef, tasks: TasksConfig) -> str:
    """What agents are told of ``task``: task files, imported bundles and synthesized tasks keep their words."""
    return instruction if is_foreign(task.family) else reworded(instruction, tasks.wordings, seed=task.seed)


def all_wordings(instruction: str, *, seed: int) -> frozenset[str]:
    """Every text by which ``instruction`` of this seed may be known."""
    return frozenset({instruction, reworded(instruction, "seen", seed=seed), reworded(instruction, "unseen", seed=seed)})


def _beginnings(text: str) -> Sequence[Sequence[str]]:
    """The first two words and the first one."""
    words = text.split(maxsplit=2)
    return words[:2], words[:1]
