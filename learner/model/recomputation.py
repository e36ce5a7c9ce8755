"""What the learner computes again for its gradients: the choice of `common.memory_plan` with the memory that is free here."""

from __future__ import annotations

import torch

from computerrl.common import host, log
from computerrl.common.config import RunConfig
from computerrl.common.memory_plan import Recomputation, card_room_mb, choose_recomputation, host_room_mb, ranks_per_node
from computerrl.learner.model.ranks import Ranks


def choose(config: RunConfig, *, device: torch.device, ranks: Ranks) -> Recomputation:
    """Choose for this run and log the reason. All ``ranks`` call it, and it returns the same on all of them: a rank that computes
    layers again has other collectives than one that does not. It is called before the model takes memory."""
    if device.type == "cuda":
        free_mb, total_mb = (num_bytes / 2**20 for num_bytes in torch.cuda.mem_get_info())
        room_mb = card_room_mb(config, total_mb=total_mb, free_mb=free_mb, num_cards=torch.cuda.device_count())
        choice = choose_recomputation(config, room_mb=room_mb)
    else:
        total, available = host.total_and_available_mb()
        room_mb = host_room_mb(config, total_mb=total, available_mb=available)
        choice = choose_recomputation(config, room_mb=room_mb, num_sharing=ranks_per_node(config))
    num_keeping, _ = ranks.sum({"keeping": (float(choice.recomputation == "none"), 0.0)})["keeping"]
    agreed: Recomputation = "none" if num_keeping == ranks.num_ranks else "full"
    if ranks.rank == 0:
        log.get_logger().info("activation_checkpointing.chosen", value=agreed, reason=choice.reason)
    return agreed
