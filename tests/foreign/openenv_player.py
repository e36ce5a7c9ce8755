"""Plays episodes through OpenEnv's own client, in an environment that has nothing of ours; prints what it saw as JSON.

python openenv_player.py ADDRESS TOKEN < plans, a JSON list of {"task": ..., "seed": ..., "actions": [...]}
"""

from __future__ import annotations

import base64
import json
import sys
from typing import Any

from openenv.core.generic_client import GenericEnvClient


def main(address: str, token: str) -> None:
    """One session that plays every plan, beside a second one that is open meanwhile, and a third that finds no desktop."""
    plans = json.load(sys.stdin)
    headers = {"Authorization": f"Bearer {token}"}
    played = []
    with GenericEnvClient(base_url=address, headers=headers) as env, GenericEnvClient(base_url=address, headers=headers) as other:
        other.reset(task=plans[0]["task"], seed=plans[0]["seed"])
        for plan in plans:
            first = env.reset(task=plan["task"], seed=plan["seed"])
            results = [first, *(env.step(action) for action in plan["actions"])]
            played.append({"results": [_plain(result) for result in results], "state": dict(env.state())})
        try:
            with GenericEnvClient(base_url=address, headers=headers) as third:
                third.reset()
            refused = ""
        except RuntimeError as error:
            refused = str(error)
        other_state = dict(other.state())
    print(json.dumps({"played": played, "other": other_state, "refused": refused}))


def _plain(result: Any) -> dict[str, Any]:
    """A result, with the beginning of its picture in place of the whole."""
    observation = dict(result.observation)
    observation["screenshot"] = base64.b64decode(observation["screenshot"])[:16].hex()
    return {"observation": observation, "reward": result.reward, "done": result.done}


if __name__ == "__main__":
    main(*sys.argv[1:])
