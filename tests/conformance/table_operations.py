"""The operations of `torch.distributed` as checks: each runs one on tensors of a type and a layout, and returns what
came out beside what should have.

Inputs are functions of the rank that owns them, so every rank computes all expected values by itself, with plain
arithmetic in 64 bits, whatever the backend does.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

__all__ = ["DTYPES", "LAYOUTS", "OPERATIONS", "PLAIN", "Bench", "meaningful"]

Pair = tuple[Any, Any]  # what came out, what should have
Check = Callable[["Bench"], list[Pair]]

ROWS = 4  # rows of a tensor, along which operations split and join
LAYOUTS = {  # shape after the first dimension
    "contiguous": (6,),
    "strided": (6,),
    "transposed": (6,),
    "channels_last": (2, 3, 3),
    "zero-size": (0,),
}
DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "u8": torch.uint8,
    "u16": torch.uint16,
    "u32": torch.uint32,
    "u64": torch.uint64,
    "bool": torch.bool,
    "c64": torch.complex64,
    "c128": torch.complex128,
}
FLOATS = ("f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2")
COMPLEX = ("c64", "c128")
FACTOR = 2.0  # of PREMUL_SUM


@dataclass(frozen=True)
class Bench:
    """Makes tensors of one type and layout, on one rank of ``size``."""

    rank: int
    size: int
    dtype: str
    layout: str

    def values(self, owner: int, rows: int = ROWS, key: int = 0) -> torch.Tensor:
        """What rank ``owner`` puts in: small whole numbers (so that sums are exact), in 64 bits a part."""
        random = torch.Generator().manual_seed(1000 * key + owner)
        shape = (rows, *LAYOUTS[self.layout])
        if self.dtype == "bool":
            return torch.randint(0, 2, shape, generator=random)
        low = 0 if self.dtype.startswith("u") else -4
        whole = torch.randint(low, 5, shape, generator=random)
        if self.dtype in COMPLEX:
            return torch.complex(
                whole.double(), torch.randint(-4, 5, shape, generator=random, dtype=torch.double)
            )
        return whole.double() if self.dtype in FLOATS else whole

    def all_values(self, rows: int = ROWS, key: int = 0) -> list[torch.Tensor]:
        """What every rank puts in."""
        return [self.values(owner, rows, key) for owner in range(self.size)]

    def put(self, values: torch.Tensor) -> torch.Tensor:
        """A tensor of these values, of the bench's type and layout."""
        x = self._room(tuple(values.shape))
        return x.copy_(values.to(DTYPES[self.dtype]))

    def mine(self, rows: int = ROWS, key: int = 0) -> torch.Tensor:
        """This rank's input."""
        return self.put(self.values(self.rank, rows, key))

    def blank(self, rows: int = ROWS, lead: tuple[int, ...] = ()) -> torch.Tensor:
        """An output, full of ones, with ``lead`` dimensions in front."""
        return self._room((*lead, rows, *LAYOUTS[self.layout]))

    def _room(self, shape: tuple[int, ...]) -> torch.Tensor:
        one = torch.ones((), dtype=DTYPES[self.dtype])
        if self.layout == "strided":
            return one.expand(*shape[:-1], 2 * shape[-1]).clone()[..., ::2]
        if self.layout == "transposed":
            return one.expand(shape[::-1]).clone().permute(*reversed(range(len(shape))))
        format_ = torch.channels_last if self.layout == "channels_last" and len(shape) == 4 else None
        return one.expand(shape).clone(memory_format=format_ or torch.contiguous_format)


def reduced(op: str, inputs: Sequence[torch.Tensor], dtype: str) -> torch.Tensor:
    """The reduction of all inputs in 64 bits. Booleans: sum is or, product is and."""
    if dtype == "bool" and op in ("SUM", "AVG", "PREMUL_SUM"):
        op = "BOR"
    if op in ("SUM", "AVG", "PREMUL_SUM"):
        total = functools.reduce(operator.add, inputs)
        if op == "PREMUL_SUM":
            return total * FACTOR
        if op == "AVG":
            average = total / len(inputs)
            return average if total.is_floating_point() or total.is_complex() else average.trunc()
        return total
    functions: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "PRODUCT": operator.mul,
        "MIN": torch.minimum,
        "MAX": torch.maximum,
        "BAND": operator.and_,
        "BOR": operator.or_,
        "BXOR": operator.xor,
    }
    return functools.reduce(functions[op], inputs)


def reduce_op(op: str) -> Any:
    """PyTorch's object for a reduction."""
    return dist._make_nccl_premul_sum(FACTOR) if op == "PREMUL_SUM" else getattr(dist.ReduceOp, op)


def meaningful(operation: str, dtype: str, layout: str) -> bool:
    """Whether the cell has a meaning: complex numbers have no order, floats no bits, booleans no average; and
    PyTorch itself refuses the product of complex numbers.
    """
    op = operation.rpartition(" ")[2]
    if dtype in COMPLEX and op in ("PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"):
        return False
    if dtype in FLOATS and op in ("BAND", "BOR", "BXOR"):
        return False
    if dtype == "bool" and op in ("AVG", "PREMUL_SUM"):
        return False
    return not (layout == "channels_last" and "stacked" in operation)


def all_reduce(op: str, bench: Bench) -> list[Pair]:
    """In place on every rank."""
    x = bench.mine()
    dist.all_reduce(x, reduce_op(op))
    return [(x, reduced(op, bench.all_values(), bench.dtype))]


def reduce(op: str, bench: Bench) -> list[Pair]:
    """To the last rank."""
    x = bench.mine()
    dist.reduce(x, bench.size - 1, reduce_op(op))
    return [(x, reduced(op, bench.all_values(), bench.dtype))] if bench.rank == bench.size - 1 else []


def broadcast(bench: Bench) -> list[Pair]:
    """From the last rank."""
    x = bench.mine()
    dist.broadcast(x, bench.size - 1)
    return [(x, bench.values(bench.size - 1))]


def all_gather(extra: int, bench: Bench) -> list[Pair]:
    """``extra``: rows that each rank has more than the one before."""
    rows = [ROWS + extra * owner for owner in range(bench.size)]
    outs = [bench.blank(n) for n in rows]
    dist.all_gather(outs, bench.mine(rows[bench.rank]))
    return [(out, bench.values(owner, rows[owner])) for owner, out in enumerate(outs)]


def all_gather_into_tensor(bench: Bench) -> list[Pair]:
    """Joined along the rows."""
    out = bench.blank(bench.size * ROWS)
    dist.all_gather_into_tensor(out, bench.mine())
    return [(out, torch.cat(bench.all_values()))]


def all_gather_stacked(bench: Bench) -> list[Pair]:
    """Along a new first dimension."""
    out = bench.blank(lead=(bench.size,))
    dist.all_gather_into_tensor(out, bench.mine())
    return [(out, torch.stack(bench.all_values()))]


def reduce_scatter(extra: int, bench: Bench) -> list[Pair]:
    """The list form; ``extra`` as for `all_gather`."""
    rows = [ROWS + extra * owner for owner in range(bench.size)]
    ins = [bench.mine(n, key) for key, n in enumerate(rows)]
    out = bench.blank(rows[bench.rank])
    dist.reduce_scatter(out, ins)
    return [(out, reduced("SUM", bench.all_values(rows[bench.rank], bench.rank), bench.dtype))]


def reduce_scatter_tensor(op: str, bench: Bench) -> list[Pair]:
    """Cut along the rows."""
    out = bench.blank()
    dist.reduce_scatter_tensor(out, bench.mine(bench.size * ROWS), reduce_op(op))
    return [
        (out, reduced(op, bench.all_values(bench.size * ROWS), bench.dtype).chunk(bench.size)[bench.rank])
    ]


def reduce_scatter_stacked(bench: Bench) -> list[Pair]:
    """From an input with a first dimension of the group's size."""
    stacks = [
        torch.stack([bench.values(owner, key=k) for k in range(bench.size)]) for owner in range(bench.size)
    ]
    out = bench.blank()
    dist.reduce_scatter_tensor(out, bench.put(stacks[bench.rank]))
    return [(out, reduced("SUM", stacks, bench.dtype)[bench.rank])]


def all_to_all(extra: int, bench: Bench) -> list[Pair]:
    """The list form; a rank sends ``extra`` rows more to each rank than to the one before."""
    ins = [bench.mine(ROWS + extra * target, key=target) for target in range(bench.size)]
    outs = [bench.blank(ROWS + extra * bench.rank) for _ in range(bench.size)]
    dist.all_to_all(outs, ins)
    return [
        (out, bench.values(owner, ROWS + extra * bench.rank, key=bench.rank))
        for owner, out in enumerate(outs)
    ]


def all_to_all_single(bench: Bench) -> list[Pair]:
    """Equal parts of the rows."""
    out = bench.blank(bench.size * ROWS)
    dist.all_to_all_single(out, bench.mine(bench.size * ROWS))
    parts = [x.chunk(bench.size)[bench.rank] for x in bench.all_values(bench.size * ROWS)]
    return [(out, torch.cat(parts))]


def all_to_all_splits(bench: Bench) -> list[Pair]:
    """Rank r sends r + t + 1 rows to rank t."""
    splits = [[r + t + 1 for t in range(bench.size)] for r in range(bench.size)]
    inputs = [bench.values(r, sum(splits[r])).split(splits[r]) for r in range(bench.size)]
    received = [splits[r][bench.rank] for r in range(bench.size)]
    out = bench.blank(sum(received))
    dist.all_to_all_single(out, bench.mine(sum(splits[bench.rank])), received, splits[bench.rank])
    return [(out, torch.cat([inputs[r][bench.rank] for r in range(bench.size)]))]


def gather(extra: int, bench: Bench) -> list[Pair]:
    """To the last rank; ``extra`` as for `all_gather`."""
    rows = [ROWS + extra * owner for owner in range(bench.size)]
    root = bench.size - 1
    outs = [bench.blank(n) for n in rows] if bench.rank == root else None
    dist.gather(bench.mine(rows[bench.rank]), outs, root)
    return [(out, bench.values(owner, rows[owner])) for owner, out in enumerate(outs or [])]


def scatter(extra: int, bench: Bench) -> list[Pair]:
    """From the last rank; ``extra`` as for `all_gather`."""
    rows = [ROWS + extra * owner for owner in range(bench.size)]
    root = bench.size - 1
    ins = [bench.mine(n, key) for key, n in enumerate(rows)] if bench.rank == root else None
    out = bench.blank(rows[bench.rank])
    dist.scatter(out, ins, root)
    return [(out, bench.values(root, rows[bench.rank], bench.rank))]


def send_recv(any_source: bool, bench: Bench) -> list[Pair]:
    """Blocking, around the ring, rank 0 first."""
    after, before = (bench.rank + 1) % bench.size, (bench.rank - 1) % bench.size
    out = bench.blank()
    if bench.rank == 0:
        dist.send(bench.mine(), after, tag=7)
    sender = dist.recv(out, None if any_source else before, tag=7)
    if bench.rank != 0:
        dist.send(bench.mine(), after, tag=7)
    return [(out, bench.values(before)), (sender, before)]


def batch_isend_irecv(bench: Bench) -> list[Pair]:
    """Around the ring, all at once."""
    after, before = (bench.rank + 1) % bench.size, (bench.rank - 1) % bench.size
    out = bench.blank()
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, bench.mine(), after), dist.P2POp(dist.irecv, out, before)]
    )
    for work in works:
        work.wait()
    return [(out, bench.values(before))]


def all_reduce_coalesced(bench: Bench) -> list[Pair]:
    """Two tensors in one call."""
    pair = [bench.mine(), bench.mine(ROWS + 1, 1)]
    dist.all_reduce_coalesced(pair)
    sums = [bench.all_values(), bench.all_values(ROWS + 1, 1)]
    return [(x, reduced("SUM", values, bench.dtype)) for x, values in zip(pair, sums, strict=True)]


def all_gather_coalesced(bench: Bench) -> list[Pair]:
    """Two tensors in one call."""
    outs = [[bench.blank(), bench.blank(ROWS + 1)] for _ in range(bench.size)]
    dist.all_gather_coalesced(outs, [bench.mine(), bench.mine(ROWS + 1, 1)])
    expected = [(bench.values(owner), bench.values(owner, ROWS + 1, 1)) for owner in range(bench.size)]
    return [
        pair for out, values in zip(outs, expected, strict=True) for pair in zip(out, values, strict=True)
    ]


def functional_all_reduce(bench: Bench) -> list[Pair]:
    """`torch.ops._c10d_functional.all_reduce`."""
    x = functional.wait_tensor(functional.all_reduce(bench.mine(), "sum", dist.group.WORLD))
    return [(x, reduced("SUM", bench.all_values(), bench.dtype))]


def functional_all_gather(bench: Bench) -> list[Pair]:
    """Joined along the rows."""
    x = functional.wait_tensor(functional.all_gather_tensor(bench.mine(), 0, dist.group.WORLD))
    return [(x, torch.cat(bench.all_values()))]


def functional_reduce_scatter(bench: Bench) -> list[Pair]:
    """Cut along the rows."""
    x = functional.wait_tensor(
        functional.reduce_scatter_tensor(bench.mine(bench.size * ROWS), "sum", 0, dist.group.WORLD)
    )
    whole = reduced("SUM", bench.all_values(bench.size * ROWS), bench.dtype)
    return [(x, whole.chunk(bench.size)[bench.rank])]


def functional_all_to_all(bench: Bench) -> list[Pair]:
    """Equal parts of the rows."""
    x = functional.wait_tensor(
        functional.all_to_all_single(bench.mine(bench.size * ROWS), None, None, dist.group.WORLD)
    )
    parts = [values.chunk(bench.size)[bench.rank] for values in bench.all_values(bench.size * ROWS)]
    return [(x, torch.cat(parts))]


def functional_broadcast(bench: Bench) -> list[Pair]:
    """From the last rank."""
    x = functional.wait_tensor(functional.broadcast(bench.mine(), bench.size - 1, dist.group.WORLD))
    return [(x, bench.values(bench.size - 1))]


def thing(owner: int) -> dict[str, Any]:
    """An object of another size on each rank."""
    return {"rank": owner, "text": "x" * (10 + 1000 * owner), "list": list(range(owner))}


def all_gather_object(bench: Bench) -> list[Pair]:
    """Objects of unequal sizes."""
    found = [None] * bench.size
    dist.all_gather_object(found, thing(bench.rank))
    return [(found, [thing(owner) for owner in range(bench.size)])]


def gather_object(bench: Bench) -> list[Pair]:
    """To the last rank."""
    root = bench.size - 1
    found = [None] * bench.size if bench.rank == root else None
    dist.gather_object(thing(bench.rank), found, root)
    return [(found, [thing(owner) for owner in range(bench.size)])] if bench.rank == root else []


def broadcast_object_list(bench: Bench) -> list[Pair]:
    """From the last rank."""
    root = bench.size - 1
    found = [thing(owner) for owner in range(bench.size)] if bench.rank == root else [None] * bench.size
    dist.broadcast_object_list(found, root)
    return [(found, [thing(owner) for owner in range(bench.size)])]


def scatter_object_list(bench: Bench) -> list[Pair]:
    """From the last rank."""
    root = bench.size - 1
    found = [None]
    dist.scatter_object_list(
        found, [thing(r) for r in range(bench.size)] if bench.rank == root else None, root
    )
    return [(found, [thing(bench.rank)])]


def send_recv_object_list(bench: Bench) -> list[Pair]:
    """From rank 0 to the last."""
    found = [thing(1), thing(2)] if bench.rank == 0 else [None, None]
    if bench.rank == 0:
        dist.send_object_list(found, bench.size - 1)
    elif bench.rank == bench.size - 1:
        dist.recv_object_list(found, 0)
        return [(found, [thing(1), thing(2)])]
    return []


def barrier(bench: Bench) -> list[Pair]:
    """Returns on every rank."""
    dist.barrier()
    return []


OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
OPERATIONS: dict[str, Check] = {
    **{f"all_reduce {op}": functools.partial(all_reduce, op) for op in OPS},
    **{f"reduce {op}": functools.partial(reduce, op) for op in ("SUM", "AVG", "MAX")},
    "broadcast": broadcast,
    "all_gather": functools.partial(all_gather, 0),
    "all_gather, uneven": functools.partial(all_gather, 1),
    "all_gather_into_tensor": all_gather_into_tensor,
    "all_gather_into_tensor, stacked": all_gather_stacked,
    "reduce_scatter": functools.partial(reduce_scatter, 0),
    "reduce_scatter, uneven": functools.partial(reduce_scatter, 1),
    **{f"reduce_scatter_tensor {op}": functools.partial(reduce_scatter_tensor, op) for op in ("SUM", "AVG")},
    "reduce_scatter_tensor, stacked": reduce_scatter_stacked,
    "all_to_all": functools.partial(all_to_all, 0),
    "all_to_all, uneven": functools.partial(all_to_all, 1),
    "all_to_all_single": all_to_all_single,
    "all_to_all_single, splits": all_to_all_splits,
    "gather": functools.partial(gather, 0),
    "gather, uneven": functools.partial(gather, 1),
    "scatter": functools.partial(scatter, 0),
    "scatter, uneven": functools.partial(scatter, 1),
    "send, recv": functools.partial(send_recv, False),
    "send, recv from any": functools.partial(send_recv, True),
    "batch_isend_irecv": batch_isend_irecv,
    "all_reduce_coalesced": all_reduce_coalesced,
    "all_gather_coalesced": all_gather_coalesced,
    "functional all_reduce": functional_all_reduce,
    "functional all_gather": functional_all_gather,
    "functional reduce_scatter": functional_reduce_scatter,
    "functional all_to_all": functional_all_to_all,
    "functional broadcast": functional_broadcast,
}
# Operations without tensors, hence without types and layouts.
PLAIN: dict[str, Check] = {
    "all_gather_object": all_gather_object,
    "gather_object": gather_object,
    "broadcast_object_list": broadcast_object_list,
    "scatter_object_list": scatter_object_list,
    "send_object_list, recv_object_list": send_recv_object_list,
    "barrier": barrier,
}
