"""Run on a host before a run starts there: prints as JSON what it has. Changes nothing.

python -m computerrl.launch.cluster.host_check NETWORK FOLDER
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from computerrl.common.errors import SetupError
from computerrl.common.wire.addresses import own_address
from computerrl.common.wire.ports import PortLease
from computerrl.launch.plan.machine import inspect_machine


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What `computerrl up` wants to know of a host."""

    name: str
    num_cores: int
    available_memory_mb: int
    num_gpus: int
    address: str
    """In the run's network; empty with ``problem``."""
    port: int
    """Free now, outside the ephemeral range."""
    sees_folder: bool
    """The run folder is there, and can be written to."""
    has_packages: bool
    problem: str
    """Why there is no address."""


def look(network: str, folder: Path) -> HostFacts:
    """This host."""
    machine = inspect_machine()
    address, port, problem = "", 0, ""
    try:
        address = own_address(network)
        with PortLease(address) as lease:
            port = lease.port
    except SetupError as error:
        problem = str(error)
    return HostFacts(
        name=os.uname().nodename,
        num_cores=machine.num_cores,
        available_memory_mb=machine.available_memory_mb,
        num_gpus=len(machine.gpus),
        address=address,
        port=port,
        sees_folder=os.access(folder, os.W_OK),
        has_packages=all(importlib.util.find_spec(name) is not None for name in ("torch", "zmq", "transformers"))
        and shutil.which(sys.executable) is not None,
        problem=problem,
    )


if __name__ == "__main__":
    print(json.dumps(asdict(look(sys.argv[1], Path(sys.argv[2])))))
