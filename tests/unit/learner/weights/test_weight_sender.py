"""The learner's weight endpoint: its replies, the number of receivers that it remembers, and how it goes on after an error."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from computerrl.common.messages import (
    MAX_PEERS,
    BaseModelInvitation,
    FileInvitation,
    Message,
    NothingNewer,
    WeightJoin,
    WeightLoaded,
)
from computerrl.learner.weights import sender as weight_sender
from computerrl.learner.weights.sender import WeightSender


class Report:
    """A request that somebody waits for."""

    sender = "actor-0:a"

    def __init__(self, message: Message) -> None:
        self.message = message
        self.answered = threading.Event()
        self.answer: Message | None = None

    def reply(self, message: Message) -> None:
        self.answer = message
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
    reports = [Report(WeightLoaded(name, 1, "")) for name in [names[0], *names[1:10], names[0], *names[10:]]]
    sender = WeightSender(OneBatch(reports), model_digest="digest", host="127.0.0.1")
    assert reports[-1].answered.wait(20)
    loaded = sender.loaded_versions()
    sender.close()
    assert len(loaded) == MAX_PEERS
    assert names[0] in loaded and names[-1] in loaded and names[5] not in loaded


class FailingOnce:
    """Files of weights, the first of which fails in a way that nobody foresaw."""

    def __init__(self) -> None:
        self.num_calls = 0

    def write(self, policy_version: int, _buffers: object) -> str:
        self.num_calls += 1
        if self.num_calls == 1:
            raise RuntimeError("out of something")
        return f"{policy_version}.safetensors"

    def clear(self) -> None:
        pass


def test_weights_that_could_not_be_sent_are_told_of_and_sent_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(weight_sender, "SEND_AGAIN_S", 0.05)
    monkeypatch.setattr(weight_sender, "PARK_S", 30.0)
    join = Report(WeightJoin("actor-0:a", 0, "digest"))
    sender = WeightSender(OneBatch([join]), model_digest="digest", host="127.0.0.1", files=FailingOnce())  # type: ignore[arg-type]
    sender.publish(1, {"weight": torch.zeros(4)}, probe_logprobs=np.zeros(1, np.float32))
    assert join.answered.wait(20)
    sender.close()
    assert isinstance(join.answer, FileInvitation) and join.answer.file_name == "1.safetensors"
    said = capsys.readouterr()
    assert "weights.not_sent" in said.out + said.err and "out of something" in said.out + said.err


def test_receiver_that_serves_the_newest_version_is_told_so_and_one_that_does_not_is_invited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(weight_sender, "PARK_S", 0.05)
    behind, level = Report(WeightJoin("actor-0:a", -1, "digest")), Report(WeightJoin("actor-1:a", 3, "digest"))
    sender = WeightSender(OneBatch([behind, level]), model_digest="digest", host="127.0.0.1")  # type: ignore[arg-type]
    sender.publish_base(3, probe_logprobs=np.zeros(1, np.float32))
    assert behind.answered.wait(20) and level.answered.wait(20)
    sender.close()
    assert level.answer == NothingNewer()
    assert isinstance(behind.answer, BaseModelInvitation) and behind.answer.update.policy_version == 3
