"""Snapshots of ranks, as `slipstream.observe.metrics` makes them, for tests of what is made of them."""

from __future__ import annotations

from typing import Any


def link(
    rank: int,
    rate: float,
    *,
    transport: str = "tcp",
    sent: int = 1 << 30,
    notes: int = 50,
    reducer: str = "",
) -> dict[str, Any]:
    return {
        "rank": rank,
        "reducer": reducer,
        "transport": transport,
        "closed": False,
        "sent": sent,
        "received": sent,
        "lost": 0,
        "replaced": 0,
        "repeated": 0,
        "lanes": 2,
        "lanes_up": 2,
        "rate": rate,
        "best_rate": rate,
        "rate_notes": notes,
        "rtt": 0.001,
        "retransmits": 3,
    }


def steps(seconds: float, exposed: float, hidden: float = 0.0, count: int = 50) -> dict[str, Any]:
    of_steps = {
        "median": seconds,
        "p90": seconds * 1.1,
        "compute": seconds - exposed,
        "exposed": exposed,
        "hidden": hidden,
    }
    total = {"seconds": seconds * count, "exposed": exposed * count, "hidden": hidden * count}
    return {"count": count, "total": total, "all": of_steps, "recent": of_steps, "since": 0.0}


def snapshot(
    rank: int,
    seconds: float = 0.1,
    exposed: float = 0.05,
    links: list[dict[str, Any]] | None = None,
    **more: Any,
) -> dict[str, Any]:
    return {
        "rank": rank,
        "size": 4,
        "host": f"node{rank}",
        "machine": f"machine{rank}",
        "job": "job",
        "pid": 1000 + rank,
        "time": 10.0,
        "state": "computes",
        "faces": ["slipstream.torch"],
        "steps": steps(seconds, exposed),
        "operations": [
            {
                "collective": "all_reduce",
                "largest": 16 << 20,
                "count": 100,
                "bytes": 400 << 20,
                "bus_bytes": 600 << 20,
                "seconds": 4.0,
            }
        ],
        "waited": 2.0,
        "busy": 4.0,
        "late": {},
        "stalls": 0,
        "saved_bytes": 0,
        "reducers": 0,
        "links": links or [],
    } | more


def ring(slow: dict[tuple[int, int], float], rate: float = 60e6, n: int = 4) -> list[list[dict[str, Any]]]:
    """Per rank its link to the next one; those in ``slow`` (source, target) have another rate."""
    return [[link((r + 1) % n, slow.get((r, (r + 1) % n), rate))] for r in range(n)]
