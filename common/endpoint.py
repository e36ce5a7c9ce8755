"""An OpenAI-compatible server that holds a model, as `vllm serve` is: which models it has, and completions of token ids.

Prompts are sent as token ids and answers come back as such (vLLM's ``return_token_ids``): a server that only speaks text would
leave open what was said. Standard library only. Nothing is sent to a host that neither the configuration nor the environment has
named: proxies (`http_proxy` and its like) count, but never for servers of this machine.
"""

from __future__ import annotations

import http.client
import json
import stat
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from common.addresses import is_loopback
from common.config import EndpointConfig
from common.errors import ConfigError, EngineFailed, PeerTimeout, Problem

FIELD = "actor.endpoint"
LOOK_S = 10.0
"""For the list of models."""

_MAX_ANSWER_BYTES = 64 << 20


class Endpoint:
    """One server; safe to share between threads."""

    def __init__(self, config: EndpointConfig) -> None:
        """Raises `ConfigError` for a key file that is missing or that others may read."""
        self._config = config
        self._headers = {"Content-Type": "application/json"}
        if config.key_file is not None:
            self._headers["Authorization"] = f"Bearer {_read_key(Path(config.key_file))}"
        host = urllib.parse.urlsplit(config.url).hostname or ""
        self._proxies = {} if is_loopback(host) else urllib.request.getproxies()
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler(self._proxies))

    def find_model(self) -> str:
        """The name of the model that is asked. Raises `ConfigError` when the server is not there or has no such model."""
        try:
            names = [str(entry["id"]) for entry in self._ask("models", None, timeout_s=LOOK_S)["data"]]
        except (PeerTimeout, EngineFailed) as error:
            step = "start it (vllm serve MODEL --port PORT), or give the address that ends with /v1"
            raise ConfigError([Problem(f"{FIELD}.url", str(error), step)]) from None
        except (KeyError, TypeError):
            reason = f"{self._config.url} lists no models"
            raise ConfigError([Problem(f"{FIELD}.url", reason, "give the address of an OpenAI-compatible server")]) from None
        wanted = self._config.model
        if wanted is None and len(names) == 1:
            return names[0]
        if wanted not in names:
            reason = f"{self._config.url} serves {', '.join(names) or 'nothing'}" + (f", not {wanted}" if wanted else "")
            raise ConfigError([Problem(f"{FIELD}.model", reason, "name one of these")])
        return wanted

    def complete(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The first choice of a completion. Raises `PeerTimeout` when nobody answers, `EngineFailed` for a refusal."""
        answer = self._ask("completions", asked, timeout_s=self._config.timeout_s)
        try:
            choice = answer["choices"][0]
        except (KeyError, IndexError, TypeError):
            choice = None
        if not isinstance(choice, dict):
            raise EngineFailed(f"{self._config.url} answered a completion without choices: {str(answer)[:200]}")
        return choice

    def _ask(self, what: str, asked: dict[str, Any] | None, *, timeout_s: float) -> Any:
        url = f"{self._config.url.rstrip('/')}/{what}"
        data = None if asked is None else json.dumps(asked).encode()
        request = urllib.request.Request(url, data=data, headers=self._headers)
        try:
            with self._opener.open(request, timeout=timeout_s) as answer:
                return json.loads(answer.read(_MAX_ANSWER_BYTES))
        except urllib.error.HTTPError as error:
            said = error.read(1000).decode(errors="replace")
            # A gateway without its server, or a server that has too much to do: it may have time later.
            kind = PeerTimeout if error.code in (429, 502, 503, 504) else EngineFailed
            raise kind(f"{url} answered {error.code}: {said}") from None
        except (OSError, http.client.HTTPException) as error:
            through = self._proxies.get(request.type)
            way = f" (through the proxy {through}, as the environment says)" if through else ""
            raise PeerTimeout(f"{url} does not answer: {getattr(error, 'reason', None) or error}{way}") from None
        except ValueError as error:
            raise EngineFailed(f"{url} answered no JSON: {error}") from None


def _read_key(path: Path) -> str:
    try:
        mode = path.stat().st_mode
        key = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError([Problem(f"{FIELD}.key_file", f"{path}: {error.strerror}", "give the file with the key")]) from None
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError([Problem(f"{FIELD}.key_file", f"{path} may be read by others", f"chmod 600 {path}")])
    return key
