"""The office's own options, as its menus change them; what a task changed is put back before the next. Only inside its calls."""

from __future__ import annotations

from typing import Any

from .process import Office
from .uno_values import properties


def write_options(office: Office, node: str, **values: Any) -> dict[str, Any]:
    """Set options of ``node`` such as ``/org.openoffice.Office.Recovery/AutoSave``; gives what they hold afterwards."""
    provider, access = _open(office, node)
    for name, value in values.items():
        office.options_before.setdefault((node, name), access.getByName(name))
        access.replaceByName(name, value)
    access.commitChanges()
    provider.flush()  # into the profile's file at once: it is also what evaluators may read
    return {name: access.getByName(name) for name in values}


def set_option(office: Office, node: str, name: str, value: Any) -> None:
    """Set one option for good, when it has another value."""
    _, access = _open(office, node)
    if access.getByName(name) != value:
        access.replaceByName(name, value)
        access.commitChanges()


def restore_options(office: Office) -> None:
    """Undo everything that `write_options` did since the last time."""
    for (node, name), value in office.options_before.items():
        provider, access = _open(office, node)
        access.replaceByName(name, value)
        access.commitChanges()
        provider.flush()
        office.options_restored[f"{node} {name}"] = str(value).lower() if isinstance(value, bool) else str(value)
    office.options_before.clear()


def flush_options(office: Office) -> None:
    """Have what was changed written to the profile's file."""
    office.create("com.sun.star.configuration.ConfigurationProvider").flush()


def _open(office: Office, node: str) -> tuple[Any, Any]:
    provider = office.create("com.sun.star.configuration.ConfigurationProvider")
    service = "com.sun.star.configuration.ConfigurationUpdateAccess"
    return provider, provider.createInstanceWithArguments(service, properties(nodepath=node))
