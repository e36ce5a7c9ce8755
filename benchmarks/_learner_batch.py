"""A batch of realistic trajectories for `learner`: made up, and written down by the project's own prompt code.

No desktop takes part and nothing is sampled. Screens, tasks and answers are made up, but prompts and actions become tokens
through `actor.prompt.PromptBuilder` with the model's own tokenizer, as actors do it; so what samples share is what they share
in a run: rollouts of a group their task, its steps most of the screen, and in ComputerRL's format all of them a long list of
calls. Groups take turns between the compact format (prompts of 200 to 1,000 tokens, answers of 5 to 60) and the published one
(1,100 to 2,000 and 40 to 60). The steps of a run would come from one format; here both ends of the range are to be in one
batch.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from actor.formats.base import PastAction
from actor.prompt import FolderTokenizer, PromptBuilder
from common.config import PromptConfig
from common.messages import Element, Observation, Step, StepTiming, TaskRef, Trajectory, TrajectoryGroup

MIN_PROMPT_TOKENS, MAX_PROMPT_TOKENS = 200, 2000
MIN_ACTION_TOKENS, MAX_ACTION_TOKENS = 5, 60

_USUAL_SHARE = 0.6
"""How often a rollout does what most do: between early in RL (half of the actions alike) and late (nine of ten)."""

_WORDS = (
    "Budget", "Report", "Draft", "Invoice", "March", "Total", "Customer", "Travel", "Meeting", "Archive", "Summary", "Region",
    "Quarter", "Order", "Price", "Amount", "Review", "Contact", "Address", "Notes", "Delivery", "Sales", "Hours", "Project",
)  # fmt: skip
_ROLES = ("push-button", "entry", "check-box", "table-cell", "link", "menu-item", "label", "radio-button")


@dataclass(frozen=True, slots=True)
class _Kind:
    prompt: PromptConfig
    app: str
    """Whose calls ComputerRL's format lists."""
    num_elements: tuple[int, int]
    num_rollouts: int
    """Of a group at most; the long prompts would fill the batch otherwise."""


_KINDS = (
    _Kind(
        PromptConfig(max_elements=100, max_prompt_tokens=1000, history_steps=4, max_toolbar_elements=20),
        "calc",
        num_elements=(12, 60),
        num_rollouts=8,
    ),
    _Kind(
        PromptConfig.model_validate({"format": "computerrl_text", "max_prompt_tokens": MAX_PROMPT_TOKENS}),
        "editor",
        num_elements=(8, 20),
        num_rollouts=4,
    ),
)


def make_groups(
    folder: Path, *, num_groups: int, max_steps: int, max_rollouts: int = 8, seed: int = 0
) -> list[TrajectoryGroup]:
    """Groups of 8 (compact) or 4 rollouts of one task, ``max_rollouts`` at most, each of 2 to ``max_steps`` steps, in both
    formats by turns; every second rollout fails, so that every step trains. ``folder`` is the model's, whose tokenizer is used.
    Behaviour log-probs are 0 until `with_logprobs`."""
    rng = random.Random(seed)
    tokenizer = FolderTokenizer(folder)
    builders = [PromptBuilder(tokenizer, kind.prompt) for kind in _KINDS]
    return [
        _group(number, builders[number % 2], _KINDS[number % 2], rng, max_rollouts=max_rollouts, max_steps=max_steps)
        for number in range(num_groups)
    ]


def with_logprobs(groups: Sequence[TrajectoryGroup], logprobs: Sequence[np.ndarray]) -> list[TrajectoryGroup]:
    """The same groups with ``logprobs`` ([A] float32 for every step, in order) as those of the policy that sampled."""
    given = iter(logprobs)
    return [
        replace(
            group,
            trajectories=tuple(
                replace(one, steps=tuple(replace(step, behavior_logprobs=next(given)) for step in one.steps))
                for one in group.trajectories
            ),
        )
        for group in groups
    ]


def _group(
    number: int, builder: PromptBuilder, kind: _Kind, rng: random.Random, *, max_rollouts: int, max_steps: int
) -> TrajectoryGroup:
    first, second = rng.sample(_WORDS, 2)
    instruction = (
        f'In the table of orders, enter "{first} {rng.randint(10, 99)}" into the field {second}, '
        "mark it as read, and save the result."
    )
    # Every text once: an action that names an element by its text must mean one.
    texts = rng.sample([f"{a} {b}" for a in _WORDS for b in _WORDS], rng.randint(*kind.num_elements))
    screen = [_element(i + 1, text, rng) for i, text in enumerate(texts)]
    usual = [_answer(screen, first, rng) for _ in range(max_steps)]
    task = TaskRef("bench", number, "training")
    trajectories = []
    for index in range(min(max_rollouts, kind.num_rollouts)):
        steps = _episode(builder, kind.app, instruction, screen, usual[: rng.randint(2, max_steps)], first, rng)
        trajectories.append(_trajectory(number, index, task, instruction, steps))
    return TrajectoryGroup(number, f"bench/{number}", "bench", "training", task, tuple(trajectories))


def _episode(
    builder: PromptBuilder,
    app: str,
    instruction: str,
    screen: Sequence[Element],
    usual: Sequence[str],
    word: str,
    rng: random.Random,
) -> list[Step]:
    shown = list(screen)
    past: list[PastAction] = []
    steps: list[Step] = []
    for planned in usual:
        observation = Observation(app, f"{word} 2", tuple(shown), None, 1280, 720, "quiet", 0.1, 0.0, "")
        answer = builder.render(planned if rng.random() < _USUAL_SHARE else _answer(shown, word, rng), observation)
        builder.parse(answer, observation)
        steps.append(_step(builder.build(instruction, observation, past), builder.encode_action(answer), answer))
        past.append(PastAction(answer))
        # What an action does to a screen: one element is in focus, another says something new.
        for at, states in ((rng.randrange(len(shown)), ("focused",)), (rng.randrange(len(shown)), ("checked",))):
            shown[at] = _with_states(shown[at], states)
    return steps


def _answer(screen: Sequence[Element], word: str, rng: random.Random) -> str:
    target = rng.choice(screen).text
    written = " ".join(rng.choices(_WORDS, k=rng.randint(1, 6))).lower()
    return rng.choice(
        [
            f'click("{target}")',
            f'type("{word} {rng.randint(10, 99)}", target="{target}")',
            f'type("{written}", enter=True)',
            f'calc.set_cell("{rng.choice("ABCDEF")}{rng.randint(1, 40)}", "{word} {written}")',
            "calc.save()",
        ]
    )


def _element(number: int, text: str, rng: random.Random) -> Element:
    return Element(number, rng.choice(_ROLES), text, rng.randrange(1280), rng.randrange(720), rng.randint(20, 200), 24, ())


def _with_states(element: Element, states: tuple[str, ...]) -> Element:
    return replace(element, states=states)


def _step(prompt: np.ndarray, action: np.ndarray, answer: str) -> Step:
    if not MIN_PROMPT_TOKENS <= len(prompt) <= MAX_PROMPT_TOKENS or not MIN_ACTION_TOKENS <= len(action) <= MAX_ACTION_TOKENS:
        raise ValueError(f"a step of {len(prompt)} prompt and {len(action)} action tokens is not what this benchmark is about")
    return Step(
        prompt_tokens=prompt,
        action_tokens=action,
        behavior_logprobs=np.zeros(len(action), dtype=np.float32),
        policy_versions=np.zeros(len(action), dtype=np.int32),
        action_text=answer,
        format_ok=True,
        action_error="",
        screenshot=None,
        settled_by="quiet",
        timing=StepTiming(0.0, 0.0, 0.0),
    )


def _trajectory(group: int, index: int, task: TaskRef, instruction: str, steps: Sequence[Step]) -> Trajectory:
    return Trajectory(
        trajectory_id=f"bench/{group}/{index}",
        group_id=f"bench/{group}",
        index=index,
        order_id="bench",
        kind="training",
        task=task,
        instruction=instruction,
        steps=tuple(steps),
        reward=float(index % 2 == 0),
        success=index % 2 == 0,
        end_reason="task_finished",
        final_screenshot=None,
        actor="actor-0:bench",
        started_at=0.0,
        duration_s=1.0,
        reset_s=0.1,
        wait_s=0.0,
    )
