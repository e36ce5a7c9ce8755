"""The encoded screenshots of the episodes that an actor plays, for prompts that show images.

Each image travels once: what another live episode holds is shared. Nothing is kept of an episode whose trajectory has a receipt.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from computerrl.actor.choosing import DesktopCalls
from computerrl.common.messages import Action, Lease, Observation, ScreenshotRef, StepResult, TaskRef, TaskStarted, Trajectory


@dataclass(slots=True)
class _Held:
    data: bytes
    num_episodes: int


@dataclass(slots=True)
class EpisodeImages:
    """Images of one episode."""

    _of_all: LiveImages
    _names: set[str] = field(default_factory=set)

    def see(self, desktops: DesktopCalls) -> DesktopCalls:
        """``desktops``, whose screenshots are fetched as soon as they are observed."""
        return _Seen(desktops, lambda observation: self._take(observation, desktops))

    def of(self, trajectory: Trajectory) -> dict[str, bytes]:
        """Bytes by name of the images that the prompts of ``trajectory`` show."""
        return {ref.content_hash: self._of_all.read(ref) for step in trajectory.steps for ref in step.images}

    def _take(self, observation: Observation, desktops: DesktopCalls) -> None:
        ref = observation.screenshot
        if ref is not None and ref.content_hash not in self._names:
            self._of_all.hold(ref, desktops.screenshot)
            self._names.add(ref.content_hash)

    def release(self) -> None:
        """The episode has ended."""
        self._of_all.drop(self._names)
        self._names = set()


class LiveImages:
    """Images of all live episodes of an actor. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}

    @contextmanager
    def episode(self) -> Iterator[EpisodeImages]:
        """The images of one episode, until its trajectory was handed in."""
        images = EpisodeImages(self)
        try:
            yield images
        finally:
            images.release()

    def read(self, ref: ScreenshotRef) -> bytes:
        """A `common.vision.screens.ReadScreenshot`."""
        with self._lock:
            held = self._held.get(ref.content_hash)
        if held is None:
            raise FileNotFoundError(f"no live episode holds image {ref.content_hash}")
        return held.data

    def hold(self, ref: ScreenshotRef, fetch: Callable[[ScreenshotRef], bytes]) -> None:
        """Keep ``ref`` for one more episode. Raises the errors of ``fetch``."""
        with self._lock:
            if (held := self._held.get(ref.content_hash)) is not None:
                held.num_episodes += 1
                return
        data = fetch(ref)
        with self._lock:
            self._held.setdefault(ref.content_hash, _Held(data, 0)).num_episodes += 1

    def drop(self, names: set[str]) -> None:
        """One episode less needs ``names``."""
        with self._lock:
            for name in names:
                self._held[name].num_episodes -= 1
                if not self._held[name].num_episodes:
                    del self._held[name]

    @property
    def num_bytes(self) -> int:
        """Size of all images."""
        with self._lock:
            return sum(len(held.data) for held in self._held.values())


class _Seen:
    """`DesktopCalls` whose observations are looked at before the episode gets them."""

    def __init__(self, desktops: DesktopCalls, look: Callable[[Observation], None]) -> None:
        self._desktops = desktops
        self._look = look
        self.lease, self.demonstrate = desktops.lease, desktops.demonstrate
        self.evaluate, self.release, self.screenshot = desktops.evaluate, desktops.release, desktops.screenshot

    def reset(self, lease: Lease, task: TaskRef) -> TaskStarted:
        started = self._desktops.reset(lease, task)
        self._look(started.observation)
        return started

    def step(self, lease: Lease, action: Action, *, completion: str = "") -> StepResult:
        result = self._desktops.step(lease, action, completion=completion)
        self._look(result.observation)
        return result
