"""Batches of the trajectories that many threads of one client submit: small ones that wait are sent in one message.

At most a few messages are in flight; a thread that finds a free place sends all waiting trajectories. At low load every
trajectory is sent at once and alone; at high load the batches grow by themselves. Large trajectories gain nothing from a batch
and are sent alone.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from computerrl.common.messages import MAX_TRAJECTORIES_PER_BATCH, Trajectory, TrajectoryReceipt

_MAX_SENDING = 2
"""Maximum number of messages in flight: one is checked and written while the next one is on its way."""
_SMALL_BYTES = 64 << 10
"""Maximum bytes of a trajectory that may share a message."""


Send = Callable[[Sequence[Trajectory]], Sequence[TrajectoryReceipt]]
"""Sends one or more trajectories and returns their receipts, in order."""


@dataclass(slots=True)
class _Submission:
    trajectory: Trajectory
    receipt: TrajectoryReceipt | None = None
    error: Exception | None = None


class Submissions:
    """Waiting trajectories, and the number of messages in flight."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[_Submission] = deque()
        self._num_sending = 0

    def submit(self, trajectory: Trajectory, send: Send) -> TrajectoryReceipt:
        """Blocks until there is a receipt. Raises the error of ``send``, in all threads whose trajectories shared the message."""
        if trajectory.num_bytes > _SMALL_BYTES:
            return send([trajectory])[0]
        mine = _Submission(trajectory)
        with self._changed:
            self._waiting.append(mine)
            while mine.receipt is None and mine.error is None:
                if self._waiting and self._num_sending < _MAX_SENDING:
                    self._send_waiting(send)
                else:
                    self._changed.wait()
        if mine.error is not None:
            try:
                raise mine.error
            finally:
                del mine  # The error's traceback knows this frame: a cycle would keep all of it.
        assert mine.receipt is not None
        return mine.receipt

    def _send_waiting(self, send: Send) -> None:
        """Send the waiting trajectories. The caller holds the lock; it is released while the message is on its way."""
        together = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_TRAJECTORIES_PER_BATCH))]
        self._num_sending += 1
        self._changed.release()
        receipts: Sequence[TrajectoryReceipt] = ()
        failure: Exception | None = None
        try:
            receipts = send([one.trajectory for one in together])
        except Exception as error:  # noqa: BLE001 - whatever it is, it is raised again in every thread that waits for this message
            failure = error
        self._changed.acquire()
        for number, one in enumerate(together):
            one.receipt, one.error = (None, failure) if failure is not None else (receipts[number], None)
        self._num_sending -= 1
        self._changed.notify_all()
