"""The learner's weight endpoint remembers so many receivers and no more."""

from __future__ import annotations

import threading

from common.messages import MAX_PEERS, Message, WeightLoaded
from learner.weight_sender import WeightSender


class Report:
    """A request that somebody waits for."""

    sender = "actor-0:a"

    def __init__(self, message: Message) -> None:
        self.message = message
        self.answered = threading.Event()

    def reply(self, _message: Message) -> None:
        self.answered.set()


class OneBatch:
    """A server to which all requests come at once."""

    address = "tcp://127.0.0.1:1"

    def __init__(self, requests: list[Report]) -> None:
        self.requests = requests

    def poll(self, timeout_s: float) -> list[Report]:
        threading.Event().wait(timeout_s)
        requests, self.requests = self.requests, []
        return requests

    def close(self) -> None:
        pass


def test_receivers_beyond_the_limit_replace_those_not_heard_of_for_longest() -> None:
    names = [f"actor-{number}:a" for number in range(MAX_PEERS + 5)]
    reports = [Report(WeightLoaded(name, 1, "", 0.1)) for name in [names[0], *names[1:10], names[0], *names[10:]]]
    sender = WeightSender(OneBatch(reports), model_digest="digest", host="127.0.0.1")
    assert reports[-1].answered.wait(20)
    loaded = sender.loaded_versions()
    sender.close()
    assert len(loaded) == MAX_PEERS
    assert names[0] in loaded and names[-1] in loaded and names[5] not in loaded
