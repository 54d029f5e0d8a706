"""Ranks of PyTorch under the launcher: one that never calls init_process_group is named, and nobody waits for it."""

from __future__ import annotations

import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from launch.test_run import run, tag
from slipstream.base.settings import Settings
from slipstream.comm.rendezvous import launched
from slipstream.comm.rendezvous.store_server import StoreServer

__all__ = ["tag"]

# Those that come call it at once together: on a busy machine the import takes one of them seconds longer.
PROGRAM = """
import os, signal, sys, time
from datetime import timedelta
from torch.distributed import all_reduce, init_process_group
import torch
if os.environ["RANK"] == sys.argv[2]:
    if sys.argv[3] == "stays away":
        signal.pause()  # until the job ends
    sys.exit(0)
open(os.path.join(sys.argv[5], os.environ["RANK"]), "w").close()
while len(os.listdir(sys.argv[5])) < 2:
    time.sleep(0.01)
init_process_group(sys.argv[1], timeout=timedelta(seconds=float(sys.argv[4])))
total = torch.ones(2)
all_reduce(total)
assert total.tolist() == [3, 3]
"""


@pytest.mark.parametrize("backend", ["slipstream", "gloo"])
@pytest.mark.parametrize("absent", [0, 1])
def test_a_rank_that_ends_before_init_process_group_is_named(
    tag: str, tmp_path: Path, backend: str, absent: int
) -> None:
    pytest.importorskip("torch")
    option = ["--replace", "gloo"] if backend == "gloo" else []
    command = (sys.executable, "-c", PROGRAM, backend, str(absent), "ends", "900", str(tmp_path))
    code, _, err = run(tag, "-np", "3", *option, "--", *command)
    assert code == 1
    said = f"PeerLost: rank {absent} finished (exit code 0) and has not joined: every rank must call "
    assert said in err.splitlines()[-1], err
    assert "(or init_process_group)" in err.splitlines()[-1], err


# The time-out of the call, or that of the launcher if it is shorter.
@pytest.mark.parametrize(("option", "own"), [((), "5"), (("--start-timeout", "5"), "900")])
def test_a_rank_that_does_not_come_to_init_process_group_is_named(
    tag: str, tmp_path: Path, option: tuple[str, ...], own: str
) -> None:
    pytest.importorskip("torch")
    command = (sys.executable, "-c", PROGRAM, "slipstream", "1", "stays away", own, str(tmp_path))
    code, _, err = run(tag, "-np", "3", *option, "--", *command)
    assert code == 1
    said = "Timeout: rank 1 of 3 did not come within 5 s: every rank must call init_process_group"
    assert said in err.splitlines()[-1], err


def test_ranks_that_start_processes_of_their_own_do_not_meet(tag: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = """
import os, sys
import torch.distributed as dist
if len(sys.argv) == 2:  # a rank of the launcher's: two processes make a group of their own
    import subprocess
    own = os.environ["RANK"]
    def start(rank):
        env = os.environ | {"RANK": str(rank), "WORLD_SIZE": "2"}
        where = f"file://{sys.argv[1]}/meet.{own}"
        return subprocess.Popen([sys.executable, __file__, where, str(rank)], env=env)
    sys.exit(any([child.wait() for child in [start(0), start(1)]]))
dist.init_process_group("slipstream", init_method=sys.argv[1], rank=int(sys.argv[2]), world_size=2)
dist.barrier()
dist.destroy_process_group()
"""
    (tmp_path / "train.py").write_text(program)
    code, _, err = run(tag, "-np", "2", "--", sys.executable, str(tmp_path / "train.py"), str(tmp_path))
    assert code == 0, err


RENUMBERED = """
import os
from datetime import timedelta
import torch
import torch.distributed as dist
rank = 2 - int(os.environ["RANK"])
dist.init_process_group("slipstream", rank=rank, world_size=3, timeout=timedelta(seconds=50))
total = torch.full((1,), 10.0 ** rank)
dist.all_reduce(total)
assert total.item() == 111 and dist.get_rank() == rank
"""

AGAIN = """
from datetime import timedelta
import torch.distributed as dist
for _ in range(3):
    dist.init_process_group("slipstream", timeout=timedelta(seconds=50))
    dist.barrier()
    dist.destroy_process_group()
"""


@pytest.mark.parametrize("program", [RENUMBERED, AGAIN], ids=["renumbered", "again"])
def test_ranks_meet_whatever_they_call_themselves_and_as_often_as_they_like(tag: str, program: str) -> None:
    pytest.importorskip("torch")
    code, _, err = run(tag, "-np", "3", "--", sys.executable, "-c", program)
    assert code == 0, err


def test_pytorch_says_what_is_wrong_with_an_argument(tag: str) -> None:
    pytest.importorskip("torch")
    program = "import torch.distributed as dist; dist.init_process_group('slipstream', timeout=30)"
    code, _, err = run(tag, "-np", "1", "--", sys.executable, "-c", program)
    assert code == 1
    assert "timedelta" in err.splitlines()[-1], err


@pytest.mark.parametrize("name", ["init_process_group", "monitored_barrier", "split_group"])
def test_wrapped_functions_can_be_pickled(name: str) -> None:
    dist = pytest.importorskip("torch.distributed")
    function = getattr(dist, name)
    assert pickle.loads(pickle.dumps(function)) is function


@pytest.mark.parametrize(
    ("told", "timeout", "limit"), [(None, 1800.0, 1800.0), ("60", 1800.0, 60.0), ("60", 5.0, 5.0)]
)
def test_the_shorter_time_counts(
    monkeypatch: pytest.MonkeyPatch, told: str | None, timeout: float, limit: float
) -> None:
    pytest.importorskip("torch")
    from slipstream.faces.torch_distributed.meeting import start_limit

    monkeypatch.delenv("SLIPSTREAM_START_TIMEOUT", raising=False)
    if told is not None:
        monkeypatch.setenv("SLIPSTREAM_START_TIMEOUT", told)
    assert start_limit(Settings.from_environment(), timedelta(seconds=timeout)) == limit


def test_a_rank_that_is_very_late_is_not_waited_for_here(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(launched, "PATIENCE", 0.3)
    server = StoreServer("127.0.0.1", b"k" * 32, "job", again=True)
    settings = Settings(store=server.address, secret=b"k" * 32)

    def come(rank: int) -> None:
        launched.wait_for_all(settings, rank, 3, 50.0, "begin", "")

    try:
        launched._meetings.clear()
        with ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(come, rank) for rank in (0, 2)]:
                done.result(40)  # neither fails because the other has gone on
        assert caplog.text.count("rank 1 of 3 did not come within 0.3 s: every rank must call begin") == 2
        launched._meetings.clear()  # rank 1 is a process of its own
        come(1)
    finally:
        launched._meetings.clear()
        server.close()
