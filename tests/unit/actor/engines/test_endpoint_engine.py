"""The engine that asks a server: against a real HTTP server on loopback that answers as vLLM does, or badly."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from computerrl.actor.engines import patience
from computerrl.actor.engines.base import NO_VERSION, GenerationRequest
from computerrl.actor.engines.endpoint_engine import EndpointEngine
from computerrl.common import endpoint
from computerrl.common.config import EndpointConfig, load_config
from computerrl.common.endpoint import Endpoint
from computerrl.common.errors import ConfigError, EndpointBusy, EndpointRefused, EngineFailed, WeightError

ROOT = Path(__file__).resolve().parents[4]
STOP = 2


class Server:
    """Answers with ``answer(body)`` -> (status, JSON or text)."""

    def __init__(self) -> None:
        self.models = ["theirs"]
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.answer: Callable[[dict[str, Any]], tuple[int, Any]] = lambda _: (200, choice([7, 8, STOP]))
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send(200, {"data": [{"id": name} for name in outer.models]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.append(body)
                outer.keys.append(self.headers["Authorization"])
                self._send(*outer.answer(body))

            def _send(self, status: int, said: Any) -> None:
                data = said.encode() if isinstance(said, str) else json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


def choice(tokens: list[Any], *, finish: str = "stop") -> dict[str, Any]:
    logprobs = {"token_logprobs": [-0.5 * place for place in range(len(tokens))]}
    return {"choices": [{"token_ids": tokens, "logprobs": logprobs, "finish_reason": finish}]}


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.close()


@pytest.fixture
def engine(server: Server) -> Iterator[EndpointEngine]:
    asked = Endpoint(EndpointConfig(url=server.url))
    made = EndpointEngine(asked, model="theirs", decode=lambda tokens: "".join(map(chr, tokens)), num_live=2, seed=5)
    yield made
    made.close()


def request(*, most: int = 8, temperature: float = 0.7) -> GenerationRequest:
    return GenerationRequest(np.array([3, 4, 5], np.int32), temperature, most, frozenset({STOP, 9}))


def test_engine_asks_in_tokens_and_gives_tokens_log_probs_and_text_without_the_stop(
    engine: EndpointEngine, server: Server
) -> None:
    assert engine.policy_version == NO_VERSION
    assert engine.load(4, {}) == 0.0
    done = engine.submit(request()).result(10)
    assert (done.tokens.tolist(), done.text, done.finish) == ([7, 8, STOP], "\x07\x08", "stop")
    assert done.logprobs.tolist() == [0.0, -0.5, -1.0] and done.policy_versions.tolist() == [4, 4, 4]
    engine.submit(request()).result(10)
    (first, second) = server.asked
    assert first == {
        "model": "theirs",
        "prompt": [3, 4, 5],
        "max_tokens": 8,
        "temperature": 0.7,
        "seed": 5,
        "logprobs": 0,
        "stop_token_ids": [STOP, 9],
        "return_token_ids": True,
    }
    assert second["seed"] == 6, "two rollouts of one task must differ"


def test_answer_that_was_cut_keeps_all_its_text(engine: EndpointEngine, server: Server) -> None:
    server.answer = lambda _: (200, choice([7, STOP], finish="length"))
    done = engine.submit(request(most=2)).result(10)
    assert (done.finish, done.text) == ("length", "\x07\x02")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ((400, {"message": "this model's maximum context length is 2048 tokens"}), "400.*maximum context length"),
        ((200, "<html>"), "no JSON"),
        ((200, {"choices": []}), "without choices"),
        ((200, {"choices": [{"text": "hello", "finish_reason": "stop"}]}), "return_token_ids"),
        ((200, choice([])), "0 tokens"),
        ((200, "null"), "without choices"),
        ((200, "[" * 100_000), "no JSON"),
        ((200, {"choices": ["x"]}), "without choices"),
        ((200, choice([7] * 9)), "9 tokens, and 8 were allowed"),
        ((200, choice([2**40])), "ids or log-probs that are none"),
        ((200, choice([-1])), "ids or log-probs that are none"),
        ((200, choice(["7"])), "ids or log-probs that are none"),
        ((200, choice([7.5])), "ids or log-probs that are none"),
        ((200, '{"choices": [{"token_ids": [7], "logprobs": {"token_logprobs": [NaN]}}]}'), "ids or log-probs that are none"),
        ((200, {"choices": [{"token_ids": 7, "logprobs": {"token_logprobs": [0.0]}}]}), "return_token_ids"),
        ((200, {"choices": [{"token_ids": [7], "logprobs": None}]}), "return_token_ids"),
        ((401, "wrong key"), "401.*wrong key"),
        ((403, "<html>no</html>"), "403"),
        ((404, {"message": "no model"}), "404.*no model"),
        ((422, "unprocessable"), "422"),
    ],
)
def test_answer_that_is_none_fails_the_request_with_what_was_said(
    engine: EndpointEngine, server: Server, said: tuple[int, Any], reason: str
) -> None:
    server.answer = lambda _: said
    with pytest.raises(EngineFailed, match=reason):
        engine.submit(request()).result(10)
    server.answer = lambda _: (200, choice([7, STOP]))
    assert engine.submit(request()).result(10).finish == "stop"


def test_server_that_is_busy_or_away_is_asked_again(
    engine: EndpointEngine, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "_BACKOFF_S", (0.01, 0.02))
    answers = [(503, "starting"), (429, "too many"), (200, choice([7, STOP]))]
    server.answer = lambda _: answers[min(len(server.asked), 3) - 1]
    assert engine.submit(request()).result(10).tokens.tolist() == [7, STOP]
    assert len(server.asked) == 3


def test_server_that_stays_away_fails_the_request_and_closing_ends_the_wait(
    server: Server, engine: EndpointEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answer = lambda _: (503, "gone")
    waiting = engine.submit(request())
    monkeypatch.setattr(patience, "PATIENCE_S", 0.0)
    monkeypatch.setattr(patience, "_BACKOFF_S", (0.01, 0.02))
    with pytest.raises(ConfigError, match=r"answered nothing for 0 s: .*503"):
        engine.submit(request()).result(10)
    engine.close()
    with pytest.raises(EngineFailed, match="closed"):
        waiting.result(10)
    with pytest.raises(EngineFailed, match="closed"):
        engine.submit(request()).result(10)


def test_engine_takes_no_weights(engine: EndpointEngine) -> None:
    with pytest.raises(WeightError, match="takes no weights"):
        engine.load(1, {"x": torch.zeros(1)})
    assert engine.policy_version == NO_VERSION and engine.probe().size == 0


# --- finding the model -------------------------------------------------------------------------------------------------


def test_only_model_needs_no_name_and_several_do(server: Server) -> None:
    assert Endpoint(EndpointConfig(url=server.url)).find_model() == "theirs"
    server.models = ["a", "b"]
    assert Endpoint(EndpointConfig(url=server.url + "/", model="b")).find_model() == "b"
    for model in (None, "c"):
        with pytest.raises(ConfigError, match="serves a, b"):
            Endpoint(EndpointConfig(url=server.url, model=model)).find_model()


def test_server_that_is_not_there_is_a_problem_of_the_configuration(server: Server) -> None:
    url = server.url
    server.close()
    server.close = lambda: None  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match=r"actor\.endpoint\.url.*does not answer"):
        Endpoint(EndpointConfig(url=url)).find_model()


def test_key_is_sent_and_must_be_private(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("secret\n")
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        Endpoint(EndpointConfig(url=server.url, key_file=str(path)))
    path.chmod(0o600)
    Endpoint(EndpointConfig(url=server.url, key_file=str(path))).complete({"max_tokens": 8})
    assert server.keys == ["Bearer secret"]
    with pytest.raises(ConfigError, match="other: No such file"):
        Endpoint(EndpointConfig(url=server.url, key_file=str(tmp_path / "other")))
    for folder in (tmp_path, Path("/dev/zero")):
        with pytest.raises(ConfigError, match="is no file"):
            Endpoint(EndpointConfig(url=server.url, key_file=str(folder)))


def test_key_in_place_of_its_file_is_not_shown(server: Server) -> None:
    with pytest.raises(ConfigError, match="the file: No such file") as caught:
        Endpoint(EndpointConfig(url=server.url, key_file="sk-proj-0123456789abcdef"))
    assert "sk-" not in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["actor.engine=endpoint"], "goes with actor.engine endpoint"),
        (["actor.endpoint.url=http://127.0.0.1:1/v1"], "goes with actor.engine endpoint"),
        (["actor.engine=endpoint", "actor.endpoint.url=http://127.0.0.1:1/v1"], "can only evaluate"),
        *(
            (["actor.engine=endpoint", f"actor.endpoint.url={url}"], r"actor\.endpoint\.url")
            for url in (
                "",
                "file:///etc/passwd",
                "127.0.0.1:8000/v1",
                "http://",
                "http://[::1/v1",
                "http://h:port/v1",
                "http://h:0/v1",
                "http://h:70000/v1",
                "http://u:secret@h/v1",
                "http://h/v1?x=1",
                "http://h/v1#x",
                "http://h /v1",
                "http://hé/v1",
                f"http://{'a' * 64}.example/v1",
                "ftp://h/v1",
                "http://a..b/v1",
                "http://.a/v1",
                "http://[::1]x/v1",
                "http://[v1.x]/v1",
                "http://a,b/v1",
                "http://a%2fb/v1",
                "http://*/v1",
                "http://h:1:2/v1",
                "http://h:+1/v1",
                "unix:///run/x",
                "http:/h/v1",
            )
        ),
    ],
)
def test_configuration_that_trains_or_contradicts_itself_is_refused(overrides: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        load_config(ROOT / "configs" / "smoke.yaml", overrides=overrides)


PROXIES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY")


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The environment without proxies, to set some in."""
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
def test_proxy_of_the_environment_is_not_asked_for_a_server_of_this_machine(
    server: Server, proxied: pytest.MonkeyPatch, variable: str
) -> None:
    proxied.setenv(variable, "http://127.0.0.1:9")
    for host in ("127.0.0.1", "localhost", "LOCALHOST", "[::ffff:127.0.0.1]", "0.0.0.0", "127.1"):
        assert Endpoint(EndpointConfig(url=server.url.replace("127.0.0.1", host))).find_model() == "theirs"
    with pytest.raises(ConfigError, match=r"through the proxy http://127\.0\.0\.1:9"):
        Endpoint(EndpointConfig(url="http://model.invalid/v1")).find_model()


@pytest.mark.parametrize(
    ("variables", "url", "proxy"),
    [
        ({"https_proxy": "http://p:1", "http_proxy": "http://p:2"}, "https://h.example/v1", "http://p:1"),
        ({"https_proxy": "http://p:1"}, "http://h.example/v1", None),
        ({"all_proxy": "p:1"}, "https://h.example/v1", "http://p:1"),
        ({"all_proxy": "socks5://p:1", "https_proxy": "http://u:secret@p:2"}, "https://h.example/v1", "http://u:secret@p:2"),
        *(
            ({"http_proxy": "http://p:1", "no_proxy": names}, "http://h.example:8000/v1", None)
            for names in ("h.example", ".example", "example", "x, h.example:8000", "*", "H.EXAMPLE")
        ),
        ({"http_proxy": "http://p:1", "no_proxy": "example.h,ample"}, "http://h.example/v1", "http://p:1"),
        ({"http_proxy": "http://p:1", "no_proxy": "10.0.0.0/8"}, "http://10.1.2.3:8000/v1", None),
        ({"http_proxy": "http://p:1", "no_proxy": "fd00::2"}, "http://[fd00::2]:8000/v1", None),
        ({"http_proxy": "http://p:1", "no_proxy": "fd00::/8"}, "http://[fd00::2]:8000/v1", None),
    ],
)
def test_proxy_is_the_one_that_the_environment_wants_for_the_server(
    proxied: pytest.MonkeyPatch, variables: dict[str, str], url: str, proxy: str | None
) -> None:
    for name, value in variables.items():
        proxied.setenv(name, value)
    found = endpoint._proxy_for(url)
    assert (None if found is None else found.geturl()) == proxy


@pytest.mark.parametrize(
    "proxy", ["socks5://p:1", "https://p:1", "http://", "http:/p", "http://p:port", "http://[p", "http://p:0"]
)
def test_proxy_of_a_kind_that_is_not_spoken_is_refused_with_the_way_out(proxied: pytest.MonkeyPatch, proxy: str) -> None:
    proxied.setenv("all_proxy", proxy)
    with pytest.raises(ConfigError, match="no_proxy"):
        Endpoint(EndpointConfig(url="http://h.example/v1"))


def test_password_of_a_proxy_is_not_shown(proxied: pytest.MonkeyPatch) -> None:
    proxied.setenv("http_proxy", "http://user:secret@127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"proxy http://127\.0\.0\.1:9") as caught:
        Endpoint(EndpointConfig(url="http://model.invalid/v1")).find_model()
    assert "secret" not in str(caught.value)


# --- servers that are none ---------------------------------------------------------------------------------------------

OK_HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"


@pytest.fixture
def raw_server() -> Iterator[Callable[[bytes], str]]:
    """(bytes) -> address of a server that reads a request, answers with these and closes."""
    closing = threading.Event()
    listeners: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def answer(listener: socket.socket, data: bytes) -> None:
        while not closing.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                with suppress(OSError):  # The other side has had enough.
                    connection.sendall(data)

    def serve(data: bytes) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        threads.append(threading.Thread(target=answer, args=(listener, data)))
        threads[-1].start()
        return f"127.0.0.1:{listener.getsockname()[1]}"

    yield serve
    closing.set()
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "ended the connection"),
        (b"SSH-2.0-OpenSSH_9\r\n", "ended the connection"),
        (b"\x00" * 50, "ended the connection"),
        (OK_HEAD + b'{"data"', "93 more expected"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{", "ended"),
        (b"HTTP/1.1 200 OK\r\n\r\n<html>", "no JSON"),
        (b"HTTP/1.1 401 No\r\nContent-Length: 9\r\n\r\nwho", "401: who"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere.invalid/\r\n\r\n", "redirects to http://elsewhere.invalid/"),
        (b"HTTP/1.1 307 Moved\r\n\r\n", "redirects to nowhere"),
    ],
)
def test_server_whose_answer_is_none_is_refused_by_the_check_with_the_way_out(
    raw_server: Callable[[bytes], str], data: bytes, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        Endpoint(EndpointConfig(url=f"http://{raw_server(data)}/v1")).find_model()
    assert caught.value.problems[0].field == "actor.endpoint.url"


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b\x08\x00garbage", "no JSON"),
        (b'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {"id": 1}\n\n', "no JSON: .*'data: "),
        (b"HTTP/1.1 200 OK\r\n\r\n\xff\xfe{\x00}\x00", "lists no models"),
        (b"HTTP/1.1 204 No\r\n\r\n", "no JSON"),
        (b'HTTP/1.1 200 OK\r\n\r\n{"data": [{"name": "m"}]}', "lists no models"),
        (b'HTTP/1.1 200 OK\r\n\r\n{"data": []}', "serves nothing"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"9" * 5000, "no JSON"),
        (b"HTTP/1.1 403 No\r\nContent-Length: 1000000000\r\n\r\n" + b"who? " * 5000, "403: who"),
        (b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "500: .*broke off"),
        (CHUNKED + b"5\r\n[1]\r\n0\r\n\r\n", "ended the connection|no JSON"),
        (CHUNKED + b"-1\r\n", "ended the connection"),
        (b"HTTP/1.1 308 Moved\r\nLocation: \x1b]0;title\x07//x\r\n\r\n", "redirects to \N{REPLACEMENT CHARACTER}]0;title"),
        (b"HTTP/1.1 999 Odd\r\n\r\n", "999: nothing"),
        (b"HTTP/1.1 200\r\n" + b"a: b\r\n" * 200, "got more than 100 headers"),
        (b"HTTP/1.1 200 OK\r\n" + b"a" * 70_000, "header line"),
        (b"HTTP/1.1 407 Who\r\n\r\n", "proxy's user and password"),
    ],
)
def test_answer_of_a_strange_server_is_refused_by_the_check_in_words_that_can_be_printed(
    raw_server: Callable[[bytes], str], data: bytes, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        Endpoint(EndpointConfig(url=f"http://{raw_server(data)}/v1")).find_model()
    assert all(line.isprintable() and len(line) < 1000 for line in str(caught.value).splitlines())


def test_answer_without_end_is_refused_when_it_is_too_large(
    raw_server: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "_MAX_REPLY_BYTES", 1 << 20)
    for head in (b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n", CHUNKED + b"3b9aca00\r\n"):
        with pytest.raises(ConfigError, match="more than 1 MiB"):
            Endpoint(EndpointConfig(url=f"http://{raw_server(head + b' ' * (2 << 20))}/v1")).find_model()


def test_names_of_many_models_are_shown_in_part(server: Server) -> None:
    server.models = ["x" * 10_000, "\x1b[31m", *map(str, range(10_000))]
    with pytest.raises(ConfigError, match="and 9982 more, not y") as caught:
        Endpoint(EndpointConfig(url=server.url, model="y")).find_model()
    assert len(str(caught.value)) < 1000 and "\x1b" not in str(caught.value)


@pytest.mark.parametrize("head", [b"H", b"HTTP/1.1 200 OK\r\nx: ", b"HTTP/1.1 200 OK\r\n\r\n", CHUNKED, b"HTTP/1.1 100 Go\r\n"])
def test_answer_that_comes_in_drops_is_not_waited_for(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "LOOK_S", 0.4)
    closing = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):  # The other side has had enough.
                connection.recv(65536)
                connection.sendall(head)
                while not closing.wait(0.05):
                    connection.sendall(b"1")

        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(ConfigError, match=r"has not come within 0\.4 s"):
            Endpoint(EndpointConfig(url=f"http://127.0.0.1:{listener.getsockname()[1]}/v1")).find_model()
        closing.set()
        thread.join()


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ((400, "the prompt is longer than the context"), "400: the prompt is longer"),
        ((401, "no"), "401"),
        ((403, "no"), "403"),
        ((404, "no such model"), "404: no such model"),
        ((422, "no"), "422"),
        ((500, "oh"), "500: oh"),
        ((200, "<html>"), "no JSON"),
        ((200, {"choices": []}), "without choices"),
        ((200, {}), "without choices"),
        ((200, {"choices": [{"message": {"content": None, "tool_calls": [{}]}}]}), "return_token_ids"),
        ((200, {"choices": [{"text": "hello"}]}), "return_token_ids"),
        ((200, choice([])), "0 tokens"),
        ((200, choice([7, 8])), "2 tokens, and 1 were allowed"),
    ],
)
def test_check_refuses_a_server_that_refuses_the_longest_prompt(server: Server, said: tuple[int, Any], reason: str) -> None:
    server.answer = lambda _: said
    with pytest.raises(ConfigError, match=rf"actor\.endpoint: .*{reason}"):
        Endpoint(EndpointConfig(url=server.url)).check(longest=288)
    (asked,) = server.asked
    assert len(asked["prompt"]) + asked["max_tokens"] == 288


def test_check_passes_a_server_that_answers_or_has_no_time_now(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for said in ((200, choice([7])), (429, "later"), (503, "loading")):
        server.answer = lambda _, said=said: said  # type: ignore[misc]
        Endpoint(EndpointConfig(url=server.url)).check(longest=1)


def test_key_that_a_server_repeats_is_not_shown(server: Server, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sk-secret")
    key.chmod(0o600)
    asked = Endpoint(EndpointConfig(url=server.url, key_file=str(key)))
    for said in ((401, "Incorrect API key: sk-secret"), (200, "sk-secret is no key"), (200, {"error": "sk-secret"})):
        server.answer = lambda _, said=said: said  # type: ignore[misc]
        with pytest.raises(ConfigError, match=r"\(the key\)") as caught:
            asked.check(longest=1)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("header", "wait_s"),
    [
        ("7", 7.0),
        (" 7 ", 7.0),
        ("soon", 0.0),
        ("-3", 0.0),
        ("1e9", 0.0),
        ("", 0.0),
        ("9" * 400, 0.0),
        ("٣", 0.0),
        ("999999999", 60.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 60.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("Fri, 99 Foo 2026", 0.0),
    ],
)
def test_server_without_time_is_asked_again_when_it_wants(header: str, wait_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    busy = endpoint._seconds(header)
    answers = iter([EndpointBusy("busy", retry_after_s=busy), None])

    class Busy:
        def complete(self, asked: Any) -> Any:
            error = next(answers)
            if error is not None:
                raise error
            return endpoint.EndpointCompletion([7], [0.0], is_cut=False)

    engine = EndpointEngine(Busy(), model="m", decode=str, num_live=1, seed=0)
    monkeypatch.setattr(engine._patience._closing, "wait", waits.append)
    engine.submit(request()).result(10)
    engine.close()
    assert waits == [max(0.5, wait_s)]


def test_error_of_the_server_s_own_is_asked_for_again(
    engine: EndpointEngine, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "_BACKOFF_S", (0.01, 0.02))
    server.answer = lambda _: (500, "") if len(server.asked) < 4 else (200, choice([7, STOP]))
    assert engine.submit(request()).result(10).tokens.tolist() == [7, STOP]
    server.answer = lambda _: (500, "")
    with pytest.raises(ConfigError, match=r"refuses 5 requests in a row: .*500: Internal Server Error"):
        engine.submit(request()).result(10)


def test_host_of_a_url_is_reached_under_all_its_names(server: Server, proxied: pytest.MonkeyPatch) -> None:
    proxied.setenv("http_proxy", "http://127.0.0.1:9")
    for name in ("node-7.cluster", "NODE-7", "node-7", "node-7.cluster."):
        proxied.setattr(socket, "gethostname", lambda: "node-7.cluster")
        assert endpoint._proxy_for(f"http://{name}:8000/v1") is None
    assert endpoint._proxy_for("http://node-8.cluster:8000/v1") is not None


def test_server_without_tls_is_refused_by_the_check(raw_server: Callable[[bytes], str]) -> None:
    with pytest.raises(ConfigError, match=r"no TLS that can be trusted.*\n.*http://"):
        Endpoint(EndpointConfig(url=f"https://{raw_server(b'HTTP/1.1 400 Bad')}/v1")).find_model()


def test_prompt_and_key_do_not_follow_a_redirect(server: Server, raw_server: Callable[[bytes], str], tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret")
    key.chmod(0o600)
    head = f"HTTP/1.1 307 Moved\r\nLocation: {server.url}/completions\r\nContent-Length: 0\r\n\r\n"
    config = EndpointConfig(url=f"http://{raw_server(head.encode())}/v1", key_file=str(key))
    with pytest.raises(EndpointRefused, match="redirects to"):
        Endpoint(config).complete({"prompt": [1]})
    assert not server.asked and not server.keys


@pytest.mark.parametrize("content", [b"", b"\n", b"two words", b"two\nlines", b"\xff\xfe", "schlüssel".encode()])
def test_key_file_without_a_key_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="holds no key"):
        Endpoint(EndpointConfig(url="http://127.0.0.1:1/v1", key_file=str(path)))


def test_server_that_only_closes_connections_is_asked_again_and_then_given_up(
    raw_server: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "_BACKOFF_S", (0.01, 0.02))
    asked = Endpoint(EndpointConfig(url=f"http://{raw_server(b'')}/v1"))
    engine = EndpointEngine(asked, model="theirs", decode=str, num_live=2, seed=5)
    with pytest.raises(ConfigError, match=r"refuses 5 requests in a row: .*ended the connection"):
        engine.submit(request()).result(60)
    engine.close()


def test_server_that_refuses_everything_is_a_mistake_of_the_configuration(engine: EndpointEngine, server: Server) -> None:
    server.answer = lambda _: (401, {"message": "wrong key"})
    for _ in range(patience._MOST_REFUSALS - 1):
        with pytest.raises(EngineFailed, match="wrong key"):
            engine.submit(request()).result(10)
    with pytest.raises(ConfigError, match=r"refuses 5 requests in a row: .*401.*wrong key"):
        engine.submit(request()).result(10)


def test_refusals_among_answers_are_the_requests_own(engine: EndpointEngine, server: Server) -> None:
    refuses = iter([True, True, True, True, False] * 4)
    server.answer = lambda _: (400, {"message": "too long"}) if next(refuses) else (200, choice([7, STOP]))
    for number in range(20):
        if number % 5 == 4:
            engine.submit(request()).result(10)
        else:
            with pytest.raises(EngineFailed, match="too long"):
                engine.submit(request()).result(10)
