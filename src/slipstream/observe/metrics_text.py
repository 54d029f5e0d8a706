"""Numbers in Prometheus' text format, version 0.0.4. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.observe.metrics import Snapshot

__all__ = ["Family", "of_ranks", "render"]

Sample = tuple[Mapping[str, str], float]


@dataclass(frozen=True)
class Family:
    """A metric with its samples: labels and value. ``kind``: counter or gauge."""

    name: str
    kind: str
    text: str
    samples: Sequence[Sample]


def render(families: Iterable[Family]) -> str:
    """The page; families without samples are left out."""
    lines = []
    for one in families:
        if not one.samples:
            continue
        lines += [f"# HELP {one.name} {one.text}", f"# TYPE {one.name} {one.kind}"]
        for labels, value in one.samples:
            pairs = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
            lines.append(f"{one.name}{{{pairs}}} {value:.15g}" if pairs else f"{one.name} {value:.15g}")
    return "".join(f"{line}\n" for line in lines)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def of_ranks(snapshots: Sequence[Snapshot]) -> list[Family]:
    """The metrics of one rank, in each job that it is in."""
    labelled = [({"job": one["job"], "rank": str(one["rank"])}, one) for one in snapshots]
    return [*_of_steps(labelled), *_of_operations(labelled), *_of_links(labelled)]


_Labelled = Sequence[tuple[dict[str, str], Snapshot]]


def _family(name: str, kind: str, text: str, samples: Iterable[Sample]) -> Family:
    return Family(f"slipstream_{name}", kind, text, list(samples))


def _of_steps(labelled: _Labelled) -> list[Family]:
    def total(name: str) -> list[Sample]:
        return [(labels, one["steps"]["total"][name]) for labels, one in labelled]

    def single(name: str) -> list[Sample]:
        return [(labels, one[name]) for labels, one in labelled]

    medians = [
        (labels | {"part": part}, one["steps"]["recent"][name])
        for labels, one in labelled
        if one["steps"]["count"]
        for part, name in (
            ("all", "median"),
            ("compute", "compute"),
            ("exposed", "exposed"),
            ("hidden", "hidden"),
        )
    ]
    counts = [(labels, one["steps"]["count"]) for labels, one in labelled]
    late = [
        (labels | {"peer": peer}, value) for labels, one in labelled for peer, value in one["late"].items()
    ]
    return [
        _family("steps_total", "counter", "Training steps.", counts),
        _family("step_seconds_total", "counter", "Time of training steps.", total("seconds")),
        _family(
            "step_exposed_seconds_total", "counter", "Of that, waits for communication.", total("exposed")
        ),
        _family(
            "step_hidden_seconds_total",
            "counter",
            "Communication in steps that nobody waited for.",
            total("hidden"),
        ),
        _family("recent_step_seconds", "gauge", "Medians of the last 20 steps.", medians),
        _family(
            "wait_seconds_total", "counter", "Time that callers waited for operations.", single("waited")
        ),
        _family("busy_seconds_total", "counter", "Time with an operation under way.", single("busy")),
        _family("late_seconds_total", "counter", "How much later than this rank a peer came.", late),
        _family("stalls_total", "counter", "Warnings of operations that do not advance.", single("stalls")),
        _family(
            "wire_saved_bytes_total",
            "counter",
            "Bytes that shorter number formats saved.",
            single("saved_bytes"),
        ),
    ]


def _of_operations(labelled: _Labelled) -> list[Family]:
    def cells(name: str) -> list[Sample]:
        return [
            (labels | {"collective": cell["collective"], "size": _size(cell["largest"])}, cell[name])
            for labels, one in labelled
            for cell in one["operations"]
        ]

    return [
        _family("operations_total", "counter", "Operations done, by size in bytes.", cells("count")),
        _family("operation_bytes_total", "counter", "Bytes of their larger buffers.", cells("bytes")),
        _family(
            "operation_bus_bytes_total",
            "counter",
            "Bytes that the slowest link carried at least.",
            cells("bus_bytes"),
        ),
        _family(
            "operation_seconds_total", "counter", "Time from the call of each to its end.", cells("seconds")
        ),
    ]


def _size(largest: int) -> str:
    return str(largest) if largest else "+Inf"


def _peer(link: dict[str, Any]) -> str:
    reducer = link.get("reducer")  # unknown to a rank of an earlier version
    return f"reducer {reducer}" if reducer else str(link["rank"])


def _of_links(labelled: _Labelled) -> list[Family]:
    def links(name: str) -> list[Sample]:
        return [
            (labels | {"peer": _peer(link), "transport": link["transport"]}, link[name])
            for labels, one in labelled
            for link in one["links"]
        ]

    return [
        _family("link_sent_bytes_total", "counter", "Bytes sent to a peer.", links("sent")),
        _family("link_received_bytes_total", "counter", "Bytes received from a peer.", links("received")),
        _family("link_lanes", "gauge", "Bulk connections that are up.", links("lanes_up")),
        _family("link_rate_bytes", "gauge", "Bytes a second that a link takes while busy.", links("rate")),
        _family("link_round_trip_seconds", "gauge", "Least round trip of its connections.", links("rtt")),
        _family("link_lost_total", "counter", "Connections lost and repaired.", links("lost")),
        _family(
            "link_retransmits_total", "counter", "TCP segments that were sent again.", links("retransmits")
        ),
        _family("link_repeated_bytes_total", "counter", "Bytes that were sent again.", links("repeated")),
    ]
