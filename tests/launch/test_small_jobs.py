"""Whole small jobs under `slipstream run`: in little memory, and on a host that is given by an IPv6 address."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from launch.test_run import LIMIT, command, environment, run, tag

__all__ = ["tag"]

ENOUGH = 500_000  # KiB of addresses, for each process

SUMS = """
import resource, sys
import numpy as np
import slipstream

slipstream.init()
for count in (1, 3000, 1 << 20):
    assert (slipstream.all_reduce(np.ones(count, np.float32)) == slipstream.size()).all()
assert "torch" not in sys.modules
print("of", slipstream.size(), "within", resource.getrlimit(resource.RLIMIT_AS)[0] >> 10)
slipstream.shutdown()
"""


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_launcher_and_ranks_need_little_memory(tag: str, transport: str) -> None:
    # As under `ulimit -v`, which the ranks get from their launcher.
    words = command("-np", "2", "--", sys.executable, "-c", SUMS)
    limited = ["sh", "-c", f'ulimit -v {ENOUGH} && exec "$@"', "sh", *words]
    more = {
        "SLIPSTREAM_TRANSPORT": transport,
        "OPENBLAS_NUM_THREADS": "1",
    }  # a stack for each of NumPy's threads
    done = subprocess.run(
        limited, env=environment(tag, **more), capture_output=True, text=True, check=False, timeout=LIMIT
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] of 2 within {ENOUGH}" for rank in range(2)]
    assert done.stderr == ""


def test_a_host_may_be_an_ipv6_address(tag: str) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"this machine has no address ::1: {error}")
    code, out, err = run(tag, "-H", "[::1]:2", "--", sys.executable, "-c", SUMS)
    assert (code, err) == (0, "")
    assert [line.split()[:3] for line in sorted(out.splitlines())] == [["[0]", "of", "2"], ["[1]", "of", "2"]]
