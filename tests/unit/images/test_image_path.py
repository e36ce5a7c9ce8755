"""The way of an image from a desktop to the learner, and every way in which it can go wrong."""

from __future__ import annotations

import errno
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from computerrl.actor.desktops import OneServer
from computerrl.actor.live_images import LiveImages
from computerrl.actor.worker import ActorWorker
from computerrl.broker.client import BrokerClient
from computerrl.broker.journal.file import FileJournal
from computerrl.broker.service import BrokerService
from computerrl.common.config import ActorConfig, DesktopConfig, TasksConfig
from computerrl.common.errors import ComputerRLError, DecodeError, DiskFull, PictureError, ProtocolError, RemoteError
from computerrl.common.lifecycle import StopToken
from computerrl.common.messages import (
    MAX_IMAGE_BYTES,
    UINT8,
    EncodedImage,
    ImageReply,
    ImageSubmission,
    Message,
    Observation,
    ScreenshotRef,
    StepResult,
    TaskStarted,
    Trajectory,
    content_hash,
)
from computerrl.common.wire import codec
from computerrl.common.wire.channel import LocalChannel
from computerrl.env_server.client import DesktopClient
from computerrl.env_server.drivers.screenshots import ScreenshotStore
from computerrl.env_server.drivers.scripted import ScriptedDriver
from computerrl.env_server.serving.service import DesktopService
from computerrl.learner.images import ImageFolder
from tests.support.data.actor_data import FakeDesktops, QueueBroker, ScriptedEngine, make_assignment, make_prompt
from tests.support.data.broker_data import assignment, core, order, step, trajectory_for


def picture(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (24, 32, 3), dtype=np.uint8)


def ref_of(data: bytes) -> ScreenshotRef:
    return ScreenshotRef(content_hash(data), "segment", 0, len(data), 8, 8)


def showing(*data: bytes, number: int = 0) -> Trajectory:
    shown = replace(step(), images=tuple(map(ref_of, data)))
    return trajectory_for(assignment("rl-1", number, 0), steps=[shown])


def by_name(*data: bytes) -> dict[str, bytes]:
    return {content_hash(one): one for one in data}


# --- from the env_server -----------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> ScreenshotStore:
    return ScreenshotStore(tmp_path / "trajectories", picture_format="png", incarnation="i")


@pytest.fixture
def desktops(store: ScreenshotStore) -> Iterator[DesktopClient]:
    config = DesktopConfig(driver="scripted", num_desktops=1, memory_per_desktop_mb=1)
    service = DesktopService(config, tasks=TasksConfig(), make=lambda index: ScriptedDriver(config), read=store.get)
    yield DesktopClient(LocalChannel(service.handle), config=config)
    service.close()


def test_screenshot_comes_as_it_was_stored(store: ScreenshotStore, desktops: DesktopClient) -> None:
    ref = store.put(picture(1))
    data = desktops.screenshot(ref)
    assert content_hash(data) == ref.content_hash and data == store.get(ref)


CHANGES: dict[str, Callable[[ScreenshotRef], ScreenshotRef]] = {
    "unknown segment": lambda ref: replace(ref, segment="segment-gone.bin"),
    "outside the folder": lambda ref: replace(ref, segment="../secret"),
    "cut off": lambda ref: replace(ref, num_bytes=ref.num_bytes + 1),
    "another place": lambda ref: replace(ref, offset=1),
    "before the file": lambda ref: replace(ref, offset=-1),
    "unknown name": lambda ref: replace(ref, content_hash="0" * 32),
    "giant": lambda ref: replace(ref, num_bytes=2**52),
    "empty": lambda ref: replace(ref, num_bytes=0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_screenshot_that_cannot_be_read_is_a_named_error_and_the_next_one_comes(
    store: ScreenshotStore, desktops: DesktopClient, change: Callable[[ScreenshotRef], ScreenshotRef]
) -> None:
    ref = store.put(picture(1))
    with pytest.raises(RemoteError, match=r"picture_error.*cannot be read"):
        desktops.screenshot(change(ref))
    assert desktops.screenshot(ref)


CUT = EncodedImage(content_hash(b"an image"), np.frombuffer(b"an imag", UINT8))


@pytest.mark.parametrize("images", [(), (EncodedImage.of(b"another"),), (CUT,)])
def test_other_bytes_than_the_screenshots_are_refused(images: tuple[EncodedImage, ...]) -> None:
    with pytest.raises(PictureError, match="other bytes"):
        DesktopClient(LocalChannel(lambda message, sender: ImageReply(images))).screenshot(ref_of(b"an image"))


# --- in the actor ------------------------------------------------------------------------------------------------------


class Seen(FakeDesktops):
    """Every screen is another one, the second is the first again."""

    def __init__(self) -> None:
        super().__init__()
        self.screens = [b"first", b"first", b"second", b"third"]
        self.fetched: list[bytes] = []
        self._shown = iter(self.screens)

    def reset(self, *args: object) -> TaskStarted:
        started = super().reset(*args)  # type: ignore[arg-type]
        return replace(started, observation=self._with_screen(started.observation))

    def step(self, *args: object, **options: object) -> StepResult:
        result = super().step(*args, **options)  # type: ignore[arg-type]
        return replace(result, observation=self._with_screen(result.observation))

    def screenshot(self, ref: ScreenshotRef) -> bytes:
        (data,) = {data for data in self.screens if content_hash(data) == ref.content_hash}
        self.fetched.append(data)
        return data

    def _with_screen(self, observation: Observation) -> Observation:
        return replace(observation, screenshot=ref_of(next(self._shown)))


@pytest.mark.parametrize("shows", [True, False])
def test_actor_fetches_each_screen_once_and_keeps_none_after_the_episode(shows: bool) -> None:
    images, desktops, broker = LiveImages(), Seen(), QueueBroker(make_assignment(0, max_steps=3))
    worker = ActorWorker(
        ActorConfig(),
        broker=broker,
        desktops=OneServer(desktops),
        player=make_prompt(),
        actor="actor-0:i",
        incarnation="i",
        stop=StopToken(),
        images=images if shows else None,
    )
    worker.use_engine(ScriptedEngine("click(1)\n"))
    assert worker.run_episode_once()
    assert desktops.fetched == ([b"first", b"second", b"third"] if shows else [])
    assert images.num_bytes == 0 and len(broker.submitted) == 1


def test_live_episodes_share_an_image_until_the_last_one_ends() -> None:
    images, ref, fetched = LiveImages(), ref_of(b"screen"), []

    def fetch(ref: ScreenshotRef) -> bytes:
        fetched.append(ref)
        return b"screen"

    images.hold(ref, fetch)
    threads = [threading.Thread(target=images.hold, args=(ref, fetch)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fetched) == 1 and images.num_bytes == 6
    for _ in range(8):
        images.drop({ref.content_hash})
        assert images.read(ref) == b"screen"
    images.drop({ref.content_hash})
    with pytest.raises(FileNotFoundError):
        images.read(ref)


# --- to the broker, and from it ----------------------------------------------------------------------------------------


class Desk:
    """A broker on files, and what it was sent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sent: Counter[str] = Counter()
        self.start()
        self.service(order(num_per_family=8, group_size=1), "learner-0:l")
        self.client = BrokerClient(LocalChannel(self.handle))

    def start(self) -> None:
        self.service = BrokerService(core(), FileJournal(self.folder, fsync=False), clock=lambda: 0.0)

    def handle(self, message: Message, sender: str) -> Message:
        self.sent[type(message).__name__] += 1
        return self.service(message, sender)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "journal")


def test_images_travel_before_their_trajectory_and_only_once(desk: Desk) -> None:
    data = [b"first", b"second", b"third"]
    assert desk.client.submit(showing(*data[:2]), by_name(*data)).accepted
    assert desk.sent == {"Trajectory": 2, "ImageSubmission": 1}
    assert desk.client.submit(showing(*data[:2], number=1), by_name(*data)).accepted
    assert desk.sent == {"Trajectory": 3, "ImageSubmission": 1}
    assert desk.client.submit(showing(*data, number=2), by_name(*data)).accepted
    assert desk.sent == {"Trajectory": 5, "ImageSubmission": 2}
    unknown = content_hash(b"unknown")
    for _ in range(2):
        assert desk.client.fetch_images([*by_name(*data), unknown]) == by_name(*data)
        # A broker that was killed knows the same images.
        desk.service.close()
        desk.start()


def test_image_that_is_damaged_in_the_journal_is_missing_and_the_others_come(desk: Desk) -> None:
    data = [b"first image", b"second image"]
    for number, one in enumerate(data):
        assert desk.client.submit(showing(one, number=number), by_name(one)).accepted
    (path,) = desk.folder.glob("journal-*.log")
    content = path.read_bytes()
    path.write_bytes(content.replace(data[0], b"f1rst image"))
    assert path.stat().st_size == len(content) and desk.client.fetch_images(by_name(*data)) == by_name(data[1])


def test_many_large_images_travel_in_several_messages(desk: Desk) -> None:
    data = [bytes([number]) * (12 << 20) for number in range(4)]
    assert desk.client.submit(showing(*data), by_name(*data)).accepted
    assert desk.sent["ImageSubmission"] == 2
    assert desk.client.fetch_images(by_name(*data)) == by_name(*data)
    assert desk.sent["ImageRequest"] == 2


GOOD = b"an image"
HAND_INS: dict[str, tuple[Trajectory, dict[str, bytes], type[ComputerRLError], str]] = {
    "missing": (showing(GOOD, b"other"), by_name(GOOD), PictureError, "which this process lacks"),
    "none at all": (showing(GOOD), {}, ProtocolError, "unexpected ImagesWanted"),
    "cut off": (showing(GOOD), {content_hash(GOOD): GOOD[:-1]}, ProtocolError, "another hash"),
    "changed": (showing(GOOD), {content_hash(GOOD): GOOD[:-1] + b"E"}, ProtocolError, "another hash"),
}


@pytest.mark.parametrize("case", HAND_INS.values(), ids=HAND_INS.keys())
def test_bad_bytes_of_an_actor_are_a_named_error_and_the_slot_is_free(
    desk: Desk, case: tuple[Trajectory, dict[str, bytes], type[ComputerRLError], str]
) -> None:
    trajectory, images, error, text = case
    with pytest.raises(error, match=text):
        desk.client.submit(trajectory, images)
    assert desk.client.fetch_images(by_name(GOOD)) in ({}, by_name(GOOD))
    # Nothing was taken: another actor's copy of the episode is accepted.
    assert desk.client.submit(showing(GOOD), by_name(GOOD)).accepted


IMPOSSIBLE = [{"content_hash": "gone"}, {"content_hash": "../" + "0" * 29}, {"num_bytes": 2**50}, {"num_bytes": 0}]


@pytest.mark.parametrize("change", IMPOSSIBLE)
def test_impossible_image_of_a_trajectory_is_malformed(desk: Desk, change: dict[str, object]) -> None:
    good = showing(GOOD)
    bad = replace(good, steps=(replace(good.steps[0], images=(replace(ref_of(GOOD), **change),)),))
    receipt = desk.client.submit(bad, by_name(GOOD))
    assert (receipt.accepted, receipt.reason) == (False, "malformed")


def test_giant_and_empty_images_are_refused_before_and_after_the_wire() -> None:
    for data in (b"", bytes(MAX_IMAGE_BYTES + 1)):
        with pytest.raises(ValueError, match="an image has 1 to"):
            EncodedImage.of(data)
    header, _ = codec.encode(ImageSubmission((EncodedImage.of(bytes(8)),)), sender="a", message_id=1)
    length = (8).to_bytes(4, "little")
    assert header.count(length) == 1
    for size, frame in ((0, b""), (MAX_IMAGE_BYTES + 4, bytes(MAX_IMAGE_BYTES + 4)), (2**31, bytes(8))):
        with pytest.raises(DecodeError):
            codec.decode([header.replace(length, size.to_bytes(4, "little")), frame])


# --- in the learner ----------------------------------------------------------------------------------------------------


def test_learner_fetches_an_image_once_and_keeps_what_pools_and_groups_need(tmp_path: Path) -> None:
    folder, fetched = ImageFolder(tmp_path / "images", num_checkpoints=2), []

    def fetch(names: object) -> dict[str, bytes]:
        fetched.append(sorted(names))  # type: ignore[call-overload]
        return by_name(b"a", b"b", b"c")

    a, b, c = (content_hash(data) for data in (b"a", b"b", b"c"))
    for _ in range(2):
        folder.fetch([a, b, c, a], fetch)
    assert fetched == [sorted([a, b, c])]
    assert folder.read(ref_of(b"a")) == b"a"
    again = ImageFolder(tmp_path / "images", num_checkpoints=2)
    again.sweep([a, b])
    again.sweep([a])
    assert again.missing([a, b, c]) == [c]
    again.sweep([a])
    assert again.missing([a, b, c]) == [b, c]
    again.fetch([b], fetch)
    again.sweep([])
    again.sweep([])
    assert again.missing([a, b]) == [a], "an image fetched since the last sweep belongs to groups that may be trained on"


def test_images_of_other_runs_are_read_where_they_are_and_never_swept(tmp_path: Path) -> None:
    ImageFolder(tmp_path / "other").fetch([content_hash(b"a")], lambda names: by_name(b"a"))
    folder = ImageFolder(tmp_path / "own", others=[tmp_path / "gone", tmp_path / "other"])
    folder.sweep([])
    assert folder.read(ref_of(b"a")) == b"a" and not (tmp_path / "own").exists()
    (tmp_path / "other" / content_hash(b"a")).write_bytes(b"b")
    with pytest.raises(ValueError, match="another image than its name says"):
        folder.read(ref_of(b"a"))
    with pytest.raises(FileNotFoundError):
        folder.read(ref_of(b"b"))


def test_learner_without_space_for_images_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(DiskFull, match="no space for images"):
        ImageFolder(tmp_path / "images").fetch([content_hash(b"a")], lambda names: by_name(b"a"))


def test_learner_makes_no_paths_of_names_that_are_no_hashes(tmp_path: Path) -> None:
    folder = ImageFolder(tmp_path / "images")
    asked: list[object] = []
    folder.fetch(["../config.yaml", "gone"], lambda names: asked.append(names) or {})
    assert not asked and folder.missing(["gone"]) == ["gone"]
    with pytest.raises(ValueError, match="is no hash"):
        folder.read(replace(ref_of(b"a"), content_hash="../config.yaml"))
