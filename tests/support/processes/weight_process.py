"""Receivers for test_weight_broadcast: real `WeightReceiver`s with a ten-line engine, misbehaving when told to.

One process imports everything and forks a receiver for each line "NAME BEHAVIOUR" on its standard input: torch takes seconds.
Prints one JSON line per event. Arguments: key folder, address, folder of weight files.

Behaviours: good; corrupt (a byte of the second bucket, once); corrupt_changes (the last byte of some changes, once); other_model;
at:STAGE, which says so and waits a moment at the first joining, forming, receiving (before the second bucket), loading or
reporting of a version; waiting, which starts at SIGCONT.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from computerrl.actor.serving import weight_receiver
from computerrl.common import log
from computerrl.common.lifecycle import StopToken, die_with_parent
from computerrl.common.messages import NothingNewer
from computerrl.common.weight_plan import check_probe
from computerrl.common.wire.transport import Client, load_keys
from computerrl.learner.client import BroadcastGroup, Invitation, WeightClient

MOMENT_S = 1.0
"""For the test to send a signal."""


class Subject:
    """What a receiver says, and where it pauses."""

    def __init__(self, name: str, behaviour: str) -> None:
        self.name = name
        self.behaviour = behaviour
        self.num_buckets = 0
        self._stage = behaviour.removeprefix("at:") if behaviour.startswith("at:") else ""

    def say(self, event: str, **fields: object) -> None:
        # In one piece: all receivers write to the same pipe.
        os.write(1, (json.dumps({"name": self.name, "event": event, **fields}) + "\n").encode())

    def pass_through(self, stage: str) -> None:
        if stage == self._stage:
            self._stage = ""
            self.say("at", stage=stage)
            time.sleep(MOMENT_S)


SUBJECT = Subject("", "good")
"""Of this process; set after the fork."""


class Engine:
    """Remembers what it was given; its probe is the first number of every tensor."""

    policy_version = -1

    def __init__(self) -> None:
        self.tensors: dict = {}

    def load(self, version: int, tensors: dict, *, expected_probe: np.ndarray) -> float:
        SUBJECT.pass_through("loading")
        self.policy_version = -1
        self.tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        check_probe(expected_probe, [float(t.flatten()[0]) for t in self.tensors.values()] or [0.0], dtype="float32")
        self.policy_version = version
        return 0.001


class PausingClient(WeightClient):
    """Says when it joins and reports."""

    def join(self, receiver: str, **fields: object) -> Invitation | NothingNewer:
        SUBJECT.pass_through("joining")
        return super().join(receiver, **fields)

    def loaded(self, receiver: str, **fields: object) -> None:
        SUBJECT.pass_through("reporting")
        super().loaded(receiver, **fields)


class PausingGroup(BroadcastGroup):
    """Says when it forms and receives; damages what it received."""

    def __init__(self, **fields: object) -> None:
        SUBJECT.pass_through("forming")
        super().__init__(**fields)

    def broadcast(self, buffers: list) -> Iterator[int]:
        for i in super().broadcast(buffers):
            SUBJECT.num_buckets += 1
            if SUBJECT.num_buckets == 2:
                SUBJECT.pass_through("receiving")
                if SUBJECT.behaviour == "corrupt":
                    buffers[i][7] ^= 1
            if SUBJECT.behaviour == "corrupt_changes" and len(buffers[i]) < 100_000:
                SUBJECT.behaviour = "good"
                SUBJECT.say("damaged")
                buffers[i][-1] ^= 1
            yield i


def receive(folder: str, address: str, files: str) -> None:
    """Be a receiver until killed."""
    log.configure(level="error")
    keys = load_keys(Path(folder))
    client = PausingClient(lambda: Client(address, keys=keys, sender=SUBJECT.name))
    engine = Engine()
    digest = "other" if SUBJECT.behaviour == "other_model" else "digest"
    receiver = weight_receiver.WeightReceiver(
        client, engine, receiver=SUBJECT.name, model_digest=digest, files=Path(files), stop=StopToken()
    )
    SUBJECT.say("started", pid=os.getpid())
    if SUBJECT.behaviour == "waiting":
        signal.sigwait({signal.SIGCONT})
    receiver.start()
    version = -1
    while True:
        while not receiver.wait_version(version + 1, timeout_s=60):
            SUBJECT.say("starved", version=version)
        version = receiver.policy_version
        values = {name: float(tensor.flatten()[-1]) for name, tensor in engine.tensors.items()}
        SUBJECT.say("serving", version=version, values=values)


def main() -> None:
    weight_receiver.BroadcastGroup = PausingGroup
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Nobody waits for those that are killed.
    # With no thread yet, a fork is safe; what a receiver needs, it makes itself.
    for line in sys.stdin:
        name, behaviour = line.split()
        if os.fork() == 0:
            die_with_parent()
            # Before anybody can send it: one that came before it is waited for would be waited for in vain.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})
            SUBJECT.__init__(name, behaviour)
            receive(*sys.argv[1:])


main()
