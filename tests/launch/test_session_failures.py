"""Programs that catch the error of a failed session, and end in their own way: the launcher names the rank at fault."""

from __future__ import annotations

import sys

import pytest

from launch.test_run import run, tag

__all__ = ["tag"]

# Rank 1 does what argument 1 says after two operations; the others do what argument 2 says with the error.
CAUGHT = """
import os, signal, sys
import numpy, slipstream
slipstream.init()
x = numpy.ones(4)
slipstream.all_reduce(x)
rank, at_fault = slipstream.rank(), slipstream.rank() == 1
def end(how):
    if how == "abort":
        slipstream.world().abort("loss is nan")
        end(sys.argv[2] if len(sys.argv) < 4 else sys.argv[3])
    if how == "raise":
        raise ValueError("bad batch 17")
    if how == "wait":
        while True:
            signal.pause()
    (sys.exit if how.startswith("exit") else os._exit)(int(how[-1]))
if at_fault:
    end(sys.argv[1])
try:
    slipstream.all_reduce(x)
except slipstream.SlipstreamError:
    end(sys.argv[2])
"""


def said(tag: str, *arguments: str, ranks: str = "3") -> tuple[int, list[str]]:
    """Exit code, and what the launcher says at the end."""
    code, _, err = run(tag, "-np", ranks, "--", sys.executable, "-c", CAUGHT, *arguments)
    lines = err.splitlines()
    heads = [at for at, line in enumerate(lines) if line.startswith("slipstream: rank 1 ")]
    assert heads, err
    return code, lines[heads[0] :]


@pytest.mark.parametrize("how", ["exit0", "leave0"])
@pytest.mark.parametrize("others", ["exit5", "leave5"])
def test_a_rank_that_finished_is_named_though_the_others_catch_the_error(
    tag: str, how: str, others: str
) -> None:
    code, _, err = run(tag, "-np", "3", "--", sys.executable, "-c", CAUGHT, how, others)
    assert code == 5
    assert "exited with code 5:\n    slipstream.base.errors.PeerLost: rank 1 (host localhost) " in err
    last = err.splitlines()[-1]
    assert last.startswith("slipstream: rank 1 finished (exit code 0); rank ") or "rank 1 finished" in err, (
        err
    )
    assert ". If rank 1 ran fewer steps: give all ranks the same number of batches" in last, err


@pytest.mark.parametrize("others", ["exit5", "leave5", "leave0", "raise"])
def test_a_rank_that_raises_is_named_though_the_others_catch_the_error(tag: str, others: str) -> None:
    code, lines = said(tag, "raise", others.replace("raise", "exit1"))
    assert code == 1
    assert lines[0] == "slipstream: rank 1 on host localhost exited with code 1:"
    assert lines[-1] == "    ValueError: bad batch 17"


@pytest.mark.parametrize("others", ["exit5", "leave5"])
@pytest.mark.parametrize("then", ["exit5", "leave0", "wait"])
def test_the_rank_that_aborted_is_named(tag: str, others: str, then: str) -> None:
    code, lines = said(tag, "abort", others, then)
    how = {
        "exit5": "exited with code 5",
        "leave0": "finished (exit code 0), though its job had failed",
        "wait": "failed",
    }
    assert code == (1 if then == "wait" else 5)
    assert lines == [
        f"slipstream: rank 1 on host localhost {how[then]}:",
        "    slipstream.base.errors.Aborted: rank 1 aborted the job: loss is nan",
    ]


def test_an_error_that_all_ranks_catch_fails_no_job(tag: str) -> None:
    for how in ("abort", "exit0"):
        code, _, err = run(tag, "-np", "3", "--", sys.executable, "-c", CAUGHT, how, "leave0")
        assert (code, err) == (0, "")


AGAIN = """
import os, sys
import numpy, slipstream
slipstream.init()
slipstream.all_reduce(numpy.ones(4))
if slipstream.rank() == 1:
    slipstream.world().abort("another try")
try:
    slipstream.all_reduce(numpy.ones(4))
    raise SystemExit("it has not failed")
except slipstream.Aborted:
    slipstream.shutdown()
slipstream.init()
assert slipstream.all_reduce(numpy.ones(1))[0] == slipstream.size()
rank = slipstream.rank()
slipstream.shutdown()
os._exit(7 if sys.argv[1] == "fails" and rank == 0 else 0)
"""


@pytest.mark.parametrize("how", ["fails", "succeeds"])
def test_a_job_that_catches_the_error_and_goes_on_has_not_failed(tag: str, how: str) -> None:
    code, _, err = run(tag, "-np", "2", "--", sys.executable, "-c", AGAIN, how)
    assert "another try" not in err
    if how == "succeeds":
        assert (code, err) == (0, "")
    else:
        assert (code, err.splitlines()[-1]) == (7, "slipstream: rank 0 on host localhost exited with code 7")


FORKED = """
import os, sys
import numpy, slipstream
from slipstream.base import excepthook
slipstream.init()
slipstream.all_reduce(numpy.ones(4))
pid = os.fork()
if pid == 0:
    assert excepthook.report_pipe() is None
    try:
        slipstream.world().abort("not a rank")
    except slipstream.SlipstreamError:
        pass
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert excepthook.report_pipe() is not None
slipstream.all_reduce(numpy.ones(4))
slipstream.shutdown()
os._exit(7)
"""


def test_a_forked_child_tells_nothing(tag: str) -> None:
    code, _, err = run(tag, "-np", "1", "--", sys.executable, "-c", FORKED)
    assert (code, err) == (7, "slipstream: rank 0 on host localhost exited with code 7\n")
