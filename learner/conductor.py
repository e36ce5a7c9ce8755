"""The conductor: walks the recipe's phases, one bounded unit of work per `tick`, and survives being killed between any two.

    tick ─► rollouts: take a group, count it           ─► all orders whole ─► next phase
         ─► sft:      one optimizer step               ─► pool done        ─► publish, next phase
         ─► rl:       take a group; the batch is whole ─► update, announce, publish, maybe checkpoint, maybe next phase

Groups are taken strictly by number. The outcome of each is recorded when it is decided, and a checkpoint covers exactly the
groups below its cursor; the broker delivers the others again. So along the surviving lineage every trajectory is recorded
once. Owns no sockets and no threads: broker, trainer and weights are given to it. The work of a phase is in `learner.phases`.
"""

from __future__ import annotations

from collections.abc import Sequence

from computerrl.common import log
from computerrl.common.config import RunConfig
from computerrl.common.messages import RolloutOrder
from computerrl.common.run_files.recordings import recorded_seeds
from computerrl.learner.accounts.books import Books
from computerrl.learner.accounts.reporter import Reporter
from computerrl.learner.algorithms.base import WantsGuidance, WantsTargets
from computerrl.learner.checkpoints.checkpoint import Checkpoint
from computerrl.learner.contracts import Neighbours
from computerrl.learner.objective.memory import Remembers
from computerrl.learner.phases.aids import Aids
from computerrl.learner.phases.rl import RlWork, Updates
from computerrl.learner.phases.rollouts import RolloutTallies, RolloutWork, RoundCheck
from computerrl.learner.phases.saver import Saver
from computerrl.learner.phases.sft import SftWork
from computerrl.learner.phases.versions import PolicyVersions
from computerrl.learner.phases.work import Ended, NoWork, PhaseTimer, PhaseWork
from computerrl.learner.recipe import orders, recipe
from computerrl.learner.recipe.budget import RunBudget
from computerrl.learner.recipe.entropulse import PhaseMachine
from computerrl.learner.recipe.lineage import Lineage
from computerrl.learner.recipe.state import LoopState
from computerrl.learner.rewards import Rewards
from computerrl.learner.rewards.setting import setting_of
from computerrl.learner.supervised import sft
from computerrl.learner.supervised.pool import Pools


class LearnerLoop:
    """See the module's docstring. Made by `begun`; call `tick` until `finished`."""

    def __init__(
        self, config: RunConfig, around: Neighbours, *, families: Sequence[str], state: LoopState, lineage: Lineage
    ) -> None:
        """A loop that stands before the phase it begins or continues with."""
        algorithm = around.trainer.algorithm
        self._config = config
        self._around = around
        self._families = tuple(families)
        self.state = state
        self.pools = Pools.of(
            config,
            recorded_seeds(config.tasks, families),
            memory=algorithm.memory if isinstance(algorithm, Remembers) else None,
        )
        self._timer = PhaseTimer(state, around.clock)
        self._budget = RunBudget(config, state, num_families=len(self._families))
        self._machine = PhaseMachine(config.learner.entropulse)
        self._versions = PolicyVersions(state, around, lineage=lineage)
        self._books = Books.open(config, state, around)
        self._rewards = Rewards.of(config.learner.rewards, setting_of(config, around.folder), algorithm=algorithm)
        self._saver = Saver(around, self._books, pools=self.pools, machine=self._machine)
        self._reporter = Reporter(around, self._books, budget=self._budget, machine=self._machine)
        self._phase = recipe.NO_PHASE
        self._work: PhaseWork = NoWork()

    @classmethod
    def begun(
        cls,
        config: RunConfig,
        around: Neighbours,
        *,
        families: Sequence[str],
        announced_version: int,
        checkpoint: Checkpoint | None,
        start_s: float = 0.0,
    ) -> LearnerLoop:
        """A loop that continues from ``checkpoint``, or begins a fresh run when there is none.

        ``announced_version``: highest version the broker ever heard of; a number is never used for two sets of weights.
        ``start_s``: seconds since the run was started; a resumed run continues its checkpoint's count.
        """
        if checkpoint is not None:
            return cls.resumed(config, around, families=families, announced_version=announced_version, checkpoint=checkpoint)
        return cls.fresh(config, around, families=families, announced_version=announced_version, start_s=start_s)

    @classmethod
    def fresh(
        cls, config: RunConfig, around: Neighbours, *, families: Sequence[str], announced_version: int, start_s: float
    ) -> LearnerLoop:
        """A loop in the first phase of the recipe. For the arguments see `begun`."""
        recorded = recorded_seeds(config.tasks, families)
        state = LoopState(
            next_seed=config.first_seed("training"),
            policy_version=announced_version + 1,
            recorded=recorded,
            run_s=start_s,
            start_s=start_s,
        )
        loop = cls(config, around, families=families, state=state, lineage=Lineage())
        loop._versions.publish_first()
        first = recipe.first_phase(config, temperature=loop._temperature, recorded=recorded)
        loop._enter(first, reason="start of the run")
        return loop

    @classmethod
    def resumed(
        cls, config: RunConfig, around: Neighbours, *, families: Sequence[str], announced_version: int, checkpoint: Checkpoint
    ) -> LearnerLoop:
        """A loop in the phase that ``checkpoint`` was made in. For the arguments see `begun`."""
        state = LoopState.from_json(checkpoint.state["loop"])
        base = state.policy_version
        state.policy_version = max(announced_version, base) + 1
        lineage = Lineage.load(around.folder.lineage).resumed(base=base, resumed_at=state.policy_version)
        loop = cls(config, around, families=families, state=state, lineage=lineage)
        loop._saver.restore(checkpoint)
        lineage.store(around.folder.lineage)
        loop._versions.publish()
        log.get_logger().info(
            "learner.resumed",
            checkpoint=checkpoint.number,
            phase=state.phase,
            update=state.update,
            policy_version=state.policy_version,
            cursor=state.cursor,
        )
        phase = recipe.phase_named(
            state.phase, config, first_seed=state.next_seed, temperature=loop._temperature, recorded=state.recorded
        )
        loop._begin(loop._budget.planned(phase))
        return loop

    @property
    def _temperature(self) -> float:
        return self._around.trainer.algorithm.temperature

    @property
    def finished(self) -> bool:
        """The recipe is done."""
        return self._phase.kind == "done" and self.state.phase == recipe.DONE

    @property
    def is_checking(self) -> bool:
        """Threads check the screenshots of a group: a tick that had nothing to do will have."""
        return self._books.intake.is_checking

    @property
    def note(self) -> str:
        """The learner's present work and its progress, for the heartbeat, whose thread reads it."""
        return self._work.note

    def tick(self) -> bool:
        """Do one bounded unit of work; False when there was nothing to do (call again in a moment)."""
        self._timer.count(self._phase.kind)
        self._saver.report_consumption()
        done = self._work.tick()
        if isinstance(done, Ended):
            self._leave(done)
            return True
        return done

    def checkpoint(self, *, wait: bool = False) -> None:
        """Save everything as it is now; in the background unless ``wait``."""
        self._saver.save(wait=wait)

    def metrics(self) -> dict[str, float]:
        """Figures of the heartbeat; called from its thread."""
        return self._reporter.metrics()

    def close(self) -> None:
        """Finish the checkpoint being written and close the files."""
        self._rewards.close()
        self._books.intake.close()
        self._around.checkpoints.close()
        self._books.records.close()

    # --- from phase to phase -----------------------------------------------------------------------------------------

    def _leave(self, ended: Ended) -> None:
        """Enter the phase after the present one."""
        self._versions.publish_latest()
        following = recipe.phase_after(
            self._phase,
            self._config,
            sft_round=ended.sft_round,
            next_seed=self.state.next_seed,
            temperature=self._temperature,
            recorded=self.state.recorded,
        )
        self._enter(following, reason=ended.reason)

    def _enter(self, phase: recipe.Phase, *, reason: str) -> None:
        state = self.state
        self._timer.end_phase()
        close_orders = self._work.close()
        phase = self._budget.planned(phase)
        orders.enter(state, list(map(self._order, phase.orders)), close_present=close_orders)
        state.ends_s = []
        state.phase = phase.name
        state.sft_done, state.sft_max_samples = 0, self._budget.samples_of_round() if phase.kind == "sft" else None
        if phase.kind == "rl":
            self._machine.start_phase(after_sft=phase.name != "rl-1")
        for name in [plan.order_id for plan in phase.orders] or [phase.name]:
            self._books.records.event("phase", phase=name, reason=reason, policy_version=state.policy_version)
        log.get_logger().info("phase.entered", phase=phase.name, reason=reason, policy_version=state.policy_version)
        if phase.kind == "done":
            self._finish()
        if phase.name.startswith("sft-"):
            state.before_round = self._around.checkpoints.next_number
        elif not recipe.is_check(phase.name):
            state.before_round = None
        # On disk before the broker closes or opens anything: a resumed learner finds orders and phase in agreement.
        self.checkpoint(wait=True)
        self._begin(phase)

    def _begin(self, phase: recipe.Phase) -> None:
        """Begin, or begin again, the work of ``phase``."""
        orders.open_all(self.state, self._around.broker)
        self._phase = phase
        self._work = self._work_of(phase)

    def _order(self, plan: recipe.OrderPlan) -> RolloutOrder:
        algorithm = self._around.trainer.algorithm
        return plan.to_message(
            self._config,
            self._families,
            policy_version=self.state.policy_version,
            update=self.state.update,
            num_patches=algorithm.num_patches if isinstance(algorithm, WantsGuidance) else None,
            with_targets=isinstance(algorithm, WantsTargets) and algorithm.wants_targets,
            with_facts=self._rewards.wants_facts,
        )

    def _work_of(self, phase: recipe.Phase) -> PhaseWork:
        config, around, books = self._config, self._around, self._books
        if phase.kind == "rollouts":
            demonstrations = self.pools.demonstrations
            return RolloutWork(
                phase,
                books,
                tallies=RolloutTallies(phase, books, families=self._families, demonstrations=demonstrations),
                budget=self._budget,
                timer=self._timer,
                round_check=RoundCheck(around, books, versions=self._versions),
            )
        if phase.kind == "sft":
            sft_round = sft.make_round(
                phase.name,
                config,
                demonstrations=self.pools.demonstrations,
                successes=self.pools.successes,
                success=self.state.success_ema or 0.0,
                max_samples=self.state.sft_max_samples,
                num_done=self.state.sft_done,
            )
            rl_lr = config.learner.optimizer.lr
            return SftWork(around, books, sft_round=sft_round, versions=self._versions, saver=self._saver, rl_lr=rl_lr)
        if phase.kind == "rl":
            aids = Aids(config, self.state, families=self._families, broker=around.broker, pools=self.pools)
            return RlWork(
                config,
                around,
                books,
                updates=Updates(
                    config, around, books, versions=self._versions, aids=aids, pools=self.pools, rewards=self._rewards
                ),
                budget=self._budget,
                machine=self._machine,
                reporter=self._reporter,
                saver=self._saver,
            )
        return NoWork(phase.name)

    def _finish(self) -> None:
        """Take the groups that are left, write the summary."""
        intake = self._books.intake
        while (group := intake.fetch(wait=True)) is not None:
            intake.decide_all([group], "phase_closed")
        self._reporter.summary(families=self._families, num_restarts=len(self._versions.lineage.breaks))
