"""Every form in which c10d's methods of a group may be called does what it does with gloo."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

Calls = dict[str, Callable[[Any], "tuple[Any, list[Any]]"]]


def calls(rank: int, size: int) -> Calls:
    """By name: a call of a group's method; returns its work, and the tensors that it has written."""
    minute, root = timedelta(seconds=60), 1

    def mine(n: int = 3) -> Any:
        return torch.arange(n) + 10.0 * (rank + 1)

    def each() -> list[Any]:
        return [mine() + r for r in range(size)]

    def made(options: str, **fields: Any) -> Any:
        found = getattr(dist, options)()
        for name, value in fields.items():
            setattr(found, name, value)
        return found

    def one(method: str, *args: Any, **named: Any) -> Callable[[Any], Any]:
        """On one tensor in place: None stands for it, [None] for a list of it."""

        def call(group: Any) -> Any:
            x = mine()

            def put(value: Any) -> Any:
                return x if value is None else [x] if value == [None] else value

            by_name = {name: put(value) for name, value in named.items()}
            return getattr(group, method)(*map(put, args), **by_name), [x]

        return call

    def gathered(method: str, many: bool, *args: Any, **named: Any) -> Callable[[Any], Any]:
        def call(group: Any) -> Any:
            outs = [torch.zeros(3) for _ in range(size)]
            if method == "gather" and rank != root:
                outs = []
            first: Any = ([outs] if outs else []) if many else outs
            last: Any = [mine()] if many else mine()
            if "by_name" in named:
                return getattr(group, method)(
                    output_tensors=first,
                    **{"input_tensors" if many else "input_tensor": last},
                    **named["by_name"],
                ), outs
            return getattr(group, method)(first, last, *args), outs

        return call

    def scattered(many: bool, *args: Any, **named: Any) -> Callable[[Any], Any]:
        def call(group: Any) -> Any:
            out, ins = torch.zeros(3), each() if rank == root else []
            if many:
                return group.scatter([out], [ins] if ins else [], *args), [out]
            return group.scatter(out, ins, *args, **named), [out]

        return call

    def summed(many: bool, *args: Any, **named: Any) -> Callable[[Any], Any]:
        def call(group: Any) -> Any:
            out = torch.zeros(3)
            if many:
                return group.reduce_scatter([out], [each()], *args, **named), [out]
            return group.reduce_scatter(out, each(), *args, **named), [out]

        return call

    def exchanged(*args: Any, **named: Any) -> Callable[[Any], Any]:
        def call(group: Any) -> Any:
            out = torch.zeros(2 * size)
            return group.alltoall_base(out, mine(2 * size), [], [], *args, **named), [out]

        return call

    largest = dist.ReduceOp.MAX
    found: Calls = {
        "allreduce options": one("allreduce", [None], made("AllreduceOptions", reduceOp=largest)),
        "allreduce list": one("allreduce", [None]),
        "allreduce list op": one("allreduce", [None], largest),
        "allreduce op timeout": one("allreduce", None, largest, minute),
        "allreduce names": one("allreduce", tensor=None, op=largest, timeout=minute),
        "allreduce list names": one("allreduce", tensors=[None], op=largest),
        "allreduce opts": one("allreduce", tensors=[None], opts=made("AllreduceOptions", reduceOp=largest)),
        "allreduce_coalesced": one("allreduce_coalesced", [None]),
        "broadcast root": one("broadcast", None, root),
        "broadcast timeout": one("broadcast", None, root, minute),
        "broadcast names": one("broadcast", tensor=None, root=root),
        "broadcast options": one("broadcast", [None], made("BroadcastOptions", rootRank=root)),
        "broadcast list": one("broadcast", [None]),
        "allgather list": gathered("allgather", True),
        "allgather tensor": gathered("allgather", False),
        "allgather timeout": gathered("allgather", False, minute),
        "allgather names": gathered("allgather", False, by_name={"timeout": minute}),
        "gather root": gathered("gather", False, root),
        "gather names": gathered("gather", False, by_name={"root": root, "timeout": minute}),
        "gather options": gathered("gather", True, made("GatherOptions", rootRank=root)),
        "scatter root": scattered(False, root),
        "scatter names": scattered(False, root=root, timeout=minute),
        "scatter options": scattered(True, made("ScatterOptions", rootRank=root)),
        "reduce_scatter": summed(True),
        "reduce_scatter tensor": summed(False),
        "reduce_scatter op": summed(False, largest, minute),
        "reduce_scatter names": summed(False, op=largest),
        "alltoall_base": exchanged(),
        "alltoall_base timeout": exchanged(timeout=minute),
    }
    for name, args in {"root": (root,), "op": (root, largest), "timeout": (root, largest, minute)}.items():
        found[f"reduce {name}"] = one("reduce", None, *args)
    found["reduce names"] = one("reduce", tensor=None, root=root, op=largest)
    found["reduce list"] = one("reduce", [None], made("ReduceOptions", rootRank=root))
    return found


def results(backend: str) -> dict[str, list[Any]]:
    """What each call has written on this rank; of reduce only where the root is, elsewhere it may be anything."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(backend=backend)
    found = {}
    for name, call in calls(rank, size).items():
        work, written = call(group)
        work.wait()
        found[name] = [] if name.startswith("reduce ") and rank != 1 else [x.tolist() for x in written]
    group.barrier().wait()
    group.barrier(timeout=timedelta(seconds=60)).wait()
    group.barrier(timedelta(seconds=60)).wait()
    if rank == 0:
        group.send([torch.ones(2)], dstRank=1, tag=3).wait()
    elif rank == 1:
        x = torch.zeros(2)
        group.recv(tensors=[x], srcRank=0, tag=3).wait()
        found["recv"] = [x.tolist()]
    return found


def check_forms() -> None:
    assert results("slipstream") == results("gloo")


@pytest.mark.parametrize("size", [2, 3])
def test_every_form_does_what_gloo_does(c10d: Any, size: int) -> None:
    c10d(check_forms, size=size)


def check_several_and_profiled() -> None:
    group, size = dist.group.WORLD, dist.get_world_size()
    x, y = torch.ones(2), torch.ones(3)
    group.allreduce([x, y], dist.AllreduceOptions()).wait()
    group.allreduce_coalesced([x, y], dist.AllreduceCoalescedOptions()).wait()
    with torch.profiler.profile():
        dist.all_reduce(x)
    assert x.tolist() == [float(size**3)] * 2
    assert y.tolist() == [float(size**2)] * 3


def test_several_tensors_and_a_profiler(c10d: Any) -> None:
    c10d(check_several_and_profiled, size=2)


def check_refusals() -> None:
    group, x = dist.group.WORLD, torch.ones(2)
    for call in (
        lambda: group.allreduce(),
        lambda: group.allreduce(x, colour=1),
        lambda: group.allreduce(tensors=[x], tensor=x),
        lambda: group.broadcast(x, 0, 5.0),
        lambda: group.allreduce_coalesced([x], dist.ReduceOp.MAX),
        lambda: group.reduce(x, 0, dist.ReduceOp.MAX, None, 1),
        lambda: group.send([x], 0),
        lambda: group.allreduce([x], dist.AllreduceOptions(), timeout=timedelta(seconds=5)),
    ):
        with pytest.raises(TypeError):
            call()


def test_what_fits_no_form_is_refused(c10d: Any) -> None:
    c10d(check_refusals, size=2)
