"""Where `slipstream run` lets the ranks of `torch.distributed` meet: MASTER_ADDR and MASTER_PORT."""

from __future__ import annotations

import random
import socket

import pytest

from slipstream.comm.rendezvous.discovery import advertised_addresses
from slipstream.launch import torch_rendezvous
from slipstream.launch.torch_rendezvous import PORTS, address_towards, master_address, master_port

HERE = "localhost"
ELSEWHERE = "192.0.2.7"  # reserved for documentation: nobody's, but numeric, so no look-up


def test_one_host_meets_on_loopback_wherever_it_is() -> None:
    assert master_address(HERE, HERE, {HERE: True}, None) == "127.0.0.1"
    assert master_address(ELSEWHERE, ELSEWHERE, {ELSEWHERE: False}, None) == "127.0.0.1"
    assert master_address(HERE, "127.0.0.1", {HERE: True, "127.0.0.1": True}, None) == "127.0.0.1"


def test_a_first_rank_here_is_reached_at_an_address_of_this_machine() -> None:
    local = {HERE: True, ELSEWHERE: False}
    assert master_address(HERE, HERE, local, None) == advertised_addresses()[0]
    expected = address_towards(ELSEWHERE) or advertised_addresses()[0]
    assert master_address(HERE, ELSEWHERE, local, None) == expected
    for host in local:
        assert master_address(HERE, host, local, "lo") == "127.0.0.1"


def test_a_first_rank_elsewhere_is_reached_by_its_address_or_else_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    local = {ELSEWHERE: False, HERE: True}
    assert [master_address(ELSEWHERE, host, local, None) for host in local] == [ELSEWHERE] * 2

    def unknown(*_: object, **__: object) -> object:
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert master_address("me@alias", HERE, {"me@alias": False, HERE: True}, None) == "alias"


def test_a_port_that_is_taken_here_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("", 0)) as taken, socket.socket() as other:
        other.bind(("", 0))  # free once it is closed
        free = other.getsockname()[1]
        other.close()
        monkeypatch.setattr(random, "sample", lambda *_: [taken.getsockname()[1], free])
        assert master_port(local=True) == free
        assert (
            master_port(local=False) == taken.getsockname()[1]
        )  # nothing is known about another host's ports
        monkeypatch.setattr(random, "sample", lambda *_: [taken.getsockname()[1]])
        with pytest.raises(OSError, match="MASTER_PORT"):
            master_port(local=True)


def test_ports_lie_below_those_of_the_system() -> None:
    assert master_port(local=True) in PORTS
    assert torch_rendezvous.PORTS.stop <= 32768
