"""What a rank imports to start: a host may start 64 of them at once, on few cores."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import sys
import numpy
before = set(sys.modules)
import slipstream
slipstream.init()
slipstream.barrier()
print(*sorted(set(sys.modules) - before))
slipstream.shutdown()
"""
# Each of these takes 1 to 10 ms, with what it imports.
FOR_FEW = {
    *("concurrent.futures", "decimal", "fractions", "logging", "pathlib", "random", "shutil", "statistics"),
    *("secrets", "tempfile", "urllib.parse"),
    *("slipstream.comm.measuring.network", "slipstream.comm.reducers.client"),
    *("slipstream.base.horovod_knobs", "slipstream.observe.of_horovod"),
    *("slipstream.comm.rendezvous.server", "slipstream.comm.rendezvous.store_server"),
}


def test_a_rank_imports_nothing_that_few_ranks_need() -> None:
    """Without what answers `slipstream top`, which is a server on each rank."""
    command = [sys.executable, "-m", "slipstream", "run", "-np", "2", "--", sys.executable, "-c", SCRIPT]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env=os.environ | {"SLIPSTREAM_TOP": "0"},
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        imported = set(line.split())
        assert {"slipstream.comm.rendezvous.store", "slipstream.comm.collectives.arrays"} <= imported
        assert not imported & FOR_FEW
