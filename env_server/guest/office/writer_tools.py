"""The agent's API of Writer; see `common.action_tables.writer`."""

from __future__ import annotations

from .tools import OfficeTools


class WriterTools(OfficeTools):
    """One method per action."""
