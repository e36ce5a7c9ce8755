"""An OpenAI-compatible server that holds a model, as `vllm serve` is: which models it has, and completions of token ids.

Prompts are sent as token ids and answers come back as such (vLLM's ``return_token_ids``): a server that only speaks text would
leave open what was said. Standard library only. Nothing is sent to a host that neither the configuration nor the environment has
named: redirects are not followed, and proxies (`http_proxy`, `https_proxy`, `all_proxy`) count, but never for servers of this
machine and those of `no_proxy`.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import re
import ssl
import stat
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from common.addresses import is_own
from common.config import EndpointConfig
from common.errors import ConfigError, EndpointRefused, PeerTimeout, Problem

FIELD = "actor.endpoint"
LOOK_S = 10.0
"""For the list of models."""

_MAX_ANSWER_BYTES = 64 << 20
_SHOWN_BYTES = 100
"""Of an answer that is no JSON."""
_LATER = frozenset({408, 425, 429, 502, 503, 504})
"""A gateway without its server, or a server that has too much to do: it may have time later."""
_KEY = frozenset({401, 403})
_ADDRESS = "give the address of an OpenAI-compatible server, up to and with /v1"
_TLS = "give http:// where the server has no TLS, or name the file of its certificate in SSL_CERT_FILE"
_TOO_LONG = "look at the model's context length; actor.prompt.max_prompt_tokens and actor.max_new_tokens bound what is asked"
_STEPS = {
    400: _TOO_LONG, 413: _TOO_LONG, 422: _TOO_LONG, 404: f"{_ADDRESS}; actor.endpoint.model is the model's name there",
    405: _ADDRESS, 407: "put the proxy's user and password into its address in the environment",
}  # fmt: skip


class Endpoint:
    """One server; safe to share between threads."""

    def __init__(self, config: EndpointConfig) -> None:
        """Raises `ConfigError` for a key file that is missing or that others may read, and for a proxy of an unknown kind."""
        self._config = config
        self._headers = {"Content-Type": "application/json"}
        if config.key_file is not None:
            self._headers["Authorization"] = f"Bearer {_read_key(Path(config.key_file))}"
        proxy = _proxy_for(config.url)
        proxies = {} if proxy is None else {"http": proxy, "https": proxy}
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies), _NoRedirect)
        # Without the password that a proxy's address may hold.
        shown = None if proxy is None else proxy.rpartition("@")[2].removeprefix("http://")
        self._way = "" if shown is None else f" (through the proxy http://{shown}, as the environment says)"

    def find_model(self) -> str:
        """The name of the model that is asked. Raises `ConfigError` when the server is not there or has no such model."""
        try:
            names = [str(entry["id"]) for entry in self._ask("models", None, timeout_s=LOOK_S)["data"]]
        except PeerTimeout as error:
            step = "start it (vllm serve MODEL --port PORT), or give the address that ends with /v1"
            raise ConfigError([Problem(f"{FIELD}.url", str(error), step)]) from None
        except EndpointRefused as error:
            raise ConfigError([Problem(f"{FIELD}.url", error.reason, error.next_step)]) from None
        except (KeyError, TypeError):
            raise ConfigError([Problem(f"{FIELD}.url", f"{self._config.url} lists no models", _ADDRESS)]) from None
        wanted = self._config.model
        if wanted is None and len(names) == 1:
            return names[0]
        if wanted not in names:
            reason = f"{self._config.url} serves {', '.join(names) or 'nothing'}" + (f", not {wanted}" if wanted else "")
            raise ConfigError([Problem(f"{FIELD}.model", reason, "name one of these")])
        return wanted

    def complete(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The first choice of a completion. Raises `PeerTimeout` when nobody answers, `EndpointRefused` for a refusal."""
        answer = self._ask("completions", asked, timeout_s=self._config.timeout_s)
        try:
            choice = answer["choices"][0]
        except (KeyError, IndexError, TypeError):
            choice = None
        if not isinstance(choice, dict):
            raise EndpointRefused(f"{self._config.url} answered a completion without choices: {str(answer)[:200]}", _ADDRESS)
        return choice

    def _ask(self, what: str, asked: dict[str, Any] | None, *, timeout_s: float) -> Any:
        url = f"{self._config.url.rstrip('/')}/{what}"
        data = None if asked is None else json.dumps(asked).encode()
        request = urllib.request.Request(url, data=data, headers=self._headers)
        try:
            with self._opener.open(request, timeout=timeout_s) as answer:
                text = answer.read(_MAX_ANSWER_BYTES)
                num_missing = answer.length or 0  # Of those that its head announced.
        except urllib.error.HTTPError as error:
            raise _refusal(url, error, way=self._way, key_file=self._config.key_file) from None
        except (http.client.HTTPException, ConnectionResetError, BrokenPipeError) as error:
            raise _broken(f"{url}{self._way}", f"{type(error).__name__} {error}") from None
        except OSError as error:
            cause = getattr(error, "reason", None) or error
            if isinstance(cause, ssl.SSLError):
                raise EndpointRefused(f"{url}{self._way} has no TLS that can be trusted: {cause}", _TLS) from None
            if isinstance(cause, ConnectionResetError | BrokenPipeError):
                raise _broken(f"{url}{self._way}", str(cause)) from None
            raise PeerTimeout(f"{url} does not answer: {cause}{self._way}") from None
        if num_missing:
            raise _broken(f"{url}{self._way}", f"{num_missing} bytes are missing")
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise EndpointRefused(f"{url} answered no JSON: {error}, in {text[:_SHOWN_BYTES]!r}", _ADDRESS) from None


def _broken(where: str, why: str) -> EndpointRefused:
    step = "look at the server's log, and whether an HTTP server listens at that port"
    return EndpointRefused(f"{where} ended the connection before its answer did: {why}", step, is_broken=True)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer like any other: following it would send prompts and key to a host that nobody named."""

    def redirect_request(self, *_: Any) -> None:
        """None: not followed."""


def _refusal(url: str, error: urllib.error.HTTPError, *, way: str, key_file: str | None) -> PeerTimeout | EndpointRefused:
    """The error that a status other than 200 stands for."""
    try:
        said = " ".join(error.read(1000).decode(errors="replace").split())
    except (OSError, http.client.HTTPException):
        said = "(its reason broke off)"
    code = error.code
    reason = f"{url} answered {code}{way}: {said or error.reason}"
    if code in _LATER:
        return PeerTimeout(reason)
    if code in _KEY:
        no_key = "give the file of its key in actor.endpoint.key_file (chmod 600)"
        return EndpointRefused(reason, no_key if key_file is None else f"look at the key in {key_file}")
    if 300 <= code < 400:
        target = error.headers.get("Location", "nowhere")
        step = "give the address of the server itself: a redirect is not followed"
        return EndpointRefused(f"{url} redirects to {target}{way}", step)
    return EndpointRefused(reason, _STEPS.get(code, "look at the server's log"))


def _proxy_for(url: str) -> str | None:
    """`http://HOST:PORT` of the proxy that the environment wants for ``url``; None for this machine's own servers and those of
    `no_proxy`. Raises `ConfigError` for a proxy of a kind that is not spoken here."""
    place = urllib.parse.urlsplit(url)
    host, proxies = place.hostname or "", urllib.request.getproxies()
    variable = place.scheme if place.scheme in proxies else "all"
    if variable not in proxies or is_own(host) or _is_excepted(host, place.netloc, proxies.get("no", "")):
        return None
    given = proxies[variable]
    proxy = urllib.parse.urlsplit(given if ":/" in given else f"http://{given}")
    if proxy.scheme != "http" or not proxy.hostname:
        reason = f"the environment's {variable}_proxy is a {proxy.scheme or 'nameless'} proxy, only http:// ones are spoken to"
        step = f"unset {variable}_proxy, set {place.scheme}_proxy to an HTTP proxy, or name {host} in no_proxy"
        raise ConfigError([Problem(f"{FIELD}.url", reason, step)])
    return f"http://{proxy.netloc}"


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


def _read_key(path: Path) -> str:
    try:
        mode = path.stat().st_mode
        key = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError([Problem(f"{FIELD}.key_file", f"{path}: {error.strerror}", "give the file with the key")]) from None
    if not re.fullmatch(rb"[!-~]+", key):
        reason = f"{path} holds no key, which is one word of ASCII characters"
        raise ConfigError([Problem(f"{FIELD}.key_file", reason, "write the key and nothing else into it")])
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError([Problem(f"{FIELD}.key_file", f"{path} may be read by others", f"chmod 600 {path}")])
    return key.decode()
