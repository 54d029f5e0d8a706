"""Fills the link between two ranks for a while and says what each lane did: `slipstream check --link` runs it.

slipstream run -np 2 -H localhost:1,HOST:1 -- python -m slipstream.cli.link_check --seconds 3
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import slipstream
from slipstream.base.units import format_rate

__all__ = ["main", "probe", "table"]

_COUNT = 4 << 20  # float32


def probe(seconds: float) -> dict[str, Any]:
    """All-reduces 16 MiB between two ranks for ``seconds``; every rank calls it.

    Returns the rate in bits a second each way, the median round trip of 4 bytes in seconds, and the link's
    statistics. ValueError unless there are two ranks with a TCP link between them.
    """
    if slipstream.size() != 2:
        raise ValueError("the check of a link needs two ranks")
    small, data = np.ones(1, np.float32), np.ones(_COUNT, np.float32)
    trips = []
    for _ in range(50):
        start = time.perf_counter()
        slipstream.all_reduce(small)
        trips.append(time.perf_counter() - start)
    slipstream.all_reduce(data)
    rounds, start = 0, time.perf_counter()
    more = True
    while more:
        slipstream.all_reduce(data)
        rounds += 1
        more = bool(slipstream.broadcast(np.array([time.perf_counter() - start < seconds]))[0])
    took = time.perf_counter() - start
    links = [link for link in slipstream.link_statistics() if link.transport == "tcp"]
    if not links:
        raise ValueError("the ranks share memory and have no TCP link: set SLIPSTREAM_TRANSPORT=tcp")
    rate = 8 * rounds * data.nbytes / took
    return {"rate": rate, "round_trip": float(np.median(trips)), "link": dataclasses.asdict(links[0])}


def table(found: dict[str, Any]) -> str:
    """The result of `probe` for people."""
    link = found["link"]
    total = sum(lane["sent"] for lane in link["lanes"]) or 1
    encrypted = f", {'' if link['encrypted'] else 'not '}encrypted"
    lines = [f"{_rate(found['rate'])}/s each way, {found['round_trip'] * 1e6:.0f} us for 4 bytes{encrypted}"]
    lines.append(
        f"{'lane':<9}{'from':<24}{'to':<24}{'sent':>10}{'share':>8}{'rate':>12}{'rtt':>10}  retransmits"
    )
    for number, lane in enumerate(link["lanes"]):
        if _is_closed(lane):
            continue
        name = "control" if lane["control"] else str(number)
        share = "" if lane["control"] else f"{100 * lane['sent'] / total:.0f} %"
        rate = _rate(8 * lane["rate"]) if lane["rate"] else ""
        sent = f"{lane['sent'] / 1e6:>7.1f} MB{share:>8}"
        lines.append(
            f"{name:<9}{lane['local']:<24}{lane['remote']:<24}{sent}{rate:>12}"
            f"{lane['rtt'] * 1e3:>7.2f} ms  {lane['retransmits']}"
        )
    lines += _closed(link["lanes"], total)
    lines += _zero_copies(link["lanes"])
    lines += _pairs(link["lanes"])
    for key, text in (
        ("lost", "connections broke and were repaired"),
        ("replaced", "were too slow and replaced"),
    ):
        if link[key]:
            lines.append(f"{link[key]} {text}")
    return "\n".join(lines)


def _is_closed(lane: dict[str, Any]) -> bool:
    return not lane["local"]


def _closed(lanes: Sequence[dict[str, Any]], total: int) -> list[str]:
    """What lanes have sent whose connections are closed: a link closes a lane that does not make it faster."""
    closed = [lane["sent"] for lane in lanes if _is_closed(lane)]
    if not closed:
        return []
    many = "1 lane is" if len(closed) == 1 else f"{len(closed)} lanes are"
    return [
        f"{many} closed by now; sent before: {sum(closed) / 1e6:.1f} MB ({100 * sum(closed) / total:.0f} %)"
    ]


def _zero_copies(lanes: Sequence[dict[str, Any]]) -> list[str]:
    """From which size on the lanes send without a copy, if any of them ever has."""
    nbytes = sum(lane["zero_copied"] for lane in lanes)
    if not nbytes:
        return []
    least = sorted({lane["zero_copy_from"] for lane in lanes if lane["zero_copy_from"]})
    sizes = (
        "no more" if not least else "from " + " or ".join(f"{size / 1024:g} KiB" for size in least) + " on"
    )
    return [f"{nbytes / 1e6:.1f} MB were sent without a copy, {sizes}"]


def _pairs(lanes: Sequence[dict[str, Any]]) -> list[str]:
    """What the lanes between each two interfaces have sent, if there are several; by where each lane is now."""
    pairs: dict[tuple[str, str], list[int]] = {}
    for lane in lanes:
        if not lane["control"] and lane["local"]:
            ends = lane["local"].rpartition(":")[0], lane["remote"].rpartition(":")[0]
            pairs.setdefault(ends, []).append(lane["sent"])
    if len(pairs) < 2:
        return []
    total = sum(sum(sent) for sent in pairs.values()) or 1
    lines = []
    for (local, remote), sent in sorted(pairs.items()):
        name, share = f"{len(sent)} lanes", f"{100 * sum(sent) / total:.0f} %"
        lines.append(f"{name:<9}{local:<24}{remote:<24}{sum(sent) / 1e6:>7.1f} MB{share:>8}")
    return lines


def _rate(bits: float) -> str:
    return format_rate(float(f"{bits:.3g}"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Probes the link and has rank 0 print what it found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    slipstream.init()
    found = probe(given.seconds)
    if slipstream.rank() == 0:
        print(json.dumps(found) if given.json else table(found), flush=True)
    slipstream.barrier()
    slipstream.shutdown()


if __name__ == "__main__":
    main()
