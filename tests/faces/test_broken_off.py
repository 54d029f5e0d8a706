"""Calls that a signal's handler breaks off before the engine has their operation, and DDP's backward pass."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import pytest

from comm import ranks
from slipstream.comm.collectives.interruption import _code

SCRIPT = Path(__file__).with_name("broken_off_rank.py")


@pytest.mark.parametrize(
    "call",
    [
        "numpy_copy",
        "torch_copy",
        "broadcast_object",
        "allgather_object",
        "optimizer_state",
        "c10d_copy",
        "c10d_gather",
    ],
)
def test_a_call_that_is_broken_off_ends_the_session_on_all_ranks(tmp_path: Path, call: str) -> None:
    pytest.importorskip("torch")
    ranks.run(SCRIPT, 2, args=[str(tmp_path), call])


@pytest.mark.parametrize("call", ["second_parameter", "rows_after_sizes"])
def test_an_operation_goes_on_that_another_thread_works_on(tmp_path: Path, call: str) -> None:
    pytest.importorskip("torch")
    ranks.run(SCRIPT, 2, args=[str(tmp_path), call])


def test_a_signal_that_comes_while_objects_are_unpickled_ends_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    ranks.run(SCRIPT, 2, args=[str(tmp_path), "unpickled"])


def test_what_a_handler_raises_leaves_ddp_s_backward_as_it_is(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    ranks.run(SCRIPT, 2, args=[str(tmp_path), "ddp"])


class _Handlers:
    def method(self, *_: object) -> None: ...

    def __call__(self, *_: object) -> None: ...


def test_handlers_are_known_by_their_code() -> None:
    method, call = _Handlers.method.__code__, _Handlers.__call__.__code__
    assert _code(_Handlers().method) is method
    assert _code(partial(_Handlers().method, 1)) is method
    assert _code(_Handlers()) is call
    assert _code(signal.SIG_DFL) is None
    assert _code(signal.default_int_handler) is None
    assert _code(None) is None


def test_no_result_is_taken_for_the_sum_of_a_batch_that_was_broken_off_and_never_came() -> None:
    pytest.importorskip("torch")
    with ranks.started(Path(__file__).with_name("broken_batch_rank.py"), 2) as job:
        assert job[0].process.wait(60) == 0, job[0].text()
        assert job[1].process.wait(60) == -signal.SIGKILL, job[1].text()
        last = job[0].text().splitlines()[-1]
    assert last.startswith("error "), last
