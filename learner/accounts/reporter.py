"""The learner's figures for people: a line for each update, the run's summary, and the figures of the heartbeat."""

from __future__ import annotations

from computerrl.common import log
from computerrl.common.errors import ComputerRLError
from computerrl.common.messages import Status
from computerrl.learner.accounts import summary
from computerrl.learner.accounts.books import Books
from computerrl.learner.contracts import Neighbours
from computerrl.learner.recipe.budget import RunBudget
from computerrl.learner.recipe.entropulse import PhaseMachine

STATUS_TIMEOUT_S = 5.0
"""Time for the broker to return its counters for a metrics line; without them the line is written all the same."""


class Reporter:
    """Collects figures from the books, the broker and the budget. Decides nothing."""

    def __init__(self, around: Neighbours, books: Books, *, budget: RunBudget, machine: PhaseMachine) -> None:
        self._around = around
        self._books = books
        self._state = books.state
        self._budget = budget
        self._machine = machine
        self._gauges: dict[str, float] = {}

    def update(self, update: summary.Update) -> None:
        """Write the line of ``update``."""
        state, records = self._state, self._books.records
        fields = summary.update_fields(state, update, status=self._status(), ledger=self._books.ledger)
        fields |= {"time_left_s": self._budget.time_left_s(), "entropy_ema": self._machine.entropy_ema}
        records.event("update", **fields)
        records.scalars(state.update, {f"learner/{name}": value for name, value in fields.items()})
        self._gauges = summary.gauges(fields)
        log.get_logger().info("update.done", **{name: fields[name] for name in summary.LOGGED})
        cut = update.cut
        if cut.stall_end == "budget":
            log.get_logger().warning("stall.in_vain", update=state.update, stall_s=cut.stall_s, num_groups=cut.num_groups)

    def summary(self, *, families: tuple[str, ...], num_restarts: int) -> None:
        """Write the summary of the run."""
        fields = summary.summary_fields(
            self._state,
            self._books.ledger,
            status=self._status(),
            num_rounds=self._machine.num_rounds,
            num_restarts=num_restarts,
            families=families,
        )
        self._books.records.event("summary", **fields)
        log.get_logger().info("run.finished", **{name: fields[name] for name in summary.SUMMARY_LOGGED})

    def metrics(self) -> dict[str, float]:
        """Figures of the heartbeat; called from its thread."""
        found = {**self._gauges, "learner/update": float(self._state.update)}
        found["learner/policy_version"] = float(self._state.policy_version)
        left_s = self._budget.time_left_s()
        if left_s is not None:
            found["learner/time_left_s"] = left_s
        return found | self._around.weights.metrics()

    def _status(self) -> Status | None:
        try:
            return self._around.broker.status(timeout_s=STATUS_TIMEOUT_S)
        except ComputerRLError as error:
            log.get_logger().warning("status.failed", error=error.code)
            return None
