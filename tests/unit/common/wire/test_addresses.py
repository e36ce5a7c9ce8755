"""Which address a setting means, and ports that are spoken for."""

from __future__ import annotations

import re
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from computerrl.common.errors import SetupError
from computerrl.common.wire import addresses, ports
from computerrl.common.wire.addresses import interface_of, is_loopback, own_address


def _can_bind(host: str) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


HOSTS = tuple(host for host in ("127.0.0.1", "0.0.0.0", "::1", "::") if _can_bind(host))
"""Loopback and all interfaces, of the families that this machine has."""


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
    answer = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
    with pytest.raises(SetupError, match=r"127\.0\.1\.1, which no other sees"):
        own_address(addresses.HOST)
    answer.append((socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.1.2.3", 0)))
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


@pytest.mark.parametrize(
    ("setting", "number"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("localhost", "127.0.0.1"),
        ("127.1", "127.0.0.1"),
        ("::1", "::1"),
        ("[::1]", "::1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("[FD00::2]", "fd00::2"),
        ("::ffff:127.0.0.1", "127.0.0.1"),
        ("::", "::"),
        ("0.0.0.0", "0.0.0.0"),
        ("127.0.0.0/8", "127.0.0.1"),
        ("::1/128", "::1"),
    ],
)
def test_setting_of_either_family_in_any_spelling_is_a_number(setting: str, number: str) -> None:
    assert own_address(setting) == number


@pytest.mark.parametrize(
    "setting",
    [
        "",
        "*",
        "[::1",
        "::1]:5000",
        "[::1]:5000",
        "127.0.0.1:5000",
        "fe80::1",
        "fe80::1%eth0",
        "[fe80::1%lo]",
        "nothing.invalid",
        "x" * 300,
        "tcp://127.0.0.1",
        "fe80::/10",
        "fd00::1/8",
    ],
)
def test_setting_that_no_server_can_have_is_refused_with_the_way_out(setting: str) -> None:
    with pytest.raises(SetupError) as caught:
        own_address(setting)
    assert caught.value.problem.next_step


def test_host_whose_name_leads_to_ipv6_alone_has_that_address(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", (number, 0, 0, 0)) for number in ("fe80::5%2", "::1", "fd00::5")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers)
    assert own_address(addresses.HOST) == "fd00::5"
    assert addresses.is_ipv6("node-5")


@given(st.ip_addresses(v=6), st.integers(1, 65535))
def test_address_with_a_port_is_split_into_what_it_was_made_of(number: Any, port: int) -> None:
    assert addresses.split_address(addresses.tcp_address(str(number), port)) == (str(number), port)


@pytest.mark.parametrize("address", ["", "tcp://", "host", "[::1]", "host:", ":5", "host:x", "tcp://host:-1"])
def test_address_without_a_port_is_none(address: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        addresses.split_address(address)


@pytest.mark.parametrize("host", HOSTS)
def test_server_is_reached_under_a_number_of_this_machine_and_of_its_family(host: str) -> None:
    address = addresses.reachable_address(host)
    assert interface_of(address) is not None and (":" in address) == (":" in host)


@pytest.mark.parametrize("host", ["[::1]", "::ffff:127.0.0.1", "LOCALHOST", "localhost.", "x.localhost", "127.1"])
def test_loopback_is_known_in_every_spelling(host: str) -> None:
    assert is_loopback(host) and addresses.is_own(host)


@pytest.mark.parametrize("host", HOSTS)
def test_leased_port_is_free_there(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with ports.PortLease(host) as lease, socket.create_server((host, lease.port), family=family):
        pass


@pytest.mark.parametrize("host", HOSTS)
def test_server_answers_at_the_address_that_it_gives(host: str) -> None:
    from computerrl.common.messages import Ack, Hello
    from computerrl.common.wire.transport import Client, Server, generate_keys

    keys = generate_keys()
    server = Server(addresses.tcp_address(host, 0), keys=keys, sender="broker:x")
    client = Client(server.address, keys=keys, sender="actor-0:x")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.request, Hello("actor", 0, "x", "here", 1, {}), timeout_s=60.0)
        while not answer.done():
            for request in server.poll(0.1):
                request.reply(Ack())
        assert answer.result() == Ack()
    client.close()
    server.close()


@pytest.mark.parametrize("host", [host for host in HOSTS if is_loopback(host)])
def test_weights_are_broadcast_in_either_family(host: str) -> None:
    from computerrl.learner.client import BroadcastGroup, join_store, local_host_towards, serve_store

    store, address = serve_store(host)
    assert local_host_towards(address) == host

    def member(rank: int) -> list[float]:
        own = store if rank == 0 else join_store(address, timeout_s=60.0)
        group = BroadcastGroup(
            store=own, prefix="p", rank=rank, world_size=2, backend="gloo", host=host, form_timeout_s=60.0, timeout_s=60.0
        )
        buffer = torch.full((3,), float(1 - rank))
        assert list(group.broadcast([buffer])) == [0]
        group.abandon()
        return buffer.tolist()

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(member, range(2))) == [[1.0] * 3] * 2
