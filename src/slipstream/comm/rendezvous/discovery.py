"""What this host is and how others reach it: host id, interfaces, addresses. Linux; standard library only."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import socket
import struct
from collections.abc import Sequence
from typing import NamedTuple

from slipstream.base.files import kernel_text

__all__ = [
    "Interface",
    "advertised_addresses",
    "bind_addresses",
    "host_id",
    "interfaces",
    "is_local_host",
    "reachable_addresses",
]

_SIOCGIFCONF, _SIOCGIFFLAGS = 0x8912, 0x8913
_IFF_UP, _IFF_LOOPBACK = 0x1, 0x8
# Bridges of container and virtual machine hosts: the same address on every host, reachable from none.
_SETTING = "--interface (SLIPSTREAM_INTERFACE)"
_PRIVATE_BRIDGES = ("docker", "virbr", "br-", "cni", "lxcbr", "podman")


def host_id(override: str | None = None) -> str:
    """What processes that can share memory have in common (boot, network namespace, user): 32 hex digits.

    ``override`` is the value of SLIPSTREAM_HOST_ID, which tests and containers use to split or join hosts.
    """
    if override is not None:
        return override
    boot = kernel_text("/proc/sys/kernel/random/boot_id")
    namespace = os.stat("/proc/self/ns/net").st_ino
    return hashlib.sha256(f"{boot}|{namespace}|{os.getuid()}".encode()).hexdigest()[:32]


class Interface(NamedTuple):
    """A network interface with its numeric addresses (IPv6 without scope)."""

    name: str
    up: bool
    loopback: bool
    ipv4: tuple[str, ...] = ()
    ipv6: tuple[str, ...] = ()


def interfaces() -> list[Interface]:
    """The interfaces of this network namespace, in the kernel's order."""
    ipv4, ipv6 = _ipv4_addresses(), _ipv6_addresses()
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(sock, _SIOCGIFFLAGS, struct.pack("16s24x", name.encode()))
            except OSError:  # it went away meanwhile
                continue
            (flags,) = struct.unpack_from("H", answer, 16)
            found.append(
                Interface(
                    name,
                    bool(flags & _IFF_UP),
                    bool(flags & _IFF_LOOPBACK),
                    tuple(ipv4.get(name, ())),
                    tuple(ipv6.get(name, ())),
                )
            )
    return found


def _ipv4_addresses() -> dict[str, list[str]]:
    entry = 40 if struct.calcsize("P") == 8 else 32  # sizeof(struct ifreq)
    space = 64 * entry
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        while True:
            # the kernel writes through a pointer: a buffer that keeps its address
            buffer = ctypes.create_string_buffer(space)
            request = struct.pack("iP", space, ctypes.addressof(buffer))
            (used,) = struct.unpack_from("i", fcntl.ioctl(sock, _SIOCGIFCONF, request))
            if used < space - entry:
                break
            space *= 2
    found: dict[str, list[str]] = {}
    for at in range(0, used, entry):
        record = buffer.raw[at : at + entry]
        name = record[:16].split(b"\0", 1)[0].decode().split(":")[0]  # eth0:1 is an alias of eth0
        found.setdefault(name, []).append(socket.inet_ntoa(record[20:24]))
    return found


def _ipv6_addresses() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    try:
        lines = kernel_text("/proc/net/if_inet6").splitlines()
    except OSError:
        return found
    for line in lines:
        digits, _, _, scope, _, name = line.split()
        if scope != "20":  # link-local addresses need a scope that differs from host to host
            found.setdefault(name, []).append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    return found


def _default_interface() -> str | None:
    try:
        lines = kernel_text("/proc/net/route").splitlines()[1:]
    except OSError:
        return None
    routes = [line.split() for line in lines]
    defaults = [(int(f[6]), f[0]) for f in routes if len(f) > 7 and f[1] == "00000000" and f[7] == "00000000"]
    return min(defaults)[1] if defaults else None


def _as_address(text: str) -> str | None:
    """A numeric address as it is usually written; None of anything else."""
    import ipaddress  # few processes are given one

    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None


def advertised_addresses(interface: str | None = None, *, one_host: bool = False) -> list[str]:
    """Numeric addresses at which peers may reach this host, best first: default route, IPv4, then IPv6.

    ``interface`` (names or numeric addresses, with commas between) restricts them. Loopback comes last, and
    only if all ranks are on this host (``one_host``), if it was asked for by name, or if there is nothing else.
    Raises ValueError when the interface does not exist, is down or has no address.
    """
    found = interfaces()
    if interface is not None:
        return [address for one in interface.split(",") for address in _of_interface(found, one)]
    default = _default_interface()
    usable = [i for i in found if i.up and not i.loopback]
    usable.sort(key=lambda i: (i.name.startswith(_PRIVATE_BRIDGES), i.name != default))
    addresses = [a for i in usable for a in i.ipv4] + [a for i in usable for a in i.ipv6]
    if one_host or not addresses:
        loopback = [i for i in found if i.up and i.loopback]
        addresses += [a for i in loopback for a in i.ipv4] + [a for i in loopback for a in i.ipv6]
    return addresses


def _of_interface(found: list[Interface], interface: str) -> list[str]:
    wanted = _as_address(interface)
    if wanted is not None:
        if any(wanted in i.ipv4 + i.ipv6 for i in found if i.up):
            return [wanted]
        raise ValueError(f"{_SETTING}: {interface!r}: no interface of this host has that address")
    for i in found:
        if i.name == interface:
            if not i.up:
                raise ValueError(f"{_SETTING}: {interface!r} is down")
            if not i.ipv4 + i.ipv6:
                raise ValueError(f"{_SETTING}: {interface!r} has no address")
            return [*i.ipv4, *i.ipv6]
    names = ", ".join(i.name for i in found)
    raise ValueError(f"{_SETTING}: {interface!r} does not exist on this host; there are {names}")


def bind_addresses(interface: str | None, *, one_host: bool = False) -> list[str]:
    """The addresses that a listener binds: those of the chosen interfaces, loopback on one host, else all.

    All are ``0.0.0.0`` and ``::``, or that of the only family that an interface other than loopback has.
    """
    if interface is not None:
        return list(dict.fromkeys(advertised_addresses(interface)))
    found = [i for i in interfaces() if i.up]
    if one_host:
        return ["127.0.0.1"] if any(i.ipv4 for i in found if i.loopback) else ["::1"]
    others = [i for i in found if not i.loopback]
    ipv4, ipv6 = any(i.ipv4 for i in others), any(i.ipv6 for i in others)
    return ["0.0.0.0"] * (ipv4 or not ipv6) + ["::"] * ipv6


def reachable_addresses(advertised: Sequence[str], interface: str | None) -> list[str]:
    """What peers are told: SLIPSTREAM_ADDRESS where it is set (behind NAT), else `advertised_addresses`."""
    return list(advertised) or advertised_addresses(interface)


def is_local_host(name: str) -> bool:
    """Whether a host name or address means this machine."""
    if name in ("localhost", "127.0.0.1", "::1", socket.gethostname()):
        return True
    try:
        answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    own = {a for i in interfaces() for a in i.ipv4 + i.ipv6}
    return any(str(answer[4][0]) in own or str(answer[4][0]).startswith("127.") for answer in answers)
