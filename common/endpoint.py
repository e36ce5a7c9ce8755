"""An OpenAI-compatible server that holds a model, as `vllm serve` is: which models it has, completions of token ids, and turns of
a chat.

Prompts are sent as token ids, and completions come back as token ids (vLLM's ``return_token_ids``): text alone would leave open
which tokens were sampled. A chat is texts and images, and text as the reply, for evaluations. Nothing is sent to a host that
neither the configuration nor the environment has named: redirects are not followed, and proxies (`http_proxy`, `https_proxy`,
`all_proxy`) count, but never for servers of this machine and those of `no_proxy`.
"""

from __future__ import annotations

import base64
import email.utils
import http.client
import ipaddress
import json
import math
import os
import re
import socket
import ssl
import stat
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any

from computerrl.common.chat import ChatReply, ChatRequest, ChatTurn, read_reply
from computerrl.common.config import EndpointConfig
from computerrl.common.errors import ConfigError, EndpointAway, EndpointBusy, EndpointRefused, PeerTimeout, Problem
from computerrl.common.log import on_one_line
from computerrl.common.wire.addresses import is_own

FIELD = "actor.endpoint"
LOOK_S = 10.0
"""Deadline for the list of models, and for the first completion."""

_MAX_REPLY_BYTES = 64 << 20
_SHOWN_CHARS = 200
"""Number of characters of a server's text that an error quotes."""
_MAX_SHOWN_NAMES = 20
_MIN_KEY_CHARS, _MAX_KEY_BYTES = 16, 16 << 10
_MAX_TOKEN = 2**31 - 1
_LATER = frozenset({408, 425, 429, 502, 503, 504})
"""A gateway without its server, or a server that has too much to do: it may have time later."""
_KEY = frozenset({401, 403})
_VLLM = "use a server that knows return_token_ids, as vLLM does, and the tokenizer of its model"
_ADDRESS = "give the address of an OpenAI-compatible server, up to and with /v1"
_TLS = "give http:// where the server has no TLS, or name the file of its certificate in SSL_CERT_FILE"
_TOO_LONG = "look at the model's context length; actor.prompt.max_prompt_tokens and actor.max_new_tokens bound what is asked"
_PROXY_KEY = "put the proxy's user and password into its address in the environment"
_CHAT = "look at whether the server's model takes so many images, and at its limits of the context and of a request's size"
_CHAT_STEPS = {status: _CHAT for status in (400, 413, 415, 422)}
_CHAT_PATH = "chat/completions"
_STEPS = {
    400: _TOO_LONG,
    413: _TOO_LONG,
    422: _TOO_LONG,
    404: f"{_ADDRESS}; actor.endpoint.model is the model's name there",
    405: _ADDRESS,
    407: _PROXY_KEY,
}


@dataclass(frozen=True, slots=True)
class EndpointCompletion:
    """A completion as the server sends it."""

    tokens: list[int]
    """Tokens, stop token included."""
    logprobs: list[float]
    """Log-prob of each token."""
    is_cut: bool
    """Whether it reached the maximum number of tokens before its end."""


def completion(
    *, model: str, prompt: Sequence[int], max_new_tokens: int, temperature: float, seed: int, stop_tokens: Collection[int]
) -> dict[str, Any]:
    """What `Endpoint.complete` asks."""
    return {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": max_new_tokens,
        "temperature": temperature,
        "seed": seed,
        "logprobs": 0,
        "stop_token_ids": sorted(stop_tokens),
        "return_token_ids": True,
    }


class Endpoint:
    """One server; safe to share between threads."""

    def __init__(self, config: EndpointConfig, *, key_header: str = "Authorization", headers: Mapping[str, str] = {}) -> None:
        """``key_header``: header that carries the key; ``headers``: further ones of every request.

        Raises `ConfigError` for a key file that is missing or that others may read, a variable that holds no key, and a proxy of
        an unknown kind."""
        self._config = config
        self._url = config.url.rstrip("/")
        self._key = _key_of(config)
        self._headers = {"Content-Type": "application/json", **headers}
        if self._key is not None:
            self._headers[key_header] = f"Bearer {self._key}" if key_header == "Authorization" else self._key
        self._proxy = _proxy_for(config.url)
        # Without the password that a proxy's address may hold.
        shown = None if self._proxy is None else self._proxy.netloc.rpartition("@")[2]
        self._way = "" if shown is None else f" (through the proxy http://{shown}, as the environment says)"

    def find_model(self) -> str:
        """The name of the model that is asked. Raises `ConfigError` when the server is not there or has no such model."""
        try:
            names = [str(entry["id"]) for entry in self.ask("models", None, timeout_s=LOOK_S)["data"]]
        except PeerTimeout as error:
            step = "start it (vllm serve MODEL --port PORT), or give the address that ends with /v1"
            raise ConfigError([Problem(f"{FIELD}.url", str(error), step)]) from None
        except EndpointRefused as error:
            raise ConfigError([Problem(f"{FIELD}.url", error.reason, error.next_step)]) from None
        except (KeyError, TypeError):
            raise ConfigError([Problem(f"{FIELD}.url", f"{self._url} lists no models", _ADDRESS)]) from None
        wanted = self._config.model
        if wanted is None and len(names) == 1:
            return names[0]
        if wanted not in names:
            shown = ", ".join(self._quoted(name) for name in names[:_MAX_SHOWN_NAMES]) or "nothing"
            more = f" and {len(names) - _MAX_SHOWN_NAMES} more" if len(names) > _MAX_SHOWN_NAMES else ""
            reason = f"{self._url} serves {shown}{more}" + (f", not {wanted}" if wanted else "")
            raise ConfigError([Problem(f"{FIELD}.model", reason, "name one of these")])
        return wanted

    def check(self, *, longest: int) -> None:
        """Ask for one token behind a prompt with which it makes the ``longest`` that is ever asked for.

        Raises `ConfigError` when the server refuses that. One that has no time now may have it later, and is not refused.
        """
        asked = completion(
            model=self.find_model(), prompt=[1] * max(1, longest - 1), max_new_tokens=1, temperature=0.0, seed=0, stop_tokens=()
        )
        self._check(lambda: self.complete(asked, timeout_s=LOOK_S))

    def check_chat(self, *, images: Sequence[bytes]) -> None:
        """Ask for one token behind a turn that shows ``images``. Raises `ConfigError` like `check`."""
        turn = ChatTurn("user", ("Say ok.", *images))
        asked = ChatRequest(self.find_model(), (turn,), max_new_tokens=1, temperature=0.0, seed=0)
        self._check(lambda: self.chat(asked, timeout_s=LOOK_S))

    def _check(self, ask: Callable[[], object]) -> None:
        try:
            ask()
        except PeerTimeout:
            return
        except EndpointRefused as error:
            raise ConfigError([Problem(FIELD, error.reason, error.next_step)]) from None

    def complete(self, asked: Mapping[str, Any], *, timeout_s: float | None = None) -> EndpointCompletion:
        """The first choice of what is ``asked`` (`completion`), within ``timeout_s``, or what the configuration says.

        Raises `PeerTimeout` when nobody answers in time, `EndpointRefused` for a refusal and for an answer that is none.
        """
        return _completion(self._choice("completions", asked, timeout_s=timeout_s), most=asked["max_tokens"])

    def chat(self, request: ChatRequest, *, timeout_s: float | None = None) -> ChatReply:
        """The server's turn after those of ``request``. ``timeout_s`` and errors as in `complete`."""
        body = request.body(sends_png=self._config.image_format == "png")
        return read_reply(self._choice(_CHAT_PATH, body, timeout_s=timeout_s), max_new_tokens=request.max_new_tokens)

    def _choice(self, what: str, asked: Mapping[str, Any], *, timeout_s: float | None) -> dict[str, Any]:
        """The first choice of the server's reply."""
        reply = self.ask(what, asked, timeout_s=timeout_s)
        try:
            choice = reply["choices"][0]
        except (KeyError, IndexError, TypeError):
            choice = None
        if not isinstance(choice, dict):
            reason = f"{self._url} answered a completion without choices: {self._quoted(json.dumps(reply))}"
            raise EndpointRefused(reason, _ADDRESS)
        return choice

    def ask(self, what: str, asked: Mapping[str, Any] | None, *, timeout_s: float | None = None) -> Any:
        """The server's reply to ``asked`` (None: a GET) at the path ``what``, as JSON. Deadline and errors: as in `complete`."""
        timeout_s = self._config.timeout_s if timeout_s is None else timeout_s
        url = f"{self._url}/{what}"
        where = f"{url}{self._way}"
        try:
            status, headers, text = self._request(url, None if asked is None else json.dumps(asked).encode(), timeout_s=timeout_s)
        except (http.client.HTTPException, ConnectionResetError, BrokenPipeError) as error:
            raise _broken(where, self._quoted(f"{type(error).__name__} {error}")) from None
        except ssl.SSLError as error:
            raise EndpointRefused(f"{where} has no TLS that can be trusted: {error}", _TLS) from None
        except (OSError, UnicodeError) as error:  # UnicodeError: the name of a proxy that is none.
            if "Tunnel connection failed: 407" in str(error):
                raise EndpointRefused(f"{where} is not reached: {error}", _PROXY_KEY) from None
            kind = PeerTimeout if isinstance(error, TimeoutError) else EndpointAway
            raise kind(f"{url} does not answer: {error}{self._way}") from None
        if not 200 <= status < 300:
            raise self._refusal(url, status, headers, text)
        if len(text) > _MAX_REPLY_BYTES:
            raise EndpointRefused(f"{where} answered with more than {_MAX_REPLY_BYTES >> 20} MiB", _ADDRESS)
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            said = self._quoted(text[: 4 * _SHOWN_CHARS].decode(errors="replace"))
            raise EndpointRefused(f"{url} answered no JSON: {error}, in {said!r}", _ADDRESS) from None

    def _request(self, url: str, data: bytes | None, *, timeout_s: float) -> tuple[int, Message, bytes]:
        """(status, headers, body) of the answer, all of which has come within ``timeout_s``. The body of a refusal may be cut."""
        place = urllib.parse.urlsplit(url)
        is_tls = place.scheme == "https"
        server = (place.hostname or "", place.port)
        target = place.geturl() if self._proxy is not None and not is_tls else place.path
        headers = dict(self._headers)
        host, port = server if self._proxy is None else (self._proxy.hostname or "", self._proxy.port or 80)
        kind = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
        connection = kind(host, port, timeout=timeout_s)
        if self._proxy is not None and is_tls:
            connection.set_tunnel(*server, headers=_proxy_key(self._proxy))
        elif self._proxy is not None:
            headers |= _proxy_key(self._proxy)
        try:
            with _cut_after(timeout_s, connection):
                connection.request("GET" if data is None else "POST", target, body=data, headers=headers)
                with connection.getresponse() as response:
                    read = _read_reply if 200 <= response.status < 300 else _read_beginning
                    return response.status, response.headers, read(response)
        finally:
            connection.close()

    def _refusal(self, url: str, status: int, headers: Message, text: bytes) -> PeerTimeout | EndpointRefused:
        """The error that a status other than 200 stands for."""
        said = self._quoted(text.decode(errors="replace")) or http.client.responses.get(status, "nothing")
        reason = f"{url} answered {status}{self._way}: {said}"
        if status in _LATER:
            return EndpointBusy(reason, retry_after_s=_seconds(headers.get("Retry-After", "")))
        if status in _KEY:
            no_key = "give the file of its key in actor.endpoint.key_file (chmod 600)"
            place = self._config.key_file or f"the variable {self._config.key_variable}"
            return EndpointRefused(reason, no_key if self._key is None else f"look at the key in {place}")
        if 300 <= status < 400:
            target = self._quoted(headers.get("Location", "nowhere"))
            step = "give the address of the server itself: a redirect is not followed"
            return EndpointRefused(f"{url} redirects to {target}{self._way}", step)
        steps = _STEPS | _CHAT_STEPS if url.endswith(_CHAT_PATH) else _STEPS
        return EndpointRefused(reason, steps.get(status, "look at the server's log"), is_broken=status >= 500)

    def _quoted(self, said: str) -> str:
        """The beginning of what a server ``said``, on one line, without what a terminal would obey, and without the key."""
        text = on_one_line(said if self._key is None else said.replace(self._key, "(the key)"))
        return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


@contextmanager
def _cut_after(timeout_s: float, connection: http.client.HTTPConnection) -> Iterator[None]:
    """End the ``connection`` after ``timeout_s``, however often something comes. Raises `TimeoutError` in that case."""
    is_over = threading.Event()
    opened: list[socket.socket] = []

    def cut() -> None:
        is_over.set()
        held = opened[0] if opened else connection.sock  # None before a connection stands.
        if held is not None:
            with suppress(OSError):  # It has ended by itself.
                # Not the method of a TLS socket, which is not for two threads.
                socket.socket.shutdown(held, socket.SHUT_RDWR)

    timer = threading.Timer(timeout_s, cut)
    timer.daemon = True
    timer.start()
    try:
        connection.connect()
        # The answer takes the socket from the connection when it is the last one.
        opened.append(connection.sock)
        yield
    except (OSError, http.client.HTTPException):
        if not is_over.is_set():
            raise
    finally:
        timer.cancel()
    if is_over.is_set():  # What was read may look like an answer that ends here.
        raise TimeoutError(f"the whole answer has not come within {timeout_s:g} s")


def _read_reply(response: http.client.HTTPResponse) -> bytes:
    """The body, or the beginning of one that is too large. Raises `http.client.HTTPException` for one that broke off."""
    text = response.read(_MAX_REPLY_BYTES + 1)
    if response.length and len(text) <= _MAX_REPLY_BYTES:
        raise http.client.IncompleteRead(text, response.length)
    return text


def _read_beginning(response: http.client.HTTPResponse) -> bytes:
    """What there is of the reason for a refusal."""
    try:
        return response.read(4 * _SHOWN_CHARS)
    except (OSError, http.client.HTTPException):
        return b"(its reason broke off)"


def _completion(choice: Mapping[str, Any], *, most: int) -> EndpointCompletion:
    """The answer of at most ``most`` tokens that a server's ``choice`` holds. Raises `EndpointRefused`."""
    try:
        tokens, logprobs = list(choice["token_ids"]), [float(value) for value in choice["logprobs"]["token_logprobs"]]
    except (KeyError, TypeError, ValueError, OverflowError):
        raise EndpointRefused("the server's answer lacks the ids and log-probs of return_token_ids", _VLLM) from None
    if not tokens or len(tokens) != len(logprobs):
        raise EndpointRefused(f"the server's answer has {len(tokens)} tokens and {len(logprobs)} log-probs", _VLLM)
    if len(tokens) > most:
        raise EndpointRefused(f"the server's answer has {len(tokens)} tokens, and {most} were allowed", _VLLM)
    odd = [token for token in tokens if type(token) is not int or not 0 <= token <= _MAX_TOKEN]
    if odd or not all(map(math.isfinite, logprobs)):
        raise EndpointRefused(f"the server's answer has ids or log-probs that are none: {(odd or logprobs)[:3]!r:.100}", _VLLM)
    return EndpointCompletion(tokens, logprobs, is_cut=choice.get("finish_reason") == "length")


def _broken(where: str, why: str) -> EndpointRefused:
    step = "look at the server's log, and whether an HTTP server listens at that port (https:// for one with TLS)"
    return EndpointRefused(f"{where} ended the connection before its answer did: {why}", step, is_broken=True)


def _seconds(retry_after: str) -> float:
    """Seconds from now that the header Retry-After means, a number or a date; 0 where it is neither."""
    if re.fullmatch(r"\d{1,9}", retry_after.strip(), re.ASCII):
        return float(retry_after)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (ValueError, OverflowError, OSError):
        return 0.0


def _proxy_key(proxy: urllib.parse.SplitResult) -> dict[str, str]:
    """The header with the user and password that stand in a proxy's address."""
    user, at, _ = proxy.netloc.rpartition("@")
    encoded = base64.b64encode(urllib.parse.unquote(user).encode()).decode()
    return {"Proxy-Authorization": f"Basic {encoded}"} if at else {}


def _proxy_for(url: str) -> urllib.parse.SplitResult | None:
    """The address of the proxy that the environment wants for ``url``; None for this machine's own servers and those of
    `no_proxy`. Raises `ConfigError` for a proxy of a kind that is not spoken here."""
    place = urllib.parse.urlsplit(url)
    host, proxies = place.hostname or "", urllib.request.getproxies()
    variable = place.scheme if place.scheme in proxies else "all"
    if variable not in proxies or is_own(host) or _is_excepted(host, place.netloc, proxies.get("no", "")):
        return None
    given = proxies[variable]
    step = f"unset {variable}_proxy, set {place.scheme}_proxy to an HTTP proxy, or name {host} in no_proxy"
    try:
        proxy = urllib.parse.urlsplit(given if ":/" in given else f"http://{given}")
        is_address = bool(proxy.hostname) and proxy.port != 0
    except ValueError:
        is_address = False  # Brackets that do not close, or a port that is none.
    if not is_address:
        reason = f"the environment's {variable}_proxy is no address of a proxy, which is http://HOST:PORT"
        raise ConfigError([Problem(f"{FIELD}.url", reason, step)])
    if proxy.scheme != "http":
        reason = f"the environment's {variable}_proxy is a {proxy.scheme} proxy, only http:// ones are spoken to"
        raise ConfigError([Problem(f"{FIELD}.url", reason, step)])
    return proxy


def _is_excepted(host: str, netloc: str, no_proxy: str) -> bool:
    """Whether ``no_proxy`` names ``host``: a name or its domain, `host:port`, a number, a network, or `*`."""
    if any(urllib.request.proxy_bypass(name) for name in (host, netloc)):
        return True
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        return False
    for entry in no_proxy.split(","):
        try:
            if number in ipaddress.ip_network(entry.strip(), strict=False):
                return True
        except ValueError:
            continue  # A name, which is no network.
    return False


def _key_of(config: EndpointConfig) -> str | None:
    if config.key_file is not None:
        return _read_key(Path(config.key_file))
    if config.key_variable is None:
        return None
    key = os.environ.get(config.key_variable, "").strip()
    if not re.fullmatch(r"[!-~]+", key):
        reason = f"the environment variable {config.key_variable} holds no key, which is one word of ASCII characters"
        raise ConfigError([Problem(f"{FIELD}.key_variable", reason, "set it, or name a file in actor.endpoint.key_file")])
    return key


def _read_key(path: Path) -> str:
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise ConfigError([Problem(f"{FIELD}.key_file", f"{path} is no file", "give the file with the key")])
        with path.open("rb") as file:
            key = file.read(_MAX_KEY_BYTES + 1).strip()
    except OSError as error:
        # A long word may be the key itself, given in place of its file.
        shown = str(path) if "/" in str(path) or len(str(path)) < _MIN_KEY_CHARS else "the file"
        raise ConfigError([Problem(f"{FIELD}.key_file", f"{shown}: {error.strerror}", "give the file with the key")]) from None
    if not re.fullmatch(rb"[!-~]+", key) or len(key) > _MAX_KEY_BYTES:
        reason = f"{path} holds no key, which is one word of ASCII characters"
        raise ConfigError([Problem(f"{FIELD}.key_file", reason, "write the key and nothing else into it")])
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError([Problem(f"{FIELD}.key_file", f"{path} may be read by others", f"chmod 600 {path}")])
    return key.decode()
