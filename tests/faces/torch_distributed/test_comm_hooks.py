"""Compressed gradients under DistributedDataParallel: what is exact, what is compressed, and what is remembered."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

from comm import ranks  # noqa: E402
from slipstream.torch import Compression, Compressor, comm_hooks  # noqa: E402

FAILING = Path(__file__).with_name("failing_hook_rank.py")
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "torch_compressed_text.py"
BUCKET = 20_000 / 2**20  # MiB: several buckets
KINDS: dict[str, Any] = {
    "exact": Compression.exact,
    "topk": Compression.topk(0.05),
    "powersgd": Compression.powersgd(rank=2),
    "int8": Compression.int8,
}


def model() -> Any:
    torch.manual_seed(5)
    layers = [torch.nn.Linear(64, 96), torch.nn.LayerNorm(96), torch.nn.Tanh(), torch.nn.Linear(96, 80)]
    return torch.nn.Sequential(*layers, torch.nn.LayerNorm(80), torch.nn.Tanh(), torch.nn.Linear(80, 4))


def backward(module: Any, step: int) -> float:
    generator = torch.Generator().manual_seed(100 * dist.get_rank() + step % 3)
    x = torch.randn(8, 64, generator=generator)
    loss = torch.nn.functional.mse_loss(module(x), x[:, :4])
    loss.backward()
    return loss.item()


def wrapped(kind: str, net: Any, **options: Any) -> tuple[Any, Any]:
    ddp = DDP(net, bucket_cap_mb=BUCKET)
    state = comm_hooks.CompressionState(net, KINDS[kind], **options)
    ddp.register_comm_hook(state, comm_hooks.compress_hook)
    return ddp, state


def same_everywhere(module: Any) -> None:
    flat = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
    everyone = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, flat)
    assert all(torch.equal(flat, other) for other in everyone)


def learning_check(kind: str, rounded: bool) -> float:
    """Gradients of norms, biases and small layers are averages, others near. Returns the last loss by the first."""
    net = model()
    ddp, _ = wrapped(kind, net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for step in range(30):
        optimizer.zero_grad()
        alone = copy.deepcopy(net)
        losses.append(backward(ddp, step))
        backward(alone, step)
        off = 0.0
        for ours, mine in zip(net.parameters(), alone.parameters(), strict=True):
            dist.all_reduce(mine.grad, dist.ReduceOp.AVG)
            if kind == "exact" or ours.dim() == 1 or ours.numel() < 4096:
                torch.testing.assert_close(ours.grad, mine.grad, rtol=1e-6, atol=1e-8)
            else:
                off = max(off, float((ours.grad - mine.grad).abs().max() / mine.grad.abs().max()))
        assert (off > 0) is rounded
        optimizer.step()
        same_everywhere(net)
    return losses[-1] / losses[0]


@pytest.mark.parametrize("kind", ["exact", "topk", "powersgd"])
def test_models_learn_alike_on_all_ranks_and_norms_stay_exact(c10d: Any, kind: str) -> None:
    assert max(c10d(learning_check, kind, kind != "exact", size=3)) < 0.7


@pytest.mark.parametrize("wire", [None, "int8"])
def test_wires_act_between_hosts(c10d: Any, wire: str | None) -> None:
    """The hook's own, and that of the job."""
    environment = {} if wire is None else {"SLIPSTREAM_WIRE": wire}
    kind = "int8" if wire is None else "none"
    assert max(c10d(learning_check, kind, True, environment=environment, hosts=True)) < 0.7


KINDS["none"] = Compression.none


def resume_check(kind: str) -> None:
    """A model, a hook and a state made anew go on with the same bits."""
    net = model()
    ddp, state = wrapped(kind, net)
    for step in range(3):
        net.zero_grad(set_to_none=True)
        backward(ddp, step)
    again = copy.deepcopy(net)
    other, resumed = wrapped(kind, again)
    saved = state.state_dict()
    assert {name for name, one in saved["parameters"].items() if one} == {"0.weight", "3.weight"}
    resumed.load_state_dict(saved)
    for step in range(3, 6):
        for module, one in ((ddp, net), (other, again)):
            one.zero_grad(set_to_none=True)
            backward(module, step)
        for ours, theirs in zip(net.parameters(), again.parameters(), strict=True):
            assert torch.equal(ours.grad, theirs.grad)
    with pytest.raises(ValueError, match=r"lacks the parameter '0\.weight'"):
        resumed.load_state_dict(saved | {"parameters": {"elsewhere": {}}})
    with pytest.raises(ValueError, match="is of compression none, but"):
        resumed.load_state_dict(wrapped("int8", model())[1].state_dict())


@pytest.mark.parametrize("kind", ["topk", "powersgd"])
def test_training_resumes_with_the_same_bits(c10d: Any, kind: str) -> None:
    c10d(resume_check, kind)


def exact_check() -> None:
    """Names add to what stays exact; a function decides alone."""
    for exact, compressed in (
        (None, {"0.weight", "3.weight"}),
        (["3.*"], {"0.weight"}),
        (lambda name, param: param.numel() > 6000, {"6.weight"}),
    ):
        net = model()
        ddp, state = wrapped("topk", net, exact=exact)
        backward(ddp, 0)
        saved = state.state_dict()["parameters"]
        remembered = {name for name, one in saved.items() if one and name.endswith("weight")}
        assert remembered - {"1.weight", "4.weight"} == compressed
    with pytest.raises(ValueError, match=r"no parameter is called 'head\.\*'"):
        comm_hooks.CompressionState(model(), exact=["head.*"])
    with pytest.raises(TypeError, match="Compressor of your own"):
        comm_hooks.CompressionState(model(), Compressor)
    with pytest.raises(TypeError, match=r"this one uses gloo: .*--replace gloo"):
        comm_hooks.CompressionState(model(), process_group=dist.new_group(backend="gloo"))


def test_users_choose_what_stays_exact(c10d: Any) -> None:
    c10d(exact_check)


def test_a_hook_without_a_process_group_is_told_to_make_one() -> None:
    with pytest.raises(ValueError, match="no process group yet: call init_process_group first"):
        comm_hooks.CompressionState(model(), KINDS["int8"])


def mismatch_check() -> str:
    ddp, _ = wrapped("powersgd" if dist.get_rank() else "topk", model())
    with pytest.raises(RuntimeError) as caught:
        backward(ddp, 0)
    return str(caught.value)


def test_ranks_that_compress_differently_are_told(c10d: Any) -> None:
    for text in c10d(mismatch_check, fresh=True):
        assert (
            "compression differs between ranks: top-k of 5 % on rank 0, PowerSGD of rank 2 on rank 1" in text
        )


def missing_check() -> str:
    if dist.get_rank():
        ddp = DDP(model())
    else:
        ddp, _ = wrapped("int8", model())
    with pytest.raises(RuntimeError) as caught:
        backward(ddp, 0)
    return str(caught.value)


def test_a_rank_without_a_hook_is_told(c10d: Any) -> None:
    for text in c10d(missing_check, fresh=True):
        assert "differs between ranks: " in text
        assert "DDP's communication hook, which all ranks have to register'" in text


def late_check(late: bool) -> str:
    group = dist.new_group(timeout=timedelta(seconds=3))
    ddp, _ = wrapped("powersgd", model(), process_group=group)
    for step in range(2 if late else 0):  # DDP makes its buckets anew after the first
        backward(ddp, step)
    with pytest.raises(RuntimeError) as caught:
        backward(ddp, 0) if dist.get_rank() == 0 else dist.barrier()
    return str(caught.value)


@pytest.mark.parametrize("late", [True, False])
def test_the_process_groups_timeout_counts(c10d: Any, late: bool) -> None:
    text = c10d(late_check, late, fresh=True, patience=100.0)[0]
    assert "rank 0 has waited" in text  # the job's limit is longer than the test may take
    operation = "bucket 0 of DDP" if late else "slipstream: the first bucket of DDP's communication hook"
    assert f"all_reduce(name='{operation}" in text


def test_a_rank_that_fails_amid_a_bucket_tells_the_others_why(tmp_path: Path) -> None:
    """It exits at once, though the thread that ends its buckets still waits for the other rank."""
    env = {"SLIPSTREAM_TIMEOUT": "600"}  # a rank that waited for it would not be done in time
    with ranks.started(FAILING, 2, args=[str(tmp_path / "store")], env=env, new=True) as started:
        codes = [rank.process.wait(200) for rank in started]
        texts = [rank.text() for rank in started]
    assert codes == [0, 1], texts
    assert "raised RuntimeError" in texts[0]
    assert "the reason" in texts[0]
    assert "terminate called" not in texts[1]


def test_the_example_runs_with_replace_gloo() -> None:
    arguments = ["--backend", "gloo", "--steps", "3", "--target", "99", "--compression", "powersgd"]
    command = [
        sys.executable,
        "-m",
        "slipstream",
        "run",
        "-np",
        "2",
        "--no-prefix",
        "--replace",
        "gloo",
        "--",
    ]
    done = subprocess.run(
        [*command, sys.executable, str(EXAMPLE), *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ},
    )
    assert done.returncode == 0, done.stderr
    assert "reached" in done.stdout
