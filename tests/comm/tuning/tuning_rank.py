"""One of several ranks whose all-reduces are tuned.

tuning_rank.py settles CALLS AHEAD  so many calls of two sizes, AHEAD of each at once; every rank comes late at times
tuning_rank.py dies                 the last rank ends in the middle of the search
tuning_rank.py bits                 prints a checksum of the first sum, and what was chosen in the end
tuning_rank.py lanes                the number of lanes changes while operations run
tuning_rank.py bursts               rank 0 begins twelve calls before rank 1 begins any, again and again
tuning_rank.py wired                sums that travel as int8, beside exact ones; prints what was chosen for the former
tuning_rank.py again                the network seems to be slower for long: the search begins again, and ends
tuning_rank.py mistakes             rank 0 makes calls whose arguments are wrong, beside those of all ranks
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
import time
from collections import deque

import numpy as np
import pytest

import slipstream
from slipstream.base.dtypes import WireType
from slipstream.comm.tuning import watching
from slipstream.comm.tuning.size_class import SizeClass

slipstream.init()
RANK, SIZE = slipstream.rank(), slipstream.size()
LARGE, SMALL = 1 << 18, 1 << 16  # elements


def size_class(count: int) -> SizeClass:
    found = slipstream.world().compiled("all_reduce", 4 * count).tuned_by
    assert found is not None
    return found


def agree(text: str) -> None:
    """Every rank has the same text."""
    mine = np.frombuffer(hashlib.sha256(text.encode()).digest(), dtype=np.uint8)
    assert (slipstream.all_gather(mine).reshape(SIZE, -1) == mine).all(), text


def settles(calls: int, ahead: int) -> None:
    rng, running = random.Random(RANK), deque[tuple[slipstream.Work, np.ndarray, int]]()
    for i in range(calls):
        for count in (LARGE, SMALL):
            data = np.full(count, i + RANK, dtype=np.float32)
            running.append((slipstream.all_reduce(data, out=data, async_op=True), data, i))
        while len(running) > 2 * ahead or (running and i + 1 == calls):
            work, data, number = running.popleft()
            work.wait()
            assert (data == SIZE * number + SIZE * (SIZE - 1) // 2).all()
        if rng.random() < 0.1:
            time.sleep(0.01)  # as a program is late
    for count in (LARGE, SMALL):
        agree(f"{size_class(count).settled} {size_class(count).candidate}")
    assert size_class(LARGE).settled, size_class(LARGE).candidate
    agreements = size_class(LARGE).agreements_posted + size_class(SMALL).agreements_posted
    data = np.ones(LARGE, dtype=np.float32)
    for _ in range(50):
        slipstream.all_reduce(data)
    if size_class(SMALL).settled:
        later = size_class(LARGE).agreements_posted + size_class(SMALL).agreements_posted
        assert later <= agreements + 1  # a look at whether the network has changed


def calls_until_a_rank_is_lost() -> None:
    data = np.ones(LARGE, dtype=np.float32)
    for i in range(1000):
        if i == 140 and RANK == SIZE - 1:
            os._exit(0)
        slipstream.all_reduce(data)


def dies() -> None:
    with pytest.raises(slipstream.PeerLost) as raised:
        calls_until_a_rank_is_lost()
    assert raised.value.rank == SIZE - 1


def bits() -> None:
    data = np.random.default_rng(RANK).standard_normal(LARGE).astype(np.float32)
    first = slipstream.all_reduce(data)
    while not size_class(LARGE).settled:
        slipstream.all_reduce(data)
    digest = hashlib.sha256(first.tobytes()).hexdigest()[:16]
    print(f"{digest} {size_class(LARGE).candidate}", flush=True)


def wired() -> None:
    data = np.random.default_rng(RANK).uniform(1, 2, LARGE).astype(np.float32)
    wanted = slipstream.all_reduce(data)
    found = slipstream.world().compiled_for(WireType.INT8, "all_reduce", data.nbytes).tuned_by
    assert found is not None
    assert found is not size_class(LARGE)
    while not found.settled:
        x = slipstream.all_reduce(data, wire="int8")
        assert 0 < np.abs(x - wanted).max() < 2 * SIZE * SIZE / 100
    assert (slipstream.all_reduce(data) == wanted).all()  # nothing else has changed
    agree(f"{found.candidate}")
    print(found.candidate, flush=True)


def again() -> None:
    data = np.ones(LARGE, dtype=np.float32)
    while not size_class(LARGE).settled:
        slipstream.all_reduce(data)
    size_class(LARGE).watch = watching.Watch(1e-9, period=32)  # so everything is slower
    searches = 0
    for _ in range(2000):
        before = size_class(LARGE).settled
        slipstream.all_reduce(data)
        searches += before and not size_class(LARGE).settled
        if searches and size_class(LARGE).settled:
            break
    agree(f"{searches} {size_class(LARGE).candidate}")
    assert searches == 1
    assert size_class(LARGE).settled


def bursts() -> None:
    """What rank 1 waits for comes when rank 0 has begun all calls: none of them may wait for rank 1."""
    data = [np.ones(SMALL, dtype=np.float32) for _ in range(12)]
    token = np.zeros(1)
    for _ in range(100):
        if RANK:
            slipstream.recv(token, 0)
        works = [slipstream.all_reduce(one, async_op=True) for one in data]
        if not RANK:
            slipstream.send(token, 1)
        for work in works:
            assert (work.wait() == SIZE).all()
    agree(f"{size_class(SMALL).candidate}")
    assert size_class(SMALL).settled, size_class(SMALL).candidate


def lanes() -> None:
    data = np.ones(LARGE, dtype=np.float32)
    session = slipstream.world().session
    for wanted in (1, 8, 3, 64, 1, 0):
        session.set_lanes(wanted)
        for _ in range(2000):
            assert (slipstream.all_reduce(data) == SIZE).all()
            found = [
                sum(lane.up and not lane.control for lane in link.lanes)
                for link in slipstream.link_statistics()
            ]
            if slipstream.all_reduce(np.array([set(found) != {wanted or 2}]), slipstream.MAX)[0] == 0:
                break
        else:
            raise AssertionError(f"{wanted} lanes are wanted, there are {found}")


def mistakes() -> None:
    """A wrong call is as if it had not been: it does not count in the search of its rank alone."""
    data = np.ones(LARGE, dtype=np.float32)
    while not size_class(LARGE).settled:
        if RANK == 0:
            with pytest.raises(ValueError, match="not defined"):
                slipstream.all_reduce(data, "band")
        assert (slipstream.all_reduce(data) == SIZE).all()
    agree(f"{size_class(LARGE).candidate}")


CASES = {"dies": dies, "bits": bits, "again": again, "wired": wired, "bursts": bursts, "lanes": lanes}
CASES["mistakes"] = mistakes
if sys.argv[1] == "settles":
    settles(int(sys.argv[2]), int(sys.argv[3]))
else:
    CASES[sys.argv[1]]()
if sys.argv[1] != "dies":
    slipstream.shutdown()
