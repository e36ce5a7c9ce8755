"""The worker's threads against brokers, desktops and engines that misbehave."""

from __future__ import annotations

import itertools
import threading
import time

import pytest
from msgspec.structs import replace

from computerrl.actor.activity import ActivityMeter
from computerrl.actor.desktops import DesktopDirectory, OneServer
from computerrl.actor.worker import ActorWorker
from computerrl.common.config import ActorConfig
from computerrl.common.errors import DesktopBroken, EngineFailed, NoDesktop, PeerTimeout
from computerrl.common.lifecycle import StopToken
from computerrl.common.messages import NoAssignment, PeerEntry
from tests.support.clock import ManualClock
from tests.support.data.actor_data import FakeDesktops, QueueBroker, ScriptedEngine, make_assignment, make_prompt


def make_worker(broker: QueueBroker, desktops: object, *, num_episodes: int = 2) -> tuple[ActorWorker, StopToken]:
    stop = StopToken()
    source = desktops if isinstance(desktops, DesktopDirectory) else OneServer(desktops)  # type: ignore[arg-type]
    worker = ActorWorker(
        ActorConfig.model_validate({"num_episodes": num_episodes}),
        broker=broker,
        desktops=source,
        player=make_prompt(),
        actor="actor-0:i",
        incarnation="i",
        stop=stop,
    )
    return worker, stop


def end(worker: ActorWorker, stop: StopToken) -> None:
    stop.stop("test ends")
    worker.close()
    assert worker.failure is None


def test_worker_plays_all_assignments_and_hands_each_in_once() -> None:
    broker = QueueBroker(*[make_assignment(number) for number in range(5)])
    worker, stop = make_worker(broker, FakeDesktops(), num_episodes=3)
    worker.use_engine(ScriptedEngine("click(1)\n", "done()\n"))  # type: ignore[arg-type]
    worker.start()
    assert broker.wait(lambda: len(broker.submitted) == 5)
    end(worker, stop)
    assert sorted(t.trajectory_id for t in broker.submitted) == [f"rl-1/{number}/0" for number in range(5)]
    assert worker.metrics()["actor/episodes_total"] == 5


def test_worker_without_engine_plays_demonstrations_only_then_everything() -> None:
    broker = QueueBroker(make_assignment(0, kind="demonstration"), make_assignment(1))
    worker, stop = make_worker(broker, FakeDesktops(), num_episodes=1)
    worker.start()
    assert broker.wait(lambda: len(broker.submitted) == 1)
    assert set(broker.asked_versions) == {-1}
    worker.use_engine(ScriptedEngine("done()\n"))  # type: ignore[arg-type]
    assert broker.wait(lambda: len(broker.submitted) == 2)
    end(worker, stop)
    assert worker.metrics()["actor/engine_version"] == 3


def test_worker_with_unchecked_weights_asks_with_the_receivers_version() -> None:
    class Receiver:
        policy_version = -1

        def wait_version(self, policy_version: int, *, timeout_s: float) -> bool:
            return False

    broker = QueueBroker()
    worker, _ = make_worker(broker, FakeDesktops())
    worker.use_engine(ScriptedEngine("done()\n", policy_version=7), Receiver())  # type: ignore[arg-type]
    assert not worker.run_episode_once()
    assert broker.asked_versions == [-1]


@pytest.mark.parametrize(
    ("desktops", "engine", "reason"),
    [
        (FakeDesktops(fail={"step": DesktopBroken("died")}), ScriptedEngine("click(1)\n"), "desktop_broken"),
        (FakeDesktops(fail={"lease": NoDesktop("none")}), ScriptedEngine("click(1)\n"), "no_desktop"),
        (FakeDesktops(), ScriptedEngine(EngineFailed("broke")), "engine_failed"),
    ],
)
def test_worker_after_our_own_error_returns_the_assignment_and_goes_on(
    desktops: FakeDesktops, engine: ScriptedEngine, reason: str
) -> None:
    broker = QueueBroker(make_assignment(0), make_assignment(1))
    worker, stop = make_worker(broker, desktops, num_episodes=1)
    worker.use_engine(engine)  # type: ignore[arg-type]
    worker.start()
    assert broker.wait(lambda: len(broker.returned) == 1)
    desktops.fail.clear()
    engine.answers.clear()
    engine.answers.append("done()\n")
    assert broker.wait(lambda: len(broker.submitted) == 1)
    end(worker, stop)
    assert broker.returned == [("rl-1/0/0", reason)]


def test_worker_whose_broker_answers_late_submits_again_until_the_receipt() -> None:
    broker = QueueBroker(make_assignment(0), submit_errors=[PeerTimeout("late"), PeerTimeout("late")])
    worker, stop = make_worker(broker, FakeDesktops(), num_episodes=1)
    worker.use_engine(ScriptedEngine("done()\n"))  # type: ignore[arg-type]
    worker.start()
    assert broker.wait(lambda: len(broker.submitted) == 1)
    end(worker, stop)
    assert broker.returned == []


def test_worker_with_a_bug_in_a_slot_stops_the_process_with_it() -> None:
    broker = QueueBroker(make_assignment(0))
    worker, stop = make_worker(broker, FakeDesktops(), num_episodes=1)
    worker.use_engine(ScriptedEngine(ZeroDivisionError("bug")))  # type: ignore[arg-type]
    worker.start()
    assert stop.wait(10.0)
    worker.close()
    assert isinstance(worker.failure, ZeroDivisionError) and "bug" in stop.reason


def test_worker_stopped_in_a_hanging_desktop_call_closes_in_time() -> None:
    cut = threading.Event()

    class Hanging(FakeDesktops):
        def step(self, lease, action, *, completion=""):  # type: ignore[no-untyped-def]
            self._call("step")
            cut.wait(30.0)
            raise PeerTimeout("the connection was cut")

        def close(self) -> None:
            cut.set()

    desktops = Hanging()
    entry = PeerEntry("env_server", 0, "e", "host", 1, {"desktops": "tcp://x"}, 0.0)
    directory = DesktopDirectory(lambda: (entry,), lambda _: desktops)
    worker, stop = make_worker(QueueBroker(make_assignment(0)), directory, num_episodes=1)
    worker.use_engine(ScriptedEngine("click(1)\n"))  # type: ignore[arg-type]
    worker.start()
    while "step" not in desktops.calls:
        time.sleep(0.001)
    began = time.monotonic()
    end(worker, stop)
    assert time.monotonic() - began < 15.0, "waited for the desktop"
    assert not any(thread.is_alive() for thread in worker._threads)


def test_worker_in_serial_mode_raises_what_broke_the_episode() -> None:
    broker = QueueBroker(make_assignment(0), make_assignment(1))
    worker, _ = make_worker(broker, FakeDesktops(fail={"evaluate": DesktopBroken("x")}))
    worker.use_engine(ScriptedEngine("done()\n"))  # type: ignore[arg-type]
    with pytest.raises(DesktopBroken):
        worker.run_episode_once()
    assert broker.returned == [("rl-1/0/0", "desktop_broken")]


def test_worker_at_the_staleness_bound_counts_the_wait_apart_and_wakes_on_a_new_version() -> None:
    class Receiver:
        policy_version = 0

        def __init__(self) -> None:
            self.asked = threading.Event()
            self.come = threading.Event()

        def wait_version(self, policy_version: int, *, timeout_s: float) -> bool:
            assert policy_version == 1
            self.asked.set()
            return self.come.wait(10.0)

    receiver = Receiver()
    broker = QueueBroker(NoAssignment("staleness_bound", 0.01), make_assignment(0))
    worker, stop = make_worker(broker, FakeDesktops(), num_episodes=1)
    worker.use_engine(ScriptedEngine("done()\n"), receiver)  # type: ignore[arg-type]
    worker.start()
    assert receiver.asked.wait(10.0)
    assert broker.submitted == [] and worker.activity.fractions()["bound_wait"] > 0
    receiver.come.set()
    assert broker.wait(lambda: len(broker.submitted) == 1)
    end(worker, stop)


# --- meters and directory ----------------------------------------------------------------------------------------


def test_activity_with_known_times_gives_their_fractions() -> None:
    clock = ManualClock()
    meter = ActivityMeter(2, window_s=10.0, clock=clock)
    with meter.during("generate"):
        clock.advance(2.0)
    with meter.during("bound_wait"):
        clock.advance(4.0)
    clock.advance(2.0)
    fractions = meter.fractions()
    assert fractions["generate"] == pytest.approx(2 / 16) and fractions["bound_wait"] == pytest.approx(4 / 16)
    # Of the 12 slot seconds in which there was work, 2 were spent generating.
    assert fractions["idle"] == pytest.approx(10 / 12)
    clock.advance(100.0)
    assert meter.fractions()["generate"] == 0.0


def test_activity_still_going_on_counts_up_to_now() -> None:
    clock = ManualClock()
    meter = ActivityMeter(1, window_s=10.0, clock=clock)
    with meter.during("desktop"):
        clock.advance(40.0)
        assert meter.fractions()["desktop"] == pytest.approx(1.0) and meter.fractions()["idle"] == 0.0


def entries(*incarnations: str) -> tuple[PeerEntry, ...]:
    return tuple(
        PeerEntry("env_server", index, incarnation, "host", 1, {"desktops": f"tcp://{incarnation}"}, 0.0)
        for index, incarnation in enumerate(incarnations)
    )


def test_directory_with_two_servers_spreads_episodes() -> None:
    made = {"tcp://a": FakeDesktops(), "tcp://b": FakeDesktops()}
    directory = DesktopDirectory(lambda: entries("a", "b"), made.__getitem__, clock=ManualClock())
    with directory.pick() as first, directory.pick() as second, directory.pick() as third:
        assert first is made["tcp://a"] and second is made["tcp://b"] and third is made["tcp://a"]


def test_directory_prefers_the_server_that_was_told_to_prepare_the_task_unless_it_has_more_to_do() -> None:
    made = {"tcp://a": FakeDesktops(), "tcp://b": FakeDesktops()}
    directory = DesktopDirectory(lambda: entries("a", "b"), made.__getitem__, clock=ManualClock())
    assignments = [make_assignment(number) for number in range(5)]
    announced = [replace(one, next_task=following.task) for one, following in itertools.pairwise(assignments)]
    with directory.pick(announced[0]) as first, directory.pick(announced[1]) as second, directory.pick(announced[2]) as third:
        assert first is second is made["tcp://a"] and third is made["tcp://b"]


def test_directory_after_a_server_failed_uses_the_other_and_closes_the_gone_one() -> None:
    closed: list[str] = []

    class Client(FakeDesktops):
        def __init__(self, address: str) -> None:
            super().__init__()
            self.address = address

        def close(self) -> None:
            closed.append(self.address)

    alive = [entries("a", "b")]
    directory = DesktopDirectory(lambda: alive[0], Client, clock=ManualClock())
    with pytest.raises(PeerTimeout), directory.pick():
        raise PeerTimeout("dead")
    with directory.pick() as client:
        assert client.address == "tcp://b"  # type: ignore[attr-defined]
    alive[0] = entries("a2", "b")
    with pytest.raises(PeerTimeout), directory.pick():
        raise PeerTimeout("dead too")
    with directory.pick() as client:
        assert client.address == "tcp://a2"  # type: ignore[attr-defined]
    assert closed == ["tcp://a"]


def test_directory_without_servers_says_so() -> None:
    directory = DesktopDirectory(lambda: (), lambda _: FakeDesktops(), clock=ManualClock())
    with pytest.raises(NoDesktop), directory.pick():
        pass
