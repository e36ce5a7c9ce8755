"""Groups on their way from the broker into the books: taken strictly by number, each decided once.

A group is taken, then decided: what became of each of its trajectories is recorded and the cursor moves past it. A checkpoint
covers what is decided; the broker delivers the rest again. Decides no fate itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from common import log
from common.errors import ProtocolError
from common.messages import NoGroup, TrajectoryGroup
from learner.ledger import AgeSpan, Ledger, Outcome
from learner.parts import Broker
from learner.records import Records
from learner.state import LoopState


class Intake:
    """The groups from ``state.cursor`` on."""

    def __init__(self, state: LoopState, *, broker: Broker, ledger: Ledger, records: Records) -> None:
        self._state = state
        self._broker = broker
        self._ledger = ledger
        self._records = records
        self.taken: list[TrajectoryGroup] = []
        """Groups from the cursor on whose fate is not decided."""
        self.in_flight: tuple[int, ...] | None = None
        """Policy versions in flight for training by the broker's last answer, None when that was a group."""

    def fetch(self) -> TrajectoryGroup | None:
        """The next group that was not taken yet, None when it is not complete."""
        wanted = self._state.cursor + len(self.taken)
        group = self._broker.fetch_group(wanted)
        if isinstance(group, NoGroup):
            self.in_flight = group.training_versions
            return None
        self.in_flight = None
        if group.group_seq != wanted:
            raise ProtocolError(f"asked for group {wanted}, got {group.group_seq}: it would be taken twice or never")
        return group

    def current(self) -> list[TrajectoryGroup]:
        """Groups taken that belong to the present orders."""
        return [group for group in self.taken if group.order_id in self._state.orders]

    def batch(self, num_groups: int) -> tuple[list[TrajectoryGroup], list[TrajectoryGroup]]:
        """The first ``num_groups`` groups of the present orders, with all that were taken before the last one; and they alone."""
        groups = self.current()[:num_groups]
        taken = [group for group in self.taken if group.group_seq <= groups[-1].group_seq]
        return taken, groups

    def decide(
        self,
        groups: Sequence[TrajectoryGroup],
        outcomes: Sequence[Sequence[Outcome]],
        ages: Mapping[str, AgeSpan] | None = None,
    ) -> None:
        """Record what became of ``groups``: the next ones from the cursor on, the first of those taken."""
        state = self._state
        for group, fates in zip(groups, outcomes, strict=True):
            assert group.group_seq == state.cursor
            for trajectory, outcome in zip(group.trajectories, fates, strict=True):
                self._ledger.record(
                    trajectory, outcome, group_seq=group.group_seq, update=state.update,
                    policy_version=state.policy_version, ages=(ages or {}).get(trajectory.trajectory_id),
                )  # fmt: skip
                self._records.episode(trajectory)
            if group.num_given_up:
                log.get_logger().warning("group.incomplete", task=group.task.task_id, num_given_up=group.num_given_up)
            state.take(group.trajectories)
            if group.kind == "training":
                state.next_seed = max(state.next_seed, group.task.seed + 1)
            state.cursor += 1
        self.taken = [group for group in self.taken if group.group_seq >= state.cursor]

    def close_phase(self) -> None:
        """What was taken and not trained when its phase ended."""
        self.decide_all(self.taken, "phase_closed")

    def decide_all(self, groups: Sequence[TrajectoryGroup], outcome: Outcome) -> None:
        """Record the same fate for all of ``groups``."""
        self.decide(groups, [[outcome] * len(group.trajectories) for group in groups])
