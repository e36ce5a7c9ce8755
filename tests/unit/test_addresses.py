"""Which address a setting means, and ports that are spoken for."""

from __future__ import annotations

import re
import socket

import pytest

from common import addresses, ports
from common.addresses import interface_of, is_loopback, own_address
from common.errors import SetupError


def test_address_is_given_back_and_networks_are_looked_up() -> None:
    assert own_address("127.0.0.1") == "127.0.0.1"
    assert own_address("127.0.0.0/8") == "127.0.0.1"
    assert own_address("interface:lo") == "127.0.0.1"
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") is None


@pytest.mark.parametrize("setting", ["203.0.113.0/24", "interface:nope9", "10.0.0.0/99"])
def test_setting_that_fits_nothing_says_so(setting: str) -> None:
    with pytest.raises(SetupError, match=re.escape(setting)):
        own_address(setting)


def test_host_whose_name_leads_to_loopback_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostbyname", lambda _: "127.0.1.1")
    with pytest.raises(SetupError, match=r"127\.0\.1\.1, which no other sees"):
        own_address(addresses.HOST)
    monkeypatch.setattr(socket, "gethostbyname", lambda _: "10.1.2.3")
    assert own_address(addresses.HOST) == "10.1.2.3"


def test_loopback_is_known_by_number_and_by_name() -> None:
    assert all(map(is_loopback, ("127.0.0.5", "::1", "localhost")))
    assert not any(map(is_loopback, ("10.0.0.1", "host", "10.0.0.0/8")))


def test_leased_port_is_nobody_elses_until_it_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    (port, other) = ports.free_looking_ports(2)
    monkeypatch.setattr(ports, "free_looking_ports", lambda _: [port, other])
    with ports.PortLease("127.0.0.1") as first, ports.PortLease("127.0.0.1") as second:
        assert (first.port, second.port) == (port, other)
        with pytest.raises(SetupError, match="none of"):
            ports.PortLease("127.0.0.1")
        with socket.create_server(("127.0.0.1", first.port)):
            pass  # Leased, and still free for whoever is told to listen on it.
    with ports.PortLease("127.0.0.1") as third:
        assert third.port == port


def test_port_that_somebody_listens_on_is_not_leased(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        (free,) = ports.free_looking_ports(1)
        monkeypatch.setattr(ports, "free_looking_ports", lambda _: [taken, free])
        with ports.PortLease("127.0.0.1") as lease:
            assert lease.port == free
