"""One rank of a job with reducers that uses many groups. groups_rank.py orders | threads

    orders    every order of the ranks (24 of 4, of which every fifth) is a group; their operations alternate with those
              of the group of all ranks
    threads   two groups of all ranks at once, each used by a thread of its own

Prints the bytes that reducers were given.
"""

from __future__ import annotations

import sys
import threading
from itertools import permutations

import numpy as np

import slipstream
from slipstream.comm.membership import job
from slipstream.comm.membership.group import Group, world

SIZES = (1, 1000, 9000, 100_003)  # elements: some for one reducer at once, some for reducers and the ring


def sent() -> int:
    return sum(state["sent"] for state in job.current().reducers.states())


def check(group: Group, turn: int) -> None:
    """What a group gets is by the order of its ranks."""
    assert group.ranks is not None
    rank, size = slipstream.rank(), slipstream.size()
    for count in SIZES:
        numbers = np.arange(count, dtype=np.float32) % 100 + turn
        total = numbers * (size * (size + 1) // 2)
        work = slipstream.all_reduce(numbers * (rank + 1), group=group, async_op=True)
        everyone = slipstream.all_reduce(numbers * (rank + 1))
        np.testing.assert_array_equal(work.wait(), total)
        np.testing.assert_array_equal(everyone, total)
    gathered = slipstream.all_gather(np.array([rank + turn]), group=group)
    np.testing.assert_array_equal(gathered, np.array(group.ranks) + turn)
    parts = np.arange(size) + turn
    np.testing.assert_array_equal(slipstream.reduce_scatter(parts, group=group), [size * (group.rank + turn)])
    got = slipstream.broadcast(np.array([rank + turn]), size - 1, group=group)
    assert got[0] == group.ranks[-1] + turn


def orders() -> None:
    every = list(permutations(range(slipstream.size())))
    for turn, ranks in enumerate(every[:: 5 if slipstream.size() == 4 else 1]):
        check(Group(list(ranks)), turn)
    check(world(), -1)


def threads() -> None:
    """The ranks start their threads in another order, so that the groups' operations come in any."""
    wrong: list[tuple[int, int]] = []

    def use(group: Group, number: int) -> None:
        for turn in range(60):
            value = number * 1000 + turn
            got = slipstream.all_reduce(np.full(50_000, value, np.float32), group=group)
            if not (got == value * slipstream.size()).all():
                wrong.append((number, turn))

    groups = (world(), Group(list(range(slipstream.size()))))
    users = [threading.Thread(target=use, args=(group, number)) for number, group in enumerate(groups)]
    if slipstream.rank() % 2:
        users.reverse()
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert not wrong, wrong


def main() -> None:
    slipstream.init()
    {"orders": orders, "threads": threads}[sys.argv[1]]()
    print(sent())
    slipstream.shutdown()


main()
