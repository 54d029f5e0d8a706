"""What training sees of communication: it overlaps backward, and its failures are Python errors that name the rank."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

from faces.torch_distributed.training import loss_of, model, train  # noqa: E402

TINY = 200 / 2**20
BOUND = 11.0  # seconds in which survivors must know: by its silence they would after 12


def store() -> Any:
    return dist.distributed_c10d._get_default_store()


def returns_at_once_check() -> None:
    """An asynchronous all-reduce returns while its peer has not come: that one waits for it to have returned."""
    tensor = torch.ones(1000)
    if dist.get_rank() == 0:
        work = dist.all_reduce(tensor, async_op=True)
        assert not work.is_completed()
        store().set("returned", "yes")
        work.wait()
        assert work.is_completed()
        assert work.is_success()
    else:
        store().get("returned")
        dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.full((1000,), 2.0))


def test_an_asynchronous_operation_returns_before_its_peer_comes(c10d: Any) -> None:
    c10d(returns_at_once_check, fresh=True)


def overlap_check(hook: bool) -> list[str]:
    """Rank 1 begins its backward pass when rank 0 has computed its last gradient, before which rank 0 started the
    first bucket: if that blocked, both would wait for ever."""
    rank = dist.get_rank()
    events: list[str] = []
    ddp = DDP(model(), bucket_cap_mb=TINY)

    def record(state, bucket):
        events.append("bucket")
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])

    if hook:
        ddp.register_comm_hook(None, record)
    loss_of(ddp, rank, 0).backward()  # buckets are rebuilt in the order of the first pass
    loss = loss_of(ddp, rank, 1)
    events.clear()
    if rank == 0:
        first_layer = ddp.module[0].weight

        def computed(_: Any) -> None:
            events.append("last gradient")
            store().set("computed", "yes")

        first_layer.register_hook(computed)
    else:
        store().get("computed")
    loss.backward()
    return events


@pytest.mark.parametrize("hook", [False, True])
def test_communication_overlaps_backward(c10d: Any, hook: bool) -> None:
    first, _ = c10d(overlap_check, hook, fresh=True)
    assert "last gradient" in first
    if hook:
        assert first.index("bucket") < first.index("last gradient") < len(first) - 1


def die_in_backward(rank: int, victim: int, ddp: Any) -> None:
    if rank == victim:
        ddp.module[2].weight.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))


def survivor_check(victim: int, options: dict[str, Any], hook: bool) -> tuple[str, float]:
    """Trains; the victim dies in the middle of its third backward pass."""
    rank = dist.get_rank()
    ddp = DDP(model(), bucket_cap_mb=TINY, **options)
    if hook:
        ddp.register_comm_hook(
            None,
            lambda _, bucket: (
                dist.all_reduce(bucket.buffer(), async_op=True)
                .get_future()
                .then(lambda done: done.value()[0])
            ),
        )
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    train(ddp, optimizer, rank, steps=2)
    die_in_backward(rank, victim, ddp)
    begin = time.monotonic()
    with pytest.raises((RuntimeError, ConnectionError)) as caught:
        train(ddp, optimizer, rank, steps=50)
    return repr(caught.value), time.monotonic() - begin


def assert_names(answers: list[Any], victim: int) -> None:
    for rank, answer in enumerate(answers):
        if rank == victim:
            assert answer is None
            continue
        text, seconds = answer
        assert seconds < BOUND
        assert "PeerLost" in text, text
        assert f"rank {victim}" in text, text
        assert re.search(r"\((training|test_users_failures)\.py:\d+\)", text), text  # the line that waits


@pytest.mark.parametrize(
    ("victim", "options", "hook"),
    [
        (1, {}, False),
        pytest.param(0, {"static_graph": True}, False, marks=pytest.mark.slow),
        pytest.param(2, {"find_unused_parameters": True}, True, marks=pytest.mark.slow),
    ],
)
def test_survivors_of_a_death_in_backward_learn_who_died(
    c10d: Any, victim: int, options: dict[str, Any], hook: bool
) -> None:
    assert_names(c10d(survivor_check, victim, options, hook, size=3, dying=[victim]), victim)


def forward_check(victim: int) -> tuple[str, float]:
    """The victim dies between steps; the others meet that in the broadcast of buffers, in forward."""
    rank = dist.get_rank()
    ddp = DDP(torch.nn.Sequential(torch.nn.BatchNorm1d(12), torch.nn.Linear(12, 4)))
    loss_of(ddp, rank, 0).backward()
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises((RuntimeError, ConnectionError)) as caught:
        loss_of(ddp, rank, 1)
    return repr(caught.value), time.monotonic() - begin


def test_survivors_of_a_death_learn_it_in_forward(c10d: Any) -> None:
    assert_names(c10d(forward_check, 0, size=3, dying=[0]), 0)


def future_check() -> tuple[bool, str, str]:
    """The error of an operation, in its work and in its future, and in what is chained to that."""
    if dist.get_rank() == 1:
        store().get("waiting")
        os.kill(os.getpid(), signal.SIGKILL)
    work = dist.all_reduce(torch.ones(10), async_op=True)
    future = work.get_future()
    chained = future.then(lambda done: done.value()[0] * 2)
    store().set("waiting", "yes")
    texts = []
    for waits in (future, chained):
        with pytest.raises(RuntimeError) as caught:
            waits.wait()
        texts.append(str(caught.value))
    with pytest.raises(RuntimeError, match="rank 1"):
        work.wait()
    return work.is_success(), texts[0], texts[1]


def test_a_future_brings_the_error(c10d: Any) -> None:
    success, *texts = c10d(future_check, dying=[1])[0]
    assert not success
    assert all("rank 1" in text for text in texts), texts


def late_check() -> tuple[str, float]:
    """A peer that never comes: the time-out of the group, as c10d words it."""
    if dist.get_rank() == 1:
        store().get("timed out")
        return "", 0.0
    ddp = DDP(torch.nn.Linear(4, 4), init_sync=False)  # imports a lot: half a minute on a busy machine
    begin = time.monotonic()
    with pytest.raises(RuntimeError, match=r"(?i)timed out|timeout") as caught:
        ddp(torch.ones(1, 4)).sum().backward()
    store().set("timed out", "yes")
    return repr(caught.value), time.monotonic() - begin


def late_pair_check() -> tuple[str, float]:
    if dist.get_rank() == 1:
        DDP(torch.nn.Linear(4, 4), init_sync=False)
    return late_check()


def test_a_peer_that_does_not_come_is_a_time_out(c10d: Any) -> None:
    text, seconds = c10d(late_pair_check, timeout=3.0, fresh=True)[0]
    assert 2.5 < seconds < 60, (text, seconds)


def leaving_check(name: str) -> None:
    """A rank does its part, which needs nothing of the other, and leaves the job; the other comes later."""
    rank = dist.get_rank()
    dist.barrier()
    meeting = dist.distributed_c10d._get_default_store()
    leaver = 1 if name in ("reduce", "gather") else 0
    if rank != leaver:
        meeting.wait(["gone"])
    tensor = torch.full((4,), float(rank + 1))
    parts = [torch.full((4,), 5.0), torch.full((4,), 6.0)] if rank == 0 else None
    operations = {
        "broadcast": lambda: dist.broadcast(tensor, 0),
        "scatter": lambda: dist.scatter(tensor, parts, 0),
        "send": lambda: dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0),
        "reduce": lambda: dist.reduce(tensor, 0),
        "gather": lambda: dist.gather(tensor, parts, 0),
    }
    operations[name]()
    if rank == leaver:
        dist.destroy_process_group()
        meeting.set("gone", "yes")
        return
    assert tensor.tolist() == [{"scatter": 6.0, "reduce": 3.0}.get(name, 1.0)] * 4
    if name == "gather":
        assert [part.tolist() for part in parts] == [[1.0] * 4, [2.0] * 4]


@pytest.mark.parametrize("name", ["broadcast", "scatter", "send", "reduce", "gather"])
def test_what_a_rank_sent_before_it_left_still_arrives(c10d: Any, name: str) -> None:
    c10d(leaving_check, name, fresh=True)
