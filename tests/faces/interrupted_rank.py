"""One rank of two whose calls of PyTorch's faces are interrupted: interrupted_rank.py FOLDER SIGNAL FACE.

FACE is hvd, c10d, or optimizer (hvd's).

See `comm/interruption.py`. The last call of either is of several operations, and ends the session on both ranks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))

import slipstream.torch as hvd
from comm.interruption import Interrupted, bystanders, check_aborted, check_equal, check_untouched, until
from slipstream.comm.membership import job
from slipstream.comm.membership.group import world
from slipstream.comm.negotiation.negotiator import negotiator_of

SIZES = (8, 1 << 17)  # elements of float64
HERE, THERE = 3.0, 5.0

Case = tuple[Callable[[], object], Callable[[], None]]  # what rank 0 is interrupted in, and what rank 1 does


def _mine(n: int) -> torch.Tensor:
    return torch.full((n,), HERE if RANK == 0 else THERE, dtype=torch.float64)


def _strided(n: int) -> torch.Tensor:
    return _mine(2 * n)[::2]


def _once(call: Callable[[], Any], check: Callable[[Any], None]) -> Case:
    return call, lambda: check(call())


def hvd_allreduce(n: int) -> Case:
    return _once(
        lambda: hvd.allreduce(_mine(n), op=hvd.Sum),
        lambda got: check_equal(got, torch.full((n,), 8.0), "allreduce"),
    )


def hvd_strided(n: int) -> Case:
    return _once(
        lambda: hvd.allreduce_(_strided(n), op=hvd.Sum),
        lambda got: check_equal(got, torch.full((n,), 8.0), "strided"),
    )


def hvd_grouped(n: int) -> Case:
    def call() -> Any:
        return hvd.grouped_allreduce([_mine(n), _mine(n + 1)], op=hvd.Sum)[1]

    return _once(call, lambda got: check_equal(got, torch.full((n + 1,), 8.0), "grouped_allreduce"))


def hvd_again(n: int) -> Case:
    """A handle whose synchronisation was interrupted can be synchronised again."""
    handle = hvd.allreduce_async(_mine(n), name="again", op=hvd.Sum)

    def check() -> None:
        check_equal(hvd.synchronize(handle), torch.full((n,), 8.0), "synchronize again")

    AFTERWARDS.append(check)
    return lambda: hvd.synchronize(handle), lambda: None


def _used_again(memory: torch.Tensor, call: Callable[[], object], reduce: Callable[[], object]) -> Case:
    """A blocking call whose result has to be copied to ``memory`` gets it there although nobody waits any more."""

    def check() -> None:
        reduce()
        check_equal(memory, torch.full_like(memory, 16.0), "the memory used again")

    AFTERWARDS.append(check)

    def other() -> None:
        call()

    return call, other


def hvd_kept(n: int) -> Case:
    mine = _strided(n)

    def call() -> None:
        hvd.allreduce_(mine, op=hvd.Sum)

    return _used_again(mine, call, call)


def hvd_kept_broadcast(n: int) -> Case:
    strided = torch.full((n, 2), 8.0 if RANK == 1 else 0.0)[:, 0]
    return _used_again(
        strided, lambda: hvd.broadcast_(strided, 1), lambda: hvd.allreduce_(strided, op=hvd.Sum)
    )


def hvd_named(n: int) -> Case:
    """The name of an interrupted call is free once the operation is done."""

    def call() -> torch.Tensor:
        return hvd.allreduce(_mine(n), name="loss", op=hvd.Sum)

    def check() -> None:
        for _ in range(3):
            until(
                lambda: all(one.done() for one in list(negotiator_of(world())._calls.values())),
                "the operation is done",
            )
            check_equal(call(), torch.full((n,), 8.0), "the same name again")

    def other() -> None:
        call()

    AFTERWARDS.append(check)
    return call, other


def hvd_barrier(_: int) -> Case:
    return hvd.barrier, hvd.barrier


def hvd_object(n: int) -> Case:
    return _once(
        lambda: hvd.broadcast_object(list(range(n)) if RANK == 1 else None, 1),
        lambda got: check_equal(got, list(range(n)), "broadcast_object"),
    )


def hvd_state() -> None:
    hvd.broadcast_optimizer_state(torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1), 1)


class Training:
    """Steps of an optimizer, of which the first one learns what gradients there are."""

    def __init__(self) -> None:
        self.weights = torch.nn.Parameter(torch.zeros(SIZES[1]))
        self.optimizer = hvd.DistributedOptimizer(torch.optim.SGD([self.weights], lr=1.0), op=hvd.Sum)

    def step(self) -> None:
        self.optimizer.zero_grad()
        (self.weights * (HERE if RANK == 0 else THERE)).sum().backward()
        self.optimizer.step()


def c10d_all_reduce(n: int) -> Case:
    def call() -> torch.Tensor:
        mine = _mine(n)
        dist.all_reduce(mine)
        return mine

    return _once(call, lambda got: check_equal(got, torch.full((n,), 8.0), "all_reduce"))


def c10d_strided(n: int) -> Case:
    def call() -> torch.Tensor:
        mine = _strided(n)
        dist.all_reduce(mine)
        return mine

    return _once(call, lambda got: check_equal(got, torch.full((n,), 8.0), "all_reduce of a strided tensor"))


def c10d_all_gather(n: int) -> Case:
    def call() -> list[torch.Tensor]:
        outputs = [torch.zeros(n, dtype=torch.float64) for _ in range(2)]
        dist.all_gather(outputs, _mine(n))
        return outputs

    return _once(call, lambda got: check_equal(got[0], torch.full((n,), HERE), "all_gather"))


def c10d_recv(n: int) -> Case:
    return lambda: dist.recv(torch.zeros(n, dtype=torch.float64), 1), lambda: dist.send(_mine(n), 0)


def c10d_again(n: int) -> Case:
    """A work whose wait was interrupted can be waited for again, and puts its result where it belongs."""
    mine = _strided(n)
    work = dist.all_reduce(mine, async_op=True)

    def check() -> None:
        work.wait()
        check_equal(mine, torch.full((n,), 8.0), "wait again")

    AFTERWARDS.append(check)
    return work.wait, lambda: None


def c10d_kept(n: int) -> Case:
    mine = _strided(n)

    def call() -> None:
        dist.all_reduce(mine)

    return _used_again(mine, call, call)


def c10d_kept_list(n: int) -> Case:
    outputs = [torch.zeros(n, dtype=torch.float64) for _ in range(2)]
    return _used_again(
        outputs[1],
        lambda: dist.all_gather(outputs, torch.full((n,), 8.0, dtype=torch.float64)),
        lambda: dist.all_reduce(outputs[1]),
    )


def c10d_sparse() -> None:
    mine = torch.sparse_coo_tensor(torch.tensor([[RANK]]), torch.ones(1), (4,))
    dist.all_reduce(mine)


AFTERWARDS: list[Callable[[], None]] = []


def void(_: object) -> None:
    """Nothing comes of it."""


TRAINING: list[Training] = []
RANK = 0
FACES: Mapping[str, tuple[tuple[Callable[[int], Case], ...], Callable[[], None], str]] = {
    "hvd": (
        (hvd_allreduce, hvd_strided, hvd_grouped, hvd_barrier, hvd_object),
        hvd_state,
        "broadcast_optimizer_state",
    ),
    "optimizer": ((), lambda: TRAINING[0].step(), "the exchange of gradients"),
    "join": ((), lambda: void(hvd.join()), "join"),
    "c10d": (
        (c10d_all_reduce, c10d_strided, c10d_all_gather, c10d_recv),
        c10d_sparse,
        "all_reduce of a sparse tensor",
    ),
}
AGAIN = {
    "hvd": (hvd_again, hvd_kept, hvd_kept_broadcast, hvd_named),
    "optimizer": (hvd_again,),
    "join": (),
    "c10d": (c10d_again, c10d_kept, c10d_kept_list),
}


def goes_on(
    interrupted: Interrupted, cases: tuple[Callable[[int], Case], ...], later: Callable[[int], Case]
) -> None:
    for case in cases:
        for n in SIZES:
            call, other = case(n)
            if RANK == 0:
                interrupted.call(call)
                arrays = bystanders(8 * n) + bystanders(16 * n)
                interrupted.until_over()
                check_untouched(arrays, f"{case.__name__} of {n}")
            else:
                interrupted.wait_for_other()
                other()
            later(n)[1]()


def again(interrupted: Interrupted, case: Callable[[int], Case], later: Callable[[int], Case]) -> None:
    for n in SIZES:
        if RANK == 0:
            interrupted.call(case(n)[0])
        else:
            interrupted.wait_for_other()
            case(n)[1]()
        AFTERWARDS.pop()()
        later(n)[1]()


def ends_all(interrupted: Interrupted, call: Callable[[], None], name: str) -> None:
    if RANK == 0:
        interrupted.call(call)
    else:
        interrupted.wait_for_other()
    check_aborted(call, name)


def main() -> None:
    global RANK
    folder, number, face = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    if face != "c10d":
        hvd.init()
        RANK, session, later = hvd.rank(), job.current().session, hvd_allreduce
    else:
        RANK = int(os.environ["SLIPSTREAM_RANK"])
        dist.init_process_group("slipstream", init_method=f"file://{folder}/meeting", rank=RANK, world_size=2)
        session, later = dist.distributed_c10d._get_default_group().members.session, c10d_all_reduce
    cases, last, name = FACES[face]
    if face == "optimizer":
        TRAINING.append(Training())
        last()
        check_equal(TRAINING[0].weights.detach(), torch.full((SIZES[1],), -8.0), "the first step")
    later(8)[1]()
    interrupted = Interrupted(session, folder, number)
    goes_on(interrupted, cases, later)
    for case in AGAIN[face]:
        again(interrupted, case, later)
    ends_all(interrupted, last, name)
    if face == "c10d":
        dist.destroy_process_group()
    else:
        hvd.shutdown()


main()
