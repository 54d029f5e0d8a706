"""Single operations by a wire: float32 sums that travel in fewer bits between hosts, and what travels exactly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import slipstream  # noqa: E402
import slipstream.torch as hvd  # noqa: E402
from comm import ranks  # noqa: E402
from comm.negotiation.locking import until_locked  # noqa: E402
from slipstream.base.dtypes import WireType  # noqa: E402
from slipstream.base.errors import Mismatch  # noqa: E402
from slipstream.faces.torch.requests import grouped_request, shares_request, sum_request  # noqa: E402

ODD = 40_012  # elements; the rows of three ranks differ by one
SMALL = 1000
# What a number of a sum may be off, by the largest one of all sums: a rank's part, and each hop.
PRECISION = {"bf16": 2.0**-8, "f16": 2.0**-10, "f8": 2.0**-4, "int8": 1 / 127}


def compression_of(wire: str) -> Any:
    return getattr(hvd.Compression, wire) if wire in ("f8", "int8") else hvd.Compression.wire(wire)


def numbers(rank: int, count: int = ODD) -> Any:
    return torch.randn(count, generator=torch.Generator().manual_seed(rank))


def summed(count: int = ODD) -> Any:
    return torch.stack([numbers(rank, count) for rank in range(hvd.size())]).double().sum(0)


def mine(found: Any) -> Any:
    """This rank's rows."""
    return torch.tensor_split(found, hvd.size())[hvd.rank()]


# Each takes a tensor and options, and returns its sum, or this rank's rows of it.
WAYS: dict[str, Callable[..., Any]] = {
    "allreduce": hvd.allreduce,
    "allreduce_async": lambda x, **options: hvd.synchronize(hvd.allreduce_async(x, **options)),
    "allreduce_": hvd.allreduce_,
    "allreduce_async_": lambda x, **options: hvd.synchronize(hvd.allreduce_async_(x, **options)),
    "grouped_allreduce": lambda x, **options: hvd.grouped_allreduce([x, x[:3]], **options)[0],
    "grouped_allreduce_async": lambda x, **options: hvd.synchronize(
        hvd.grouped_allreduce_async([x], **options)
    )[0],
    "grouped_allreduce_": lambda x, **options: hvd.grouped_allreduce_([x], **options)[0],
    "grouped_allreduce_async_": lambda x, **options: hvd.synchronize(
        hvd.grouped_allreduce_async_([x], **options)
    )[0],
    "reducescatter": hvd.reducescatter,
    "reducescatter_async": lambda x, **options: hvd.synchronize(hvd.reducescatter_async(x, **options)),
    "grouped_reducescatter": lambda x, **options: hvd.grouped_reducescatter([x, x[:3]], **options)[0],
    "grouped_reducescatter_async": lambda x, **options: hvd.synchronize(
        hvd.grouped_reducescatter_async([x], **options)
    )[0],
}


def share_of(way: str, whole: Any) -> Any:
    return mine(whole) if "scatter" in way else whole


def check_way(way: str) -> None:
    """Rounded, but not more than the wire rounds; averages too; named or not; small ones exactly."""
    for wire, precision in PRECISION.items():
        wanted = share_of(way, summed())
        bound = float(summed().abs().max()) * precision * hvd.size()
        for op, divisor, name in ((hvd.Sum, 1, None), (hvd.Average, hvd.size(), f"{way} {wire}")):
            x = numbers(hvd.rank())
            found = WAYS[way](x, op=op, name=name, compression=compression_of(wire))
            error = float((found.double() - wanted / divisor).abs().max())
            assert 0 < error * divisor <= bound, (wire, op, error, bound)
            assert torch.equal(x, numbers(hvd.rank())) is not way.endswith("_")
        small = WAYS[way](numbers(hvd.rank(), SMALL), op=hvd.Sum, compression=compression_of(wire))
        torch.testing.assert_close(small, share_of(way, summed(SMALL)).float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_each_operation_takes_a_wire(hosts: Any, way: str) -> None:
    hosts(check_way, way)


def check_same_bits() -> None:
    found = hvd.allreduce(numbers(hvd.rank()), compression=hvd.Compression.int8)
    everyone = hvd.allgather(found.view(1, -1))
    assert (everyone.view(torch.int32) == everyone[0].view(torch.int32)).all()


def check_layouts() -> None:
    """Columns of a matrix, in place and not; a device's tensors are copied likewise."""
    for in_place in (False, True):
        matrix = numbers(hvd.rank(), 2 * ODD).view(ODD, 2)
        column, other = matrix[:, 0], matrix[:, 1].clone()
        operation = hvd.allreduce_ if in_place else hvd.allreduce
        found = operation(column, op=hvd.Sum, compression=hvd.Compression.int8)
        wanted = summed(2 * ODD).view(ODD, 2)[:, 0]
        error = float((found.double() - wanted).abs().max())
        assert 0 < error <= float(wanted.abs().max()) * 3 / 127
        assert torch.equal(matrix[:, 1], other)
        assert not in_place or torch.equal(found, column)


def check_exact() -> None:
    """Other dtypes and operations, what says so, and what small tensors of a group share."""
    int8 = {"compression": hvd.Compression.int8}
    torch.testing.assert_close(hvd.allreduce(numbers(hvd.rank()).double(), op=hvd.Sum, **int8), summed())
    everyone = torch.stack([numbers(rank) for rank in range(hvd.size())])
    assert torch.equal(hvd.allreduce(numbers(hvd.rank()), op=hvd.Max, **int8), everyone.max(0).values)
    whole = torch.arange(ODD) + hvd.rank()
    wanted = hvd.size() * torch.arange(ODD) + sum(range(hvd.size()))
    assert torch.equal(hvd.allreduce(whole, op=hvd.Sum, **int8), wanted)
    exact = hvd.allreduce(numbers(hvd.rank()), op=hvd.Sum, compression=hvd.Compression.exact)
    torch.testing.assert_close(exact.double(), summed(), rtol=1e-5, atol=1e-5)
    group = [numbers(hvd.rank(), SMALL), numbers(hvd.rank()), numbers(hvd.rank(), 2 * SMALL)]
    one, large, two = hvd.grouped_allreduce(group, op=hvd.Sum, **int8)
    for small, count in ((one, SMALL), (two, 2 * SMALL)):
        torch.testing.assert_close(small.double(), summed(count), rtol=1e-6, atol=1e-6)
    assert float((large.double() - summed()).abs().max()) > 1e-3


def check_process_set() -> None:
    pair = hvd.add_process_set([0, 2])
    if pair.included():
        found = hvd.allreduce(
            numbers(hvd.rank()), op=hvd.Sum, process_set=pair, compression=hvd.Compression.int8
        )
        error = float((found - numbers(0) - numbers(2)).abs().max())
        assert 1e-4 < error < 2 * 8 / 127
    hvd.barrier()
    hvd.remove_process_set(pair)


def sent() -> int:
    return sum(link.sent for link in slipstream.link_statistics())


def check_bytes() -> None:
    x = torch.ones(1 << 20)
    for compression, wanted in ((hvd.Compression.int8, 260 / 1024), (hvd.Compression.exact, 1.0)):
        before = sent()
        hvd.allreduce(x, compression=compression)
        share = (sent() - before) / (2 * (hvd.size() - 1) / hvd.size() * x.nbytes)
        assert wanted * 0.9 < share < wanted * 1.1 + 0.02, share


def check_gradients() -> None:
    """That of an all-reduce travels by its wire, in groups too; that of a reduce-scatter exactly."""
    upstream = numbers(10 + hvd.rank())
    wanted = torch.stack([numbers(10 + rank) for rank in range(hvd.size())]).double().sum(0)
    bound = float(wanted.abs().max()) * 3 / 127
    for operation in (
        lambda x: hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.int8),
        lambda x: hvd.grouped_allreduce([x], op=hvd.Sum, compression=hvd.Compression.int8)[0],
    ):
        x = numbers(hvd.rank()).requires_grad_()
        operation(x).backward(upstream)
        assert 0 < float((x.grad.double() - wanted).abs().max()) <= bound
    for operation in (
        lambda x: hvd.reducescatter(x, op=hvd.Sum, compression=hvd.Compression.int8),
        lambda x: hvd.grouped_reducescatter([x], op=hvd.Sum, compression=hvd.Compression.int8)[0],
    ):
        x = numbers(hvd.rank()).requires_grad_()
        found = operation(x)
        assert (
            0 < float((found.double() - mine(summed())).abs().max()) <= float(summed().abs().max()) * 3 / 127
        )
        found.backward(torch.ones_like(found))
        assert torch.equal(x.grad, torch.full_like(x, hvd.size()))


def check_repeated() -> None:
    """Steps that repeat lock their order, and go on by the wire."""
    small, large = numbers(hvd.rank(), SMALL), numbers(hvd.rank())

    def step() -> None:
        handles = [
            hvd.allreduce_async(large, name="large", op=hvd.Sum, compression=hvd.Compression.int8),
            hvd.allreduce_async(small, name="small", op=hvd.Sum, compression=hvd.Compression.int8),
        ]
        found = [hvd.synchronize(handle) for handle in handles]
        assert 0 < float((found[0].double() - summed()).abs().max()) <= float(summed().abs().max()) * 3 / 127
        torch.testing.assert_close(found[1].double(), summed(SMALL), rtol=1e-6, atol=1e-6)

    until_locked(step)


def check_join() -> None:
    """A rank that has joined brings zeros to what the others send by a wire, of each kind."""
    last = hvd.size() - 1
    if hvd.rank() != last:
        wanted = sum(numbers(rank).double() for rank in range(last))
        bound = float(wanted.abs().max()) * 3 / 127
        for way in ("allreduce", "grouped_allreduce", "reducescatter"):
            found = WAYS[way](numbers(hvd.rank()), op=hvd.Sum, name=way, compression=hvd.Compression.int8)
            assert 0 < float((found.double() - share_of(way, wanted)).abs().max()) <= bound
    hvd.join()


@pytest.mark.parametrize(
    "check",
    [
        check_same_bits,
        check_layouts,
        check_exact,
        check_process_set,
        check_bytes,
        check_gradients,
        check_repeated,
        check_join,
    ],
    ids=lambda check: check.__name__.removeprefix("check_"),
)
def test_between_hosts(hosts: Any, check: Any) -> None:
    hosts(check)


def check_mismatch(way: str) -> None:
    """All ranks learn of both wires, and the job goes on."""
    odd = hvd.rank() == hvd.size() - 1
    for other, words in (
        (hvd.Compression.none, "exact"),
        (hvd.Compression.wire("bf16"), "bf16 between hosts"),
    ):
        compression = other if odd else hvd.Compression.int8
        for name in (None, f"{way} {words}"):
            with pytest.raises(Mismatch) as caught:
                WAYS[way](numbers(hvd.rank()), name=name, compression=compression)
            text = str(caught.value)
            assert "wire types" in text, text
            assert "int8 between hosts; by rank" in text, text
            assert f"{words}. All ranks must call it alike" in text, text
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


@pytest.mark.parametrize("way", ["allreduce", "allreduce_async_", "grouped_allreduce", "reducescatter"])
def test_ranks_that_ask_for_different_wires_learn_of_both(hosts: Any, way: str) -> None:
    hosts(check_mismatch, way)


def test_also_within_one_host(two: Any) -> None:
    two(check_mismatch, "allreduce")


@pytest.mark.parametrize("request_of", [grouped_request, shares_request])
def test_a_wire_that_acts_on_nothing_is_no_part_of_what_ranks_compare(request_of: Any) -> None:
    """Ranks that differ in it alone may lock their order."""
    small, large = torch.ones(SMALL), torch.ones(ODD)
    for tensor, differs in ((small, False), (large.double(), False), (large, True)):
        of_one = [
            sum_request("x", tensor.dtype, tensor.shape, "cpu", hvd.Sum, 1.0, 1.0, wire, False)
            for wire in (WireType.INT8, WireType.EXACT)
        ]
        assert (of_one[0] != of_one[1]) is differs
        of_several = [request_of("x", [tensor, small], hvd.Sum, 1.0, 1.0, wire) for wire in WireType]
        assert (len(set(of_several)) > 1) is differs


def check_one_host() -> None:
    found = hvd.allreduce(numbers(hvd.rank()), op=hvd.Sum, compression=hvd.Compression.int8)
    assert torch.equal(found, numbers(0) + numbers(1))


def test_within_a_host_nothing_is_rounded(two: Any) -> None:
    two(check_one_host)


def check_refused() -> None:
    x = torch.ones(2)
    for refused in (
        hvd.Compression.topk(0.1),
        hvd.Compression.powersgd(2),
        hvd.Compression.wire("int8", error_feedback=True),
    ):
        for way in WAYS.values():
            with pytest.raises(ValueError, match=r"is for gradients: DistributedOptimizer"):
                way(x, compression=refused)
    for name, way in WAYS.items():
        if name.endswith(("_async", "_")):
            plain = name.replace("_async", "").rstrip("_")
            for making in (hvd.Compression.fp16, hvd.Compression.bf16):
                with pytest.raises(ValueError, match=f"^{name} takes Compression.none, .*: use {plain}$"):
                    way(x, compression=making)
            with pytest.raises(TypeError, match=r"^compression takes Compression\.none"):
                way(x, compression="int8")
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


def test_what_cannot_be_is_refused_before_anything_is_sent(two: Any) -> None:
    two(check_refused)


def test_the_job_s_wire_acts_on_large_sums() -> None:
    script = Path(__file__).with_name("wires_rank.py")
    ranks.run(script, 2, transport="tcp", env={"SLIPSTREAM_WIRE": "int8"}, timeout=120)
