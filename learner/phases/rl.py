"""RL phases: take groups, cut batches, update, until a limit is reached, a person asks, or Entropulse pauses RL for a round."""

from __future__ import annotations

from computerrl.common import log
from computerrl.common.config import RunConfig
from computerrl.common.messages import TrajectoryGroup
from computerrl.common.run_files import requests
from computerrl.learner.accounts import summary
from computerrl.learner.accounts.books import Books
from computerrl.learner.accounts.reporter import Reporter
from computerrl.learner.algorithms.base import Algorithm, SamplesDynamically
from computerrl.learner.algorithms.contract import blaming
from computerrl.learner.contracts import Neighbours
from computerrl.learner.objective.memory import Remembers
from computerrl.learner.phases.aids import Aids
from computerrl.learner.phases.saver import Saver
from computerrl.learner.phases.versions import PolicyVersions
from computerrl.learner.phases.work import Ended, Tick
from computerrl.learner.recipe.budget import RunBudget
from computerrl.learner.recipe.entropulse import PhaseMachine
from computerrl.learner.recipe.pacing import Cut, Pacer
from computerrl.learner.recipe.state import Tally
from computerrl.learner.rewards import Rewards
from computerrl.learner.supervised.pool import Pools
from computerrl.learner.training.batch_check import make_batch


class Updates:
    """Cuts batches out of the groups that were taken, and trains on them."""

    def __init__(
        self,
        config: RunConfig,
        around: Neighbours,
        books: Books,
        *,
        versions: PolicyVersions,
        aids: Aids,
        pools: Pools,
        rewards: Rewards,
    ) -> None:
        self._rewards = rewards
        self._learner = config.learner
        self._trainer = around.trainer
        self._state = books.state
        self._intake = books.intake
        self._ledger = books.ledger
        self._versions = versions
        self._aids = aids
        self._successes = pools.successes
        self._pacer = make_pacer(config, self._trainer.algorithm)

    @property
    def is_stalling(self) -> bool:
        """Is an update waiting that has groups enough?"""
        return self._pacer.is_stalling

    @property
    def num_successes(self) -> int:
        """Successful episodes that are kept for supervised rounds."""
        return self._successes.num_episodes

    def begin_rewards(self, group: TrajectoryGroup) -> None:
        """``group`` was taken: rewards that take time begin."""
        self._rewards.begin(group)

    def cut(self, *, now_s: float, may_wait: bool) -> Cut | None:
        """The next batch, when it is whole. ``may_wait``: for steps that would be too old for the update after it."""
        return self._pacer.cut(
            self._intake.current(),
            self._intake.in_flight,
            version=self._state.policy_version,
            lineage=self._versions.lineage,
            now=now_s,
            may_wait=may_wait,
        )

    def train(self, cut: Cut, *, waited_s: float) -> summary.Update:
        """Train on the batch ``cut``, record the outcome of every trajectory in it, and number the new weights. ``waited_s``:
        time since the update before it, for the record."""
        state, trainer, age_bound = self._state, self._trainer, self._learner.age_bound
        state.stall_s += cut.stall_s
        taken, groups = self._intake.batch(cut.num_groups)
        self._aids.keep(taken)
        state.update += 1
        tally = self._tally(groups)
        self._aids.order(groups)
        groups, of_rewards = self._rewards.pay(groups)
        batch = make_batch(trainer, groups, ages=self._versions.ages(), age_bound=age_bound)
        metrics = trainer.update(self._aids.add_to(batch, update=state.update)) | of_rewards
        if isinstance(trainer.algorithm, Remembers):
            with blaming(trainer.algorithm, "remember"):
                trainer.algorithm.remember(groups)
        trained = summary.TrainedSteps(batch, age_bound=age_bound, skipped=trainer.skipped)
        outcomes, spans = trained.outcomes(taken, groups)
        self._intake.decide(taken, outcomes, spans, trained.advantages(groups))
        self._ledger.note_age_trained(trained.max_age_trained)
        # The version goes up once per batch whether or not anything in it trained: the staleness bound counts batches.
        self._versions.advance(publish=state.update % self._learner.publish_every_updates == 0)
        entropy = None if batch.replayed_S.all() else metrics.get("entropy")
        return summary.Update(cut=cut, waited_s=waited_s, tally=tally, trained=trained, metrics=metrics, entropy=entropy)

    def close(self) -> None:
        """Record what was taken and not trained; give up the demonstrations that were ordered and have not come."""
        self._intake.close_phase()
        self._aids.close()

    def _tally(self, groups: list[TrajectoryGroup]) -> Tally:
        """Outcomes of the batch's rollouts; successes are kept for supervised rounds."""
        tally = Tally()
        for trajectory in (trajectory for group in groups for trajectory in group.trajectories):
            tally.add(trajectory.task.family, success=trajectory.success)
            if trajectory.success:
                self._successes.add(trajectory)
        self._state.note_success(tally)
        return tally


class RlWork:
    """Takes groups and updates on whole batches; decides after each update whether the phase goes on."""

    def __init__(
        self,
        config: RunConfig,
        around: Neighbours,
        books: Books,
        *,
        updates: Updates,
        budget: RunBudget,
        machine: PhaseMachine,
        reporter: Reporter,
        saver: Saver,
    ) -> None:
        self._checkpoint_every = config.learner.checkpoint_every_updates
        self._folder = around.folder.folder
        self._state = books.state
        self._intake = books.intake
        self._updates = updates
        self._budget = budget
        self._machine = machine
        self._reporter = reporter
        self._saver = saver
        self._clock = around.clock
        self._last_s = self._clock()
        """End of the update before the next one, or the beginning of the phase."""
        self.note = self._state.phase

    def tick(self) -> Tick:
        """Take one group; update when the batch is whole."""
        reason = self._budget.reason_to_end_rl()
        if reason and not self._updates.is_stalling:
            return Ended(reason)
        asked = self._requested()
        if asked is not None:
            return asked
        group = self._intake.fetch()
        if group is not None:
            self._intake.taken.append(group)
            self._updates.begin_rewards(group)
        cut = self._updates.cut(now_s=self._clock(), may_wait=not reason)
        return group is not None if cut is None else self._update(cut)

    def close(self) -> bool:
        self._updates.close()
        return True

    def _update(self, cut: Cut) -> Tick:
        update = self._updates.train(cut, waited_s=self._clock() - self._last_s)
        self._machine.observe(entropy=update.entropy, success=update.tally.success)
        self._reporter.update(update)
        self._last_s = self._clock()
        if self._state.update % self._checkpoint_every == 0:
            self._saver.save()
        if self._budget.reason_to_end_rl():
            return True
        return self._pause_for_round(self._machine.reason_to_switch(budget_used=self._budget.rl_used())) or True

    def _requested(self) -> Ended | None:
        """Carry out the request of a person (`common.run_files.requests`), if there is one."""
        request = requests.asked(self._folder, "phase")
        if not request:
            return None
        requests.withdraw(self._folder, "phase")
        log.get_logger().info("phase.requested", request=request)
        if request == "finish":
            return Ended("asked for by a person")
        if request == "sft":
            return self._pause_for_round("asked for by a person")
        log.get_logger().warning("phase.request_unknown", request=request)
        return None

    def _pause_for_round(self, reason: str) -> Ended | None:
        """End the phase for a supervised round for ``reason`` (empty: none), if there is anything to train on."""
        if not reason:
            return None
        if not self._updates.num_successes:
            log.get_logger().warning("sft.declined", reason=reason, cause="no successful trajectory yet")
            return None
        return Ended(reason, sft_round=True)


def make_pacer(config: RunConfig, algorithm: Algorithm) -> Pacer:
    """The pacer of a phase; of an algorithm that samples dynamically, batches are whole with enough groups that teach."""
    if not isinstance(algorithm, SamplesDynamically):
        return Pacer(config, teaches=None)

    def teaches(group: TrajectoryGroup) -> bool:
        with blaming(algorithm, "teaches"):
            return bool(algorithm.teaches(group))

    return Pacer(config, teaches=teaches)
