"""What every rank does in the tests of staging, on simulated or real devices: ``KIND`` is "simulated" or "cuda".

As a script it runs one of these functions as a rank of a job of its own: staging_rank.py NAME KIND.
"""

from __future__ import annotations

import copy
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

import slipstream
from faces.persistent import load
from faces.torch_distributed.simulated import Simulated
from slipstream.base.errors import Mismatch, PeerLost
from slipstream.faces.torch_distributed import devices, operations
from slipstream.staging import process
from slipstream.staging.stager import Limits, Stager
from slipstream.staging.transfers import StagedWork

SMALL = Limits(part=1 << 10, window=4 << 10)
LIMIT = 60.0  # seconds an operation may take
SLEEP = 20_000_000  # cycles


class Bench:
    """Devices and a stager of their own for one check. Work is done on the device's current queue."""

    def __init__(self, kind: str, limits: Limits) -> None:
        self.kind = kind
        self.device: Any = (
            Simulated() if kind == "simulated" else devices.for_tensor(torch.empty(1, device=kind))
        )
        self.stager = Stager(limits)
        self._thread = threading.Thread(target=self.stager.run, daemon=True)
        self._thread.start()

    def tensor(self, values: torch.Tensor) -> torch.Tensor:
        """A tensor that gets its values some time later."""
        if self.kind == "simulated":
            made = torch.full_like(values, 99)
            self.device.launch(lambda: made.copy_(values), writes=[made])
            return made
        torch.cuda._sleep(SLEEP)
        return values.to(self.kind)

    def double(self, tensor: torch.Tensor) -> None:
        """Has the tensor multiplied by two."""
        if self.kind == "simulated":
            self.device.launch(lambda: tensor.mul_(2), reads=[tensor], writes=[tensor])
        else:
            tensor.mul_(2)

    def values(self, tensor: torch.Tensor) -> torch.Tensor:
        """What the tensor will have been once the current queue has come that far."""
        return self.device.values(tensor) if self.kind == "simulated" else tensor.cpu()

    def stage(self, operation: operations.Operation, group: slipstream.Group) -> StagedWork:
        return self.stager.stage(operations.transfer(self.device, operation, group))

    def close(self) -> None:
        """Checks that nothing is left over."""
        end = time.monotonic() + LIMIT
        while self.stager.pool.lent_bytes and time.monotonic() < end:
            time.sleep(0.001)
        assert self.stager.pool.lent_bytes == 0
        self.stager.close()
        self._thread.join(LIMIT)
        assert not self._thread.is_alive()
        if self.kind == "simulated":
            self.device.close()


@contextmanager
def bench(kind: str, limits: Limits = SMALL) -> Iterator[Bench]:
    made = Bench(kind, limits)
    yield made
    made.close()


# ---- operations, and what they must give


@dataclass
class Expected:
    """An operation, the tensor it writes to, and what must be there afterwards."""

    operation: operations.Operation
    result: torch.Tensor
    values: torch.Tensor


def values(rank: int, count: int, dtype: torch.dtype, salt: int = 0) -> torch.Tensor:
    """What a rank brings: whole numbers, exact in every dtype."""
    return ((torch.arange(count) * (rank + 1) + salt) % 7).to(dtype)


def total(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack(list(parts)).sum(0).to(parts[0].dtype)


def exchanged(source: int, target: int, count: int) -> int:
    """Elements that one rank sends another in an all_to_all."""
    return count * (source + 2 * target + 1) // 2


def reductions(b: Bench, group: Any, n: int, dtype: torch.dtype) -> Iterator[Expected]:
    rank, size, root = group.rank, group.size, group.size - 1
    op = dist.ReduceOp(dist.ReduceOp.SUM)
    everyone = [values(r, n, dtype) for r in range(size)]
    x = b.tensor(everyone[rank])
    yield Expected(operations.all_reduce(group, x, op, LIMIT), x, total(everyone))
    x = b.tensor(everyone[rank])
    yield Expected(
        operations.reduce(group, x, op, root, LIMIT), x, total(everyone) if rank == root else everyone[rank]
    )
    wide = [values(r, n * size, dtype, 3) for r in range(size)]
    x, out = b.tensor(wide[rank]), b.tensor(torch.zeros(n, dtype=dtype))
    yield Expected(
        operations.reduce_scatter(group, out, [x], op, LIMIT), out, total(wide)[rank * n : (rank + 1) * n]
    )


def movements(b: Bench, group: Any, n: int, dtype: torch.dtype) -> Iterator[Expected]:
    rank, size, root = group.rank, group.size, group.size - 1
    ranks = range(size)
    x = b.tensor(values(rank, n, dtype))
    yield Expected(operations.broadcast(group, x, root, LIMIT), x, values(root, n, dtype))
    uneven = [values(r, n + r, dtype) for r in ranks]
    for blocks in ([values(r, n, dtype) for r in ranks], uneven):
        flat = torch.cat(blocks)
        x, out = b.tensor(blocks[rank]), b.tensor(torch.zeros_like(flat))
        outs = list(out.split([block.numel() for block in blocks]))
        yield Expected(operations.all_gather(group, outs, x, LIMIT), out, flat)
    flat = torch.cat(uneven)
    x, out = b.tensor(uneven[rank]), b.tensor(torch.zeros_like(flat))
    outs = list(out.split([n + r for r in ranks])) if rank == root else []
    yield Expected(
        operations.gather(group, outs, x, root, LIMIT), out, flat if rank == root else torch.zeros_like(flat)
    )
    x, out = b.tensor(flat), b.tensor(torch.zeros(n + rank, dtype=dtype))
    ins = list(x.split([n + r for r in ranks])) if rank == root else []
    yield Expected(operations.scatter(group, out, ins, root, LIMIT), out, uneven[rank])
    sent = [exchanged(rank, p, n) for p in ranks]
    received = [exchanged(p, rank, n) for p in ranks]
    x = b.tensor(torch.cat([values(rank, count, dtype, p) for p, count in enumerate(sent)]))
    wanted = torch.cat([values(p, count, dtype, rank) for p, count in enumerate(received)])
    out = b.tensor(torch.zeros_like(wanted))
    yield Expected(operations.all_to_all(group, [out], [x], LIMIT, sent=sent, received=received), out, wanted)


def messages(b: Bench, group: Any, n: int, dtype: torch.dtype) -> Iterator[Expected]:
    """Round the ring, two with one tag and one with another, received the other way round."""
    rank, size = group.rank, group.size
    to, source = (rank + 1) % size, (rank - 1) % size
    outs = {salt: b.tensor(torch.zeros(n, dtype=dtype)) for salt in (0, 1, 2)}
    for salt, tag in ((2, 5), (0, 4), (1, 4)):
        receive = operations.recv(group, outs[salt], source, tag, LIMIT)
        yield Expected(receive, outs[salt], values(source, n, dtype, salt))
    for salt, tag in ((0, 4), (1, 4), (2, 5)):
        x = b.tensor(values(rank, n, dtype, salt))
        yield Expected(operations.send(group, x, to, tag, LIMIT), x, values(rank, n, dtype, salt))


def run(b: Bench, group: Any, expected: Sequence[Expected], where: object) -> None:
    """Stages all before it waits for any, and computes with the results at once."""
    pendings = [b.stage(e.operation, group) for e in expected]
    for pending, e in zip(reversed(pendings), reversed(expected), strict=True):
        pending.wait(LIMIT)
        b.double(e.result)
    for e in expected:
        got = b.values(e.result)
        assert torch.equal(got, e.values * 2), f"{e.operation.call.name} {where}: {got} is not {e.values * 2}"


def check_operations(kind: str, counts: Sequence[int]) -> None:
    """Every operation, all in flight at once, in several sizes and dtypes."""
    group: Any = slipstream.Group()
    for n in counts:
        for dtype in (torch.float32, torch.bfloat16, torch.uint8):
            with bench(kind) as b:
                expected = [*reductions(b, group, n, dtype), *movements(b, group, n, dtype)]
                if group.size > 1:
                    expected += messages(b, group, n, dtype)
                run(b, group, expected, (n, dtype))


def check_groups(kind: str) -> None:
    """Groups do not wait for each other: every rank begins with another one."""
    groups: list[Any] = [slipstream.Group() for _ in range(3)]
    rank = groups[0].rank
    op = dist.ReduceOp(dist.ReduceOp.SUM)
    with bench(kind) as b:
        under_way: list[tuple[StagedWork, torch.Tensor, torch.Tensor]] = []
        for i in range(len(groups)):
            group = groups[(i + rank) % len(groups)]
            for n in (1, 3000, 10, 700):
                x = b.tensor(values(rank, n, torch.float32))
                wanted = total([values(r, n, torch.float32) for r in range(group.size)])
                under_way.append((b.stage(operations.all_reduce(group, x, op, LIMIT), group), x, wanted))
        for pending, x, wanted in under_way:
            pending.wait(LIMIT)
            assert torch.equal(b.values(x), wanted)


def check_compute_goes_on(kind: str) -> None:
    """While an operation waits for another rank, the device computes, also what comes after the operation."""
    group, others = slipstream.Group(), slipstream.Group()
    op = dist.ReduceOp(dist.ReduceOp.SUM)
    n = 5000
    with bench(kind) as b:
        x, y = (b.tensor(values(0, n, torch.float32)) for _ in range(2))
        if group.rank == 0:
            pending = b.stage(operations.all_reduce(group, x, op, LIMIT), group)
            b.double(y)
            assert torch.equal(b.values(y), 2 * values(0, n, torch.float32))
            assert not pending.done()
        slipstream.barrier(group=others)
        if group.rank != 0:
            pending = b.stage(operations.all_reduce(group, x, op, LIMIT), group)
        pending.wait(LIMIT)
        assert torch.equal(b.values(x), group.size * values(0, n, torch.float32))


def check_memory_lives(kind: str) -> None:
    """Tensors that the caller drops at once are neither freed nor used for others while they are needed."""
    group: Any = slipstream.Group()
    n = 50_000
    with bench(kind) as b:
        pendings, received = [], []
        for i in range(8):
            x = b.tensor(values(i, n, torch.float32) if group.rank == 0 else torch.zeros(n))
            pendings.append(b.stage(operations.broadcast(group, x, 0, LIMIT), group))
            if group.rank == 0:
                del x
                b.tensor(torch.full((n,), -1.0))
            else:
                received.append(x)
        for pending in pendings:
            pending.wait(LIMIT)
        for i, x in enumerate(received):
            assert torch.equal(b.values(x), values(i, n, torch.float32))


def check_own_thread(kind: str) -> None:
    """`stage` itself, with parts as they are outside tests; a forked child begins anew."""
    device: Any = (
        Simulated(inline=True) if kind == "simulated" else devices.for_tensor(torch.empty(1, device=kind))
    )
    group: Any = slipstream.Group()
    n = 5 << 20
    op = dist.ReduceOp(dist.ReduceOp.SUM)
    base = values(group.rank, n, torch.float32).view(2, -1)
    wide = torch.zeros(2, n).to("cpu" if kind == "simulated" else kind)
    x = wide[:, ::2]  # strided: what comes has to be brought there
    x.copy_(base)
    pending = process.stage(operations.transfer(device, operations.all_reduce(group, x, op, LIMIT), group))
    called = threading.Event()
    pending.add_done_callback(lambda _: called.set())
    pending.wait(LIMIT)
    wanted = total([values(r, n, torch.float32) for r in range(group.size)]).view(2, -1)
    assert torch.equal(x.cpu(), wanted)
    assert wide[:, 1::2].eq(0).all()
    assert called.wait(LIMIT)
    if kind == "simulated":
        assert len([1 for what, _ in device.log if what == "out"]) > 4
        device.close()
        child = os.fork()
        if child == 0:
            os._exit(0 if process._stager is None else 1)
        assert os.waitpid(child, 0)[1] == 0


def check_staged(file: str, name: str, *arguments: Any) -> None:
    """A check of `torch.distributed` on CPU tensors, with the CPU as an accelerator that must be staged."""
    device = Simulated(inline=True)
    devices.register("cpu", lambda _: device)
    try:
        getattr(load(file), name)(*arguments)
    finally:
        devices.register("cpu", None)
    assert device.log, "nothing was staged"
    device.close()


def check_training(kind: str) -> None:
    """Data-parallel training gives every rank the gradients of all data; futures and strided tensors work."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 200), torch.nn.Tanh(), torch.nn.Linear(200, 3)).to(kind)
    alone = copy.deepcopy(model)
    size, rank = dist.get_world_size(), dist.get_rank()
    data = torch.randn(size, 8, 20).to(kind)
    parallel = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)
    for _ in range(3):
        parallel(data[rank]).pow(2).mean().backward()
        alone(data.view(-1, 20)).pow(2).mean().backward()
    for mine, wanted in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, wanted.grad)
    wide = torch.ones(50, 4).to(kind)
    future = dist.all_reduce(wide[:, ::2], async_op=True).get_future()
    future.wait()
    assert wide[:, ::2].eq(size).all()
    assert wide[:, 1::2].eq(1).all()


# ---- failures; each ends its session


def error_of(pending: StagedWork, kind: type[BaseException]) -> Any:
    """What `wait` raises, which must be of this kind."""
    try:
        pending.wait(LIMIT)
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def fails_on_mismatch(kind: str) -> None:
    """Ranks that disagree learn it from `wait`, and nothing is left behind."""
    group: Any = slipstream.Group()
    with bench(kind) as b:
        x = b.tensor(values(0, 4000 + group.rank, torch.float32))
        op = dist.ReduceOp(dist.ReduceOp.SUM)
        pendings = [b.stage(operations.all_reduce(group, x, op, LIMIT), group) for _ in range(3)]
        for pending in pendings:
            error_of(pending, Mismatch)


def fails_when_a_rank_dies(kind: str) -> None:
    """The survivors learn who is gone from every `wait`, and nothing is left behind."""
    group: Any = slipstream.Group()
    with bench(kind) as b:
        op = dist.ReduceOp(dist.ReduceOp.SUM)
        x = b.tensor(values(0, 100_000, torch.float32))
        b.stage(operations.all_reduce(group, x, op, LIMIT), group).wait(LIMIT)
        if group.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        y = b.tensor(values(0, 10, torch.float32))
        started = [
            operations.all_reduce(group, x, op, LIMIT),
            operations.all_to_all(group, [y.clone()], [y], LIMIT, sent=[5, 5], received=[5, 5]),
            operations.recv(group, y.clone(), 1, 0, LIMIT),
        ]
        for pending in [b.stage(one, group) for one in started]:
            assert error_of(pending, PeerLost).rank == 1


def fails_when_a_device_fails(kind: str) -> None:
    """A rank that cannot go on ends the job: the others must not wait, or take its next operation for this one."""
    assert kind == "simulated"
    group: Any = slipstream.Group()
    b = Bench(kind, SMALL)
    x = b.tensor(values(0, 4000, torch.float32))
    op = dist.ReduceOp(dist.ReduceOp.SUM)
    b.stage(operations.all_reduce(group, x, op, LIMIT), group).wait(LIMIT)
    if group.rank == 1:
        b.device.fails.add("out")
    error = error_of(b.stage(operations.all_reduce(group, x, op, LIMIT), group), RuntimeError)
    assert "simulated: cannot copy out" in str(error), repr(error)
    b.close()


FAILURES: list[Callable[[str], None]] = [fails_on_mismatch, fails_when_a_device_fails, fails_when_a_rank_dies]


def fail(kind: str) -> None:
    """All failures, one session each."""
    for check in FAILURES:
        if kind == "simulated" or check is not fails_when_a_device_fails:
            slipstream.init()
            check(kind)
            slipstream.shutdown()
            threads = [t.name for t in threading.enumerate() if t is not threading.main_thread()]
            assert not threads, threads


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
