"""The desktop of one page: a service with a single desktop, leased for as long as the page wants it."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
import weakref
from pathlib import Path

import numpy as np

from computerrl.common.config import DesktopConfig, TasksConfig
from computerrl.common.errors import ComputerRLError, DesktopBroken, HostBroken, NoDesktop
from computerrl.common.messages import Action, Evaluation, Lease, Observation, StepResult, TaskRef, TaskStarted
from computerrl.common.wire.transport import LocalChannel
from computerrl.env_server.client import DesktopClient
from computerrl.env_server.driver import DesktopDriver, LiveDesktop
from computerrl.env_server.drivers import make_driver
from computerrl.env_server.serving.fleet import START_LIMIT_S, ServiceTimes
from computerrl.env_server.serving.service import DesktopService

_LEASE_WAIT_S = 0.5
"""Time after which a start that failed is noticed."""
_CLOSE_LIMIT_S = 1.5
_HOLDER = "page"


class LeasedDesktop:
    """A desktop under one lease. Requests block and come from one thread; `frame` and `close` from any."""

    def __init__(self, config: DesktopConfig, tasks: TasksConfig) -> None:
        """Starts the desktop; `await_start` waits for it."""
        self._config = config
        self._closed = threading.Event()
        self._was_made = False
        self._start_error: ComputerRLError | None = None
        self._driver: LiveDesktop | None = None
        self._lease: Lease | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="computerrl-desktop-"))
        """Folder for logs."""
        # The folder goes also when the process ends in the middle of a start.
        self._remove_folder = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        times = ServiceTimes(lease_wait_s=_LEASE_WAIT_S)
        self._service = DesktopService(config, tasks=tasks, make=self._make, times=times)
        self._client = DesktopClient(LocalChannel(self._service.handle), config=config)

    def await_start(self) -> None:
        """Wait until the desktop is leased. Raises `DesktopBroken`, or the error of its start."""
        deadline = time.monotonic() + START_LIMIT_S
        while self._lease is None:
            try:
                self._lease = self._client.lease(_HOLDER)
            except (NoDesktop, HostBroken) as error:
                if self._start_error is not None:
                    raise self._start_error from error
                if self._closed.is_set() or time.monotonic() >= deadline:
                    raise DesktopBroken(f"did not start: {error}") from error

    def reset(self, task: TaskRef) -> TaskStarted:
        """Put ``task`` on screen. Raises as `DesktopClient.reset`."""
        return self._client.reset(self._held_lease, task)

    def step(self, action: Action) -> StepResult:
        """Carry out ``action``. Raises as `DesktopClient.step`."""
        return self._client.step(self._held_lease, action)

    def evaluate(self) -> Evaluation:
        """Judge the desktop's present state. Raises as `DesktopClient.evaluate`."""
        return self._client.evaluate(self._held_lease)

    def observe(self) -> Observation:
        """Observe the present screen. Raises as `DesktopDriver.observe`."""
        assert self._driver is not None
        return self._driver.observe()

    def frame(self) -> np.ndarray | None:
        """[height, width, 3] uint8 RGB, None while the desktop is starting."""
        driver = self._driver
        return None if driver is None else driver.frame()

    def healthy(self) -> bool:
        """Whether the desktop still answers."""
        return self._driver is not None and self._driver.healthy()

    def close(self) -> None:
        """End the desktop, at any time; may be called twice."""
        self._closed.set()
        self._service.close(limit_s=_CLOSE_LIMIT_S)
        self._remove_folder()

    @property
    def _held_lease(self) -> Lease:
        assert self._lease is not None, "requests follow await_start"
        return self._lease

    def _make(self, index: int) -> DesktopDriver:
        """Make the driver once. The service would replace a broken desktop by itself; here a person decides about that."""
        if self._was_made:
            raise DesktopBroken("another desktop is started only when asked for")
        self._was_made = True
        try:
            self._driver = make_driver(self._config, index=index, folder=self._folder, screenshots=None)
        except ComputerRLError as error:
            self._start_error = error
            raise
        return self._driver
