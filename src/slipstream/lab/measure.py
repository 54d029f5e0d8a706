"""What TCP really gets between the hosts of a lab, beside what was set."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.lab.errors import LabError
from slipstream.lab.lab import Lab
from slipstream.lab.links import path_of

__all__ = ["Flow", "measure", "neighbours"]

_STREAM = Path(__file__).with_name("stream.py")


@dataclass(frozen=True)
class Flow:
    """A TCP connection: the ``path`` it takes (from 1; 0 without paths), its ``rate`` in bits of payload a second."""

    source: str
    target: str
    path: int
    rate: float


def neighbours(hosts: Sequence[str]) -> list[tuple[str, str]]:
    """Every host to the next one, the last to the first: all links full in both directions."""
    return [(host, hosts[(i + 1) % len(hosts)]) for i, host in enumerate(hosts)]


def measure(
    lab: Lab, pairs: Sequence[tuple[str, str]], *, flows: int = 1, seconds: float = 2.0, warm: float = 1.0
) -> list[Flow]:
    """Sends between all ``pairs`` at once, on ``flows`` connections each; counts after ``warm`` for ``seconds``.

    Raises LabError if a stream breaks.
    """
    takers: list[subprocess.Popen[str]] = []
    givers: list[subprocess.Popen[str]] = []
    python = [sys.executable, "-S", str(_STREAM)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    try:
        for _, target in pairs:
            command = [*python, "take", lab.address(target), str(flows), str(warm), str(seconds)]
            takers.append(lab.popen(target, command, **pipes))
        for (source, target), taker in zip(pairs, takers, strict=True):
            assert taker.stdout is not None
            port = taker.stdout.readline().strip()
            if not port:
                raise LabError(f"host {target} cannot receive")
            givers.append(
                lab.popen(source, [*python, "give", lab.address(target), port, str(flows)], **pipes)
            )
        return [flow for pair, taker in zip(pairs, takers, strict=True) for flow in _flows(lab, pair, taker)]
    finally:
        for process in takers + givers:
            process.kill()
            process.communicate()


def _flows(lab: Lab, pair: tuple[str, str], taker: subprocess.Popen[str]) -> list[Flow]:
    assert taker.stdout is not None
    assert taker.stderr is not None
    text = taker.stdout.read()
    if taker.wait() != 0 or not text:
        why = taker.stderr.read().strip().rpartition("\n")[2]
        raise LabError(f"the streams from host {pair[0]} to host {pair[1]} broke: {why}")
    paths = len(lab.spec.host(pair[0]).paths)
    flows = []
    for flow in json.loads(text):
        source_port, target_port = flow["ports"]
        path = 1 + path_of(source_port, target_port, paths) if paths else 0
        flows.append(Flow(*pair, path, flow["rate"]))
    return flows
