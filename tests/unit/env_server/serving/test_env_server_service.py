"""The desktop service with desktops that behave and desktops that do not: hang, lie, break, cannot be closed."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from computerrl.common.actions import parse_action
from computerrl.common.config import DesktopConfig, TasksConfig
from computerrl.common.errors import (
    DesktopBroken,
    DiskFull,
    HostBroken,
    LeaseRefused,
    NoDesktop,
    Problem,
    ProtocolError,
    SetupError,
    TaskFailed,
)
from computerrl.common.messages import Ack, Action, Evaluation, Observation, StepRequest, StepResult, TaskRef
from computerrl.common.wire.transport import LocalChannel
from computerrl.env_server.client import DesktopClient
from computerrl.env_server.driver import DesktopDriver, Getter, TaskInstance
from computerrl.env_server.drivers import memory
from computerrl.env_server.drivers.scripted import ScriptedDriver
from computerrl.env_server.judging.judge import JudgeInPlace
from computerrl.env_server.serving import calls
from computerrl.env_server.serving.fleet import ServiceTimes
from computerrl.env_server.serving.service import DesktopService
from computerrl.env_server.tasks import task_instance

CONFIG = DesktopConfig(
    driver="scripted", observation="tree", num_desktops=2, step_deadline_s=10.0, reset_deadline_s=10.0, lease_time_limit_s=30.0
)
TASK = TaskRef("calc-set-cell", 5, "demonstration")
Make = Callable[[int], DesktopDriver]


class Good(ScriptedDriver):
    def __init__(self) -> None:
        super().__init__(CONFIG)


class Hanging(Good):
    """Does not come back from a step until closed; its driver keeps no deadline."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = threading.Event()

    def step(self, action: Action) -> StepResult:
        self.ended.wait(30)
        return super().step(action)

    def close(self) -> None:
        self.ended.set()


class Lying(Good):
    """Answers with something else than the protocol says."""

    answer: Any = 7

    def step(self, action: Action) -> StepResult:
        return self.answer


class BreakingEveryThird(Good):
    calls = 0

    def step(self, action: Action) -> StepResult:
        type(self).calls += 1
        if self.calls % 3 == 0:
            raise DesktopBroken("the third call")
        return super().step(action)


class Unclosable(Lying):
    def close(self) -> None:
        raise OSError("device busy")


class Stumbling(Good):
    """A mistake of our own."""

    def reset(self, task: TaskInstance) -> tuple[str, Observation]:
        raise KeyError("utterance")


@contextmanager
def serving(
    make: Make, config: DesktopConfig = CONFIG, *, available_mb: Callable[[], int] = memory.available_mb, **changes: float
) -> Iterator[tuple[DesktopService, DesktopClient]]:
    times = ServiceTimes(**{"grace_s": 0.0, "lease_wait_s": 20.0, **changes})
    service = DesktopService(config, tasks=TasksConfig(), make=make, times=times, available_mb=available_mb)
    try:
        yield service, DesktopClient(LocalChannel(service.handle, sender="actor-0:a"), config=config)
    finally:
        service.close()


def first_then_good(first: type[Good]) -> Make:
    """The first desktop made misbehaves, all later ones are fine."""
    made: list[int] = []

    def make(index: int) -> DesktopDriver:
        made.append(index)
        return first() if len(made) == 1 else Good()

    return make


def one(**changes: Any) -> DesktopConfig:
    return CONFIG.model_copy(update={"num_desktops": 1, **changes})


def play(client: DesktopClient) -> float:
    lease = client.lease("a", TASK)
    client.reset(lease, TASK)
    client.step(lease, parse_action(client.demonstrate(lease).action_text))
    reward = client.evaluate(lease).reward
    client.release(lease)
    return reward


class NotedStart(JudgeInPlace):
    def __init__(self) -> None:
        self.num_starts = 0

    def start(self) -> None:
        self.num_starts += 1


def test_what_judgements_need_is_started_with_the_desktops_and_not_beside_their_work() -> None:
    judge = NotedStart()
    service = DesktopService(CONFIG, tasks=TasksConfig(), make=lambda index: Good(), judge=judge)
    service.close()
    assert judge.num_starts == 1


def test_episode_through_messages_is_rewarded() -> None:
    with serving(lambda index: Good()) as (service, client):
        assert service.wait_ready(2, timeout_s=20.0)
        assert play(client) == 1.0
        metrics = service.metrics()
        assert metrics["env_server/desktops_ready"] == 2.0 and metrics["env_server/restarts"] == 0.0
        assert metrics["env_server/step_p50_s"] > 0.0 and metrics["env_server/reset_p50_s"] > 0.0
        assert service.note() == "desktops: 2 idle"


class FactCounter(JudgeInPlace):
    """Counts its judgements, and facts: half of them hold."""

    num_judged = 0

    def judge(self, task: TaskRef, instance: TaskInstance, get: Getter) -> Evaluation:
        self.num_judged += 1
        return Evaluation(reward=1.0, success=True, detail="", progress=0.5)


@pytest.mark.parametrize("counts_facts", [False, True])
def test_evaluation_during_an_episode_runs_only_evaluators_that_count_facts(
    counts_facts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counting(task: TaskRef, *, tasks: TasksConfig) -> TaskInstance:
        return dataclasses.replace(task_instance(task, tasks=tasks), counts_facts=counts_facts)

    monkeypatch.setattr(calls, "task_instance", counting)
    judge = FactCounter()
    service = DesktopService(one(), tasks=TasksConfig(), make=lambda index: Good(), judge=judge)
    client = DesktopClient(LocalChannel(service.handle, sender="actor-0:a"), config=one())
    try:
        lease = client.lease("a", TASK)
        client.reset(lease, TASK)
        during = client.evaluate(lease, goes_on=True)
        assert (during.progress, judge.num_judged) == ((0.5, 1) if counts_facts else (None, 0))
        given_up = client.evaluate(lease, "fail")
        assert (given_up.reward, given_up.success, given_up.progress) == (0.0, False, 0.5)
    finally:
        client.close()
        service.close()


def test_step_after_the_page_scored_changes_nothing() -> None:
    with serving(lambda index: Good()) as (_, client):
        lease = client.lease("a")
        client.reset(lease, TaskRef("web-click-button", 5, "demonstration"))
        assert client.step(lease, parse_action(client.demonstrate(lease).action_text)).finished
        assert client.step(lease, parse_action("click(1)")).finished
        assert client.evaluate(lease).success


@pytest.mark.parametrize("misbehaving", [Hanging, Lying, Unclosable])
def test_desktop_that_hangs_lies_or_cannot_be_closed_is_replaced(misbehaving: type[Good]) -> None:
    with serving(first_then_good(misbehaving), one(step_deadline_s=1.0)) as (service, client):
        lease = client.lease("a")
        client.reset(lease, TASK)
        with pytest.raises(DesktopBroken):
            client.step(lease, parse_action("wait()"))
        with pytest.raises(LeaseRefused):
            client.evaluate(lease)
        assert play(client) == 1.0
        assert service.metrics()["env_server/restarts"] == 1.0


def test_desktop_that_hangs_does_not_hold_up_the_others() -> None:
    made: list[Good] = [Hanging(), Good()]
    with serving(lambda index: made[index], CONFIG) as (service, client):
        leases = [client.lease("a"), client.lease("a")]
        for lease in leases:
            client.reset(lease, TASK)
        hanging = next(lease for lease in leases if lease.desktop == 0)
        other = next(lease for lease in leases if lease.desktop == 1)
        answers: list[object] = []
        service.submit(StepRequest(lease=hanging, action=parse_action("wait()")), "actor-0:a", answers.append)
        for _ in range(20):
            client.step(other, parse_action("wait()"))
        assert answers == []


@pytest.mark.parametrize("answer", [None, 7, ("a", "b"), Ack()])
def test_step_lying_driver_is_desktop_broken_never_a_result(answer: object) -> None:
    lying = type("L", (Lying,), {"answer": answer})
    with serving(first_then_good(lying), one()) as (_, client):
        lease = client.lease("a")
        client.reset(lease, TASK)
        with pytest.raises(DesktopBroken, match="instead of StepResult"):
            client.step(lease, parse_action("wait()"))


@pytest.mark.parametrize(
    "wrong",
    [{"settled_by": "later"}, {"app": None}, {"window_title": 7}, {"settle_s": "x"}, {"result": "\udce9"}, {"elements": (1,)}],
)
def test_observation_with_a_wrong_field_is_a_broken_desktop_not_a_broken_message(wrong: dict[str, Any]) -> None:
    class Confused(Good):
        def step(self, action: Action) -> StepResult:
            result = super().step(action)
            return replace(result, observation=replace(result.observation, **wrong))

    with serving(first_then_good(Confused), one()) as (_, client):
        lease = client.lease("a")
        client.reset(lease, TASK)
        with pytest.raises(DesktopBroken, match="cannot be sent"):
            client.step(lease, parse_action("wait()"))


def test_desktop_breaking_every_third_call_episodes_still_finish() -> None:
    BreakingEveryThird.calls = 0
    with serving(lambda index: BreakingEveryThird()) as (service, client):
        rewards: list[float] = []
        broken = 0
        while len(rewards) < 6:
            try:
                rewards.append(play(client))
            except DesktopBroken:
                broken += 1
        assert rewards == [1.0] * 6 and broken >= 2
        assert service.metrics()["env_server/restarts"] >= broken - 1
        assert service.fatal is None


def test_driver_stumbling_over_our_mistake_is_desktop_broken() -> None:
    with serving(lambda index: Stumbling(), one()) as (_, client), pytest.raises(DesktopBroken, match="KeyError"):
        client.reset(client.lease("a"), TASK)


def test_every_start_failing_breaks_the_host_with_its_reason() -> None:
    def make(index: int) -> DesktopDriver:
        raise DesktopBroken("no display")

    with serving(make, one()) as (service, client):
        with pytest.raises(HostBroken, match="no display"):
            client.lease("a")
        assert isinstance(service.fatal, HostBroken)


def test_start_missing_image_ends_the_service_with_that_error() -> None:
    def make(index: int) -> DesktopDriver:
        raise SetupError(Problem("desktop.image", "is not built", "computerrl setup"))

    with serving(make) as (service, client):
        with pytest.raises(HostBroken, match="not built"):
            client.lease("a")
        assert isinstance(service.fatal, SetupError) and service.fatal.exit_code == 3


def test_start_hanging_is_cut_off_and_tried_again() -> None:
    ended = threading.Event()
    made: list[int] = []

    def make(index: int) -> DesktopDriver:
        made.append(index)
        if len(made) == 1:
            ended.wait(20)
        return Good()

    with serving(make, one(), start_limit_s=1.0) as (_, client):
        assert play(client) == 1.0
        ended.set()
        assert len(made) == 2


def test_disk_full_ends_the_service() -> None:
    class Full(Good):
        def step(self, action: Action) -> StepResult:
            raise DiskFull("no space for screenshots")

    with serving(lambda index: Full()) as (service, client):
        lease = client.lease("a")
        client.reset(lease, TASK)
        with pytest.raises(DiskFull):
            client.step(lease, parse_action("wait()"))
        assert isinstance(service.fatal, DiskFull)
        with pytest.raises(HostBroken, match="no space"):
            client.lease("a")


def test_health_check_failing_while_idle_replaces_the_desktop() -> None:
    class Sick(Good):
        def healthy(self) -> bool:
            return False

    with serving(first_then_good(Sick), one(), health_period_s=0.05) as (service, client):
        deadline = time.monotonic() + 5
        while service.metrics()["env_server/restarts"] < 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert play(client) == 1.0


class WithProcess(Good):
    pid = os.getpid()


@pytest.mark.parametrize("is_reset", [False, True])
def test_excess_seen_before_a_reset_is_not_held_against_the_next_task(monkeypatch: pytest.MonkeyPatch, is_reset: bool) -> None:
    """On a busy host, a look at the processes of a desktop under attack takes longer than the reset that ends them."""
    looking, may_end, looked_again = threading.Event(), threading.Event(), threading.Event()

    def excess(pids: list[int], *, limit_mb: float) -> float | None:
        if looking.is_set():
            looked_again.set()
            return None
        looking.set()
        may_end.wait(30)
        return 5000.0

    monkeypatch.setattr(memory, "excess", excess)
    with serving(lambda index: WithProcess(), one()) as (service, client):
        lease = client.lease("a", TASK)
        assert looking.wait(30)
        if is_reset:
            client.reset(lease, TASK)
        may_end.set()
        assert looked_again.wait(30)
        assert service.metrics()["env_server/restarts"] == (0.0 if is_reset else 1.0)


def test_reset_seed_outside_its_split_is_task_failed_and_desktop_stays() -> None:
    with serving(lambda index: Good(), one()) as (service, client):
        lease = client.lease("a")
        with pytest.raises(TaskFailed, match="outside"):
            client.reset(lease, TaskRef("calc-set-cell", 5, "evaluation"))
        with pytest.raises(TaskFailed, match="TaskReset"):
            client.step(lease, parse_action("wait()"))
        client.reset(lease, TASK)
        assert service.metrics()["env_server/restarts"] == 0.0


def test_session_of_the_previous_lease_is_not_playable() -> None:
    with serving(lambda index: Good(), one()) as (_, client):
        lease = client.lease("a")
        client.reset(lease, TASK)
        client.release(lease)
        with pytest.raises(TaskFailed, match="TaskReset"):
            client.evaluate(client.lease("a"))


def test_lease_waits_for_a_desktop_to_become_free() -> None:
    with serving(lambda index: Good(), one()) as (service, client):
        held = client.lease("a")
        other = DesktopClient(LocalChannel(service.handle, sender="actor-1:b"), config=CONFIG)
        threading.Timer(0.1, client.release, [held]).start()
        assert other.lease("b").token > held.token


def test_lease_none_free_in_time_refused_with_reason() -> None:
    with serving(lambda index: Good(), one(), lease_wait_s=0.05) as (_, client):
        client.lease("a")
        with pytest.raises(NoDesktop, match="1 leased"):
            client.lease("a")


def test_lease_unused_is_taken_back_and_its_token_refused() -> None:
    with serving(lambda index: Good(), one(lease_time_limit_s=0.5)) as (_, client):
        old = client.lease("a")
        new = client.lease("b")
        with pytest.raises(LeaseRefused):
            client.reset(old, TASK)
        client.reset(new, TASK)


def test_lease_from_a_restarted_actor_frees_what_it_held() -> None:
    with serving(lambda index: Good(), one()) as (service, client):
        old = client.lease("a")
        restarted = DesktopClient(LocalChannel(service.handle, sender="actor-0:b"), config=CONFIG)
        restarted.reset(restarted.lease("b"), TASK)
        with pytest.raises(LeaseRefused):
            client.reset(old, TASK)


class Counting(Good):
    resets: list[str | None]

    def __init__(self) -> None:
        super().__init__()
        self.resets = []

    def reset(self, task: TaskInstance) -> tuple[str, Observation]:
        self.resets.append(task.instruction)
        return super().reset(task)


def spare_shown(service: DesktopService) -> bool:
    deadline = time.monotonic() + 5
    while service.note() != "desktops: 1 idle, 1 leased" and time.monotonic() < deadline:
        time.sleep(0.005)
    return service.note() == "desktops: 1 idle, 1 leased"


def test_spare_desktop_shows_the_next_task_before_it_is_asked_for() -> None:
    made = [Counting(), Counting()]
    with serving(lambda index: made[index]) as (service, client):
        assert service.wait_ready(2, timeout_s=5.0)
        first = client.lease("a", TASK, next_task=TASK)
        spare = made[1 - first.desktop]
        assert spare_shown(service) and len(spare.resets) == 1
        client.reset(first, TASK)
        second = client.lease("a", TASK)
        assert second.desktop != first.desktop
        started = client.reset(second, TASK)
        assert len(spare.resets) == 1 and started.instruction == spare.resets[0]
        assert started.observation.elements == client.reset(first, TASK).observation.elements
        client.step(second, parse_action(client.demonstrate(second).action_text))
        assert client.evaluate(second).success
        assert service.metrics()["env_server/spares_used"] == 1.0


def test_spare_is_reset_for_a_task_it_does_not_show_and_after_use() -> None:
    made = [Counting(), Counting()]
    other = TaskRef(TASK.family, TASK.seed + 1, TASK.split)
    with serving(lambda index: made[index]) as (service, client):
        assert service.wait_ready(2, timeout_s=5.0)
        first = client.lease("a", TASK, next_task=other)
        assert spare_shown(service)
        second = client.lease("a", TASK)
        client.reset(second, TASK)
        client.reset(second, other)
        assert len(made[second.desktop].resets) == 3 and service.metrics()["env_server/spares_used"] == 0.0
        assert first.desktop != second.desktop


@pytest.mark.parametrize("task", [TaskRef("no-such-family", 5, "training"), TaskRef("calc-set-cell", 5, "evaluation")])
def test_next_task_that_cannot_be_shown_troubles_nobody(task: TaskRef) -> None:
    with serving(lambda index: Good()) as (service, client):
        assert service.wait_ready(2, timeout_s=5.0)
        client.reset(client.lease("a", TASK, next_task=task), TASK)
        assert spare_shown(service) and service.metrics()["env_server/restarts"] == 0.0
        client.reset(client.lease("a", TASK), TASK)


def test_desktop_is_not_started_again_where_memory_does_not_hold_it() -> None:
    free_mb = [10_000]
    config = one(driver="local", memory_per_desktop_mb=700, step_deadline_s=0.5)
    with serving(first_then_good(Hanging), config, available_mb=lambda: free_mb[0], lease_wait_s=0.2) as (service, client):
        lease = client.lease("a")
        client.reset(lease, TASK)
        free_mb[0] = 300
        with pytest.raises(DesktopBroken):
            client.step(lease, parse_action("wait()"))
        with pytest.raises(NoDesktop, match="memory holds no more"):
            client.lease("a")
        assert service.metrics()["env_server/restarts"] == 0.0 and service.fatal is None
        free_mb[0] = 10_000
        assert service.wait_ready(1, timeout_s=20.0)
        assert play(client) == 1.0


class SlowReset(Counting):
    """Hangs in the reset of one task until told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def reset(self, task: TaskInstance) -> tuple[str, Observation]:
        self.go_on.wait(20)
        return super().reset(task)

    def close(self) -> None:
        self.go_on.set()


@pytest.mark.parametrize("task", [TASK, TaskRef(TASK.family, TASK.seed + 1, TASK.split)])
def test_lease_of_a_desktop_still_being_prepared_waits_for_that_and_no_more(task: TaskRef) -> None:
    made = [SlowReset(), SlowReset()]
    with serving(lambda index: made[index], lease_wait_s=0.0) as (service, client):
        assert service.wait_ready(2, timeout_s=5.0)
        first = client.lease("a", TASK, next_task=TASK)
        second = client.lease("a", task)
        made[first.desktop].go_on.set()
        client.reset(first, TASK)
        threading.Timer(0.1, made[second.desktop].go_on.set).start()
        started = client.reset(second, task)
        assert started.instruction and len(made[second.desktop].resets) == (1 if task == TASK else 2)


def test_desktop_that_hangs_while_it_is_prepared_is_replaced() -> None:
    hanging = [SlowReset(), SlowReset()]
    left = list(hanging)
    config = CONFIG.model_copy(update={"reset_deadline_s": 0.3})
    with serving(lambda index: left.pop(0) if left else Good(), config) as (service, client):
        assert service.wait_ready(2, timeout_s=5.0)
        client.lease("a", TASK, next_task=TASK)
        deadline = time.monotonic() + 10
        while service.metrics()["env_server/restarts"] < 1.0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert sum(desktop.go_on.is_set() for desktop in hanging) == 1 and service.wait_ready(2, timeout_s=5.0)
        assert play(client) == 1.0


def test_spare_whose_window_is_gone_is_set_up_anew() -> None:
    class Losing(Counting):
        window_is_gone = False

        def reset(self, task: TaskInstance) -> tuple[str, Observation]:
            self.window_is_gone = False
            return super().reset(task)

        def observe(self) -> Observation:
            seen = super().observe()
            return replace(seen, app="", window_title="") if self.window_is_gone else seen

    made = [Losing(), Losing()]
    with serving(lambda index: made[index]) as (service, client):
        assert service.wait_ready(2, timeout_s=5.0)
        first = client.lease("a", TASK, next_task=TASK)
        assert spare_shown(service)
        made[1 - first.desktop].window_is_gone = True
        second = client.lease("a", TASK)
        assert client.reset(second, TASK).observation.app != "" and first.desktop != second.desktop
        assert len(made[second.desktop].resets) == 2


def test_unknown_request_is_protocol_error() -> None:
    with serving(lambda index: Good()) as (service, _), pytest.raises(ProtocolError, match="Ack"):
        LocalChannel(service.handle).request(Ack(), timeout_s=1.0)


def test_close_is_quick_parallel_and_answers_what_waits() -> None:
    closing = threading.Barrier(2, timeout=5)

    class Slow(Hanging):
        def close(self) -> None:
            closing.wait()  # passes only when both are closed at the same time
            super().close()

    with serving(lambda index: Slow(), CONFIG.model_copy(update={"step_deadline_s": 60.0})) as (service, client):
        lease = client.lease("a")
        client.reset(lease, TASK)
        failures: list[BaseException] = []

        def step() -> None:
            try:
                client.step(lease, parse_action("wait()"))
            except NoDesktop as error:
                failures.append(error)

        thread = threading.Thread(target=step)
        thread.start()
        while not service._fleet.workers[lease.desktop].pending:
            time.sleep(0.005)
        started = time.monotonic()
        assert service.close()
        assert time.monotonic() - started < 30.0, "waited for the step"
        thread.join(5)
        assert len(failures) == 1
        assert service.close()


def test_many_actors_at_once_all_episodes_rewarded() -> None:
    with serving(lambda index: Good(), CONFIG.model_copy(update={"num_desktops": 4})) as (service, _):
        rewards: list[float] = []

        def act(number: int) -> None:
            client = DesktopClient(LocalChannel(service.handle, sender=f"actor-{number}:x"))
            for _ in range(10):
                rewards.append(play(client))

        threads = [threading.Thread(target=act, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert rewards == [1.0] * 80
