"""Staging through pinned memory: its states one by one on a network that a test moves, and whole on real ranks."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from comm.ranks import started  # noqa: E402
from faces.torch_distributed import staging_rank  # noqa: E402
from faces.torch_distributed.simulated import POISON, Simulated  # noqa: E402
from faces.torch_distributed.staging_rig import (  # noqa: E402
    PATIENCE,
    ROW,
    SMALL,
    Completions,
    Members,
    Network,
    Rig,
    rows,
    transfer,
)
from slipstream.base.errors import Aborted, PeerLost, Timeout  # noqa: E402
from slipstream.faces.torch_distributed import devices  # noqa: E402
from slipstream.faces.torch_distributed.devices.cpu import Cpu  # noqa: E402
from slipstream.faces.torch_distributed.devices.memory import TensorMemory, host_buffer  # noqa: E402
from slipstream.staging.calls import Call  # noqa: E402
from slipstream.staging.pool import Pool  # noqa: E402
from slipstream.staging.stager import Stager  # noqa: E402
from slipstream.staging.transfers import strips  # noqa: E402


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


# ---- states


def test_parts_of_one_call_are_in_all_three_places_at_once(rig: Rig) -> None:
    x = rows(6)
    with rig.device.into.held():
        pending = rig.stage("a", x, x)
        rig.until(lambda: len(rig.network.works) == 4)
        # the window holds four: of them one is going in, two are on the network, and then one comes out
        rig.end(rig.network.works[0])
        rig.rest()
        assert len(rig.network.works) == 4, "a part left the window before it had landed"
        assert not pending.done()
        held_out = rig.device.out.held()
        held_out.__enter__()
    rig.until(lambda: ("in", ROW * 4) in rig.device.log)
    rig.rest()
    # the fifth is being copied out (its queue is held), the second to fourth are on the network
    assert len(rig.network.works) == 4
    assert rig.device.log.count(("out", ROW * 4)) == 4
    rig.end(rig.network.works[1])
    rig.until(lambda: rig.device.log.count(("in", ROW * 4)) == 2)
    held_out.__exit__(None, None, None)
    rig.end_all(pending)
    pending.wait()
    assert torch.equal(rig.device.values(x), rows(6))
    assert [work.counts[0][0] for work in rig.network.works] == [ROW] * 6


def test_compute_before_and_after_is_in_order_and_never_waits_for_the_network(rig: Rig) -> None:
    x = torch.zeros(3 * ROW)
    with rig.device.main.held():
        rig.device.launch(lambda: x.fill_(7), writes=[x])
        pending = rig.stage("a", x, x)
        rig.rest()
        assert rig.network.works == [], "copied out before the kernel had run"
    rig.until(lambda: len(rig.network.works) == 3)
    free = threading.Event()
    rig.device.launch(free.set)  # the network has not answered: the compute queue goes on all the same
    assert free.wait(PATIENCE)
    rig.end_all(pending)
    with rig.device.into.held():
        late = rig.stage("b", None, x)  # copies in behind the gate
        rig.end_all(late)
        late.wait()  # does not wait for the device
        rig.device.launch(lambda: x.mul_(2), reads=[x], writes=[x])
    assert rig.device.values(x).view(torch.uint8).min() >= 0


def test_a_kernel_that_does_not_wait_is_caught() -> None:
    rig = Rig()
    x = rows(1)
    pending = rig.stage("a", x, x)
    rig.end_all(pending)
    rig.device.launch(lambda: x.mul_(2), writes=[x])  # without pending.wait()
    with pytest.raises(AssertionError, match="main touches memory without waiting for in"):
        rig.close()


def test_calls_of_a_lane_are_issued_in_their_order_even_if_the_second_is_ready_first(rig: Rig) -> None:
    x, y, z = rows(2), rows(1), rows(1)
    other = rig.device.queue("other")
    with rig.device.main.held():
        a = rig.stage("a", x, x)
        with rig.device.using(other):
            b = rig.stage("b", y, y)
            c = rig.stage("c", z, z, ends="another lane")
        rig.until(lambda: rig.network.labels() == ["c"])
        rig.end_all(c)
        rig.rest()
        assert rig.network.labels() == ["c"]
    rig.until(lambda: len(rig.network.works) == 4)
    assert rig.network.labels() == ["c", "a", "a", "b"]
    rig.end(rig.network.works[3])
    rig.until(b.done)
    assert not a.done()
    rig.end_all(a)


def test_a_call_on_memory_that_an_earlier_one_uses_begins_when_that_has_landed(rig: Rig) -> None:
    x = rows(6)
    a = rig.stage("a", x, x)
    b = rig.stage("b", x[ROW:], x[ROW:])
    rig.until(lambda: len(rig.network.works) == 4)
    rig.end(*rig.network.works)
    rig.until(lambda: len(rig.network.works) == 6)
    with rig.device.into.held():
        rig.end(*rig.network.works)
        rig.until(a.done)
        rig.rest()
        assert rig.network.labels() == ["a"] * 6, "copied out before the result was copied in"
    rig.end_all(b)
    b.wait()
    assert rig.network.labels() == ["a"] * 6 + ["b"] * 5


def test_a_call_that_only_reads_what_earlier_ones_only_read_does_not_wait(rig: Rig) -> None:
    x = rows(1)
    pendings = [rig.stage(label, x, None) for label in "ab"]
    rig.until(lambda: rig.network.labels() == ["a", "b"])
    rig.end_all(pendings[-1])


def test_columns_of_one_matrix_do_not_overlap(rig: Rig) -> None:
    matrix, flat = torch.zeros(ROW, 2), [rows(1), rows(1)]
    for i in range(2):
        finish = functools.partial(matrix[:, i].copy_, flat[i])
        rig.stage(str(i), flat[i], flat[i], tensors=[matrix[:, i]], finish=finish)
    rig.until(lambda: rig.network.labels() == ["0", "1"])
    rig.end(*rig.network.works)
    rig.until(lambda: not rig.stager.pool.lent_bytes)


def test_a_call_of_another_lane_on_memory_in_use_is_refused(rig: Rig) -> None:
    x = rows(1)
    a = rig.stage("a", x, x)
    with pytest.raises(Aborted, match="rank 0 called b on memory that a of another group"):
        rig.stage("b", x, x, ends="another lane")
    assert len(rig.members.aborted) == 1
    rig.end_all(a)


def test_a_call_of_another_lane_waits_for_the_device_alone(rig: Rig) -> None:
    x = rows(1)
    a = rig.stage("a", x, x)
    with rig.device.into.held():
        rig.end_all(a)
        b = rig.stage("b", x, x, ends="another lane")
        rig.rest()
        assert rig.network.labels() == ["a"]
    rig.end_all(b)
    b.wait()


def test_the_window_is_shared_by_the_calls_of_a_lane(rig: Rig) -> None:
    first = [rows(1, i) for i in range(9)]
    pendings = [rig.stage(str(i), x, x) for i, x in enumerate(first)]
    rig.until(lambda: len(rig.network.works) == 4)
    rig.rest()
    assert rig.network.labels() == ["0", "1", "2", "3"]
    rig.end_all(pendings[-1])
    assert rig.network.labels() == [str(i) for i in range(9)]


def test_a_receive_does_not_wait_for_compute_but_its_copy_in_does(rig: Rig) -> None:
    x = torch.zeros(ROW)
    with rig.device.main.held():
        rig.device.launch(lambda: x.fill_(1), writes=[x])
        pending = rig.stage("recv", None, x)
        rig.until(lambda: rig.network.labels() == ["recv"])
        rig.end(*rig.network.works)
        rig.rest()
        assert not pending.done()
    rig.until(pending.done)
    pending.wait()
    assert rig.device.values(x).view(torch.uint8).eq(POISON).all()  # nothing wrote to the pinned memory


def test_a_receive_that_nobody_answers_holds_up_no_other_lane(rig: Rig) -> None:
    x, y = rows(8), rows(1)
    silent = rig.stage("recv", None, x, ends=("recv", 1, 0))
    sent = rig.stage("send", y, None, ends=("send", 1, 0))
    rig.until(lambda: "send" in rig.network.labels())
    rig.end(*[work for work in rig.network.works if work.label == "send"])
    rig.until(sent.done)
    assert not silent.done()
    rig.end_all(silent)


def test_an_error_ends_a_call_once_all_that_was_issued_is_over(rig: Rig) -> None:
    x, y = rows(8), rows(1)
    a, b = rig.stage("a", x, x), rig.stage("b", y, y)
    rig.until(lambda: len(rig.network.works) == 4)
    rig.end(rig.network.works[1], error=PeerLost("rank 1 is gone", 1))
    rig.rest()
    assert not a.done(), "the engine still uses its memory"
    rig.end(*[work for work in rig.network.works if work.label == "a" and not work.over])
    rig.until(a.done)
    assert not b.done()
    with pytest.raises(PeerLost, match="rank 1 is gone"):
        a.wait()
    rig.end_all(b)
    b.wait()
    assert rig.network.labels() == ["a", "a", "a", "a", "b"]


def test_an_error_does_not_free_memory_that_is_being_copied_to(rig: Rig) -> None:
    x = rows(4)
    with rig.device.out.held():
        a = rig.stage("a", x, x)
        rig.until(lambda: rig.stager.pool.lent_bytes > 0)  # the device is ready: all of it that may goes out
        rig.rest()
        rig.device.fails.add("out")
        y = rows(1)
        b = rig.stage("b", y, y, ends="other")
        rig.rest()
        assert rig.stager.pool.lent_bytes > 0
        rig.until(b.done)
        with pytest.raises(RuntimeError, match="simulated: cannot copy out"):
            b.wait()
    rig.end_all(a)
    a.wait()


@pytest.mark.parametrize("what", ["out", "in"])
def test_an_error_of_the_device_is_that_of_the_call(rig: Rig, what: str) -> None:
    x = rows(6)
    rig.device.fails.add(what)
    pending = rig.stage("a", x, x)
    rig.end_all(pending)
    with pytest.raises(RuntimeError, match=f"simulated: cannot copy {what}"):
        pending.wait()
    assert rig.members.aborted == [f"rank 0 could not stage a: simulated: cannot copy {what}"]


def test_an_error_of_issuing_is_that_of_the_call(rig: Rig) -> None:
    def refuse(*_: object) -> Any:
        raise ValueError("no such operation")

    x = rows(6)
    pending = rig.stage_call(Call("a", 4, [6 * ROW], [6 * ROW], refuse), x, x)
    rig.until(pending.done)
    with pytest.raises(ValueError, match="no such operation"):
        pending.wait()
    assert not rig.members.aborted, "no other rank can have noticed"


def test_a_serial_call_has_one_part_under_way(rig: Rig) -> None:
    x = torch.zeros(3 * ROW)
    pending = rig.stage("any", None, x, serial=True)
    for done in range(3):
        rig.until(lambda done=done: len(rig.network.works) == done + 1)
        rig.rest()
        assert len(rig.network.works) == done + 1
        rig.end(rig.network.works[-1])
    rig.until(pending.done)
    pending.wait()


def test_finish_comes_after_the_last_copy_in_and_before_what_follows(rig: Rig) -> None:
    x, flat = torch.zeros(2, 2 * ROW), rows(2)
    pending = rig.stage("a", flat, flat, finish=lambda: x[:, ::2].copy_(flat.view(2, ROW)))
    rig.end_all(pending)
    pending.wait()
    assert torch.equal(rig.device.values(x)[:, ::2], rows(2).view(2, ROW))


def test_finish_is_not_called_after_an_error(rig: Rig) -> None:
    called: list[int] = []
    x = rows(1)
    pending = rig.stage("a", x, x, finish=lambda: called.append(1))
    rig.until(lambda: len(rig.network.works) == 1)
    rig.end(*rig.network.works, error=PeerLost("gone"))
    rig.until(pending.done)
    assert not called


def test_an_empty_call_is_one_operation(rig: Rig) -> None:
    x = torch.zeros(0)
    pending = rig.stage("a", x, x)
    rig.until(lambda: len(rig.network.works) == 1)
    rig.end_all(pending)
    pending.wait()


def test_in_place_uses_one_buffer_and_else_two(rig: Rig) -> None:
    x, y, z = rows(1), rows(1), rows(1)
    rig.stage("a", x, x)
    rig.stage("b", y, z)
    rig.until(lambda: len(rig.network.works) == 2)
    assert [work.src == work.dst for work in rig.network.works] == [True, False]
    rig.end(*rig.network.works)


def test_waiting_has_a_limit_and_callbacks_come_once(rig: Rig) -> None:
    x = rows(1)
    pending = rig.stage("a", x, x)
    calls: list[object] = []
    pending.add_done_callback(calls.append)
    with pytest.raises(Timeout):
        pending.wait(0.001)
    assert not calls
    rig.end_all(pending)
    pending.add_done_callback(calls.append)
    assert len(calls) == 2


def test_writing_is_no_change_that_autograd_counts(rig: Rig) -> None:
    x = rows(2).requires_grad_()
    with torch.inference_mode():
        y = rows(2)
    before = x._version
    pendings = [rig.stage(name, tensor, tensor) for name, tensor in (("x", x), ("y", y))]
    for pending in pendings:
        rig.end_all(pending)
    assert x._version == before


# ---- the thread


def test_closing_fails_what_is_under_way_and_ends_the_thread() -> None:
    device, network, stager = Simulated(), Network(), Stager(SMALL)
    x = rows(2)
    thread = threading.Thread(target=stager.run)
    thread.start()
    with device.main.held():
        call = Call("a", 4, [x.numel()], [x.numel()], network.issuer("a"))
        pending = stager.stage(transfer(device, Members(), call, x, x))
        stager.close()
        thread.join(PATIENCE)
        assert not thread.is_alive()
    with pytest.raises(Aborted):
        pending.wait(PATIENCE)
    with pytest.raises(Aborted):
        stager.stage(transfer(device, Members(), call, x, x))
    device.close()


def test_the_cpu_as_a_device() -> None:
    stager = Stager(SMALL, Completions())
    network = Network()
    src, dst = rows(3), torch.zeros(3 * ROW)

    def issue(
        src: int, dst: int, sent: Sequence[int], received: Sequence[int], keep: object, sync: bool
    ) -> Any:
        ctypes.memmove(dst, src, sent[0] * 4)
        work = network.issuer("a")(src, dst, sent, received, keep, sync)
        work.over = True
        return work

    call = Call("a", 4, [src.numel()], [dst.numel()], issue)
    pending = stager.stage(transfer(Cpu(torch.device("cpu")), Members(), call, src, dst))
    end = time.monotonic() + PATIENCE
    while not pending.done() and time.monotonic() < end:
        stager.turn()
    pending.wait(0)
    assert torch.equal(src, dst)
    assert len(network.works) == 3
    assert stager.pool.lent_bytes == 0


# ---- parts


@given(st.lists(st.integers(0, 9), max_size=5), st.integers(1, 6), st.booleans())
def test_columns_cover_every_element_once(counts: list[int], width: int, equal: bool) -> None:
    counts = [counts[0]] * len(counts) if equal and counts else counts
    flat = torch.arange(sum(counts), dtype=torch.int16)
    blocks = flat.split(counts)
    seen = torch.zeros_like(flat)
    buffer = host_buffer(torch.empty(flat.numel() * 2, dtype=torch.uint8))
    for start in range(0, max(counts, default=0), width):
        wanted = torch.cat([block[start : start + width] for block in blocks])
        cut = strips(counts, start, start + width)
        for memory, host in TensorMemory(flat).views(cut, buffer):
            host.copy_(memory)
        assert torch.equal(buffer.array[: wanted.numel() * 2].view(torch.int16), wanted)
        for view, _ in TensorMemory(seen).views(cut, buffer):
            view += 1
    assert torch.equal(seen, torch.ones_like(seen))


def test_equal_blocks_are_one_copy() -> None:
    assert len(strips([4, 4, 4], 1, 3)) == 1
    assert len(strips([4, 4, 4], 0, 4)) == 1
    assert len(strips([4, 2, 6], 1, 3)) == 3


def test_idle_buffers_are_used_again_and_bounded() -> None:
    device = Cpu(torch.device("cpu"))
    pool = Pool(64 << 10)
    first = pool.take(device, 5000)
    assert first.nbytes == 8192
    assert pool.lent_bytes == 8192
    pool.give(device, first)
    assert pool.take(device, 8192) is first
    assert pool.take(device, 8193).nbytes == 16384
    taken = [pool.take(device, 0) for _ in range(4)]
    pool.give(device, first)
    for buffer in taken:
        pool.give(device, buffer)
    pool.give(device, pool.take(device, 60_000))
    assert pool.idle_bytes == 64 << 10
    assert pool.take(device, 5000) is not first  # the size used least lately went
    pool.give(device, device.pinned(1 << 20))
    assert pool.idle_bytes <= 64 << 10


def test_devices_are_found_by_the_kind_of_a_tensor() -> None:
    x = torch.zeros(1)
    assert devices.for_tensor(x) is None
    with pytest.raises(ValueError, match="tensors on meta"):
        devices.for_tensor(torch.zeros(1, device="meta"))
    devices.register("cpu", Cpu)
    try:
        assert isinstance(devices.for_tensor(x), Cpu)
        assert devices.for_tensor(x) is devices.for_tensor(torch.ones(2))
    finally:
        devices.register("cpu", None)
    assert devices.for_tensor(x) is None
    assert devices.available() == (["cuda"] if torch.cuda.is_available() else [])


# ---- real ranks


@pytest.mark.parametrize("counts", [(0, 1, 7), (1001,)])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_operation(jobs: Any, size: int, counts: tuple[int, ...]) -> None:
    jobs[size](staging_rank.check_operations, "simulated", counts)


def test_groups_do_not_wait_for_each_other(three: Any) -> None:
    three(staging_rank.check_groups, "simulated")


def test_compute_goes_on_while_an_operation_waits(two: Any) -> None:
    two(staging_rank.check_compute_goes_on, "simulated")


def test_memory_lives_as_long_as_it_is_needed(two: Any) -> None:
    two(staging_rank.check_memory_lives, "simulated")


def test_the_thread_of_the_process(two: Any) -> None:
    two(staging_rank.check_own_thread, "simulated")


def test_failures_are_named_and_leave_nothing_behind() -> None:
    script = Path(staging_rank.__file__)
    env = {"PYTHONPATH": os.pathsep.join([str(script.parents[2]), *sys.path])}
    with started(script, 2, args=["fail", "simulated"], env=env) as ranks:
        ranks[0].process.wait(60)
        assert ranks[0].process.returncode == 0, "\n".join(rank.text() for rank in ranks)


DTYPES = [torch.float32, torch.bfloat16, torch.bool, torch.complex64]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("check_reductions", [DTYPES]),
        ("check_reduce_scatter", [DTYPES]),
        ("check_movement", [DTYPES]),
        ("check_uneven", []),
        ("check_aliases", []),
        ("check_point_to_point", [100_000]),
    ],
)
def test_torch_distributed_through_staging(c10d: Any, name: str, arguments: list[Any]) -> None:
    file = str(Path(__file__).with_name("test_operations.py"))
    c10d(staging_rank.check_staged, file, name, *arguments, size=3)


def test_training_through_staging(c10d: Any) -> None:
    c10d(staging_rank.check_staged, staging_rank.__file__, "check_training", "cpu", size=3)
