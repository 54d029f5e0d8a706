"""One rank of two whose calls are interrupted: interrupted_rank.py FOLDER SIGNAL, and `goes on` or a name.

On rank 0 every call is made in a function of its own, whose arrays nobody holds once it has been left.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from interruption import Interrupted, bystanders, check_aborted, check_equal, check_untouched

import slipstream
from slipstream.comm.membership import job

SIZES = (8, 3000, 1 << 18)  # elements of float64: eager, a few pieces, bulk
HERE, THERE = 3.0, 5.0  # what the ranks bring


def sums(n: int) -> tuple[Callable[[], object], Callable[[], None]]:
    def check() -> None:
        check_equal(slipstream.all_reduce(np.full(n, THERE)), np.full(n, HERE + THERE), f"all_reduce of {n}")

    return lambda: slipstream.all_reduce(np.full(n, HERE)), check


def in_place(n: int) -> tuple[Callable[[], object], Callable[[], None]]:
    def call() -> None:
        data = np.full(n, HERE)
        slipstream.all_reduce(data, out=data)

    return call, sums(n)[1]


def in_region(n: int) -> tuple[Callable[[], object], Callable[[], None]]:
    def call() -> None:
        data = slipstream.empty(n, np.float64)
        data[...] = HERE
        slipstream.all_reduce(data, out=data)

    return call, sums(n)[1]


def broadcast_to(n: int) -> tuple[Callable[[], object], Callable[[], None]]:
    return lambda: slipstream.broadcast(np.zeros(n), 1), lambda: slipstream.broadcast(np.full(n, THERE), 1)


def reduce_scatter(n: int) -> tuple[Callable[[], object], Callable[[], None]]:
    def check() -> None:
        got = slipstream.reduce_scatter(np.full(2 * n, THERE))
        check_equal(got, np.full(n, HERE + THERE), f"reduce_scatter of {n}")

    return lambda: slipstream.reduce_scatter(np.full(2 * n, HERE)), check


def recv(n: int) -> tuple[Callable[[], object], Callable[[], None]]:
    return lambda: slipstream.recv(np.zeros(n), 1), lambda: slipstream.send(np.full(n, THERE), 0)


def send_waits(n: int) -> bool:
    """Whether the receiver has to call its side first."""
    return n >= SIZES[2]


def send(n: int) -> tuple[Callable[[], object], Callable[[], None]]:
    def check() -> None:
        check_equal(slipstream.recv(np.zeros(n), 0), np.full(n, HERE), f"send of {n}")

    def call() -> None:
        slipstream.send(np.full(n, HERE), 1, async_op=n > SIZES[0] and not send_waits(n))
        if not send_waits(n):
            slipstream.barrier()

    def checks() -> None:
        check()
        if not send_waits(n):
            slipstream.barrier()

    return call, checks


def waiting(n: int) -> tuple[Callable[[], object], Callable[[], None]]:
    return lambda: slipstream.all_reduce(np.full(n, HERE), async_op=True).wait(), sums(n)[1]


def barrier(_: int) -> tuple[Callable[[], object], Callable[[], None]]:
    return slipstream.barrier, slipstream.barrier


GO_ON = (sums, in_place, in_region, broadcast_to, reduce_scatter, recv, send, waiting, barrier)

# With the number of ones that rank 1 gets.
END_ALL: dict[str, tuple[Callable[[], object], int]] = {
    "all_gather": (lambda: slipstream.all_gather(np.ones(1000)), 2000),
    "gather": (lambda: slipstream.gather(np.ones(1000), root=1), 2000),
    "scatter": (lambda: slipstream.scatter(np.ones(2000), out=np.ones(1000)), 1000),
    "all_to_all": (lambda: slipstream.all_to_all(np.ones(1000)), 1000),
}


def check_later_calls() -> None:
    for n in SIZES:
        total = slipstream.all_reduce(np.full(n, slipstream.rank() + 1.0))
        check_equal(total, np.full(n, 3.0), f"a later all_reduce of {n}")


def goes_on(interrupted: Interrupted) -> None:
    for case in GO_ON:
        for n in SIZES:
            call, other = case(n)
            if slipstream.rank() == 0:
                interrupted.call(call)
                arrays = bystanders(8 * n) + bystanders(16 * n)
                interrupted.until_over()
                check_untouched(arrays, f"{case.__name__} of {n}")
            else:
                interrupted.wait_for_other()
                other()
            check_later_calls()


def ends_all(interrupted: Interrupted, name: str) -> None:
    if slipstream.rank() == 0:
        interrupted.call(END_ALL[name][0])
        arrays = bystanders(8000)
    else:
        interrupted.wait_for_other()
    call, size = END_ALL[name]
    check_aborted(call, name, None if slipstream.rank() == 0 else np.ones(size))
    check_aborted(slipstream.barrier, name)
    if slipstream.rank() == 0:
        interrupted.until_over()
        check_untouched(arrays, name)


def main() -> None:
    folder, number, what = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    slipstream.init()
    slipstream.barrier()
    interrupted = Interrupted(job.current().session, folder, number)
    if what == "goes on":
        goes_on(interrupted)
    else:
        ends_all(interrupted, what)
    slipstream.shutdown()


main()
