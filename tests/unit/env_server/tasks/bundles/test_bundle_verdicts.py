"""Verdicts of reward scripts: one number on one line, and nothing that an agent's text could add."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computerrl.env_server.tasks.bundles.verdicts import MAX_OUTPUT_BYTES, verdict_of
from computerrl.env_server.tasks.family import NO_VERDICT
from computerrl.env_server.tasks.osworld.desktop import RunResult


def reward_of(stdout: str, code: int = 0, max_reward: float = 1.0) -> float | None:
    """None: no verdict."""
    verdict = verdict_of(RunResult(code, stdout, "said so"), max_reward=max_reward, limit_s=60.0)
    assert verdict.success is (verdict.reward >= 1.0) and len(verdict.detail) <= 400
    return None if verdict.detail.startswith(NO_VERDICT) else verdict.reward


@pytest.mark.parametrize(
    ("stdout", "reward"),
    [
        ("REWARD: 1\n", 1.0),
        ("REWARD: 1.0", 1.0),
        ("looks\nREWARD: 0.25\nlooked\n", 0.25),
        ("REWARD:0\r\n", 0.0),
        ("REWARD: -0.0\n", 0.0),
        ("REWARD: +5e-1\n", 0.5),
        ("REWARD: .5\n", 0.5),
        ("", None),
        ("1.0\n", None),
        ("reward: 1\n", None),
        (" REWARD: 1\n", None),
        ("REWARD:\n1\n", None),
        ("REWARD: nan\n", None),
        ("REWARD: inf\n", None),
        ("REWARD: 1e999\n", None),
        ("REWARD: 1.1\n", None),
        ("REWARD: -0.1\n", None),
        ("REWARD: 0x1\n", None),
        ("REWARD: 1_0\n", None),
        ("REWARD: \u0661\n", None),
        ("REWARD: 1 of 1\n", None),
        ("REWARD: 1\nREWARD: 1\n", None),
        ("REWARD: 0\nREWARD: 1\n", None),
        ("REWARD: 1\nname REWARD: 0\n", None),
        ("REWARD: 1\n" + "x" * MAX_OUTPUT_BYTES, None),
    ],
)
def test_verdict_is_the_one_number_that_was_printed(stdout: str, reward: float | None) -> None:
    assert reward_of(stdout) == reward


@pytest.mark.parametrize("code", [1, 124, 127, 137, -9, -11])
def test_script_that_fails_or_does_not_end_gives_no_verdict(code: int) -> None:
    assert reward_of("REWARD: 1\n", code) is None


def test_last_line_of_a_script_s_errors_is_told_on_one_line() -> None:
    answer = RunResult(1, "", "Traceback:\n  at home\nValueError: \x1b[31mred\x07\n\n")
    detail = verdict_of(answer, max_reward=1.0, limit_s=60.0).detail
    assert "ended with code 1: ValueError: " in detail and "Traceback" not in detail and detail.isprintable()


def test_reward_is_a_share_of_the_greatest_one() -> None:
    assert reward_of("REWARD: 5\n", max_reward=10.0) == 0.5
    assert reward_of("REWARD: 10\n", max_reward=10.0) == 1.0
    assert reward_of("REWARD: 11\n", max_reward=10.0) is None


@given(before=st.text(), after=st.text(), code=st.sampled_from(["\n", "\r", " ", "", "\x0b", "\u2028"]))
def test_text_of_the_agent_s_beside_a_verdict_of_0_is_never_paid(before: str, after: str, code: str) -> None:
    for text in (f"{before}{code}REWARD: 1{code}{after}", f"REWARD: 1\n{before}", before):
        assert not reward_of(f"{text}\nREWARD: 0\n{after}")
        assert not reward_of(f"{text}REWARD: 0\n{after}")
