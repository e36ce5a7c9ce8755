"""All getters by name: each reads one fact of the desktop (or of the task file and its assets) for a metric.

A getter is ``getter(context, args) -> value``. `None` means that the desktop has no such thing; the metric then scores 0. Errors
are `TaskFailed` (the task or its assets) and whatever the desktop raises.
"""

from __future__ import annotations

from computerrl.env_server.tasks.osworld.getters import browser, documents, files, values
from computerrl.env_server.tasks.osworld.getters.context import Context, Getter, GetterSpec

GETTERS: dict[str, GetterSpec] = {
    spec.name: spec for spec in (*files.GETTERS, *values.GETTERS, *browser.GETTERS, *documents.GETTERS)
}
"""Every getter that a contained desktop can honour."""

__all__ = ["GETTERS", "Context", "Getter", "GetterSpec"]
