"""Rewards of episodes as parts that are weighed and added: `learner.rewards`. Their table, and all that a new one imports.

A reward is a class made from (options, setting) with `score(trajectory) -> float`; other packages register theirs in the entry
point group `computerrl.rewards`, or are named as `module:Class`.
"""

from __future__ import annotations

from computerrl.learner.rewards.base import Reward, RewardSetting, RewardUnknown
from computerrl.learner.rewards.composed import REWARDS, Rewards

__all__ = ["REWARDS", "Reward", "RewardSetting", "RewardUnknown", "Rewards"]
