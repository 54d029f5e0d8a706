"""One rank of `test_again`: joins the job and leaves it 200 times, and never collects garbage."""

from __future__ import annotations

import gc

import torch

import slipstream.torch as hvd
from comm.lifecycle_rank import check_nothing_left, resources

TURNS, FIRST = 200, 20


def some_operations() -> None:
    """With a name and without one; of all ranks and of a process set."""
    n = hvd.size()
    some = hvd.add_process_set([0, n - 1])
    assert hvd.allreduce(torch.ones(1000), op=hvd.Sum, name="x").tolist() == [n] * 1000
    assert hvd.broadcast(torch.full((3,), hvd.rank()), 1).tolist() == [1] * 3
    if some.included():
        assert hvd.allgather(torch.ones(2), process_set=some).tolist() == [1] * 4


def main() -> None:
    """Compares what the process has after the first turns with what it has after all."""
    gc.disable()  # what is left in cycles of references would stay
    before: dict[str, int] = {}
    for turn in range(TURNS):
        hvd.init()
        some_operations()
        hvd.shutdown()
        if turn == FIRST - 1:
            before = resources()
    check_nothing_left(before)


if __name__ == "__main__":
    main()
