"""A measurement as the ranks would report it, for tests of what is made of it."""

from __future__ import annotations

from typing import Any


def start(**changes: Any) -> dict[str, Any]:
    options = {
        "model": "tiny",
        "contenders": ["slipstream", "gloo", "nccl"],
        "compute": "delay",
        "seconds": 0.1,
        "batch": 4,
        "bucket_mb": 25.0,
        "optimizer": "none",
        "repeats": 2,
        "steps": 2,
        "warmup": 3,
        "inject_error": "",
    }
    machine = {"cpu": "some", "cores": 2, "memory_gib": 4, "kernel": "6", "load_1min": 0.0}
    return {
        "benchmark": "train",
        "date": "2026-01-02",
        "machine": machine,
        "options": options,
        "ranks": 4,
        "hosts": [0, 1, 2, 3],
        "parameters": 250_000,
        "tensors": 2,
        "bytes": 1_000_000,
        "ready": [(0.05, 600_000), (0.1, 400_000)],
        "missing": {"nccl": "no CUDA GPU"},
        "versions": {"torch": "2"},
        "cores": 2,
        **changes,
    }


def turn(contender: str, repeat: int, steps: list[float], exchange: float, wrong: int = 0) -> dict[str, Any]:
    return {"contender": contender, "repeat": repeat, "steps": steps, "exchange": exchange, "wrong": wrong}


TURNS = [
    turn("plain", 0, [0.1, 0.1], 0.0),
    turn("slipstream", 0, [0.12, 0.14], 0.05),
    turn("gloo", 0, [0.2, 0.22], 0.08),
    turn("slipstream", 1, [0.13, 0.13], 0.05),
    turn("gloo", 1, [0.26, 0.28], 0.08, wrong=3),
    turn("plain", 1, [0.1, 0.12], 0.0),
]
END = {"peak_memory": 1 << 30, "buckets": {"plain": [], "slipstream": [1_000_000], "gloo": [1_000_000]}}
