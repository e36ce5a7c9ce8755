"""A Prometheus endpoint per process, which serves the figures of its heartbeats. Off unless configured.

    process ── http://address:port/metrics            address and port: runs/NAME/metrics/actor-0.json, which
                                                      Prometheus reads by `file_sd_configs` (configs/prometheus.yml)

`actor/env_steps_total` of docs/reference/metrics.md is `computerrl_actor_env_steps_total` there, with labels run, role and index.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from computerrl.common import log
from computerrl.common.config import RunConfig
from computerrl.common.errors import Problem, SetupError
from computerrl.common.run_files.run_folder import RunFolder, write_atomically
from computerrl.common.wire.addresses import in_address, own_address, reachable_address

if TYPE_CHECKING:
    from prometheus_client.core import Metric

TARGETS_FOLDER = "metrics"
"""Folder of the target files, in the run folder."""


@contextmanager
def exporting(config: RunConfig, *, role: str, index: int, metrics: Callable[[], Mapping[str, float]]) -> Iterator[None]:
    """Serve the figures of ``metrics`` at `GET /metrics` inside the block. Raises `SetupError` when it cannot listen."""
    if not config.metrics.prometheus:
        yield
        return
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry(auto_describe=False)
    labels = {"run": config.folder.name, "role": role, "index": str(index)}
    registry.register(_Collector(metrics, labels))
    address = own_address(config.metrics.bind_address)
    try:
        server, thread = start_http_server(0, addr=address, registry=registry)
    except OSError as error:
        step = "set metrics.bind_address to an address of this host, or metrics.prometheus to false"
        raise SetupError(Problem("metrics.bind_address", f"cannot listen on {address}: {error.strerror}", step)) from error
    target = f"{in_address(reachable_address(address))}:{server.server_port}"
    path = RunFolder(config.folder).folder / TARGETS_FOLDER / f"{role}-{index}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps([{"targets": [target], "labels": {}}]).encode())
    log.get_logger().info("metrics.served", address=f"http://{target}/metrics")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        server.shutdown()
        server.server_close()
        thread.join()


class _Collector:
    """Reads the figures at every collection."""

    def __init__(self, metrics: Callable[[], Mapping[str, float]], labels: Mapping[str, str]) -> None:
        self._metrics = metrics
        self._labels = labels

    def collect(self) -> Iterable[Metric]:
        """All figures now."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        names = list(self._labels)
        for name, value in self._metrics().items():
            if value != value:
                continue  # unknown as yet
            kind: Any = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(prometheus_name(name), name, labels=names)
            family.add_metric(list(self._labels.values()), value)
            yield family


def prometheus_name(name: str) -> str:
    """`engine/tokens_per_s` -> `computerrl_engine_tokens_per_s`; slashes and dashes are no part of such names."""
    return "computerrl_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)
