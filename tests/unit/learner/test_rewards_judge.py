"""The judge against local servers that speak the format, and servers that misbehave."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from computerrl.common.config import RewardConfig
from computerrl.common.errors import ConfigError
from computerrl.common.messages import ScreenshotRef, Trajectory
from computerrl.learner.rewards import Rewards, RewardSetting, RewardUnknown
from computerrl.learner.rewards.judge import FILE, Judge, verdict_in
from tests.support.data.chat_server import ChatServer, chat_server, images_of, said, texts_of
from tests.support.data.trainer_data import make_group, make_step
from tests.unit.learner.test_rewards_sums import PAYS

YES, NO = '{"why": "it is there", "success": true}', '{"why": "it is not", "success": false}'
PNG = bytes.fromhex("89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de") + b"rest"
SHOT = ScreenshotRef("0" * 32, "segment-0", 0, len(PNG), 4, 3)


@pytest.fixture
def setting(tmp_path: Path) -> RewardSetting:
    def decode(tokens: Any) -> str:
        return "screen " + " ".join(map(str, tokens.tolist()))

    return RewardSetting(tmp_path, decode=decode, read_image=lambda ref: PNG)


def options_for(url: str, **options: Any) -> dict[str, Any]:
    endpoint = {"url": url, "model": "theirs", "timeout_s": 20, **options.pop("endpoint", {})}
    return {"endpoint": endpoint, "tries": 1, **options}


@contextmanager
def judge_at(url: str, setting: RewardSetting, **options: Any) -> Iterator[Judge]:
    judge = Judge(options_for(url, **options), setting)
    try:
        yield judge
    finally:
        judge.close()


def played(*, success: bool = True, number: int = 0, num_steps: int = 2) -> Trajectory:
    steps = [make_step([10 + place, number], [7]) for place in range(num_steps)]
    one = make_group([(success, steps)], group_seq=number).trajectories[0]
    return replace(one, instruction="save the file")


def reason_of(judge: Judge, trajectory: Trajectory) -> str:
    with pytest.raises(RewardUnknown) as caught:
        judge.score(trajectory)
    return caught.value.reason


# --- a server that judges ------------------------------------------------------------------------------------------------


def test_the_judge_is_told_task_screens_and_actions_and_its_verdict_is_the_score(setting: RewardSetting) -> None:
    trajectory = played()
    last = replace(trajectory.steps[1], action_text="done()", action_error="no such key")
    trajectory = replace(trajectory, steps=(trajectory.steps[0], last))
    with chat_server(lambda body: YES) as server, judge_at(server.url, setting) as judge:
        judge.begin(trajectory)
        assert judge.score(trajectory) == 1.0
        (asked,) = server.asked
    told = texts_of(asked)
    for part in ("Task: save the file", "screen 10 0", "1. click(1)", "2. done()   [no such key]", "screen 11 0"):
        assert part in told
    assert asked["model"] == "theirs" and asked["max_tokens"] == 1024 and not images_of(asked)


def test_votes_are_counted_and_every_vote_has_a_seed_of_its_own(setting: RewardSetting) -> None:
    def answer(body: dict[str, Any]) -> str:
        return YES if body["seed"] < 2 else NO

    with chat_server(answer) as server, judge_at(server.url, setting, votes=3) as judge:
        assert judge.score(played()) == pytest.approx(2 / 3)
        assert sorted(body["seed"] for body in server.asked) == [0, 1, 2]


def test_images_are_shown_first_and_last(setting: RewardSetting) -> None:
    trajectory = played()
    steps = tuple(replace(step, screenshot=SHOT) for step in trajectory.steps)
    trajectory = replace(trajectory, steps=steps, final_screenshot=SHOT)
    with chat_server(lambda body: YES) as server, judge_at(server.url, setting, images=True) as judge:
        assert judge.score(trajectory) == 1.0
        assert [data for _, data in images_of(server.asked[0])] == [PNG, PNG]


def test_an_image_that_is_gone_is_a_reason(setting: RewardSetting) -> None:
    def gone(ref: ScreenshotRef) -> bytes:
        raise FileNotFoundError("segment-0")

    trajectory = replace(played(), final_screenshot=SHOT)
    without = RewardSetting(setting.folder, decode=setting.decode, read_image=gone)
    with chat_server(lambda body: YES) as server, judge_at(server.url, without, images=True) as judge:
        assert reason_of(judge, trajectory) == "no_image" and not server.asked


def test_verdicts_are_kept_by_content_also_by_the_next_process(setting: RewardSetting) -> None:
    with chat_server(lambda body: YES) as server:
        with judge_at(server.url, setting) as judge:
            assert judge.score(played()) == 1.0 == judge.score(replace(played(), trajectory_id="rl-1/9/0"))
        with judge_at(server.url, setting) as judge:
            assert judge.score(played()) == 1.0
            assert len(server.asked) == 1
            assert judge.score(played(number=1)) == 1.0
            assert len(server.asked) == 2
        with (setting.folder / FILE).open("a") as file:
            file.write('{"key": "cut off by a ki')
        with judge_at(server.url, setting) as judge:
            assert judge.score(played()) == 1.0 and len(server.asked) == 2


def test_the_key_comes_from_the_environment_and_is_written_nowhere(
    setting: RewardSetting, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-very-secret-12345678")
    endpoint = {"key_variable": "JUDGE_KEY"}

    def answer(body: dict[str, Any]) -> Any:
        return YES if texts_of(body).count("screen 10 0") else (401, {"error": "sk-very-secret-12345678 is wrong"})

    with chat_server(answer) as server, judge_at(server.url, setting, endpoint=endpoint) as judge:
        assert judge.score(played()) == 1.0
        assert server.headers[0]["authorization"] == "Bearer sk-very-secret-12345678"
        assert reason_of(judge, played(number=1)) == "refused"
    written = capsys.readouterr()
    assert "refused" in written.out + written.err
    assert "secret" not in written.out + written.err + (setting.folder / FILE).read_text()


def test_no_key_is_named_as_an_option_of_the_judge(setting: RewardSetting) -> None:
    entries = [
        RewardConfig(),
        RewardConfig(name="judge", options=options_for("http://127.0.0.1:9/v1", endpoint={"key_variable": "NOT_SET"})),
    ]
    with pytest.raises(ConfigError) as caught:
        Rewards.of(entries, setting, algorithm=PAYS)
    assert "learner.rewards.1.options.endpoint.key_variable" in str(caught.value)


# --- a server that does not ----------------------------------------------------------------------------------------------

MISBEHAVING: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no time": (lambda body: (429, {"error": "slow down"}), "busy"),
    "broken": (lambda body: (500, {"error": "oops"}), "cut"),
    "refuses": (lambda body: (400, {"error": "too long"}), "refused"),
    "says nothing": (lambda body: "", "no_verdict"),
    "says no verdict": (lambda body: "It looks good to me.", "no_verdict"),
    "says wrong JSON": (lambda body: '{"success": "yes"}', "no_verdict"),
    "no choices": (lambda body: (200, {"choices": []}), "no_verdict"),
    "another tree": (lambda body: (200, ["success"]), "no_verdict"),
    "no text": (lambda body: (200, said(None)), "no_verdict"),
}


@pytest.mark.parametrize("name", MISBEHAVING)
def test_a_judge_that_gives_no_verdict_is_a_named_reason(setting: RewardSetting, name: str) -> None:
    answer, reason = MISBEHAVING[name]
    with chat_server(answer) as server, judge_at(server.url, setting) as judge:
        assert reason_of(judge, played()) == reason
        # It is asked again, for nothing was kept.
        assert reason_of(judge, played()) == reason and len(server.asked) == 2


def test_bytes_that_are_no_answer_are_a_named_reason(setting: RewardSetting) -> None:
    cut, wrong = b'Content-Length: 500\r\n\r\n{"choi', b"Content-Length: 5\r\n\r\n{nope"
    for sent, reason in ((cut, "cut"), (wrong, "refused")):
        with raw_server(b"HTTP/1.1 200 OK\r\n" + sent) as url, judge_at(url, setting) as judge:
            assert reason_of(judge, played()) == reason


def test_nobody_there_is_a_named_reason(setting: RewardSetting) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # Bound and not listening: connections are refused.
        with judge_at(f"http://127.0.0.1:{held.getsockname()[1]}/v1", setting) as judge:
            assert reason_of(judge, played()) == "away"


def test_a_server_that_has_time_later_is_asked_again(setting: RewardSetting) -> None:
    answers: Iterator[Any] = iter([(429, {}), (502, {}), YES])
    with chat_server(lambda body: next(answers)) as server, judge_at(server.url, setting, tries=3) as judge:
        assert judge.score(played()) == 1.0 and len(server.asked) == 3


def test_half_of_the_votes_are_no_verdict(setting: RewardSetting) -> None:
    def some(num: int) -> Callable[[dict[str, Any]], Any]:
        return lambda body: YES if body["seed"] < num else (429, {})

    with chat_server(some(2)) as server, judge_at(server.url, setting, votes=4) as judge:
        assert reason_of(judge, played()) == "busy"
    with chat_server(some(3)) as server, judge_at(server.url, setting, votes=4) as judge:
        assert judge.score(played(number=1)) == 1.0


def test_tokens_of_a_run_are_limited(setting: RewardSetting) -> None:
    counted = {**said(YES), "usage": {"total_tokens": 60}}
    with chat_server(lambda body: (200, counted)) as server:
        with judge_at(server.url, setting, max_tokens=100) as judge:
            assert [judge.score(played(number=number)) for number in range(2)] == [1.0, 1.0]
            assert reason_of(judge, played(number=2)) == "token_cap"
            assert judge.score(played()) == 1.0, "what is known costs nothing"
            assert judge.metrics([])["judge_tokens"] == 120
        with judge_at(server.url, setting, max_tokens=100) as judge:
            assert reason_of(judge, played(number=2)) == "token_cap", "another process goes on counting"


def test_tokens_are_estimated_where_the_server_counts_none(setting: RewardSetting) -> None:
    with chat_server(lambda body: YES) as server, judge_at(server.url, setting) as judge:
        judge.score(played())
        told = sum(len(part["content"]) for part in server.asked[0]["messages"])
        assert judge.metrics([])["judge_tokens"] == (told + len(YES)) // 4


def test_an_episode_without_steps_is_not_judged(setting: RewardSetting) -> None:
    with chat_server(lambda body: YES) as server, judge_at(server.url, setting) as judge:
        assert reason_of(judge, played(num_steps=0)) == "no_steps" and not server.asked


# --- beside the evaluator ------------------------------------------------------------------------------------------------


def rewards_of(server: ChatServer, setting: RewardSetting, *, with_evaluator: bool = True, **options: Any) -> Rewards:
    judge = RewardConfig(name="judge", weight=0.5, options=options_for(server.url, **options))
    return Rewards.of([*([RewardConfig()] if with_evaluator else []), judge], setting, algorithm=PAYS)


def test_the_judge_is_never_alone_unless_that_is_asked_for(setting: RewardSetting) -> None:
    with chat_server(lambda body: YES) as server:
        with pytest.raises(ConfigError, match="judge is the only reward"):
            rewards_of(server, setting, with_evaluator=False)
        rewards_of(server, setting, with_evaluator=False, alone=True).close()


def test_a_group_with_one_unjudged_episode_is_paid_by_the_evaluator_alone(setting: RewardSetting) -> None:
    groups = [
        make_group([(True, played(number=number).steps), (False, played(number=number + 5).steps)], group_seq=number)
        for number in (0, 1)
    ]

    def answer(body: dict[str, Any]) -> Any:
        return (429, {}) if "screen 10 6" in texts_of(body) else YES

    with chat_server(answer) as server:
        rewards = rewards_of(server, setting)
        for group in groups:
            rewards.begin(group)
        paid, metrics = rewards.pay(groups)
        rewards.close()
    assert [one.total_reward for group in paid for one in group.trajectories] == [1.5, 0.5, 1.0, 0.0]
    assert metrics["rewards_unknown"] == 1
    assert metrics["judge_agreement"] == pytest.approx(2 / 3) and metrics["judge_false_success"] == 1.0


def test_disagreement_with_the_evaluator_raises_the_alarm(setting: RewardSetting, capsys: pytest.CaptureFixture[str]) -> None:
    failures = [played(success=False, number=number) for number in range(25)]
    with chat_server(lambda body: YES) as server, judge_at(server.url, setting, min_agreement=0.7) as judge:
        for trajectory in failures[:10]:
            judge.score(trajectory)
        figures = judge.metrics(failures[:10])
        assert figures["judge_agreement"] == 0.0 and figures["judge_alarm"] == 0.0, "ten verdicts say little"
        for trajectory in failures[10:]:
            judge.score(trajectory)
        assert judge.metrics(failures[10:])["judge_alarm"] == 1.0
    assert "judge.disagrees" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (YES, True),
        (f'<think>maybe {{"success": true}}</think>\n```json\n{NO}\n```', False),
        ('{"success": 1}', None),
        ("{" * 1000, None),
        ('[{"success": true}]', True),
        ("", None),
    ],
)
def test_the_verdict_is_the_last_one_of_a_reply(text: str, verdict: bool | None) -> None:
    assert verdict_in(text) is verdict


@contextmanager
def raw_server(sent: bytes) -> Iterator[str]:
    """A server that sends ``sent`` to whoever connects, once, and ends the connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 20)
                connection.sendall(sent)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        thread.join()


def test_the_book_is_one_json_object_a_line(setting: RewardSetting) -> None:
    with chat_server(lambda body: YES) as server, judge_at(server.url, setting, votes=2) as judge:
        judge.score(played())
    lines = [json.loads(line) for line in (setting.folder / FILE).read_text().splitlines()]
    assert [sorted(line) for line in lines] == [["key", "num_tokens", "success", "text"]] * 2
