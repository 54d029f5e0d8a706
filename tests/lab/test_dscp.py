"""What the packets of a job say of their class, on the wire."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from slipstream.lab import Lab

RANK = Path(__file__).with_name("dscp_rank.py")

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("tc") is None, reason="a lab needs root and iproute2"
)


@pytest.mark.parametrize(
    ("family", "options", "dscp"),
    [("ipv4", ("--dscp", "34"), 34), ("ipv6", ("--dscp", "63"), 63), ("ipv4", (), 0)],
)
def test_all_data_of_a_job_has_the_class_that_is_asked_for(
    family: str, options: tuple[str, ...], dscp: int
) -> None:
    """To and from other ranks and reducers."""
    command = [sys.executable, "-m", "slipstream", "run", "-np", "2", "--reducers", "auto", *options, "--"]
    with Lab(2, reducers=1, rate="1gbit", family=family) as lab:
        done = lab.run("h1", [*command, sys.executable, str(RANK), str(dscp)], timeout=120, check=False)
    assert done.returncode == 0
