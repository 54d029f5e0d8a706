"""One of several ranks whose named operations come in different orders.

negotiation_rank.py orders ROUNDS   every rank calls the same operations in an order of its own, in some threads
negotiation_rank.py differs         one operation is called with different arguments, others go on
negotiation_rank.py fails           the last rank cannot start an operation that all have called
negotiation_rank.py lacks           the last rank calls nothing, and leaves
negotiation_rank.py apart           each rank first waits for what the others call later
negotiation_rank.py never           each rank waits for what the others never call
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable

import numpy as np

import slipstream
from slipstream.comm.membership.group import Group
from slipstream.comm.negotiation.agreement import Request
from slipstream.comm.negotiation.negotiator import Negotiated, negotiator_of

slipstream.init()
RANK, SIZE = slipstream.rank(), slipstream.size()
WORLD = slipstream.world()


def submit(name: str, count: int = 5, start: Callable[[Group], slipstream.Work] | None = None) -> Negotiated:
    data = np.full(count, RANK + 1.0 + len(name))

    def begin(group: Group) -> slipstream.Work:
        return slipstream.all_reduce(data, group=group, async_op=True)  # type: ignore[return-value]

    return negotiator_of(WORLD).submit(Request("all_reduce", name, f"{count} elements"), start or begin)


def check(name: str, work: Negotiated) -> None:
    wanted = sum(r + 1.0 + len(name) for r in range(SIZE))
    assert (work.wait() == wanted).all()
    assert work.done()


def error_of(work: Negotiated) -> Exception:
    try:
        work.wait()
    except Exception as error:
        return error
    raise AssertionError("no error")


def orders(rounds: int) -> None:
    rng = random.Random(RANK)

    def part(thread: int) -> None:
        for _ in range(rounds):
            names = [f"{thread}/{'x' * i}" for i in range(8)]
            rng.shuffle(names)
            works = {name: submit(name) for name in names}
            rng.shuffle(names)
            for name in names:
                check(name, works[name])

    threads = [threading.Thread(target=part, args=(one,)) for one in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def differs() -> None:
    before = submit("before")
    bad = submit("bad", 5 + (RANK == SIZE - 1))
    after = submit("after")
    error = error_of(bad)
    assert isinstance(error, slipstream.Mismatch)
    assert f"rank {SIZE - 1} with 6 elements" in str(error), error
    check("before", before)
    check("after", after)
    assert (slipstream.all_reduce(np.ones(3)) == SIZE).all()


def fails() -> None:
    def cannot(group: Group) -> slipstream.Work:
        raise ValueError("no memory")

    error = error_of(submit("x", start=cannot if RANK == SIZE - 1 else None))
    assert "no memory" in str(error)
    if RANK == SIZE - 1:
        assert isinstance(error, ValueError)
    else:
        assert f"rank {SIZE - 1} could not start all_reduce 'x'" in str(error), error


def lacks() -> None:
    if RANK == SIZE - 1:
        slipstream.shutdown()
        return
    text = str(error_of(submit("x")))
    assert text.startswith(f"all_reduce 'x' waits for all ranks to call it: rank {SIZE - 1}"), text
    assert isinstance(error_of(submit("y")), slipstream.SlipstreamError)  # the session has failed


def apart() -> None:
    """Nobody uses much of a processor while each rank waits for the others."""
    works = {f"from {RANK}": submit(f"from {RANK}")}
    while not negotiator_of(WORLD)._agreement.missing():
        time.sleep(0.01)
    used = time.process_time()
    time.sleep(1)
    used = time.process_time() - used
    for other in range(SIZE):
        if other != RANK:
            works[f"from {other}"] = submit(f"from {other}")
    for name, work in works.items():
        check(name, work)
    assert used < 0.3, used


def never() -> None:
    """Each rank waits for what the others never call: the limit of an operation ends that, on all ranks."""
    text = str(error_of(submit(f"from {RANK}")))
    assert "Timed out after" in text, text
    assert "not all ranks have called" in text
    assert any(f"'from {r}' (missing: " in text for r in range(SIZE)), text


def main() -> None:
    case, *arguments = sys.argv[1:]
    {"orders": orders, "differs": differs, "fails": fails, "lacks": lacks, "apart": apart, "never": never}[
        case
    ](*map(int, arguments))
    slipstream.shutdown()
    assert not any(thread.name == "slipstream negotiation" for thread in threading.enumerate())


main()
