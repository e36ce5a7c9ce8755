"""Images of completion requests: bytes go once to each engine process, which prepares them as an actor would."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from computerrl.actor.engines.base import NO_VERSION, Completion, GenerationRequest, SentImage
from computerrl.actor.prompts.images import ImageTokens
from computerrl.actor.prompts.tokenizer import FolderTokenizer
from computerrl.actor.serving.images import ServedImages
from computerrl.actor.serving.remote_engine import RETRY_S, RemoteEngine
from computerrl.common.errors import ComputerRLError, ProtocolError, RemoteError
from computerrl.common.messages import EncodedImage, ImageSubmission, Message, ScreenshotRef
from computerrl.common.wire.transport import Client, Keys, create_keys
from computerrl.env_server.drivers.screenshots import ScreenshotStore
from tests.support.data.image_prompts import make_folder
from tests.unit.actor.test_remote_engine import LIMIT_S, EngineProcess, wait


class Shown:
    """A model, and screenshots."""

    def __init__(self, folder: Path) -> None:
        self.folder = make_folder(folder / "model", "qwen3_vl")
        self.tokenizer = FolderTokenizer(self.folder)
        self._store = ScreenshotStore(folder / "trajectories", picture_format="png", incarnation="i")
        self.images = ImageTokens.of(self.folder, self.tokenizer, read=self._store.get)

    def take(self, seed: int) -> ScreenshotRef:
        return self._store.put(np.random.default_rng(seed).integers(0, 256, (64, 96, 3), dtype=np.uint8))

    def request(self, *sent: SentImage) -> GenerationRequest:
        return GenerationRequest(np.arange(3, dtype=np.int32), 0.7, 2, frozenset({13}), sent=sent)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    return Shown(tmp_path_factory.mktemp("shown"))


class Counted(Client):
    """Counts what it sends."""

    sent: list[str]

    def request(self, message: Message, *, timeout_s: float) -> Message:
        if type(message).__name__ != "EngineQuery":
            self.sent.append(type(message).__name__)
        return super().request(message, timeout_s=timeout_s)


class Processes:
    """Engine processes and the actors that ask them."""

    def __init__(self, keys: Keys, shown: Shown) -> None:
        self._keys = keys
        self._shown = shown
        self._opened: list[EngineProcess | RemoteEngine | ServedImages] = []
        self.addresses: list[str] = []
        self.sent: list[str] = []

    def start(self, *, max_bytes: int = 2**20, shows: bool = True) -> EngineProcess:
        one = EngineProcess(self._keys)
        images = ServedImages(self._shown.folder, self._shown.tokenizer, max_bytes=max_bytes) if shows else None
        one.server.use_engine(one.engine, one.versions, images)
        self._opened += [one] if images is None else [one, images]
        self.addresses = [one.address]
        return one

    def actor(self) -> RemoteEngine:
        engine = RemoteEngine(lambda: self.addresses, self._connect, index=0, num_live=4)
        self._opened.append(engine)
        assert engine.wait_version(5, timeout_s=LIMIT_S)
        return engine

    def _connect(self, address: str) -> Client:
        client = Counted(address, keys=self._keys, sender="actor-0:test", gives_up_refused=True)
        client.sent = self.sent
        return client

    def close(self) -> None:
        for one in reversed(self._opened):
            one.close()


@pytest.fixture
def processes(tmp_path: Path, shown: Shown) -> Iterator[Processes]:
    found = Processes(create_keys(tmp_path / "keys"), shown)
    yield found
    found.close()


def seen(process: EngineProcess) -> list[GenerationRequest]:
    """Requests that reach the engine from now on."""
    requests: list[GenerationRequest] = []
    submit = process.engine.submit

    def note(request: GenerationRequest) -> object:
        requests.append(request)
        return submit(request)

    process.engine.submit = note  # type: ignore[method-assign, assignment]
    return requests


def ask(engine: RemoteEngine, request: GenerationRequest) -> Completion:
    return engine.submit(request).result(timeout=LIMIT_S)


def test_images_go_once_to_an_engine_process_and_are_prepared_as_in_an_actor(processes: Processes, shown: Shown) -> None:
    process = processes.start()
    requests, engines = seen(process), [processes.actor(), processes.actor()]
    refs = [shown.take(1), shown.take(2)]
    sent = [shown.images.sent(ref) for ref in refs]
    for engine in engines:
        assert ask(engine, shown.request(*sent)).tokens.tolist() == [10, 11]
    assert processes.sent == ["CompletionRequest", "ImageSubmission", "CompletionRequest", "CompletionRequest"]
    for request in requests:
        assert [image.content_hash for image in request.images] == [ref.content_hash for ref in refs]
        for image, ref in zip(request.images, refs, strict=True):
            own = shown.images.image(ref).processed
            assert image.processed.layout == own.layout
            assert all(np.array_equal(image.processed.tensors[name], tensor) for name, tensor in own.tensors.items())


@pytest.mark.parametrize("control", ["blank", "foreign"])
def test_images_in_place_of_a_prompts_own_reach_the_engine_process(processes: Processes, shown: Shown, control: str) -> None:
    requests, engine = seen(processes.start()), processes.actor()
    other, own = shown.take(3), shown.take(4)
    shown.images.sent(other)
    ask(engine, shown.request(shown.images.sent(own, control)))  # type: ignore[arg-type]
    (image,) = requests[0].images
    expected = shown.images.blank(own) if control == "blank" else shown.images.image(other)
    assert image.processed.layout == expected.processed.layout and image.content_hash != own.content_hash
    assert np.array_equal(image.processed.tensors["pixel_values"], expected.processed.tensors["pixel_values"])


def test_engine_process_that_was_started_again_gets_the_images_again(processes: Processes, shown: Shown) -> None:
    first, engine = processes.start(), processes.actor()
    sent = shown.images.sent(shown.take(1))
    ask(engine, shown.request(sent))
    first._stop.stop("killed")
    first._thread.join()
    first._socket.close()
    wait(lambda: engine.policy_version == NO_VERSION)
    time.sleep(3 * RETRY_S)  # Meanwhile the actor asks again where nothing listens.
    second = processes.start()
    second.versions.policy_version = 6
    requests = seen(second)
    assert engine.wait_version(6, timeout_s=LIMIT_S)
    ask(engine, shown.request(sent))
    assert [image.content_hash for image in requests[0].images] == [sent.ref.content_hash]
    assert processes.sent.count("ImageSubmission") == 2


def test_images_that_others_pushed_out_are_sent_again(processes: Processes, shown: Shown) -> None:
    process, engine = processes.start(max_bytes=1), processes.actor()
    requests = seen(process)
    first, second = shown.images.sent(shown.take(1)), shown.images.sent(shown.take(2))
    for sent in (first, second, first):
        ask(engine, shown.request(sent))
    assert processes.sent.count("ImageSubmission") == 3 and len(requests) == 3


def unreadable(sent: SentImage) -> SentImage:
    image = EncodedImage.of(sent.data[:100])
    return SentImage(replace(sent.ref, content_hash=image.content_hash, num_bytes=100), sent.data[:100])


BAD: dict[str, tuple[Callable[[SentImage], SentImage], type[ComputerRLError], str]] = {
    "cut off": (lambda sent: SentImage(sent.ref, sent.data[:-1]), ProtocolError, "another hash"),
    "changed": (lambda sent: SentImage(sent.ref, sent.data[:-1] + b"?"), ProtocolError, "another hash"),
    "no image": (unreadable, RemoteError, "picture_error.*cannot be read"),
    "another size": (lambda sent: SentImage(replace(sent.ref, width=97), sent.data), RemoteError, "picture_error.*97 x 64"),
    "giant size": (lambda sent: SentImage(replace(sent.ref, width=10**9), sent.data), RemoteError, "picture_error.*no screen"),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD.keys())
def test_bad_image_fails_its_request_alone(
    processes: Processes, shown: Shown, case: tuple[Callable[[SentImage], SentImage], type[ComputerRLError], str]
) -> None:
    change, error, text = case
    requests, engine = seen(processes.start()), processes.actor()
    sent = shown.images.sent(shown.take(5))
    with pytest.raises(error, match=text):
        ask(engine, shown.request(change(sent)))
    assert not requests and len(ask(engine, shown.request(sent)).tokens) == 2


def test_engine_process_without_images_refuses_them(processes: Processes, shown: Shown) -> None:
    processes.start(shows=False)
    with pytest.raises(ProtocolError, match="show no images"):
        ask(processes.actor(), shown.request(shown.images.sent(shown.take(1))))


def test_two_threads_that_send_the_same_image_keep_it_once(shown: Shown) -> None:
    images = ServedImages(shown.folder, shown.tokenizer, max_bytes=100)
    submission = ImageSubmission((EncodedImage.of(bytes(60)),))
    threads = [threading.Thread(target=images.keep, args=(submission,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    images.keep(ImageSubmission((EncodedImage.of(bytes(40)),)))
    refs = [ScreenshotRef(EncodedImage.of(bytes(size)).content_hash, "", 0, size, 8, 8) for size in (60, 40)]
    assert images.wanted(refs) is None
    images.close()
