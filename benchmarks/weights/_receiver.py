"""A receiver of `weights` in its own process: the real `WeightReceiver` with an engine that only copies the tensors it is given.

Arguments: key folder, address, name, folder of weight files. Prints "up" once it requests weights.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from computerrl.actor.serving.weight_receiver import WeightReceiver
from computerrl.common import log
from computerrl.common.lifecycle import StopToken, die_with_parent
from computerrl.common.wire.transport import Client, load_keys
from computerrl.learner.client import WeightClient


class CopyingEngine:
    """Holds weights and proves nothing: only their way there is measured."""

    policy_version = -1

    def __init__(self) -> None:
        self._held: dict[str, torch.Tensor] = {}

    def load(self, version: int, tensors: Mapping[str, torch.Tensor], *, expected_probe: Any = None) -> float:
        del expected_probe
        for name, tensor in tensors.items():
            self._held.setdefault(name, torch.empty_like(tensor)).copy_(tensor)
        self.policy_version = version
        return 0.0


def main() -> None:
    die_with_parent()
    log.configure(level="error")
    torch.set_num_threads(1)
    keys_folder, address, name, files = sys.argv[1:]
    keys = load_keys(Path(keys_folder))
    client = WeightClient(lambda: Client(address, keys=keys, sender=name))
    receiver = WeightReceiver(client, CopyingEngine(), receiver=name, model_digest="bench", files=Path(files), stop=StopToken())
    print("up", flush=True)
    receiver.start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
