"""One rank of the tests of receives from any source.

any_source_rank.py check            sizes, orders and mixtures; prints "passed"
any_source_rank.py killed           waits for any of two ranks, of which one is killed
any_source_rank.py left             the other ranks send and leave; their messages still come, then PeerLost
any_source_rank.py timeout          nobody sends
any_source_rank.py dead FILE        ranks 1 and 2 are killed before anything is sent; rank 0 waits for FILE first
any_source_rank.py mismatch COUNT   rank 1 sends one element more than rank 0 expects
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import slipstream
from slipstream.base.dtypes import DType
from slipstream.base.errors import Mismatch, PeerLost, SlipstreamError, Timeout
from slipstream.comm.collectives import addresses
from slipstream.comm.collectives.work import Received, Work

Array = NDArray[np.float32]


def send(array: Array, target: int, tag: int = 0) -> Work:
    group = slipstream.world()
    return addresses.send(group, array.ctypes.data, array.size, int(DType.F32), target, tag, keep=array)


def recv(array: Array, source: int, tag: int = 0) -> Work:
    group = slipstream.world()
    return addresses.recv(group, array.ctypes.data, array.size, int(DType.F32), source, tag, keep=array)


def recv_any(array: Array, tag: int = 0, timeout: float = 0.0) -> Received:
    group = slipstream.world()
    address = array.ctypes.data
    return addresses.recv_any(group, address, array.size, int(DType.F32), tag, keep=array, timeout=timeout)


def message(rank: int, number: int, count: int) -> Array:
    return np.full(count, rank * 10_000 + number, dtype=np.float32)


def empty(count: int) -> Array:
    return np.full(count, -1, dtype=np.float32)


def everybody_sends_to_rank_0(count: int, messages: int, *, posted_first: bool) -> None:
    """Each message arrives once, those of one sender in order, whoever comes first."""
    me, n = slipstream.rank(), slipstream.size()
    slipstream.barrier()
    if me != 0:
        if posted_first:
            slipstream.barrier()
        works = [send(message(me, i, count), 0) for i in range(messages)]
        if not posted_first and count * 4 <= 4096:  # small enough to be on their way without a receive
            slipstream.barrier()
        for work in works:
            work.wait()
        return
    if not posted_first and count * 4 <= 4096:
        slipstream.barrier()
    arrays = [empty(count) for _ in range(messages * (n - 1))]
    received = [recv_any(array) for array in arrays]
    if posted_first:
        slipstream.barrier()
    next_of: Counter[int] = Counter()
    for work, array in zip(received, arrays, strict=True):
        work.wait()
        source = work.source()
        expected = message(source, next_of[source], count)
        assert np.array_equal(array, expected), (source, next_of[source], array[:3])
        next_of[source] += 1
    assert next_of == dict.fromkeys(range(1, n), messages)


def specific_receives_do_not_overtake(count: int) -> None:
    """Receives of rank 1, from any source and from it alone in turn, take its messages in order."""
    me, messages = slipstream.rank(), 12
    slipstream.barrier()
    if me == 0:
        arrays = [empty(count) for _ in range(messages)]
        works = [recv(a, 1, 5) if i % 3 == 1 else recv_any(a, 5) for i, a in enumerate(arrays)]
        slipstream.barrier()
        for i, (work, array) in enumerate(zip(works, arrays, strict=True)):
            work.wait()
            assert np.array_equal(array, message(1, i, count)), (i, array[:3])
        for work in works:
            assert not isinstance(work, Received) or work.source() == 1
        return
    slipstream.barrier()
    if me == 1:
        for work in [send(message(1, i, count), 0, 5) for i in range(messages)]:
            work.wait()


def a_specific_receive_lets_others_pass() -> None:
    """Behind a receive from any source, one from rank 1 gets its message though rank 1 sends last."""
    me, n = slipstream.rank(), slipstream.size()
    slipstream.barrier()
    if n < 3:
        return
    if me == 0:
        first, second = empty(1), empty(50_000)
        anybody, one = recv_any(first, 6), recv(second, 1, 6)
        slipstream.barrier()
        anybody.wait()
        assert anybody.source() == 2
        assert not one.done()
        slipstream.barrier()
        one.wait()
        assert second[0] == 10_000
        return
    slipstream.barrier()
    if me == 2:
        send(message(2, 0, 1), 0, 6).wait()
    slipstream.barrier()
    if me == 1:
        send(message(1, 0, 50_000), 0, 6).wait()


def tags_do_not_mix() -> None:
    me = slipstream.rank()
    slipstream.barrier()
    if me == 0:
        arrays = {tag: empty(3) for tag in (1, 2)}
        works = {tag: recv_any(array, tag) for tag, array in arrays.items()}
        for tag in (2, 1):
            works[tag].wait()
            assert arrays[tag][0] == 10_000 + tag
    elif me == 1:
        for tag in (1, 2):
            send(message(1, tag, 3), 0, tag).wait()


def all_to_all_of_any() -> None:
    """Every rank sends to every other one and takes what comes."""
    me, n = slipstream.rank(), slipstream.size()
    for count in (0, 1, 5_000, 200_000):
        slipstream.barrier()
        works = deque(send(message(me, 7, count), r, 9) for r in range(n) if r != me)
        arrays = [empty(count) for _ in range(n - 1)]
        received = [recv_any(array, 9) for array in arrays]
        for work in received:
            work.wait()
        assert sorted(work.source() for work in received) == [r for r in range(n) if r != me]
        for work, array in zip(received, arrays, strict=True):
            assert np.array_equal(array, message(work.source(), 7, count))
        while works:
            works.popleft().wait()


def check() -> None:
    for count in (1, 1_000, 4_096, 4_097, 100_000, 1_310_720):
        messages = 3 if count > 100_000 else 40
        for posted_first in (True, False):
            everybody_sends_to_rank_0(count, messages, posted_first=posted_first)
    for count in (0, 1, 30_000):
        specific_receives_do_not_overtake(count)
    a_specific_receive_lets_others_pass()
    tags_do_not_mix()
    all_to_all_of_any()
    slipstream.barrier()
    print("passed", flush=True)


def killed() -> None:
    slipstream.barrier()
    print("running", flush=True)
    try:
        if slipstream.rank() == 0:
            recv_any(empty(10)).wait()
        else:
            recv(empty(10), 0).wait()
    except PeerLost as error:
        print(f"lost {error.rank}: {error}", flush=True)


def dead(file: str) -> None:
    if slipstream.rank() != 0:
        os.kill(os.getpid(), signal.SIGKILL)
    deadline = time.monotonic() + 60
    while not Path(file).exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)  # a poll for a file of another process
    try:
        recv_any(empty(10), timeout=60).wait()
    except PeerLost as error:
        print(f"lost {error.rank}: {error}", flush=True)


def left() -> None:
    me, n = slipstream.rank(), slipstream.size()
    slipstream.barrier()
    if me != 0:
        send(message(me, 0, 100), 0).wait()
        return
    arrays = [empty(100) for _ in range(n - 1)]
    received = []
    for array in arrays:
        received.append(recv_any(array))
        received[-1].wait()
    assert sorted(work.source() for work in received) == list(range(1, n))
    try:
        recv_any(empty(1)).wait(60)
    except PeerLost as error:
        print(f"lost: {error}", flush=True)


def timeout() -> None:
    slipstream.barrier()
    try:
        if slipstream.rank() == 0:
            recv_any(empty(10), 3, timeout=0.5).wait()
        else:
            recv(empty(10), 0).wait()
    except Timeout as error:
        print(f"expired: {error}", flush=True)


def mismatch(count: int) -> None:
    try:
        slipstream.barrier()  # rank 2 may learn of the mismatch before it has the last frame of this barrier
        if slipstream.rank() == 0:
            recv_any(empty(count)).wait()
        elif slipstream.rank() == 1:
            send(message(1, 0, count + 1), 0).wait()
        slipstream.barrier()
    except Mismatch as error:
        print(f"differs: {error}", flush=True)


def main() -> None:
    slipstream.init()
    command, *arguments = sys.argv[1:]
    commands: dict[str, Callable[..., None]] = {
        "check": check,
        "killed": killed,
        "dead": dead,
        "left": left,
        "timeout": timeout,
        "mismatch": lambda count: mismatch(int(count)),
    }
    commands[command](*arguments)
    try:
        slipstream.shutdown()
    except SlipstreamError:
        print("the session had failed", flush=True)


main()
