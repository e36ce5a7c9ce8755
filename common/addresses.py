"""Which of this machine's addresses a setting means. Opens no sockets.

One configuration is read on many nodes, each of which has another address: so a setting may name a network instead.
"""

from __future__ import annotations

import ipaddress
import socket

import psutil

from common.errors import Problem, SetupError

HOST = "host"
INTERFACE = "interface:"


def own_address(setting: str) -> str:
    """The address to listen on.

    ``setting``: an address or a name, given back as it is; `host`, what this machine's name leads to; `interface:NAME`, that
    interface's; a network (`10.20.0.0/16`), this machine's address in it. Raises `SetupError` naming what there is instead.
    """
    if setting == HOST:
        return _of_host()
    if setting.startswith(INTERFACE):
        name = setting.removeprefix(INTERFACE)
        return _first([address for interface, address in _addresses() if interface == name], setting)
    if "/" in setting:
        try:
            network = ipaddress.ip_network(setting)
        except ValueError as error:
            step = "write it as 10.20.0.0/16, or use host or interface:NAME"
            raise SetupError(Problem("network", f"{setting!r} is no network: {error}", step)) from None
        return _first([address for _, address in _addresses() if ipaddress.ip_address(address) in network], setting)
    return setting


def interface_of(address: str) -> str | None:
    """Name of the interface that has ``address``; None: none of this machine's."""
    return next((interface for interface, found in _addresses() if found == address), None)


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches ``address``."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _of_host() -> str:
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        step = "ask the administrator to make the name resolve, or set `network` to the node's network (10.20.0.0/16)"
        raise SetupError(Problem("network", f"this machine's name {name!r} leads nowhere: {error}", step)) from None
    if is_loopback(address):
        step = "set `network` to the node's network (10.20.0.0/16) or interface:NAME; " + _there_are()
        raise SetupError(Problem("network", f"this machine's name {name!r} leads to {address}, which no other sees", step))
    return address


def _addresses() -> list[tuple[str, str]]:
    """(interface, address), IPv4 first; link-local ones left out."""
    families = (socket.AF_INET, socket.AF_INET6)
    found = [
        (families.index(entry.family), interface, entry.address.partition("%")[0])
        for interface, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family in families
    ]
    return [(name, address) for _, name, address in sorted(found) if not ipaddress.ip_address(address).is_link_local]


def _first(addresses: list[str], setting: str) -> str:
    if not addresses:
        raise SetupError(Problem("network", f"{socket.gethostname()} has no address in {setting!r}", _there_are()))
    return addresses[0]


def _there_are() -> str:
    return "it has " + ", ".join(f"{address} ({interface})" for interface, address in _addresses())
