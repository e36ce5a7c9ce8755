"""Policy versions: one number for each set of weights, announced to the broker before any engine can sample with it.

A number is on the broker's disk before its weights go out, so a successor of this process never gives other weights the same one.
"""

from __future__ import annotations

from computerrl.learner.contracts import Neighbours
from computerrl.learner.objective.ages import PolicyAges
from computerrl.learner.recipe.lineage import Lineage
from computerrl.learner.recipe.state import LoopState


class PolicyVersions:
    """Numbers, announces and publishes the trainer's weights. The present number is `LoopState.policy_version`."""

    def __init__(self, state: LoopState, around: Neighbours, *, lineage: Lineage) -> None:
        """``lineage``: all restarts, with that of this process."""
        self.lineage = lineage
        self._state = state
        self._around = around
        self._published = -1

    def publish_first(self) -> None:
        """Announce and publish the weights that this process begins with. Version 0 is the base model, which engines have."""
        version = self._state.policy_version
        if version:
            self.publish()
            return
        self._announce()
        self._around.weights.publish_base(version, probe_logprobs=self._around.trainer.probe_logprobs())
        self._published = version

    def advance(self, *, publish: bool) -> None:
        """Give the present weights the next number; ``publish``: send them to the engines too."""
        self._state.policy_version += 1
        self._announce()
        if publish:
            self._send()

    def publish(self) -> None:
        """Announce the present number and send its weights to the engines."""
        self._announce()
        self._send()

    def publish_latest(self) -> None:
        """Send the present weights to the engines, unless they have been sent."""
        if self._published != self._state.policy_version:
            self._send()

    def ages(self) -> PolicyAges:
        """Ages of tokens as seen from the present weights."""
        return self.lineage.ages(self._state.policy_version)

    def _announce(self) -> None:
        self._around.broker.announce_version(self._state.policy_version, group_seq=self._state.cursor)

    def _send(self) -> None:
        version, trainer = self._state.policy_version, self._around.trainer
        self._around.weights.publish(version, trainer.trainable_tensors(), probe_logprobs=trainer.probe_logprobs())
        self._published = version
