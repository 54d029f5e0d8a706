"""One rank that forks in the middle of its job, as data loaders do; the child ends like any Python program."""

from __future__ import annotations

import os
import sys

import numpy as np

import slipstream


def main() -> None:
    slipstream.init()
    shared = slipstream.empty(100_000)
    shared[...] = 1
    slipstream.all_reduce(shared, out=shared)
    child = os.fork()
    if child == 0:
        assert not slipstream.is_initialized()
        try:
            slipstream.all_reduce(np.ones(3))
        except slipstream.SlipstreamError as error:
            print("in the child:", error, flush=True)
        sys.exit(7)  # runs the exit handlers and destroys what is left
    for _ in range(50):
        slipstream.all_reduce(shared, out=shared, postscale=1 / slipstream.size())
    status = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(status) == 7
    slipstream.barrier()
    assert (shared == slipstream.size()).all()
    slipstream.shutdown()


main()
