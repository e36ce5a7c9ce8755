"""Which of this machine's addresses a setting means, and how addresses are written. Opens no sockets.

One configuration is read on many nodes, each of which has another address: so a setting may name a network instead. Everything
that binds or connects takes its addresses from here: numbers without brackets, IPv4 or IPv6. In `tcp://HOST:PORT` and in URLs an
IPv6 number stands in brackets (`in_address`).
"""

from __future__ import annotations

import ipaddress
import socket

import psutil

from computerrl.common.errors import Problem, SetupError

HOST = "host"
INTERFACE = "interface:"
EVERYWHERE = frozenset({"0.0.0.0", "::"})
"""Listening on all interfaces."""
_LOOPBACK_NAMES = frozenset({"localhost", "localhost.localdomain", "localhost6", "ip6-localhost", "ip6-loopback"})
_FORMS = "give an address without a port, host, interface:NAME, or a network (10.20.0.0/16, fd00:20::/64)"


def own_address(setting: str) -> str:
    """The address to listen on, as a number.

    ``setting``: an address, with or without brackets; a name, which is looked up; `host`, where this machine's name leads;
    `interface:NAME`, that interface's; a network (`10.20.0.0/16`), this machine's address in it. Raises `SetupError` that says
    which addresses there are, or why an address does not serve.
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
    bare = without_brackets(setting)
    number = _number(bare)
    if number is None:
        return str(_looked_up(bare)[0])
    if number.version == 6 and number.is_link_local:
        reason = f"{setting!r} is link-local: its zone is another one on each machine"
        raise SetupError(Problem("network", reason, "use a routed address (fd00::/8 or a public one), or IPv4; " + _there_are()))
    return str(number)


def reachable_address(address: str) -> str:
    """The number under which others reach a server that listens on ``address``: itself, or for all interfaces one of them."""
    if address not in EVERYWHERE:
        return address
    family = 6 if is_ipv6(address) else 4
    own = [found for _, found in _addresses() if ipaddress.ip_address(found).version == family]
    try:
        of_host = _of_host()
    except SetupError:
        of_host = ""
    routed = [found for found in own if not is_loopback(found)]
    return of_host if of_host in own else (routed or ["::1" if family == 6 else "127.0.0.1"])[0]


def interface_of(address: str) -> str | None:
    """Name of the interface that has ``address``; None: none of this machine's."""
    return next((interface for interface, found in _addresses() if found == address), None)


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches ``address``, a number with or without brackets or a name."""
    bare = without_brackets(address)
    number = _number(bare)
    if number is not None:
        return number.is_loopback
    name = bare.lower().rstrip(".")
    return name in _LOOPBACK_NAMES or name.endswith(".localhost")


def is_own(address: str) -> bool:
    """Whether ``address`` of a server is this machine's: loopback, all interfaces, one of their numbers, or the host's name."""
    number = _number(without_brackets(address))
    if number is None:
        name, host = address.lower().rstrip("."), socket.gethostname().lower()
        return is_loopback(address) or name in (host, host.partition(".")[0]) or name == socket.getfqdn().lower()
    return number.is_loopback or number.is_unspecified or interface_of(str(number)) is not None


def is_ipv6(host: str) -> bool:
    """Whether a socket to or on ``host`` is of IPv6: an IPv6 number, or a name that has such numbers only."""
    number = _number(without_brackets(host))
    if number is not None:
        return number.version == 6
    try:
        return all(found.version == 6 for found in _looked_up(host))
    except SetupError:
        return False  # Connecting says so, and tries again.


def in_address(host: str) -> str:
    """``host`` as it stands before a port."""
    return f"[{host}]" if ":" in host else host


def tcp_address(host: str, port: int | str) -> str:
    """`tcp://HOST:PORT`."""
    return f"tcp://{in_address(host)}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """(host without brackets, port) of `HOST:PORT` or `tcp://HOST:PORT`. Raises ValueError where there is no port."""
    host, colon, port = address.removeprefix("tcp://").rpartition(":")
    if not (colon and host and port.isdecimal()):
        raise ValueError(f"{address!r} is not of the form HOST:PORT")
    return without_brackets(host), int(port)


def without_brackets(host: str) -> str:
    """``host`` as the socket functions take it."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def _number(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """``host`` as a number; an IPv4 number within an IPv6 one becomes itself. None for a name."""
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        try:
            return ipaddress.IPv4Address(socket.inet_aton(host)) if host[:1].isdigit() else None  # 127.1
        except OSError:
            return None
    return getattr(number, "ipv4_mapped", None) or number


def _looked_up(name: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Numbers of ``name``, IPv4 first, link-local ones left out. Raises `SetupError` when it leads nowhere."""
    try:
        answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM) if name else []
    except (OSError, UnicodeError) as error:
        raise SetupError(Problem("network", f"{name!r} leads nowhere: {error}", _FORMS)) from None
    numbers = {ipaddress.ip_address(str(place[0]).partition("%")[0]) for *_, place in answers}
    found = sorted((number for number in numbers if not number.is_link_local), key=lambda number: (number.version, int(number)))
    if not found:
        raise SetupError(Problem("network", f"{name!r} is no address", _FORMS))
    return found


def _of_host() -> str:
    name = socket.gethostname()
    try:
        numbers = _looked_up(name)
    except SetupError as error:
        step = "ask the administrator to make the name resolve, or set `network` to the node's network (10.20.0.0/16)"
        raise SetupError(Problem("network", f"this machine's name {error.problem.reason}", step)) from None
    routed = [number for number in numbers if not number.is_loopback]
    if not routed:
        step = "set `network` to the node's network (10.20.0.0/16) or interface:NAME; " + _there_are()
        reason = f"this machine's name {name!r} leads to {numbers[0]}, which no other sees"
        raise SetupError(Problem("network", reason, step))
    return str(routed[0])


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
