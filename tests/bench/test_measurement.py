"""Whole measurements with two ranks: every collective, wrong results, missing peers, ranks that die."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from slipstream.bench.collective.catalogue import COLLECTIVES
from slipstream.bench.collective.command import Options, measure, wrong_results
from slipstream.bench.jobs import JobFailed, Placement
from slipstream.bench.record import Record
from slipstream.launch.processes import descendants

pytest.importorskip("torch")
HAS_MPI = shutil.which("mpirun") is not None and importlib.util.find_spec("mpi4py") is not None
PEERS = ("gloo", "mpi") if HAS_MPI else ("gloo",)


def run(collective: str, **changes: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"sizes": [4, 300_000], "repeats": 2, "warmup": 1, "limit": 100.0}
    return measure(Options(collective, Placement(2), **(given | changes)))


@pytest.mark.parametrize("collective", list(COLLECTIVES))
def test_every_collective_is_measured_and_right(collective: str) -> None:
    record = run(collective, against=PEERS)
    assert record["missing"] == {}
    assert record["hosts"] == [0, 0]
    assert len(record["sizes"]) == (1 if collective == "barrier" else 2)
    for size in record["sizes"]:
        assert list(size["contenders"]) == ["slipstream", *PEERS]
        for row in size["contenders"].values():
            assert row["wrong"] == 0
            assert len(row["samples"]) == 2
            assert min(row["samples"]) > 0
        assert set(size["contenders"]["slipstream"]["ratio"]) == set(PEERS)


def test_all_of_ours_and_types_that_are_not_there() -> None:
    against = ("slipstream-shared", "slipstream-torch", *PEERS)
    record = run("all_reduce", against=against, dtype="float16", op="avg", idle_seconds=0.05)
    for size in record["sizes"]:
        rows = size["contenders"]
        assert [rows[name].get("wrong") for name in ("slipstream", *against[:2])] == [0, 0, 0]
        assert all("has no avg" in rows[name]["unsupported"] for name in PEERS)
    assert record["memories"] == {"slipstream-shared": "of slipstream.empty"}
    assert 0 <= record["idle_cpu"] <= 1
    assert record["versions"]["torch"]


def test_memory_is_measured_where_it_is_the_limit() -> None:
    record = run("all_reduce", against=(), sizes=[4096, 4 << 20], repeats=1)
    assert record["memory"]["traffic"] > 0
    assert [size["limit"] is None for size in record["sizes"]] == [True, False]
    assert record["sizes"][0]["calls"] > 1


@pytest.mark.parametrize(
    ("collective", "changes"),
    [
        ("all_reduce", {}),
        ("gather", {"root": 1}),
        ("barrier", {}),
    ],
)
def test_a_wrong_result_is_counted_for_each_contender(collective: str, changes: dict[str, Any]) -> None:
    record = run(collective, sizes=[40_000], inject_error=True, **changes)
    rows = record["sizes"][0]["contenders"]
    assert {name: row["wrong"] for name, row in rows.items()} == {"slipstream": 1, "gloo": 1}
    assert len(wrong_results(record)) == 2
    assert "rank 1: " in wrong_results(record)[0]


def ranks() -> list[int]:
    """The processes of ranks below this one."""
    found = []
    for pid in descendants(os.getpid()):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[1:3] == [b"-m", b"slipstream.bench.collective.rank"]:
            found.append(pid)
    return found


STAND_IN = """
from slipstream.torch import *
from slipstream.torch import allreduce_ as honest

def init(): pass
def shutdown(): pass

def allreduce_(tensor, **options):
    honest(tensor, **options)
    if rank() == 1 and tensor.numel() > 1:
        tensor[0] *= {factor}
"""


def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    package = tmp_path / "horovod"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = '0.0 stand-in'\n")
    (package / "torch.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)


@pytest.mark.parametrize("collective", ["broadcast", "all_gather", "gather"])
def test_horovod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collective: str) -> None:
    stand_in(tmp_path, monkeypatch, STAND_IN.format(factor=1))
    record = run(collective, against=("horovod",))
    assert record["versions"]["horovod"] == "0.0 stand-in"
    for size in record["sizes"]:
        row = size["contenders"]["horovod"]
        if collective == "gather":
            assert row == {"unsupported": "horovod.torch has no gather"}
        else:
            assert row["wrong"] == 0


def test_a_peer_that_computes_wrongly_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, STAND_IN.format(factor=1.001))
    record = run("all_reduce", against=("horovod",))
    small, large = (size["contenders"] for size in record["sizes"])
    assert small["horovod"]["wrong"] == 0
    assert large["horovod"]["wrong"] > 0
    assert large["slipstream"]["wrong"] == 0


def test_a_peer_that_does_not_see_the_ranks_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, STAND_IN.format(factor=1) + "\ndef size(): return 1\n")
    record = run("all_reduce", sizes=[64], against=("horovod",))
    assert "Horovod sees rank 0 of 1" in record["missing"]["horovod"]
    assert list(record["sizes"][0]["contenders"]) == ["slipstream"]


def test_missing_peers_are_named_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, "raise RuntimeError('built for another torch')\n")
    monkeypatch.setattr("slipstream.bench.collective.contenders.glob.glob", lambda _: [])
    record = run("all_reduce", sizes=[64], against=("horovod", "nccl"))
    assert record["missing"]["nccl"].startswith("a GPU not found; install: ")
    assert "built for another torch" in record["missing"]["horovod"]
    assert list(record["sizes"][0]["contenders"]) == ["slipstream"]
    assert record["peers"] == []


@pytest.mark.parametrize("against", [(), ("mpi",)])
def test_a_rank_that_dies_ends_the_measurement(against: tuple[str, ...]) -> None:
    if against and not HAS_MPI:
        pytest.skip("no mpirun, or no mpi4py")

    def show(record: Record) -> None:
        if record["sizes"]:
            assert len(ranks()) == 2
            os.kill(ranks()[-1], signal.SIGKILL)

    options = Options("all_reduce", Placement(2), sizes=[64, 32 << 20], against=against, repeats=200)
    with pytest.raises(JobFailed, match="the ranks ended with code"):
        measure(options, show)
    assert ranks() == []


def test_an_interrupt_leaves_no_process() -> None:
    def show(_: Record) -> None:
        assert len(ranks()) == 2
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        # It takes so long that the ranks still measure when the first message is read.
        measure(
            Options("all_reduce", Placement(2), sizes=[32 << 20], against=(), repeats=200, limit=100.0), show
        )
    assert ranks() == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"against": ("gluu",)}, "gluu: not known"),
        ({"placement": Placement(1)}, "two ranks at least"),
        ({"root": 2, "collective": "broadcast"}, "--root 2"),
        ({"repeats": 0}, "--repeats"),
        ({"op": "band"}, "on integers"),
    ],
)
def test_options_that_cannot_work(changes: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {"collective": "all_reduce", "placement": Placement(2), "sizes": [4]}
    with pytest.raises(ValueError, match=text):
        measure(Options(**(given | changes)))
