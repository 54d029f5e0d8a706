"""The network of a lab as batches of ``ip`` and ``tc`` commands. Pure functions.

Every host has an interface ``eth0``; its other end is port ``p1``, ``p2``, ... of a bridge in the namespace ``hub``.
What a host sends is shaped on ``eth0``, what it receives on its port. More interfaces, ``eth1`` and so on, go to
ports ``p1-2``, ... of more bridges.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from slipstream.lab.spec import HostSpec, Spec

__all__ = [
    "connect",
    "device_name",
    "host_setup",
    "hub_setup",
    "neighbours",
    "path_of",
    "port_name",
    "reshape",
    "shape",
]

# Queues as switches have them: enough for TCP to fill the link, far too short to hide that it is full.
_QUEUE_SECONDS = 0.02
_LEAST_QUEUE, _MOST_QUEUE = 256 << 10, 32 << 20
_BURST_SECONDS = 0.001
_LEAST_BURST = 64 << 10  # one segment that the kernel has not cut up yet
_MOST_LEARNED = 512  # neighbours that all hosts of a lab learn by themselves


def port_name(number: int, interface: int = 1) -> str:
    """The bridge's end of a cable of host ``number``, from 0; ``interface`` counts from 1."""
    return f"p{number + 1}" + (f"-{interface}" if interface > 1 else "")


def device_name(interface: int) -> str:
    """The host's end of the cable of its ``interface``, from 1."""
    return f"eth{interface - 1}"


def hub_setup(spec: Spec) -> list[str]:
    """``ip`` commands that make the switches."""
    commands = ["link set lo up"]
    for number in range(spec.interfaces):
        commands.append(f"link add br{number} type bridge forward_delay 0 stp_state 0")
        commands.append(f"link set br{number} mtu {spec.mtu} up")
    return commands


def connect(number: int, process: int, mtu: int, interface: int = 1) -> list[str]:
    """``ip`` commands, in the hub, that plug in the host whose namespace process ``process`` lives in."""
    port, device = port_name(number, interface), device_name(interface)
    return [
        f"link add {port} mtu {mtu} type veth peer name {device} mtu {mtu} netns {process}",
        f"link set {port} master br{interface - 1} up",
    ]


def host_setup(addresses: Sequence[Sequence[str]]) -> list[str]:
    """``ip`` commands, in the host, that bring its interfaces up; ``addresses`` of each of them."""
    commands = ["link set lo up"]
    for interface, own in enumerate(addresses, 1):
        device = device_name(interface)
        # Nobody else has these addresses: without nodad an IPv6 address is of no use for the first second or two.
        commands += [
            f"addr add {address}/64 dev {device} nodad"
            if ":" in address
            else f"addr add {address}/24 dev {device}"
            for address in own
        ]
        commands.append(f"link set {device} up")
    return commands


def neighbours(spec: Spec, host: HostSpec) -> list[str]:
    """``ip`` commands, in the host once it is set up, that tell a host of a large lab the others' hardware addresses.

    All hosts share the kernel's table of learned neighbours: 1024 of them (net.ipv4.neigh.default.gc_thresh3), fewer
    than the pairs of 33 hosts. One too many is "No route to host". What is told does not count.
    """
    hosts = len(spec.hosts)
    if hosts * (hosts - 1) * spec.interfaces <= _MOST_LEARNED:
        return []
    commands = []
    for interface in range(1, spec.interfaces + 1):
        device = device_name(interface)
        hardware = {
            other.name: f"02:00:00:00:{interface:02x}:{number:02x}"
            for number, other in enumerate(spec.hosts, 1)
        }
        # First: an interface that gets another address forgets its neighbours.
        commands.append(f"link set {device} address {hardware[host.name]}")
        commands += [
            f"neigh add {address} lladdr {hardware[other.name]} dev {device} nud permanent"
            for other in spec.hosts
            if other.name != host.name
            for address in spec.addresses(other.name, interface)
        ]
    return commands


def shape(host: HostSpec, device: str) -> list[str]:
    """``tc`` commands that shape ``device``: an interface of the host, with its paths, or its port, without."""
    rate = host.line_rate
    delayed = f" delay {host.delay * 1e6:.0f}us" if host.delay else ""
    lossy = f" loss {host.loss * 100:.6g}%" if host.loss else ""
    outgoing = _outgoing(device)
    if rate is None:
        if not outgoing or not (delayed or lossy):
            return []
        return [f"qdisc add dev {device} root handle 1: netem limit 100000{delayed}{lossy}"]
    commands = [
        f"qdisc add dev {device} root handle 1: htb default 1",
        f"class add dev {device} parent 1: classid 1:{'2' if host.paths and outgoing else '1'} {_htb(rate, rate)}",
    ]
    if not outgoing or not host.paths:
        leaf = f"netem limit 100000{delayed}{lossy}" if outgoing and (delayed or lossy) else _fifo(rate)
        return [*commands, f"qdisc add dev {device} parent 1:1 handle 10: {leaf}"]
    # What no filter catches, such as ARP, has a class of its own, so that it never waits behind a path.
    commands.append(f"class add dev {device} parent 1:2 classid 1:1 {_htb(rate // 100 + 1, rate)}")
    for path, own in enumerate(host.paths):
        commands += _path_class("add", device, host, path, own)
        leaf = f"netem limit 100000{delayed}{lossy}" if delayed or lossy else _fifo(own)
        commands.append(f"qdisc add dev {device} parent 1:{_class(path)} handle {_class(path)}: {leaf}")
    return commands + _filters(len(host.paths), device)


def reshape(old: HostSpec, new: HostSpec, device: str) -> list[str]:
    """``tc`` commands that turn the links of ``old`` into those of ``new``, without loss where both have a rate."""
    if old.line_rate is None or new.line_rate is None or len(old.paths) != len(new.paths):
        removed = [f"qdisc del dev {device} root"] if shape(old, device) else []
        return removed + shape(new, device)
    rate, paths = new.line_rate, new.paths if _outgoing(device) else ()
    plain = not (new.delay or new.loss) or not _outgoing(device)
    commands = [f"class change dev {device} parent 1: classid 1:{'2' if paths else '1'} {_htb(rate, rate)}"]
    if not paths and plain:
        commands.append(f"qdisc change dev {device} parent 1:1 handle 10: {_fifo(rate)}")
    for path, own in enumerate(paths):
        commands += _path_class("change", device, new, path, own)
        if plain:
            commands.append(
                f"qdisc change dev {device} parent 1:{_class(path)} handle {_class(path)}: {_fifo(own)}"
            )
    return commands


def path_of(source_port: int, target_port: int, paths: int) -> int:
    """Which of ``paths`` paths a TCP connection takes in one direction, from 0: the same in the other one.

    By bits 1 and up of both ports: the kernel hands out even ports first.
    """
    mask = _port_values(paths) - 1
    return (((source_port >> 1) & mask) + ((target_port >> 1) & mask)) % paths


def _outgoing(device: str) -> bool:
    return device.startswith("eth")


def _port_values(paths: int) -> int:
    return 1 << (paths - 1).bit_length()


def _class(path: int) -> str:
    return f"{0x10 + path:x}"


def _htb(rate: int, ceiling: int) -> str:
    burst = max(int(ceiling / 8 * _BURST_SECONDS), _LEAST_BURST)
    return f"htb rate {rate}bit ceil {ceiling}bit burst {burst}b cburst {burst}b quantum 60000"


def _fifo(rate: int) -> str:
    return f"bfifo limit {min(max(int(rate / 8 * _QUEUE_SECONDS), _LEAST_QUEUE), _MOST_QUEUE)}b"


def _path_class(verb: str, device: str, host: HostSpec, path: int, own: int) -> list[str]:
    whole, together = host.line_rate, sum(host.paths)
    assert whole is not None
    promised = max(own * min(whole, together) // together, 1)
    return [f"class {verb} dev {device} parent 1:2 classid 1:{_class(path)} {_htb(promised, own)}"]


def _filters(paths: int, device: str) -> list[str]:
    values: Sequence[int] = range(_port_values(paths))
    mask = (len(values) - 1) << 1
    return [
        f"filter add dev {device} parent 1: prio {prio} protocol {protocol} u32 match {header} protocol 6 0xff "
        f"match {header} sport {a << 1} {mask:#x} match {header} dport {b << 1} {mask:#x} "
        f"flowid 1:{_class((a + b) % paths)}"
        for prio, protocol, header in ((1, "ip", "ip"), (2, "ipv6", "ip6"))
        for a, b in itertools.product(values, values)
    ]
