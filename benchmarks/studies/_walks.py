"""A task and a policy so small that reinforcement learning takes seconds; for studies of the learner's algorithms.

The task is a walk on a board of 5 x 5 cells: from a start to a goal in at most five steps, each of two tokens, a direction and
a distance. It counts as done only when a step ends on the goal, which a program checks; one walk in six of the untrained policy
does. The policy is a network with one hidden layer that sees where the walker is, where the goal is, and the first of the two
tokens when it chooses the second.

Walks are played by whichever policies they are given, several in one walk too, and written down as the `TrajectoryGroup`s that
actors hand in, so that the learner's own algorithms can be run on them.

Shape legend: W walks, B samples of a batch, A = 2 tokens of an action.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from computerrl.benchmarks._episodes import make_group, make_step
from computerrl.common.messages import Step, TaskRef, TrajectoryGroup

SIDE = 5
NUM_CELLS = SIDE * SIDE
DIRECTIONS = ((1, 0), (-1, 0), (0, 1), (0, -1))
DISTANCES = (1, 2, 3)
MAX_STEPS = 5
FIRST_DISTANCE = len(DIRECTIONS)
"""Tokens: four directions, then three distances, then the cells, which only prompts hold."""
FIRST_CELL = FIRST_DISTANCE + len(DISTANCES)
_HIDDEN = 64


class WalkPolicy(torch.nn.Module):
    """Distribution of an action's two tokens, given cell and goal."""

    def __init__(self) -> None:
        super().__init__()
        # One more row than there are directions: "none yet".
        self._inputs = torch.nn.ModuleList([torch.nn.Embedding(n, _HIDDEN) for n in (NUM_CELLS, NUM_CELLS, len(DIRECTIONS) + 1)])
        self._hidden = torch.nn.Linear(_HIDDEN, _HIDDEN)
        self._heads = torch.nn.ModuleList([torch.nn.Linear(_HIDDEN, n) for n in (len(DIRECTIONS), len(DISTANCES))])
        for head in self._heads:
            # Uniform at first, whatever the seed.
            torch.nn.init.zeros_(head.weight)
            torch.nn.init.zeros_(head.bias)

    def _log_probs(self, cells_B: torch.Tensor, goals_B: torch.Tensor, direction_B: torch.Tensor, *, slot: int) -> torch.Tensor:
        parts = (layer(index) for layer, index in zip(self._inputs, (cells_B, goals_B, direction_B), strict=True))
        hidden = torch.tanh(self._hidden(torch.tanh(sum(parts))))
        return torch.log_softmax(self._heads[slot](hidden), dim=-1)

    def logprobs(self, prompt_B2: torch.Tensor, action_BA: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """([B, A] log-probs, [B, A] entropies) of ``action_BA`` after the prompts (cell and goal)."""
        cells, goals = (prompt_B2 - FIRST_CELL).unbind(1)
        none = torch.full_like(cells, len(DIRECTIONS))
        both = [
            self._log_probs(cells, goals, none, slot=0),
            self._log_probs(cells, goals, action_BA[:, 0], slot=1),
        ]
        chosen = (action_BA[:, 0], action_BA[:, 1] - FIRST_DISTANCE)
        logprobs = [table.gather(1, index[:, None])[:, 0] for table, index in zip(both, chosen, strict=True)]
        entropies = [-(table.exp() * table).sum(1).detach() for table in both]
        return torch.stack(logprobs, 1), torch.stack(entropies, 1)

    @torch.no_grad()
    def sample(self, prompt_B2: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """([B, A] tokens, [B, A] their log-probs)."""
        cells, goals = (prompt_B2 - FIRST_CELL).unbind(1)
        first = self._log_probs(cells, goals, torch.full_like(cells, len(DIRECTIONS)), slot=0)
        direction = torch.multinomial(first.exp(), 1, generator=generator)
        second = self._log_probs(cells, goals, direction[:, 0], slot=1)
        distance = torch.multinomial(second.exp(), 1, generator=generator)
        logprobs = torch.cat([first.gather(1, direction), second.gather(1, distance)], dim=1)
        return torch.cat([direction, distance + FIRST_DISTANCE], dim=1), logprobs


def moved(cells: np.ndarray, action_BA: np.ndarray) -> np.ndarray:
    """[B] where a step from ``cells`` ends; the board's edge stops a walker."""
    row, column = np.divmod(cells, SIDE)
    way = np.array(DIRECTIONS)[action_BA[:, 0]] * np.array(DISTANCES)[action_BA[:, 1] - FIRST_DISTANCE][:, None]
    return np.clip(row + way[:, 0], 0, SIDE - 1) * SIDE + np.clip(column + way[:, 1], 0, SIDE - 1)


@dataclass(slots=True)
class _Walk:
    success: bool
    steps: list[Step]


def play(
    policies: Sequence[WalkPolicy],
    plan_WK: np.ndarray,
    *,
    versions: Sequence[int],
    group_size: int,
    tasks: np.random.Generator,
    sampling: torch.Generator,
) -> list[TrajectoryGroup]:
    """Groups of ``group_size`` walks with the same start and goal. ``plan_WK`` [W, MAX_STEPS]: which of ``policies`` plays step
    k of walk w; ``versions``: their policy versions."""
    num_walks = len(plan_WK)
    num_groups = num_walks // group_size
    ends = np.array([tasks.choice(NUM_CELLS, 2, replace=False) for _ in range(num_groups)])
    cells, goals = np.repeat(ends, group_size, axis=0).T.copy()
    walks = [_Walk(False, []) for _ in range(num_walks)]
    for k in range(MAX_STEPS):
        for which, policy in enumerate(policies):
            at = np.array([w for w in range(num_walks) if plan_WK[w, k] == which and not walks[w].success], dtype=np.int64)
            if not len(at):
                continue
            prompts = np.stack([cells[at], goals[at]], axis=1) + FIRST_CELL
            tokens, logprobs = policy.sample(torch.from_numpy(prompts), sampling)
            actions = tokens.numpy()
            for i, w in enumerate(at):
                step = make_step(prompts[i], actions[i], logprobs=logprobs[i].numpy(), version=versions[which])
                walks[w].steps.append(step)
            cells[at] = moved(cells[at], actions)
            for w in at[cells[at] == goals[at]]:
                walks[w].success = True
    return [_group(g, walks[g * group_size : (g + 1) * group_size]) for g in range(num_groups)]


def _group(number: int, walks: Sequence[_Walk]) -> TrajectoryGroup:
    episodes = [(walk.steps, walk.success) for walk in walks]
    return make_group(number, "walk", TaskRef("walk", number, "training"), episodes, instruction="reach the goal")
