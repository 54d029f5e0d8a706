"""A rank for test_jobs.py: talks, reports, fails or hangs, as its argument says."""

from __future__ import annotations

import os
import signal
import sys

import slipstream
from slipstream.base.settings import Settings
from slipstream.bench.gathering import broadcast_object, gather_objects
from slipstream.bench.jobs import channel
from slipstream.comm.membership import job
from slipstream.comm.rendezvous.rank_sources import find_placement


def main() -> None:
    rank = find_placement(Settings.from_environment(), os.environ).rank
    report = channel(rank)
    print("a library talks", flush=True)
    os.write(1, b"and so does its C part\n")
    slipstream.init()
    report({"rank": rank, "told": os.environ.get("TOLD"), "long": "\t\\" * 100_000})
    if sys.argv[1] == "reducers":
        report({"reducers": [bool(one["incarnation"]) for one in job.current().reducers.known]})
    slipstream.barrier()
    if sys.argv[1] == "fail" and rank == 1:
        sys.exit(3)
    if sys.argv[1] in ("fail", "hang"):
        signal.pause()
    report({"all": gather_objects([rank, "x" * rank]), "first": broadcast_object(rank + 7)})


if __name__ == "__main__":
    main()
