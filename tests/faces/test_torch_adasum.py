"""op=Adasum of slipstream.torch: operations, and the optimizer that reduces changes of parameters."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import slipstream.torch as hvd  # noqa: E402

FLOATS = {torch.float64: 1e-14, torch.float32: 1e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}
SHAPES = [(), (3,), (2, 5), (0,), (7, 11, 13)]


def adasum_of(tensors: list[Any]) -> Any:
    """The definition, for up to three ranks: if there is one too many, the first two join before."""
    found = tensors[0].double()
    for ranks, tensor in enumerate(tensors[1:], 1):  # that have joined
        a, b = found, tensor.double()
        dot, aa, bb = (a * b).sum(), (a * a).sum(), (b * b).sum()
        left = 1 - dot / aa * ranks / (ranks + 1) if aa else 1
        right = 1 - dot / bb / (ranks + 1) if bb else 1
        found = left * a + right * b
    return found


def tensors_of_all(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> list[Any]:
    generators = [torch.Generator().manual_seed(100 * seed + rank) for rank in range(hvd.size())]
    return [(torch.randn(shape, generator=one) + 0.3).to(dtype) for one in generators]


def assert_near(got: Any, everyone: list[Any], factor: float = 1.0) -> None:
    want = adasum_of(everyone) * factor
    assert got.dtype == everyone[0].dtype
    assert got.shape == want.shape
    limit = FLOATS[got.dtype] * max(1.0, want.abs().max().item() if want.numel() else 1.0)
    assert torch.allclose(got.double(), want, rtol=0, atol=limit)


def check_operations() -> None:
    rank = hvd.rank()
    for dtype in FLOATS:
        for seed, shape in enumerate(SHAPES):
            everyone = tensors_of_all(shape, dtype, seed)
            for name in (None, f"x {dtype} {shape}"):
                x = everyone[rank].clone()
                assert_near(hvd.allreduce(x, op=hvd.Adasum, name=name), everyone)
                assert torch.equal(x, everyone[rank])
                handle = hvd.allreduce_async_(x, op=hvd.Adasum, name=name, postscale_factor=0.5)
                assert hvd.synchronize(handle) is x
                assert_near(x, everyone, 0.5)
    strided = [torch.stack([one, one], 1)[:, 0] for one in tensors_of_all((6,), torch.float32)]
    assert_near(hvd.allreduce_(strided[rank].clone(), op=hvd.Adasum), strided)
    scaled = hvd.allreduce(strided[rank], op=hvd.Adasum, prescale_factor=4.0, postscale_factor=0.25)
    assert_near(scaled, strided)
    small = hvd.allreduce(strided[rank], op=hvd.Adasum, compression=hvd.Compression.bf16)
    assert small.dtype == torch.float32
    assert_near(small.bfloat16(), [one.bfloat16() for one in strided])


def check_groups() -> None:
    rank = hvd.rank()
    kinds = [(shape, dtype) for shape in SHAPES for dtype in (torch.float32, torch.float64)]
    everyone = [tensors_of_all(shape, dtype, seed) for seed, (shape, dtype) in enumerate(kinds)]
    for name in (None, "group"):
        mine = [one[rank].clone() for one in everyone]
        for got, all_of in zip(hvd.grouped_allreduce(mine, op=hvd.Adasum, name=name), everyone, strict=True):
            assert_near(got, all_of)
        handle = hvd.grouped_allreduce_async_(mine, op=hvd.Adasum, name=name)
        found = hvd.synchronize(handle)
        for got, tensor, all_of in zip(found, mine, everyone, strict=True):
            assert got is tensor
            assert_near(tensor, all_of)
    # order of ends is not order of calls; other operations run meanwhile
    first, second = (hvd.allreduce_async(one[rank], op=hvd.Adasum) for one in (everyone[2], everyone[4]))
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()
    assert_near(hvd.synchronize(second), everyone[4])
    assert_near(hvd.synchronize(first), everyone[2])
    # an operation on the tensor that another one still writes comes after it
    x = everyone[2][rank].clone()
    handle = hvd.allreduce_async_(x, op=hvd.Adasum)
    total = hvd.allreduce(x, op=hvd.Average)
    hvd.synchronize(handle)
    assert torch.equal(total, x)


def check_refusals() -> None:
    for dtype in (torch.int32, torch.complex64, torch.bool):
        for name in (None, "refused"):
            with pytest.raises(ValueError, match="Adasum takes tensors of float64"):
                hvd.allreduce(torch.ones(2).to(dtype), op=hvd.Adasum, name=name)
    for name in (None, "refused"):
        with pytest.raises(NotImplementedError, match="Adasum is for allreduce"):
            hvd.reducescatter(torch.ones(4), op=hvd.Adasum, name=name)
    # named operations fail alone
    shape = 2 + hvd.rank() % 2
    with pytest.raises(hvd.HorovodInternalError, match="op Adasum"):
        hvd.allreduce(torch.ones(shape), op=hvd.Adasum, name="differs")
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [hvd.size()] * 2


def check_process_sets() -> None:
    for ranks in ([0, 2], [1]):
        some = hvd.add_process_set(ranks)
        if some.included():
            everyone = [tensors_of_all((9,), torch.float64)[rank] for rank in ranks]
            mine = everyone[some.rank()]
            assert_near(hvd.allreduce(mine, op=hvd.Adasum, process_set=some), everyone)
            assert_near(hvd.allreduce(mine, op=hvd.Adasum, process_set=some, name="x"), everyone)
        assert hvd.remove_process_set(some)


def test_operations_on_one_two_and_three_ranks(jobs: Any) -> None:
    for size in (1, 2, 3):
        jobs[size](check_operations)


def test_groups(three: Any) -> None:
    three(check_groups)


def test_what_it_does_not_take(two: Any) -> None:
    two(check_refusals)


def test_process_sets(three: Any) -> None:
    three(check_process_sets)


# ---- the optimizer


def make_model(dtype: Any = torch.float64) -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2)).to(dtype)


def loss_of(model: Any, step: int, rank: int) -> Any:
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.rand((5, 4), generator=generator).to(next(model.parameters()).dtype)
    return (model(x) ** 2).sum()


KINDS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "adam": lambda params: torch.optim.Adam(params, lr=0.05),
}


def check_optimizer(kind: str, **options: Any) -> None:
    """Against every rank's optimizer stepping alone, and the definition on what they change."""
    model = make_model()
    optimizer = hvd.DistributedOptimizer(
        KINDS[kind](model.parameters()), model.named_parameters(), op=hvd.Adasum, **options
    )
    alone = [make_model() for _ in range(hvd.size())]
    theirs = [KINDS[kind](one.parameters()) for one in alone]
    for step in range(4):
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        optimizer.step()
        before = [p.detach().clone() for p in alone[0].parameters()]
        for rank, (one, single) in enumerate(zip(alone, theirs, strict=True)):
            single.zero_grad()
            loss_of(one, step, rank).backward()
            single.step()
        with torch.no_grad():
            for start, *params in zip(before, *(one.parameters() for one in alone), strict=True):
                after = start + adasum_of([p - start for p in params])
                for p in params:
                    p.copy_(after)
        for p, q in zip(model.parameters(), alone[0].parameters(), strict=True):
            assert torch.allclose(p, q, rtol=1e-9, atol=1e-12)
    for p in model.parameters():
        assert torch.equal(p, hvd.broadcast(p.detach(), 0))


def check_orders_and_closures() -> None:
    model = make_model()
    named = dict(model.named_parameters())
    order = sorted(named, reverse=bool(hvd.rank() % 2))  # ranks match parameters by name
    optimizer = torch.optim.SGD([named[name] for name in order], lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, named.items(), op=hvd.Adasum)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = loss_of(model, 0, 0)
        loss.backward()
        return loss

    first, second = (optimizer.step(closure).item() for _ in range(2))
    assert second < first
    alone = make_model()  # equal changes: their mean
    single = torch.optim.SGD(alone.parameters(), lr=0.01)
    for _ in range(2):
        single.zero_grad()
        loss_of(alone, 0, 0).backward()
        single.step()
    for p, q in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(p, q)
    skipping = optimizer.skip_synchronize()
    with pytest.raises(AssertionError, match="Skipping synchronization is not supported"), skipping:
        pass
    optimizer.synchronize()


def check_options() -> None:
    model = make_model(torch.float32)
    for words, options in (
        ("gradient_predivide_factor", {"gradient_predivide_factor": 2.0}),
        ("op=Adasum takes", {"compression": hvd.Compression.topk(0.1)}),
        ("exact", {"exact": ["*"], "named_parameters": model.named_parameters()}),
        ("overlap_forward", {"overlap_forward": model}),
    ):
        with pytest.raises(ValueError, match=words):
            hvd.DistributedOptimizer(KINDS["sgd"](model.parameters()), op=hvd.Adasum, **options)
    group = {"params": list(model.parameters()), "wire": "bf16"}
    with pytest.raises(ValueError, match="wire"):
        hvd.DistributedOptimizer(torch.optim.SGD([group], lr=0.1), op=hvd.Adasum)
    optimizer = hvd.DistributedOptimizer(
        KINDS["sgd"](model.parameters()), op=hvd.Adasum, compression=hvd.Compression.fp16
    )
    loss_of(model, 0, hvd.rank()).backward()
    optimizer.step()
    for p in model.parameters():
        assert p.dtype == torch.float32
        assert torch.equal(p, hvd.broadcast(p.detach(), 0))


def check_unused_and_joined() -> None:
    """Rank 0 has one step more than the others, and a parameter that only it uses."""
    model = make_model()
    lone = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = torch.optim.SGD([*model.parameters(), lone], lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Adasum)
    for step in range(2 if hvd.rank() == 0 else 1):
        optimizer.zero_grad()
        loss = loss_of(model, step, hvd.rank())
        (loss + lone.sum() if hvd.rank() == 0 else loss).backward()
        optimizer.step()
    assert hvd.join() == 0
    assert torch.allclose(lone, torch.full_like(lone, -0.2 if hvd.rank() == 0 else -0.1))


def check_mismatch() -> None:
    width = 3 if hvd.rank() else 4
    p = torch.nn.Parameter(torch.ones(width))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=0.1), [("w", p)], op=hvd.Adasum)
    p.sum().backward()
    with pytest.raises(hvd.HorovodInternalError, match=r"parameter 0 is w \(4,\).* on rank 0"):
        optimizer.step()
    assert torch.equal(p, torch.ones(width))


@pytest.mark.parametrize("kind", KINDS)
def test_the_optimizer_joins_changes(three: Any, kind: str) -> None:
    three(check_optimizer, kind)


def test_it_matches_parameters_by_name_and_takes_closures(two: Any) -> None:
    two(check_orders_and_closures)


def test_it_says_which_options_it_does_not_have(two: Any) -> None:
    two(check_options)


def test_ranks_without_gradients_or_batches_change_nothing(three: Any) -> None:
    three(check_unused_and_joined)


def test_different_parameters_are_a_mismatch(two: Any) -> None:
    two(check_mismatch)
