"""The verdict of a reward script, from the output of its process. Pure."""

from __future__ import annotations

import re

from computerrl.common.log import on_one_line
from computerrl.common.messages import Evaluation
from computerrl.env_server.tasks.family import NO_VERDICT
from computerrl.env_server.tasks.osworld.desktop import RunResult

MAX_OUTPUT_BYTES = 100_000
"""Maximum output of a reward script. Below the guest's own limit: output that was cut could lack a second verdict."""
_MARK = "REWARD:"
_LINE = re.compile(rf"^{_MARK}[ \t]*(\S{{1,40}})[ \t\r]*$", re.MULTILINE)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_TIMED_OUT = 124
_MAX_TAIL_CHARS = 200


def verdict_of(answer: RunResult, *, max_reward: float, limit_s: float) -> Evaluation:
    """The reward that the script printed as its one line ``REWARD: <number>``, divided by ``max_reward``.

    Anything else is a reward of 0 whose detail begins with `NO_VERDICT`: a script that fails, does not end in ``limit_s``, prints
    too much, no number, a number outside of 0..``max_reward``, or the mark more than once. A text of the agent's that the script
    prints can therefore add a second mark, and never a reward.
    """
    if answer.returncode == _TIMED_OUT:
        return no_verdict(f"the reward script did not end within {limit_s:g} s")
    if answer.returncode != 0:
        return no_verdict(f"the reward script ended with code {answer.returncode}{tail_of(answer)}")
    if len(answer.stdout.encode()) >= MAX_OUTPUT_BYTES:
        return no_verdict(f"the reward script printed {MAX_OUTPUT_BYTES} bytes or more")
    num_marks, lines = answer.stdout.count(_MARK), _LINE.findall(answer.stdout)
    if num_marks != 1:
        return no_verdict(f"the reward script printed {_MARK!r} {num_marks} times instead of once")
    if len(lines) != 1 or not _NUMBER.fullmatch(lines[0]):
        return no_verdict(f"the reward script printed no line '{_MARK} <number>'")
    reward = float(lines[0])
    if not 0.0 <= reward <= max_reward:
        return no_verdict(f"the reward script printed {lines[0]}, which is outside 0..{max_reward:g}")
    share = reward / max_reward
    return Evaluation(reward=share, success=share >= 1.0, detail=f"the reward script printed {lines[0]} of {max_reward:g}")


def tail_of(answer: RunResult) -> str:
    """The last line that a process printed as errors, for messages."""
    *_, last = answer.stderr.strip().splitlines() or [""]
    return f": {on_one_line(last)[:_MAX_TAIL_CHARS]}" if last else ""


def no_verdict(reason: str) -> Evaluation:
    """A reward of 0, because the reward script gave none."""
    return Evaluation(reward=0.0, success=False, detail=f"{NO_VERDICT}: {reason}"[:400])
