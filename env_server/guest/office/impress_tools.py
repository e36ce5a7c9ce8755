"""The agent's API of Impress; see `common.action_tables.impress`."""

from __future__ import annotations

from .tools import OfficeTools


class ImpressTools(OfficeTools):
    """One method per action."""
