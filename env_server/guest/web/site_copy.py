"""The host's copy of web sites, as the guest sees it: one address at a time is asked for while a request is carried out.

Between its requests the host does not listen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..wire import Wire

_LIMIT_S = 60.0
"""For one file, which the host reads from a disk."""
_MAX_ADDRESS_CHARS = 10_000
"""Of an address that may be in the copy; a script may make it as long as it likes."""


class SiteCopy:
    """The copy behind one connection."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.host_listens = False
        """Is a request of the host's being carried out?"""

    def find(self, address: str) -> Mapping[str, Any] | None:
        """The copy's answer to ``address``: ``status``, ``type``, ``body``, ``location``; None: it has none."""
        if len(address) > _MAX_ADDRESS_CHARS:
            return None
        self._wire.send({"site": address})
        found: Mapping[str, Any] | None = self._wire.receive(timeout_s=_LIMIT_S)["found"]
        return found
