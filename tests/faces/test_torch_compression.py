"""DistributedOptimizer with top-k and PowerSGD: what is exact, what is remembered, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import slipstream.torch as hvd  # noqa: E402

KINDS: dict[str, Any] = {
    "topk": hvd.Compression.topk(0.05),
    "powersgd": hvd.Compression.powersgd(rank=2),
}
# What a number may be off, by the largest of its gradient: a rank's part, and each sum on the way.
WIRES: dict[str, tuple[Any, float]] = {
    "bf16": (hvd.Compression.bf16, 2.0**-8),
    "fp16": (hvd.Compression.fp16, 2.0**-11),
    "f8": (hvd.Compression.f8, 2.0**-4),
    "int8": (hvd.Compression.int8, 1 / 127),
    "int8, error feedback": (hvd.Compression.wire("int8", error_feedback=True), 2 / 127),
}
KINDS |= {name: compression for name, (compression, _) in WIRES.items()}


def model() -> Any:
    torch.manual_seed(5)
    layers = [torch.nn.Linear(64, 96), torch.nn.LayerNorm(96), torch.nn.Tanh(), torch.nn.Linear(96, 80)]
    return torch.nn.Sequential(*layers, torch.nn.Tanh(), torch.nn.Linear(80, 4))


def remembered(saved: Any) -> dict[str, Any]:
    """Of which parameters a saved state has something."""
    return {name: state for name, state in saved["parameters"].items() if state}


def optimizer(net: Any, kind: str, **options: Any) -> Any:
    made = torch.optim.Adam(net.parameters(), lr=0.003)
    return hvd.DistributedOptimizer(made, net.named_parameters(), KINDS[kind], **options)


def backward(net: Any, step: int) -> float:
    generator = torch.Generator().manual_seed(100 * hvd.rank() + step % 3)
    x = torch.randn(8, 64, generator=generator)
    loss = torch.nn.functional.mse_loss(net(x), x[:, :4])
    loss.backward()
    return loss.item()


def check_learning(kind: str) -> float:
    """Small gradients are averages, others near them, all alike on all ranks; returns the last loss by the first."""
    net = model()
    distributed = optimizer(net, kind)
    losses = []
    for step in range(30):
        distributed.zero_grad(set_to_none=step % 2 == 0)
        alone = copy.deepcopy(net)
        alone.zero_grad()
        losses.append(backward(net, step))
        backward(alone, step)
        distributed.synchronize()
        off = 0.0
        for ours, mine in zip(net.parameters(), alone.parameters(), strict=True):
            average = hvd.allreduce(mine.grad)
            if ours.dim() == 1 or ours.numel() < 4096:
                torch.testing.assert_close(ours.grad, average, rtol=1e-6, atol=1e-8)
            else:
                off = max(off, float((ours.grad - average).abs().max()))
        assert off > 0
        with distributed.skip_synchronize():
            distributed.step()
    bits = hvd.allgather_object([p.detach().numpy().tobytes() for p in net.parameters()])
    assert all(other == bits[0] for other in bits)
    return losses[-1] / losses[0]


@pytest.mark.parametrize("kind", ["topk", "powersgd"])
def test_models_learn_alike_on_all_ranks_and_norms_stay_exact(three: Any, kind: str) -> None:
    assert max(three(check_learning, kind)) < 0.8


def check_wire(kind: str, tolerance: float) -> None:
    net = model()
    distributed = optimizer(net, kind)
    for step in range(3):
        distributed.zero_grad()
        alone = copy.deepcopy(net)
        alone.zero_grad()
        backward(net, step)
        backward(alone, step)
        distributed.step()
        for ours, mine in zip(net.parameters(), alone.parameters(), strict=True):
            average = hvd.allreduce(mine.grad, compression=hvd.Compression.exact)
            off = float((ours.grad - average).abs().max())
            if ours.dim() == 1 or ours.numel() < 4096:
                assert off <= 1e-6 * float(average.abs().max())
            else:
                assert 0 < off <= hvd.size() * tolerance * float(mine.grad.abs().max()) * 2
    bits = hvd.allgather_object([p.detach().numpy().tobytes() for p in net.parameters()])
    assert all(other == bits[0] for other in bits)
    assert bool(remembered(distributed.compression_state_dict())) is ("feedback" in kind)


@pytest.mark.parametrize("kind", list(WIRES))
def test_wires_act_between_hosts(hosts: Any, kind: str) -> None:
    hosts(check_wire, kind, WIRES[kind][1])


def check_feedback() -> None:
    """What int8 rounds off of a gradient that stays the same is made up for: its mean comes near the true one."""
    offs = []
    for kind in ("int8", "int8, error feedback"):
        weight = torch.nn.Parameter(torch.zeros(64, 128))
        distributed = hvd.DistributedOptimizer(
            torch.optim.SGD([weight], lr=1.0), [("w", weight)], KINDS[kind]
        )
        true = torch.randn(64, 128, generator=torch.Generator().manual_seed(7))
        total = torch.zeros_like(true)
        for _ in range(16):
            distributed.zero_grad()
            weight.grad = None
            (weight * true).sum().backward()
            distributed.step()
            total += weight.grad
        offs.append(float((total / 16 - true).abs().mean()))
    assert offs[1] < offs[0] / 3, offs


def test_error_feedback_makes_up_for_rounding(hosts: Any) -> None:
    hosts(check_feedback)


def check_groups() -> None:
    """A parameter group may have a wire of its own, or none."""
    net = model()
    groups = [
        {"params": [net[0].weight], "wire": "exact"},
        {"params": [net[3].weight], "wire": "bf16"},
        {"params": [p for p in net.parameters() if p is not net[0].weight and p is not net[3].weight]},
    ]
    distributed = hvd.DistributedOptimizer(
        torch.optim.SGD(groups, lr=0.1), net.named_parameters(), hvd.Compression.int8
    )
    alone = copy.deepcopy(net)
    backward(net, 0)
    backward(alone, 0)
    distributed.step()
    first, second = (hvd.allreduce(alone[i].weight.grad) for i in (0, 3))
    torch.testing.assert_close(net[0].weight.grad, first, rtol=1e-6, atol=1e-9)
    off = float((net[3].weight.grad - second).abs().max() / second.abs().max())
    assert 0 < off < 0.02
    with pytest.raises(ValueError, match=r'"wire" of a parameter group is one of exact, bf16, f16, f8, int8'):
        hvd.DistributedOptimizer(torch.optim.SGD([{"params": list(net.parameters()), "wire": "f9"}], lr=0.1))


def test_a_parameter_group_may_have_a_wire_of_its_own(hosts: Any) -> None:
    hosts(check_groups)


def check_resume(kind: str) -> None:
    """From a checkpoint, and with a parameter group that is added, training goes on with the same bits."""
    net = model()
    distributed = optimizer(net, kind)
    for step in range(3):
        distributed.zero_grad()
        backward(net, step)
        distributed.step()
    saved = copy.deepcopy((net.state_dict(), distributed.state_dict(), distributed.compression_state_dict()))
    assert set(remembered(saved[2])) == {"0.weight", "3.weight"}
    again = model()
    again.load_state_dict(saved[0])
    resumed = optimizer(again, kind)
    resumed.load_state_dict(saved[1])
    resumed.load_compression_state_dict(saved[2])
    for each, other in ((net, distributed), (again, resumed)):
        for step in range(3, 5):
            other.zero_grad()
            backward(each, step)
            other.step()
    for ours, theirs in zip(net.parameters(), again.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    before = distributed.compression_state_dict()["parameters"]["0.weight"]["residual"]
    assert before.any()
    distributed.add_param_group({"params": [torch.nn.Parameter(torch.zeros(3))]})
    assert torch.equal(distributed.compression_state_dict()["parameters"]["0.weight"]["residual"], before)
    distributed.load_state_dict(saved[1] | {"param_groups": distributed.state_dict()["param_groups"]})
    assert not distributed.compression_state_dict()["parameters"]["0.weight"]["residual"].any()


def check_shifted() -> None:
    """Without names parameters have numbers, which shift when one is frozen: what is remembered goes with them."""
    net = model()
    made = torch.optim.Adam(net.parameters(), lr=0.003)
    distributed = hvd.DistributedOptimizer(made, compression=KINDS["topk"])
    backward(net, 0)
    distributed.step()
    distributed.zero_grad()
    before = remembered(distributed.compression_state_dict())
    assert set(before) == {"0", "4"}
    net[0].weight.requires_grad_(False)
    distributed.add_param_group({"params": [torch.nn.Parameter(torch.zeros(3))]})
    after = remembered(distributed.compression_state_dict())
    assert set(after) == {"3"}
    assert torch.equal(after["3"]["residual"], before["4"]["residual"])
    backward(net, 1)
    distributed.step()


def test_what_is_remembered_goes_with_its_parameter(two: Any) -> None:
    two(check_shifted)


def check_foreign_state(saved: Any, words: str) -> None:
    distributed = optimizer(model(), "topk")
    with pytest.raises(ValueError, match=words):
        distributed.load_compression_state_dict(saved)
    distributed.load_compression_state_dict(distributed.compression_state_dict())


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        ({}, "no saved state"),
        ({"compression": "PowerSGD", "parameters": {}}, "of compression PowerSGD, .* here is top-k"),
        ({"compression": "top-k", "parameters": {"head.weight": {}}}, "lacks the parameter"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(two: Any, saved: Any, words: str) -> None:
    two(check_foreign_state, saved, words)


@pytest.mark.parametrize("kind", ["topk", "powersgd"])
def test_training_resumes_with_the_same_bits(two: Any, kind: str) -> None:
    two(check_resume, kind)


def check_exact() -> None:
    for exact, compressed in (
        (["3.*"], {"0.weight"}),
        (lambda name, param: name != "5.weight", {"5.weight"}),
        (lambda name, param: True, set()),
    ):
        net = model()
        distributed = optimizer(net, "topk", exact=exact)
        backward(net, 0)
        distributed.step()
        assert set(remembered(distributed.compression_state_dict())) == compressed


def test_users_choose_what_stays_exact(two: Any) -> None:
    two(check_exact)


def check_sparse() -> None:
    """Sparse gradients travel exactly beside those that are compressed."""
    torch.manual_seed(0)
    table, net = torch.nn.Embedding(10, 64, sparse=True), model()
    both = torch.nn.ModuleList([table, net])
    distributed = hvd.DistributedOptimizer(
        torch.optim.SGD(both.parameters(), lr=0.1), both.named_parameters(), KINDS["powersgd"]
    )
    for _ in range(2):
        distributed.zero_grad()
        net(table(torch.tensor([hvd.rank(), 7]))).sum().backward()
        mine = table.weight.grad.to_dense()
        distributed.step()
        torch.testing.assert_close(table.weight.grad.to_dense(), hvd.allreduce(mine))


def test_sparse_gradients_stay_exact(two: Any) -> None:
    two(check_sparse)


def test_what_is_refused() -> None:
    net = model()
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    for options, kind, words in (
        ({"op": hvd.Min}, ValueError, "top-k of 5 % compresses sums and averages"),
        ({"exact": ["head.*"]}, ValueError, r"exact: no parameter is called 'head\.\*'"),
        ({"exact": ["0.weight"], "named_parameters": None}, ValueError, "named_parameters"),
        ({"exact": "0.weight"}, TypeError, "list of names"),
        ({"exact": [net[0].weight]}, TypeError, "names of parameters"),
        ({"compression": "topk"}, TypeError, r"Write hvd\.Compression\.topk\(0\.01\), without quotes"),
        ({"compression": "int8"}, TypeError, r"Write hvd\.Compression\.int8, without quotes"),
        ({"compression": "gzip"}, TypeError, "not 'gzip'$"),
        ({"compression": hvd.Compression.powersgd}, TypeError, r"Call it: Compression\.powersgd\(rank=4\)$"),
        (
            {"compression": KINDS["int8, error feedback"], "gradient_predivide_factor": 2.0},
            ValueError,
            "int8 between hosts with error feedback does not go with .* gradient_predivide_factor",
        ),
    ):
        given = {"named_parameters": net.named_parameters(), "compression": KINDS["topk"]} | options
        with pytest.raises(kind, match=words):
            hvd.DistributedOptimizer(sgd, **given)
    for ratio in (0, 1, 2):
        with pytest.raises(ValueError, match=r"above 0 and below 1, such as 0\.01 for 1 %"):
            hvd.Compression.topk(ratio)
    with pytest.raises(ValueError, match="did you mean f16"):
        hvd.Compression.wire("fp16")
    for name, meant in (("int4", "int8"), ("topK", "topk"), ("FP16", "fp16")):
        with pytest.raises(AttributeError, match=f"no '{name}'; did you mean {meant}"):
            getattr(hvd.Compression, name)


def test_a_wire_that_there_is_not_is_refused_also_on_one_rank() -> None:
    groups = [{"params": list(model().parameters()), "wire": "fp16"}]
    with pytest.raises(ValueError, match=r'"wire" of a parameter group is one of .* did you mean f16'):
        hvd.DistributedOptimizer(torch.optim.SGD(groups, lr=0.1))


def check_operations() -> None:
    with pytest.raises(ValueError, match="top-k of 5 % is for gradients"):
        hvd.allreduce(torch.ones(3), compression=KINDS["topk"])
    assert hvd.allreduce(torch.ones(1)).item() == 1


def test_single_operations_keep_nothing_to_owe(two: Any) -> None:
    two(check_operations)
