"""All-reduce through a reducer: every worker sends its data to one node that sums and sends the sum back.

The reducer is one more rank, the last: it has no data of its own. Chunk by chunk, it adds the workers' in the
order of their ranks, so the same inputs give the same bits in every run, and gives the sum to all.
"""

from __future__ import annotations

from slipstream.plan.steps import Draft, Plan, Space

__all__ = ["reducer", "worker"]


def worker(rank: int, workers: int) -> Plan:
    """The part of a worker: its data up, the sum down. The group is the workers and the reducer."""
    draft = Draft("all_reduce", "reducers", rank, workers + 1, 1)
    draft.send(workers, 0, Space.IN)
    draft.recv(workers, 0, Space.OUT)
    return draft.plan()


def reducer(workers: int) -> Plan:
    """The part of the reducer: the first worker's data, plus every other's, and the sum to all of them."""
    draft = Draft("all_reduce", "reducers", workers, workers + 1, 1)
    last = draft.recv(0, 0, Space.OUT)
    for rank in range(1, workers):
        last = draft.recv_reduce(rank, 0, Space.OUT, Space.OUT, after=(last,))
    last = draft.finish(0, Space.OUT, after=(last,))
    for rank in range(workers):
        draft.send(rank, 0, Space.OUT, after=(last,))
    return draft.plan()
