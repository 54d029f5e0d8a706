"""What a lab looks like: its hosts, their links, and what happens to them while a job runs. Pure data."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.base.units import format_rate, parse_duration, parse_rate

__all__ = ["ACTIONS", "Event", "HostSpec", "Spec", "load", "make", "parse_event"]

MOST_HOSTS = 250
MOST_PATHS = 16
MOST_INTERFACES = 8
FAMILIES = ("ipv4", "ipv6", "both")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")


@dataclass(frozen=True)
class HostSpec:
    """A host and its link. ``rate``: bits a second each way, None for as fast as the machine.

    ``paths``: bits a second of each path to the network; every TCP connection keeps to one of them. ``delay``:
    seconds one way; ``loss``: share of packets, 0 to 1.

    >>> HostSpec("h1", paths=(100_000_000, 400_000_000)).line_rate
    500000000
    """

    name: str
    slots: int = 1
    rate: int | None = None
    paths: tuple[int, ...] = ()
    delay: float = 0.0
    loss: float = 0.0
    reducer: bool = False

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name == "hub":
            raise ValueError(
                f"{self.name!r:.40} is not a host name: lower-case letters, digits and -, not hub"
            )
        if not 0 <= self.slots <= 1024:
            raise ValueError(f"host {self.name}: {self.slots} slots are not 0 to 1024")
        if len(self.paths) > MOST_PATHS or len(self.paths) == 1:
            raise ValueError(f"host {self.name}: {len(self.paths)} paths are not 2 to {MOST_PATHS}")
        if not 0 <= self.loss < 1:
            raise ValueError(f"host {self.name}: a loss of {self.loss} is not from 0 to below 1")
        if self.delay < 0:
            raise ValueError(f"host {self.name}: a delay of {self.delay} s")

    @property
    def line_rate(self) -> int | None:
        """What the whole link carries: ``rate``, or else all paths together."""
        return self.rate if self.rate is not None else (sum(self.paths) or None)


@dataclass(frozen=True)
class Event:
    """``action`` on ``host``, ``at`` seconds after the command's start.

    ``path`` and ``interface`` count from 1; 0 is the whole link, and all interfaces.

    >>> str(Event(5.0, "cut", "h2"))
    '5s:cut:h2'
    """

    at: float
    action: str
    host: str
    rate: int | None = None
    path: int = 0
    interface: int = 0

    def __str__(self) -> str:
        words = [f"{self.at:g}s", self.action, self.host]
        words += [str(number) for number in (self.path, self.interface) if number]
        return ":".join(words + ([format_rate(self.rate)] if self.rate is not None else []))


ACTIONS = {
    "rate": "HOST:RATE",
    "path": "HOST:NUMBER:RATE",
    "cut": "HOST[:INTERFACE]",
    "heal": "HOST[:INTERFACE]",
}


def parse_event(text: str) -> Event:
    """Reads ``5s:rate:h2:50mbit``, ``5s:path:h2:4:50mbit``, ``9s:cut:h3`` or ``12s:heal:h3:2``; raises ValueError."""
    at, *words = text.split(":")
    action = words[0] if words else ""
    if action not in ACTIONS or len(words) not in _lengths(ACTIONS[action]):
        ways = ", ".join(f"TIME:{name}:{rest}" for name, rest in ACTIONS.items())
        raise ValueError(f"event {text!r:.60}: expected one of {ways}")
    try:
        rate = parse_rate(words[-1]) if action in ("rate", "path") else None
        path = int(words[2]) if action == "path" else 0
        interface = int(words[2]) if action in ("cut", "heal") and len(words) == 3 else 0
        return Event(parse_duration(at), action, words[1], rate, path, interface)
    except ValueError as error:
        raise ValueError(f"event {text!r:.60}: {error}") from None


def _lengths(form: str) -> tuple[int, int]:
    most = 1 + form.count(":") + 1
    return most - form.count("["), most


@dataclass(frozen=True)
class Spec:
    """A whole lab. ``mtu``: bytes of a packet; 9000 as in the networks that clouds give to training clusters.

    ``interfaces``: of each host, every one with a link of its own, to a switch and a subnet of its own. ``family``: of
    the hosts' addresses, ``ipv4``, ``ipv6`` or ``both``.

    >>> Spec((HostSpec("h1"), HostSpec("h2")), interfaces=2).interfaces
    2
    """

    hosts: tuple[HostSpec, ...]
    mtu: int = 9000
    events: tuple[Event, ...] = ()
    interfaces: int = 1
    family: str = "ipv4"

    def __post_init__(self) -> None:
        names = [host.name for host in self.hosts]
        if not 1 <= len(names) <= MOST_HOSTS:
            raise ValueError(f"{len(names)} hosts are not 1 to {MOST_HOSTS}")
        if len(set(names)) < len(names):
            raise ValueError("two hosts have the same name")
        if not 576 <= self.mtu <= 65535:
            raise ValueError(f"an MTU of {self.mtu} is not 576 to 65535")
        if not 1 <= self.interfaces <= MOST_INTERFACES:
            raise ValueError(f"{self.interfaces} interfaces are not 1 to {MOST_INTERFACES}")
        if self.family not in FAMILIES:
            raise ValueError(f"{self.family!r:.40} is not a family: {', '.join(FAMILIES)}")
        for event in self.events:
            if not 0 <= event.interface <= self.interfaces:
                raise ValueError(f"event {event}: hosts have {self.interfaces} interfaces")
            host = self.host(event.host)
            if event.path > len(host.paths) or (event.action == "path" and event.path < 1):
                raise ValueError(f"event {event}: host {host.name} has {len(host.paths)} paths")
        if all(host.reducer for host in self.hosts):
            raise ValueError("a lab needs a host that is no reducer")

    def host(self, name: str) -> HostSpec:
        """The host of that name; ValueError naming those that there are."""
        for host in self.hosts:
            if host.name == name:
                return host
        raise ValueError(f"the lab has no host {name!r:.40}; it has {', '.join(h.name for h in self.hosts)}")

    def address(self, name: str, interface: int = 1) -> str:
        """The first address of a host on one of its interfaces, from 1."""
        return self.addresses(name, interface)[0]

    def addresses(self, name: str, interface: int = 1) -> list[str]:
        """The addresses of a host on one of its interfaces, from 1: IPv4, then IPv6, as the lab has them."""
        network, number = 76 + interface, 1 + self.hosts.index(self.host(name))
        found = {"ipv4": f"10.{network}.0.{number}", "ipv6": f"fd{network}::{number:x}"}
        return list(found.values()) if self.family == "both" else [found[self.family]]

    def replaced(self, host: HostSpec) -> Spec:
        """The same lab with another description of the host of that name."""
        return dataclasses.replace(self, hosts=tuple(host if h.name == host.name else h for h in self.hosts))

    @property
    def common_rate(self) -> int | None:
        """What every host that is no reducer gets over all its interfaces, None if they differ."""
        rates = {host.line_rate for host in self.hosts if not host.reducer}
        rate = rates.pop() if len(rates) == 1 else None
        return rate * self.interfaces if rate is not None else None

    def as_dict(self) -> dict[str, Any]:
        """For JSON; read back by `Spec.from_dict`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Spec:
        """What `as_dict` wrote."""
        hosts = tuple(HostSpec(**{**host, "paths": tuple(host["paths"])}) for host in data["hosts"])
        events = tuple(Event(**event) for event in data["events"])
        return cls(hosts, data["mtu"], events, data["interfaces"], data["family"])


def _rate(value: object) -> int | None:
    return None if value is None else value if isinstance(value, int) else parse_rate(str(value))


def _paths(value: Any) -> tuple[int, ...]:
    words = value.split(",") if isinstance(value, str) else value
    return tuple(rate for word in words if (rate := _rate(word)) is not None)


def _duration(value: object) -> float:
    return float(value) if isinstance(value, int | float) else parse_duration(str(value))


def _loss(value: object) -> float:
    text = str(value)
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)


_LINK: dict[str, Callable[[Any], Any]] = {
    "slots": int,
    "rate": _rate,
    "paths": _paths,
    "delay": _duration,
    "loss": _loss,
}
_KEYS = ("hosts", "reducers", "interfaces", "family", "mtu", "events", *_LINK)


def make(
    hosts: int | Sequence[str | Mapping[str, Any]] = 2,
    *,
    reducers: int | Sequence[str | Mapping[str, Any]] = 0,
    interfaces: int = 1,
    family: str = "ipv4",
    mtu: int = 9000,
    events: Sequence[str | Event] = (),
    **link: Any,
) -> Spec:
    """A lab from numbers and texts as people give them; raises ValueError.

    ``hosts`` and ``reducers`` are counts (h1, h2, ..., r1, r2, ...), or names and mappings with a ``name`` and
    what differs. ``link``: slots, rate, paths, delay, loss of all that say nothing else.
    """
    common = _link(link, "the lab")
    found = [HostSpec(**common | one) for one in _named(hosts, "h")]
    found += [HostSpec(**common | {"slots": 0, "reducer": True} | one) for one in _named(reducers, "r")]
    parsed = tuple(e if isinstance(e, Event) else parse_event(str(e)) for e in events)
    return Spec(tuple(found), mtu, parsed, interfaces, family)


def _named(hosts: int | Sequence[str | Mapping[str, Any]], letter: str) -> list[dict[str, Any]]:
    if isinstance(hosts, int):
        return [{"name": f"{letter}{i + 1}"} for i in range(hosts)]
    named = []
    for number, host in enumerate(hosts, 1):
        given = {"name": host} if isinstance(host, str) else dict(host)
        name = str(given.pop("name", f"{letter}{number}"))
        named.append({"name": name, **_link(given, f"host {name}")})
    return named


def _link(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    _known(given, tuple(_LINK), where)
    try:
        return {key: _LINK[key](value) for key, value in given.items()}
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None


def _known(given: Mapping[str, Any], keys: Sequence[str], where: str) -> None:
    for key in given:
        if key not in keys:
            close = difflib.get_close_matches(str(key), keys, n=1)
            hint = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(keys)}"
            raise ValueError(f"{where}: unknown key {key!r:.40}{hint}")


def load(path: Path) -> dict[str, Any]:
    """The arguments of `make` in a YAML or JSON file; raises ValueError that names the file."""
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text) if path.suffix == ".json" else _yaml(text)
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path}: expected keys and values, such as 'hosts: 4'")
    _known(data, _KEYS, str(path))
    return data


def _yaml(text: str) -> Any:
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        raise ValueError("YAML needs PyYAML: pip install pyyaml, or write JSON in a .json file") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
