"""The conductor: walks the recipe's phases, one bounded unit of work per `tick`, and survives being killed between any two.

    tick ─► rollouts: take a group, count it           ─► all orders whole ─► next phase
         ─► sft:      one optimizer step               ─► pool done        ─► publish, next phase
         ─► rl:       take a group; the batch is whole ─► update, announce, publish, maybe checkpoint, maybe next phase

Groups are taken strictly by number. What became of each is recorded when it is decided, and a checkpoint covers exactly the
groups below its cursor; the broker delivers the others again. So along the surviving lineage every trajectory is recorded
once. Owns no sockets and no threads: broker, trainer and weights are given to it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from computerrl.common import log
from computerrl.common.clock import Clock
from computerrl.common.config import RunConfig
from computerrl.common.errors import ComputerRLError, ResumeError
from computerrl.common.messages import Status, TrajectoryGroup
from computerrl.common.run_files import requests
from computerrl.common.run_files.recordings import recorded_seeds
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.learner.accounts import summary
from computerrl.learner.accounts.intake import Intake
from computerrl.learner.accounts.ledger import Ledger
from computerrl.learner.accounts.records import Records
from computerrl.learner.accounts.rollouts import Rollouts
from computerrl.learner.aids import Aids
from computerrl.learner.algorithms.base import SamplesDynamically, WantsGuidance
from computerrl.learner.algorithms.contract import blaming
from computerrl.learner.checkpoints.checkpoint import TRAINER, Checkpoint, CheckpointStore, trainer_state
from computerrl.learner.client import WeightSink
from computerrl.learner.contracts import Broker, Trainer
from computerrl.learner.objective.memory import Remembers, Stored
from computerrl.learner.recipe import limits, orders
from computerrl.learner.recipe import phases as recipe
from computerrl.learner.recipe.entropulse import PhaseMachine
from computerrl.learner.recipe.lineage import Lineage
from computerrl.learner.recipe.pacing import Cut, Pacer
from computerrl.learner.recipe.state import LoopState, Tally
from computerrl.learner.supervised import sft
from computerrl.learner.supervised.pool import EpisodePool, pack_run, unpack_run
from computerrl.learner.training.batch_check import make_batch

STATUS_TIMEOUT_S = 5.0
"""For the broker's counters in a metrics line; without an answer the line goes without them."""

POOL_PER_FAMILY = 256
"""Episodes kept per family for SFT rounds: several times what a round draws, a few MB."""


class LearnerLoop:
    """See the module's docstring. Call `begin` once, then `tick` until `finished`."""

    def __init__(
        self,
        config: RunConfig,
        *,
        families: Sequence[str],
        broker: Broker,
        trainer: Trainer,
        weights: WeightSink,
        folder: RunFolder,
        checkpoints: CheckpointStore,
        clock: Clock = time.monotonic,
        start_s: float = 0.0,
    ) -> None:
        """``start_s``: seconds that have passed since the run was started; a resumed one goes on from its checkpoint's count."""
        self._config = config
        self._families = tuple(families)
        self._broker = broker
        self._trainer = trainer
        self._weights = weights
        self._folder = folder
        self._checkpoints = checkpoints
        self._clock = clock
        recorded = recorded_seeds(config.tasks, families)
        self.state = LoopState(next_seed=config.first_seed("training"), recorded=recorded, run_s=start_s, start_s=start_s)
        self.note = ""
        """What the learner is doing and how far it is, for the heartbeat, whose thread reads it."""
        self._phase = recipe.Phase("", "done")
        self._records: Records
        self._ledger: Ledger
        self._intake: Intake
        self._rollouts: Rollouts
        self._aids: Aids
        self._lineage = Lineage()
        self._pacer = self._make_pacer()
        self._machine = PhaseMachine(config.learner.entropulse)
        limits_of_pools = (
            recipe.max_demonstrations(config, recorded),
            max(1, config.learner.recipe.demos_of_failures),
            POOL_PER_FAMILY,
        )
        self._demonstrations, self._demonstrated_failures, self._successes = (
            EpisodePool(seed=config.seed, max_per_family=limit, with_pictures=trainer.check_picture is not None)
            for limit in limits_of_pools
        )
        self._round: sft.SftRound | None = None
        self._saved_revision = -1
        """`Trainer.revision` in the newest checkpoint."""
        self._saved_trainer: Any = None
        """The trainer's part of the newest checkpoint's tree."""
        self._reported_cursor = 0
        self._last_tick = clock()
        self._last_update = clock()
        self._phase_started_s = 0.0
        self._published_version = -1
        self._gauges: dict[str, float] = {}

    # --- beginning ---------------------------------------------------------------------------------------------------

    def begin(self, *, announced_version: int, checkpoint: Checkpoint | None) -> None:
        """Start a fresh run, or continue from ``checkpoint``.

        ``announced_version``: highest version the broker ever heard of; a number is never used for two sets of weights.
        """
        self._last_tick = self._clock()
        if checkpoint is not None:
            self._restore(checkpoint)
        self._records = Records(self._folder, positions=self.state.positions, has_wandb=self._config.metrics.wandb)
        self._ledger = Ledger(self._records.ledger_line)
        if checkpoint is not None:
            self._ledger.restore(self.state.ledger)
        self._intake = Intake(
            self.state,
            broker=self._broker,
            ledger=self._ledger,
            records=self._records,
            vocabulary_size=self._trainer.vocabulary_size,
            check_picture=self._trainer.check_picture,
        )
        self._rollouts = Rollouts(self.state, families=self._families, records=self._records, demonstrations=self._demonstrations)
        self._aids = Aids(
            self._config,
            self.state,
            families=self._families,
            broker=self._broker,
            cloned=self._demonstrations,
            pool=self._demonstrated_failures,
        )
        base = self.state.policy_version
        self.state.policy_version = max(announced_version, base) + 1
        if checkpoint is None:
            if self.state.policy_version == 0:
                self._announce()
                self._weights.publish_base(0, probe_logprobs=self._trainer.probe_logprobs())
                self._published_version = 0
            else:
                self._publish()
            first = recipe.first_phase(self._config, temperature=self._temperature, recorded=self.state.recorded)
            self._enter(first, reason="start of the run")
            return
        self._lineage = Lineage.load(self._folder.lineage).resumed(base=base, resumed_at=self.state.policy_version)
        self._lineage.store(self._folder.lineage)
        self._publish()
        log.get_logger().info(
            "learner.resumed",
            checkpoint=checkpoint.number,
            phase=self.state.phase,
            update=self.state.update,
            policy_version=self.state.policy_version,
            cursor=self.state.cursor,
        )
        self._phase = self._planned(
            recipe.phase_named(
                self.state.phase,
                self._config,
                first_seed=self.state.next_seed,
                temperature=self._temperature,
                recorded=self.state.recorded,
            )
        )
        self._carry_on()

    def _restore(self, checkpoint: Checkpoint) -> None:
        self.state = LoopState.from_json(checkpoint.state["loop"])
        self._trainer.load_state_dict(unpack_run(checkpoint, self._pools()))
        self._machine.restore(self.state.entropulse)
        self._phase_started_s = self.state.run_s

    def _pools(self) -> dict[str, Stored]:
        pools: dict[str, Stored] = {
            "demonstrations": self._demonstrations,
            "aids": self._demonstrated_failures,
            "successes": self._successes,
        }
        algorithm = self._trainer.algorithm
        return {**pools, "memory": algorithm.memory} if isinstance(algorithm, Remembers) else pools

    @property
    def _temperature(self) -> float:
        return self._trainer.algorithm.temperature

    @property
    def _num_patches(self) -> int | None:
        algorithm = self._trainer.algorithm
        return algorithm.num_patches if isinstance(algorithm, WantsGuidance) else None

    # --- phases ------------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """The recipe is done."""
        return self._phase.kind == "done" and self.state.phase == recipe.DONE

    def _leave(self, reason: str, *, sft_round: bool = False) -> None:
        """Go on to the phase after this one."""
        if self._published_version != self.state.policy_version:
            self._hand_out()
        following = recipe.phase_after(
            self._phase,
            self._config,
            sft_round=sft_round,
            next_seed=self.state.next_seed,
            temperature=self._temperature,
            recorded=self.state.recorded,
        )
        self._enter(following, reason=reason)

    def _enter(self, phase: recipe.Phase, *, reason: str) -> None:
        state = self.state
        if state.phase:
            spent = state.phase_seconds.get(state.phase, 0.0) + state.run_s - self._phase_started_s
            state.phase_seconds[state.phase] = round(spent, 3)
        if self._phase.kind == "rl":
            self._intake.close_phase()
            self._aids.close()
            self._pacer = self._make_pacer()
        phase = self._planned(phase)
        placed = [
            plan.to_message(
                self._config,
                self._families,
                policy_version=state.policy_version,
                update=state.update,
                num_patches=self._num_patches,
            )
            for plan in phase.orders
        ]
        is_cut = self._phase.kind == "rollouts" and any(self._rollouts.num_missing(order) for order in self._phase.orders)
        orders.enter(state, placed, close_present=self._phase.kind == "rl" or is_cut)
        self._phase_started_s = state.run_s
        state.ends_s = []
        self._phase = phase
        state.phase = phase.name
        if phase.kind == "rl":
            self._machine.start_phase(after_sft=phase.name != "rl-1")
        for name in [plan.order_id for plan in phase.orders] or [phase.name]:
            self._records.event("phase", phase=name, reason=reason, policy_version=state.policy_version)
        log.get_logger().info("phase.entered", phase=phase.name, reason=reason, policy_version=state.policy_version)
        if phase.kind == "done":
            self._finish()
        if phase.name.startswith("sft-"):
            state.before_round = self._checkpoints.next_number
        # On disk before the broker closes or opens anything: whoever resumes finds orders and phase in agreement.
        self.checkpoint(wait=True)
        self._carry_on()

    def _planned(self, phase: recipe.Phase) -> recipe.Phase:
        """``phase`` with the evaluations that the time left has room for; decided once."""
        rollouts = len(self._families) * self._config.learner.recipe.eval_rollouts_per_task
        planned = []
        for order in phase.orders:
            if order.kind == "evaluation":
                number = self.state.planned.setdefault(
                    order.order_id,
                    limits.planned_episodes(
                        order.order_id,
                        order.num_per_family or 0,
                        num_episodes_each=rollouts,
                        state=self.state,
                        limits=self._config.learner.recipe,
                    ),
                )
                if number < (order.num_per_family or 0):
                    log.get_logger().warning(
                        "evaluation.shortened", phase=order.order_id, episodes_per_family=number, wanted=order.num_per_family
                    )
                planned.append(replace(order, num_per_family=number))
            else:
                planned.append(order)
        return replace(phase, orders=tuple(planned))

    @property
    def _num_evaluated_last(self) -> int:
        """Episodes of the last evaluation, as far as is known."""
        settings = self._config.learner.recipe
        each = len(self._families) * settings.eval_rollouts_per_task
        return each * limits.planned_episodes(
            recipe.EVAL_AFTER_RL, settings.eval_episodes_per_family, num_episodes_each=each, state=self.state, limits=settings
        )

    def _carry_on(self) -> None:
        """Begin, or begin again, the work of the present phase."""
        orders.open_all(self.state, self._broker)
        self._last_update = self._clock()
        self.note = self._rollouts.progress(self._phase) or self.state.phase
        if self._phase.kind == "sft":
            self._begin_sft()

    # --- one unit of work --------------------------------------------------------------------------------------------

    def tick(self) -> bool:
        """Do one bounded unit of work; False when there was nothing to do (ask again in a moment)."""
        self._count_time()
        self._report_consumption()
        if self._phase.kind == "rollouts":
            return self._tick_rollouts()
        if self._phase.kind == "sft":
            return self._tick_sft()
        if self._phase.kind == "rl":
            return self._tick_rl()
        return False

    def _make_pacer(self) -> Pacer:
        algorithm = self._trainer.algorithm
        if not isinstance(algorithm, SamplesDynamically):
            return Pacer(self._config, teaches=None)

        def teaches(group: TrajectoryGroup) -> bool:
            with blaming(algorithm, "teaches"):
                return bool(algorithm.teaches(group))

        return Pacer(self._config, teaches=teaches)

    def _count_time(self) -> None:
        now = self._clock()
        passed, self._last_tick = now - self._last_tick, now
        self.state.run_s += passed
        is_round = self.state.phase.startswith("sft-") or recipe.is_check(self.state.phase)
        if self._phase.kind == "rl" or is_round:
            self.state.rl_s += passed
            self.state.round_s += passed if is_round else 0.0

    # --- rollouts: demonstrations and evaluations --------------------------------------------------------------------

    def _tick_rollouts(self) -> bool:
        if not any(self._rollouts.num_missing(order) for order in self._phase.orders):
            self._note_pace()
            if recipe.is_check_after(self._phase.name):
                self._keep_or_take_back()
            self._leave(f"{' and '.join(order.order_id for order in self._phase.orders)} complete")
            return True
        if self._is_evaluation_overdue():
            self._note_pace()
            self._rollouts.cut(self._phase)
            self._leave(f"time for {self._phase.name} is up ({self.state.run_s:.0f} s)")
            return True
        group = self._intake.fetch()
        if group is None:
            return False
        self._intake.decide_all([group], self._rollouts.take(group, self._phase))
        if group.kind == "evaluation":
            self.state.ends_s += [self.state.run_s - self._phase_started_s] * len(group.trajectories)
        self.note = self._rollouts.progress(self._phase)
        return True

    def _keep_or_take_back(self) -> None:
        """After an Entropulse round: go on from the weights before it when fewer episodes of the check succeed than before."""
        evaluations, name = self.state.evaluations, self._phase.name
        before, after = evaluations[recipe.check_before(name)]["success"], evaluations[name]["success"]
        number, self.state.before_round = self.state.before_round, None
        taken_back = False
        if after < before and number is not None:
            try:
                self._trainer.load_state_dict(trainer_state(self._checkpoints.read(number)))
                taken_back = True
            except ResumeError as error:
                # Newer checkpoints, made because a person asked, have taken its place.
                log.get_logger().error("round.not_taken_back", checkpoint=number, error=str(error))
        if taken_back:
            self._trainer.set_reference()
            self.state.policy_version += 1
            self._publish()
        log.get_logger().info("round.checked", phase=name, before=before, after=after, taken_back=taken_back)
        self._records.event("round", phase=name, before=before, after=after, taken_back=taken_back)

    def _is_evaluation_overdue(self) -> bool:
        if self._phase.name not in recipe.EVALUATIONS:
            return False
        ends_s = limits.evaluation_ends_s(
            self._phase.name, self.state, self._config.learner.recipe, began_s=self._phase_started_s
        )
        demonstrates = any(order.kind == "demonstration" and self._rollouts.num_missing(order) for order in self._phase.orders)
        return ends_s is not None and self.state.run_s >= ends_s and not demonstrates

    def _note_pace(self) -> None:
        if self.state.ends_s:
            num_playing = self._config.actor.num_actors * self._config.actor.num_episodes
            self.state.pace = limits.pace(self.state.ends_s, num_playing=num_playing)

    # --- supervised rounds -------------------------------------------------------------------------------------------

    def _begin_sft(self) -> None:
        self._round = sft.make_round(
            self.state.phase,
            self._config,
            demonstrations=self._demonstrations,
            successes=self._successes,
            success=self.state.success_ema or 0.0,
            max_samples=limits.samples_of_round(self.state, self._config.learner),
        )
        self._trainer.change_objective(self._round.max_lr)

    def _tick_sft(self) -> bool:
        assert self._round is not None
        steps = self._round.next_batch()
        if steps is not None:
            began = self._clock()
            metrics = self._trainer.sft_step(steps, self._round.lr)
            self.state.sft_sample_s = (self._clock() - began) / len(steps)
            self._records.event(
                "sft",
                phase=self.state.phase,
                step=self._round.num_done,
                num_steps=len(self._round.batches),
                pool_digest=self._round.pool_digest,
                **metrics,
            )
            self.note = f"{self.state.phase}: step {self._round.num_done} of {len(self._round.batches)}"
            return True
        # What RL starts from is also what its KL term refers to.
        self._trainer.set_reference()
        self._trainer.change_objective(self._config.learner.optimizer.lr)
        self.state.policy_version += 1
        self._publish()
        self._leave(f"{self._round.num_done} optimizer steps done")
        return True

    # --- reinforcement learning --------------------------------------------------------------------------------------

    def _tick_rl(self) -> bool:
        reason = self._reason_to_end_rl()
        if reason and not self._pacer.is_stalling:
            self._leave(reason)
            return True
        request = requests.asked(self._folder.folder, "phase")
        if request:
            requests.withdraw(self._folder.folder, "phase")
            if self._honour(request):
                return True
        group = self._intake.fetch()
        if group is not None:
            self._intake.taken.append(group)
        cut = self._pacer.cut(
            self._intake.current(),
            self._intake.in_flight,
            version=self.state.policy_version,
            lineage=self._lineage,
            now=self._clock(),
            may_wait=not reason,
        )
        if cut is not None:
            self._update(cut)
        return group is not None or cut is not None

    def _reason_to_end_rl(self) -> str:
        return limits.reason_to_end_rl(self.state, self._config.learner.recipe, num_evaluated=self._num_evaluated_last)

    def _update(self, cut: Cut) -> None:
        """Train on the batch, publish the new version, record everything, maybe switch phase."""
        waited_s = self._clock() - self._last_update
        self.state.stall_s += cut.stall_s
        taken, groups = self._intake.batch(cut.num_groups)
        self._aids.keep(taken)
        self.state.update += 1
        ages = self._lineage.ages(self.state.policy_version)
        tally = Tally()
        for group in groups:
            for trajectory in group.trajectories:
                tally.add(trajectory.task.family, success=trajectory.success)
                if trajectory.success:
                    self._successes.add(trajectory)
        self.state.note_success(tally)
        self._aids.ask(groups)
        age_bound = self._config.learner.age_bound
        batch = make_batch(self._trainer, groups, ages=ages, age_bound=age_bound)
        metrics = self._trainer.update(self._aids.add_to(batch, update=self.state.update))
        if isinstance(self._trainer.algorithm, Remembers):
            with blaming(self._trainer.algorithm, "remember"):
                self._trainer.algorithm.remember(groups)
        trained = summary.TrainedSteps(batch, age_bound=age_bound, skipped=self._trainer.skipped)
        outcomes, spans = trained.outcomes(taken, groups)
        self._intake.decide(taken, outcomes, spans, trained.advantages(groups))
        self._ledger.note_age_trained(trained.max_age_trained)
        # The version goes up once per batch whether or not anything in it trained: the staleness bound counts batches.
        self.state.policy_version += 1
        if self.state.update % self._config.learner.publish_every_updates == 0:
            self._publish()
        else:
            self._announce()
        self._machine.observe(entropy=None if batch.replayed_S.all() else metrics.get("entropy"), success=tally.success)
        self._record_update(metrics, trained, tally, cut=cut, waited_s=waited_s)
        self._last_update = self._clock()
        if self.state.update % self._config.learner.checkpoint_every_updates == 0:
            self.checkpoint()
        if not self._reason_to_end_rl():
            used = limits.budget_used(self.state, self._config.learner.recipe, num_evaluated=self._num_evaluated_last)
            self._maybe_pulse(self._machine.reason_to_switch(budget_used=used))

    def _record_update(
        self, metrics: dict[str, float], trained: summary.TrainedSteps, tally: Tally, *, cut: Cut, waited_s: float
    ) -> None:
        status = self._status()
        fields = summary.update_fields(self.state, metrics, trained, tally, cut=cut, status=status, ledger=self._ledger)
        fields |= {"wait_s": waited_s, "time_left_s": self._time_left_s, "entropy_ema": self._machine.entropy_ema}
        self._records.event("update", **fields)
        self._records.scalars(self.state.update, {f"learner/{name}": value for name, value in fields.items()})
        self._gauges = summary.gauges(fields)
        log.get_logger().info("update.done", **{name: fields[name] for name in summary.LOGGED})
        if cut.stall_end == "budget":
            log.get_logger().warning("stall.in_vain", update=self.state.update, stall_s=cut.stall_s, num_groups=cut.num_groups)

    def _honour(self, request: str) -> bool:
        log.get_logger().info("phase.requested", request=request)
        if request == "finish":
            self._leave("asked for by a person")
            return True
        if request == "sft":
            return self._maybe_pulse("asked for by a person")
        log.get_logger().warning("phase.request_unknown", request=request)
        return False

    def _maybe_pulse(self, reason: str) -> bool:
        """Start an SFT round for ``reason`` (empty: none), if there is anything to train on."""
        if not reason:
            return False
        if self._successes.num_episodes == 0:
            log.get_logger().warning("sft.declined", reason=reason, cause="no successful trajectory yet")
            return False
        self._leave(reason, sft_round=True)
        return True

    @property
    def _time_left_s(self) -> float | None:
        return summary.time_left_s(self.state, self._config, num_evaluated=self._num_evaluated_last)

    # --- versions and checkpoints ------------------------------------------------------------------------------------

    def _publish(self) -> None:
        """Hand the present weights out as the present version, once the broker has its number on disk: a successor of this
        process will then not give other weights the same."""
        self._announce()
        self._hand_out()

    def _hand_out(self) -> None:
        self._weights.publish(
            self.state.policy_version, self._trainer.trainable_tensors(), probe_logprobs=self._trainer.probe_logprobs()
        )
        self._published_version = self.state.policy_version

    def _announce(self) -> None:
        self._broker.announce_version(self.state.policy_version, group_seq=self.state.cursor)

    def checkpoint(self, *, wait: bool = False) -> None:
        """Save everything as it is now; in the background unless ``wait``."""
        state = self.state
        state.positions = self._records.positions()
        state.entropulse = self._machine.state()
        state.ledger = self._ledger.state()
        # Most phases end without a step of the optimizer since the last checkpoint, and wait for the next: a GB less to write.
        is_saved = self._trainer.revision == self._saved_revision and self._checkpoints.has_newest()
        sections, tree = pack_run(state.to_json(), None if is_saved else self._trainer.state_dict(), self._pools())
        if is_saved:
            tree[TRAINER] = self._saved_trainer
        self._checkpoints.save(
            sections, tree, cursor=state.cursor, sync_first=self._records.paths(), unchanged=[TRAINER] if is_saved else []
        )
        self._saved_revision, self._saved_trainer = self._trainer.revision, tree[TRAINER]
        if wait:
            self._checkpoints.wait()
            self._report_consumption()

    def _report_consumption(self) -> None:
        """Tell the broker what all kept checkpoints cover, once it has grown."""
        covered = self._checkpoints.covered_cursor
        if covered > self._reported_cursor:
            self._broker.report_consumption(covered)
            self._reported_cursor = covered

    # --- figures -----------------------------------------------------------------------------------------------------

    def metrics(self) -> dict[str, float]:
        """For the heartbeat; called from its thread."""
        found = {**self._gauges, "learner/update": float(self.state.update)}
        found["learner/policy_version"] = float(self.state.policy_version)
        left = self._time_left_s
        if left is not None:
            found["learner/time_left_s"] = left
        return found | self._weights.metrics()

    def _status(self) -> Status | None:
        try:
            return self._broker.status(timeout_s=STATUS_TIMEOUT_S)
        except ComputerRLError as error:
            log.get_logger().warning("status.failed", error=error.code)
            return None

    def _finish(self) -> None:
        """Take what is left, write the summary."""
        while (group := self._intake.fetch()) is not None:
            self._intake.decide_all([group], "phase_closed")
        fields = summary.summary_fields(
            self.state,
            self._ledger,
            status=self._status(),
            num_rounds=self._machine.num_rounds,
            num_restarts=len(self._lineage.breaks),
            families=self._families,
        )
        self._records.event("summary", **fields)
        log.get_logger().info("run.finished", **{name: fields[name] for name in summary.SUMMARY_LOGGED})

    def close(self) -> None:
        """Finish the checkpoint being written and close the files."""
        self._checkpoints.close()
        self._records.close()
