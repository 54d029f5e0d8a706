"""A host that the network does not reach any more is the launcher's last word, whoever tells first."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest

from slipstream.lab import Lab
from slipstream.lab.namespaces import batch

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("tc") is None, reason="a lab needs root and iproute2"
)

TRAIN = """
import time
import numpy, slipstream
slipstream.init()
x = numpy.ones(100_000, numpy.float32)
for step in range(1_000_000):
    slipstream.all_reduce(x)
    if step == 20:
        print("going on", flush=True)
        time.sleep(0 if FIRST in (None, slipstream.rank()) else 4)
"""


def last_words(lab: Lab, hosts: int, cut: Callable[[], None], first: int | None = None) -> list[str]:
    """What the launcher on h1 says at the end if a host loses the network, by ``cut``, while all ranks go on.

    ``first``: a rank that waits for the others from then on, 4 s before they wait for it.
    """
    pipe = subprocess.PIPE
    script = TRAIN.replace("FIRST", str(first))
    job = lab.popen(
        "h1",
        [sys.executable, "-m", "slipstream", "run", "--full-traceback", "--", sys.executable, "-c", script],
        env={"SLIPSTREAM_HEARTBEAT": "3"},
        stdout=pipe,
        stderr=pipe,
        text=True,
    )
    try:
        assert job.stdout is not None
        for _ in range(hosts):
            assert "going on" in job.stdout.readline()
        cut()
        _, err = job.communicate(timeout=120)
    finally:
        job.kill()
        job.wait()
    assert job.returncode == 1, err
    return [line for line in err.splitlines() if line.strip()]


@pytest.mark.parametrize("cut", ["h1", pytest.param("h3", marks=pytest.mark.slow)])
def test_a_host_that_is_cut_off_is_named(cut: str) -> None:
    with Lab(3, rate="400mbit") as lab:
        lines = last_words(lab, 3, lambda: lab.cut(cut))
    rank = int(cut[1]) - 1
    assert lines[-1].startswith(f"slipstream: host {cut} was cut off from the others"), lines
    assert lines[-1].endswith(f": the reports of 2 of 3 ranks name rank {rank} there as lost"), lines
    assert f"PeerLost: rank {rank} (host {cut}) has sent nothing for 5 s" in lines[-2], lines


@pytest.mark.parametrize("cut", [pytest.param("h1", marks=pytest.mark.slow), "h3"])
def test_a_host_that_receives_nothing_is_named_though_its_word_gets_out(cut: str) -> None:
    """Its rank is the first to hear from nobody; what it says of that may reach the others, or the launcher alone."""
    rank = int(cut[1]) - 1
    with Lab(4, rate=None) as lab:
        drop = [f"qdisc add dev p{cut[1]} root bfifo limit 1b"]
        lines = last_words(lab, 4, lambda: batch(lab._record.hub, "tc", drop), rank)
    said = "(heard from no other host|was cut off from the others)"
    assert re.match(f"slipstream: host {cut} {said}", lines[-1]), lines
    assert lines[-1].endswith(f" name rank {rank} there as lost"), lines
    lost = [one for line in lines for one in re.findall(r"PeerLost: rank (\d+ .*? for) ", line)]
    assert {one.split()[0] for one in lost} == {str(rank)}, lines
    assert f"{rank} (host {cut}) has heard from no other host for" in lost, lines


def test_of_two_hosts_the_network_between_them_is_at_fault() -> None:
    with Lab(2, rate="400mbit") as lab:
        lines = last_words(lab, 2, lambda: lab.cut("h2"))
    said = (
        "slipstream: ranks on both sides have lost each other: the network between hosts h1, h2 is at fault"
    )
    assert lines[-1] == said, lines
