"""A receiver process for test_weight_broadcast: a real `WeightReceiver` with a ten-line engine, misbehaving when told to.

Prints one JSON line per event. Arguments: key folder, address, name, behaviour.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

from actor import weight_receiver
from common import log
from common.lifecycle import StopToken
from common.transport import Client, load_keys
from common.weight_plan import check_probe
from learner.client import BroadcastGroup, WeightClient


def say(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


class Engine:
    """Remembers what it was given; its probe is the first number of every tensor."""

    policy_version = -1

    def __init__(self) -> None:
        self.tensors: dict = {}

    def load(self, version: int, tensors: dict, *, expected_probe: np.ndarray) -> float:
        self.policy_version = -1
        self.tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        check_probe(expected_probe, [float(t.flatten()[0]) for t in self.tensors.values()] or [0.0], dtype="float32")
        self.policy_version = version
        return 0.001


class MisbehavingGroup(BroadcastGroup):
    """Does something bad at the second bucket, once."""

    behaviour = "good"
    num_buckets = 0

    def broadcast(self, buffer: object) -> None:
        cls = type(self)
        cls.num_buckets += 1
        if cls.num_buckets == 2 and cls.behaviour == "hang":
            say("hanging")
            time.sleep(3600)
        super().broadcast(buffer)
        if cls.num_buckets == 2 and cls.behaviour == "corrupt":
            buffer[7] ^= 1


def main() -> None:
    log.configure()
    folder, address, name, behaviour = sys.argv[1:]
    MisbehavingGroup.behaviour = behaviour
    weight_receiver.BroadcastGroup = MisbehavingGroup
    keys = load_keys(Path(folder))
    client = WeightClient(lambda: Client(address, keys=keys, sender=name))
    engine = Engine()
    digest = "other" if behaviour == "other_model" else "digest"
    receiver = weight_receiver.WeightReceiver(client, engine, receiver=name, model_digest=digest, stop=StopToken())
    receiver.start()
    say("started")
    version = -1
    while True:
        if not receiver.wait_version(version + 1, timeout_s=20):
            say("starved", version=version)
            return
        version = receiver.policy_version
        values = {tensor_name: float(t.flatten()[-1]) for tensor_name, t in engine.tensors.items()}
        say("serving", version=version, values=values)


main()
