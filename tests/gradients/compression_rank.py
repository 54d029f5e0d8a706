"""One of several ranks whose gradients (NumPy) travel by top-k or PowerSGD, compared with what one process computes.

compression_rank.py references: values, bits, residuals, resume, accumulation, join, NaN; prints "compressed"
compression_rank.py differ, "wires differ" or "exact differs": rank 1 has another compression; prints the error
compression_rank.py "count differs": rank 1 has more parameters; prints the error
compression_rank.py "no effect": a wire on one host
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy_gradients import Array, Arrays, exchange

from slipstream.base.dtypes import Op
from slipstream.base.errors import Mismatch
from slipstream.comm.collectives import arrays as collectives
from slipstream.comm.membership import job
from slipstream.comm.membership.group import Group
from slipstream.gradients.agreement import check_compressions
from slipstream.gradients.compression import PowerSGD, TopK, Wire
from slipstream.gradients.joining import join
from slipstream.gradients.policy import Policy

SHAPES = [((80, 60), "f4"), ((60,), "f4"), ((30, 8, 20), "f8"), ((5, 3), "f4"), ((80, 60), "i4")]
COMPRESSED = (0, 2)
RATIO, RANK = 0.05, 3
STEPS = 4
DIFFERENT = {
    "differ": [Policy(TopK(RATIO)), Policy(PowerSGD(RANK))],
    "wires differ": [Policy(Wire("int8")), Policy(Wire("bf16"))],
    "exact differs": [Policy(Wire("int8")), Policy(Wire("int8"), lambda _: True)],
}


def gradients(rank: int, step: int) -> list[Array]:
    """Those of a rank, which every rank can compute."""
    random = np.random.default_rng([rank, step])
    return [(10 * random.standard_normal(shape)).astype(dtype) for shape, dtype in SHAPES]


def made(group: Group, way: Any, **options: Any) -> tuple[Arrays, Any]:
    arrays = Arrays([np.zeros(shape, dtype) for shape, dtype in SHAPES])
    return arrays, exchange(arrays, group, policy=Policy(way), **options)


def backward(arrays: Arrays, values: list[Array], rank: int) -> None:
    for index in np.random.default_rng(rank).permutation(len(values)):
        arrays.gradients[index] = values[index]
        arrays.ready(int(index))


def top_k_of_all(owed: list[Array], now: list[Array]) -> Array:
    """The sum of what the ranks send, in their order, of one parameter; ``owed`` is left with the rest."""
    total = np.zeros(now[0].shape, np.float32)
    for rest, value in zip(owed, now, strict=True):
        rest += value.astype(np.float32)
        count = int(np.ceil(RATIO * rest.size))
        chosen = np.argsort(-np.abs(rest.ravel()), kind="stable")[:count]
        total.ravel()[chosen] += rest.ravel()[chosen]
        rest.ravel()[chosen] = 0
    return total


class LowRank:
    """PowerSGD by the book, in float64, of one parameter."""

    def __init__(self, index: int) -> None:
        shape = SHAPES[index][0]
        self.q = np.random.default_rng(index).standard_normal((int(np.prod(shape[1:])), RANK))

    def __call__(self, owed: list[Array], now: list[Array]) -> Array:
        total = np.zeros((len(now[0]), len(self.q)))
        for rest, value in zip(owed, now, strict=True):
            rest += value
            total += rest.reshape(total.shape)
        p, _ = np.linalg.qr(total @ self.q)
        self.q = total.T @ p
        for rest in owed:
            matrix = rest.reshape(total.shape)
            matrix -= p @ (p.T @ matrix)
        return np.asarray((p @ self.q.T).reshape(now[0].shape))


def check_same_bits(group: Group, arrays: Arrays) -> None:
    for gradient in arrays.gradients:
        assert gradient is not None
        bits = np.frombuffer(gradient.tobytes(), np.uint8)
        low, high = (collectives.all_reduce(bits, op, group=group) for op in (Op.MIN, Op.MAX))
        assert np.array_equal(low, high)


def check_values(group: Group, way: Any, reference: Callable[[int], Any], tolerance: float) -> None:
    for op, factor in ((Op.AVG, 1 / group.size), (Op.SUM, 0.5)):
        arrays, reducing = made(group, way, op=int(op), prescale=1.0 if op is Op.AVG else 0.5)
        owed = {i: [np.zeros(SHAPES[i][0], np.float32) for _ in range(group.size)] for i in COMPRESSED}
        of_all = {i: reference(i) for i in COMPRESSED}
        for step in range(STEPS):
            everyone = [gradients(rank, step) for rank in range(group.size)]
            backward(arrays, everyone[group.rank], group.rank + step)
            reducing.synchronize()
            for i, found in enumerate(arrays.gradients):
                assert found is not None
                assert found.dtype == arrays.values[i].dtype
                now = [values[i] for values in everyone]
                if i in COMPRESSED:
                    wanted = of_all[i](owed[i], now) * factor
                    assert np.allclose(found, wanted, atol=tolerance), (i, step, np.abs(found - wanted).max())
                elif found.dtype.kind == "f":
                    wanted = np.sum(now, 0, dtype=found.dtype) * factor
                    assert np.allclose(found, wanted, rtol=1e-6, atol=1e-5), (i, step)
            check_same_bits(group, arrays)
        saved = {name: state for name, state in reducing.state_dict()["parameters"].items() if state}
        for name, state in saved.items():
            wanted = owed[int(name[1:])][group.rank]
            assert np.allclose(state["residual"], wanted.ravel(), atol=tolerance), name
        assert set(saved) == {f"p{i}" for i in COMPRESSED}


def check_resume(group: Group, way: Any) -> None:
    """A state that is saved, and loaded before the first step of another exchange, goes on with the same bits."""
    arrays, reducing = made(group, way)
    for step in range(2):
        backward(arrays, gradients(group.rank, step), 0)
        reducing.synchronize()
    again, resumed = made(group, way)
    resumed.load_state_dict(reducing.state_dict())
    for step in range(2, 4):
        for one, other in ((arrays, reducing), (again, resumed)):
            backward(one, gradients(group.rank, step), 0)
            other.synchronize()
        for one, other in zip(arrays.gradients, again.gradients, strict=True):
            assert np.array_equal(one, other)  # type: ignore[arg-type]
    reducing.reset()
    saved = reducing.state_dict()["parameters"].values()
    assert not any(state["residual"].any() for state in saved if state)
    backward(again, gradients(group.rank, 4), 0)  # is under way when it is forgotten
    resumed.reset()
    backward(again, gradients(group.rank, 4), 0)
    backward(arrays, gradients(group.rank, 4), 0)
    resumed.synchronize()
    reducing.synchronize()
    for one, other in zip(arrays.gradients, again.gradients, strict=True):
        assert np.array_equal(one, other)  # type: ignore[arg-type]


def check_accumulation(group: Group, way: Any) -> None:
    arrays, reducing = made(group, way, passes=2)
    twice, plain = made(group, way)
    for step in range(2):
        for _ in range(2):
            backward(arrays, gradients(group.rank, step), 0)
        backward(twice, gradients(group.rank, step), 0)
        reducing.synchronize()
        plain.synchronize()
        assert np.array_equal(arrays.gradients[0], twice.gradients[0])  # type: ignore[arg-type]


def check_join(group: Group, way: Any) -> None:
    """A rank without batches sends zeros, and what it owes."""
    arrays, reducing = made(group, way)
    owed = [np.zeros(SHAPES[0][0], np.float32) for _ in range(group.size)]
    of_all = top_k_of_all if isinstance(way, TopK) else LowRank(0)
    for step in range(2 if group.rank == group.size - 1 else STEPS):
        everyone = [gradients(rank, step) for rank in range(group.size)]
        if step >= 2:
            everyone[-1] = [np.zeros_like(value) for value in everyone[-1]]
        backward(arrays, everyone[group.rank], 0)
        reducing.synchronize()
        wanted = of_all(owed, [values[0] for values in everyone]) / group.size
        assert np.allclose(arrays.gradients[0], wanted, atol=1e-3)  # type: ignore[arg-type]
    join(group)


def check_nan(group: Group, way: Any) -> None:
    """One step with NaN is spoilt on all ranks, and no other."""
    arrays, reducing = made(group, way)
    for step in range(3):
        values = gradients(group.rank, step)
        if step == 1 and group.rank == 0:
            values[0][3, 4] = np.nan
        backward(arrays, values, 0)
        reducing.synchronize()
        assert bool(np.isfinite(arrays.gradients[0]).all()) is (step != 1)  # type: ignore[arg-type]


def check_mismatch(group: Group, policies: list[Policy]) -> None:
    arrays = Arrays([np.zeros(shape, dtype) for shape, dtype in SHAPES])
    reducing = exchange(arrays, group, policy=policies[group.rank == 1])
    backward(arrays, gradients(0, 0), 0)
    try:
        reducing.synchronize()
    except Mismatch as error:
        print(error, flush=True)


def check_no_effect(group: Group) -> None:
    """Two optimizers and a single operation ask for the same wire."""
    for _ in range(2):
        arrays, reducing = made(group, Wire("int8"))
        backward(arrays, gradients(0, 0), 0)
        reducing.synchronize()
    collectives.all_reduce(np.ones(3, np.float32), group=group, wire="int8")


def compare_counts(group: Group) -> None:
    count = 2 + group.rank
    try:
        check_compressions("int8", ["int8"] * count, [f"p{i} (3,) float32" for i in range(count)], group)
    except Mismatch as error:
        print(error, flush=True)


def main() -> None:
    entered = job.enter()
    group = Group(job=entered)
    if sys.argv[1] == "count differs":
        compare_counts(group)
    elif sys.argv[1] == "no effect":
        check_no_effect(group)
    elif sys.argv[1] in DIFFERENT:
        check_mismatch(group, DIFFERENT[sys.argv[1]])
    else:
        check_values(group, TopK(RATIO), lambda _: top_k_of_all, 1e-4)
        check_values(group, PowerSGD(RANK), LowRank, 1e-3)
        for way in (TopK(RATIO), PowerSGD(RANK)):
            check_resume(group, way)
            check_accumulation(group, way)
            check_join(group, way)
            check_nan(group, way)
        print("compressed", flush=True)
    entered.close()


main()
