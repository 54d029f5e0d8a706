"""Where the ranks of a job meet for `torch.distributed`: MASTER_ADDR and MASTER_PORT, on the host of rank 0.

PyTorch's own store listens there, in rank 0, on all interfaces; ``init_process_group`` reads the two variables.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping

from slipstream.comm.rendezvous.discovery import advertised_addresses

__all__ = ["PORTS", "address_towards", "master_address", "master_port"]

PORTS = range(20000, 30000)  # below the ports that systems hand out to whoever asks for any


def master_address(first: str, host: str, local: Mapping[str, bool], interface: str | None) -> str:
    """Where the ranks of ``host`` reach ``first``, the host of rank 0.

    ``local``: of every host of the job, whether it is this machine. The loopback address in a job of one host. A
    remote ``first`` whose name means nothing here (an alias of ssh) is passed on as it is.
    """
    if len(local) == 1 or all(local.values()):
        return "127.0.0.1"
    if local[first]:
        towards = None if local[host] or interface is not None else address_towards(host)
        return towards or advertised_addresses(interface)[0]
    name = _without_user(first)
    try:
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return name


def master_port(local: bool, but: int | None = None) -> int:
    """A port for rank 0's store: a free one if rank 0 is ``local``, else any of `PORTS`; OSError if none is free.

    ``but``: not this one.
    """
    for port in random.sample(PORTS, len(PORTS)):
        if port != but and (not local or _is_free(port)):
            return port
    raise OSError(f"no port of {PORTS.start} to {PORTS.stop - 1} is free for MASTER_PORT")


def address_towards(host: str) -> str | None:
    """The address this machine uses when it talks to ``host``; None when the name means nothing here."""
    try:
        for family, kind, _, _, address in socket.getaddrinfo(_without_user(host), 9, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind) as sock:
                sock.connect(address)
                return str(sock.getsockname()[0])
    except OSError:
        return None
    return None


def _without_user(host: str) -> str:
    return host.rpartition("@")[2]


def _is_free(port: int) -> bool:
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        socket.create_server(("", port), family=family, dualstack_ipv6=dual).close()
    except OSError:
        return False
    return True
