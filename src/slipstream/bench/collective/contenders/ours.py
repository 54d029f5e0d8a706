"""slipstream itself: on NumPy arrays (ordinary ones, and of `slipstream.empty`), and through slipstream.torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import slipstream
from slipstream.base.dtypes import Op
from slipstream.bench.collective.contenders.interface import (
    ALGORITHM,
    Bound,
    Call,
    Contender,
    Place,
    Unsupported,
)

__all__ = ["open_contender"]


_SIZED = (
    "all_gather",
    "gather",
    "scatter",
    "all_to_all",
)  # whose ranks tell each other the sizes of their blocks
_LONG = 16 << 10  # bytes of a block that travels after them


def open_contender(name: str, place: Place) -> Contender:
    """``slipstream``, ``slipstream-shared``, ``slipstream-torch`` or ``slipstream/ALGORITHM``, after `init`."""
    if name == "slipstream-torch":
        return _torch()
    if name.startswith(ALGORITHM):
        return _by_algorithm(name, place)
    shared = name == "slipstream-shared"

    def bind(call: Call) -> Bound:
        if shared and call.name != "all_reduce":
            raise Unsupported("only all_reduce is measured on shared memory")
        return Bound(_call(call, place))

    return Contender(name, bind, shared=shared)


def _by_algorithm(name: str, place: Place) -> Contender:
    """One algorithm of `slipstream.plan.registry`, in the chunks that slipstream takes for the size."""
    algorithm = name.partition("/")[2]
    group = slipstream.Group()

    def bind(call: Call) -> Bound:
        nbytes = max(call.source.nbytes, call.target.nbytes)
        if call.name in _SIZED and nbytes // place.size < _LONG:
            raise Unsupported("blocks so short travel with their sizes, by no algorithm")
        chunk = slipstream.world().compiled(call.name, nbytes, call.root).chunk_bytes
        try:
            group.compile_as(call.name, algorithm, chunk, call.root)
        except ValueError as error:  # it is not for this many ranks or hosts
            raise Unsupported(str(error)) from None
        group.use(call.name, algorithm, chunk)
        return Bound(_call(call, place, group))

    return Contender(name, bind)


def _call(call: Call, place: Place, group: slipstream.Group | None = None) -> Callable[[], object]:
    x, out, root = call.source, call.target, call.root
    op = Op[call.op.upper()]
    after, before = (place.rank + 1) % place.size, (place.rank - 1) % place.size

    def send_recv() -> None:
        sending = slipstream.send(x, after, async_op=True)
        slipstream.recv(out, before)
        sending.wait()

    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: slipstream.all_reduce(x, op, out=out, group=group),
        "reduce_scatter": lambda: slipstream.reduce_scatter(x, op, out=out, group=group),
        "all_gather": lambda: slipstream.all_gather(x, out=out, group=group),
        "broadcast": lambda: slipstream.broadcast(x, root, out=out, group=group),
        "reduce": lambda: slipstream.reduce(x, root, op, out=out, group=group),
        "gather": lambda: slipstream.gather(x, root, out=out, group=group),
        "scatter": lambda: slipstream.scatter(x, root, out=out, group=group),
        "all_to_all": lambda: slipstream.all_to_all(x, out=out, group=group),
        "send_recv": send_recv,
        "barrier": slipstream.barrier,
    }
    return calls[call.name]


def _torch() -> Contender:
    torch: Any = importlib.import_module("torch")
    face: Any = importlib.import_module("slipstream.torch")
    torch.set_num_threads(1)
    face.init()
    ops = {"sum": face.Sum, "avg": face.Average, "min": face.Min, "max": face.Max, "prod": face.Product}

    def bind(call: Call) -> Bound:
        if call.name != "all_reduce" or call.op not in ops or call.source.dtype.name == "bfloat16":
            raise Unsupported("only all_reduce is measured through slipstream.torch")
        tensor, op = torch.from_numpy(call.target), ops[call.op]
        return Bound(lambda: face.allreduce_(tensor, op=op))

    return Contender("slipstream-torch", bind, versions={"torch": torch.__version__})
