"""Two starts of a job at one meeting point: their ranks do not go on together, and a job is not ended by a stray."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from comm.test_rendezvous import environment, meeting_points, said
from slipstream.comm.rendezvous.rank_sources import Placement
from slipstream.comm.rendezvous.requests import Entry
from slipstream.comm.rendezvous.second_claims import DOUBT_SECONDS
from slipstream.comm.rendezvous.start_identity import start_identity
from slipstream.comm.rendezvous.store_starts import Start, Starts

SCRIPT = Path(__file__).with_name("two_starts_rank.py")
WAYS = pytest.mark.parametrize("way", [0, 1], ids=["file", "port"])


class Ranks:
    """Processes of two jobs, by names such as A0."""

    def __init__(self, tmp_path: Path, way: int, doubt_seconds: float = DOUBT_SECONDS) -> None:
        self._tmp_path, self._doubt_seconds = tmp_path, doubt_seconds
        self._env = meeting_points(tmp_path)[way]
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str, extra: Mapping[str, str] | None = None) -> None:
        pipe = subprocess.PIPE
        log = open(self._tmp_path / f"{name}.log", "w")  # noqa: SIM115
        with log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, str(SCRIPT), name[0], str(self._doubt_seconds)],
                env=environment(self._tmp_path, {**self._env, "RANK": name[1], **(extra or {})}),
                stdin=pipe,
                stdout=pipe,
                stderr=log,
                text=True,
            )

    def said(self, name: str) -> str:
        return said(self.processes[name])

    def go_on(self, *names: str) -> list[str]:
        """Has them call an operation together; returns what each says of it."""
        for name in names:
            stdin = self.processes[name].stdin
            assert stdin is not None
            stdin.write("\n")
            stdin.flush()
        return [self.said(name) for name in names]

    def who(self, name: str) -> str:
        return f"process {self.processes[name].pid} on host "

    def log(self, name: str) -> str:
        return (self._tmp_path / f"{name}.log").read_text()


@contextmanager
def two_jobs(tmp_path: Path, way: int, doubt_seconds: float = DOUBT_SECONDS) -> Iterator[Ranks]:
    ranks = Ranks(tmp_path, way, doubt_seconds)
    try:
        yield ranks
    finally:
        for process in ranks.processes.values():
            process.kill()
            process.communicate()


@WAYS
@pytest.mark.parametrize("late", ["B0 A1", "A1 B0"])
def test_a_job_that_met_with_ranks_of_two_starts_ends(tmp_path: Path, way: int, late: str) -> None:
    with two_jobs(tmp_path, way) as ranks:
        ranks.start("A0")
        ranks.start("B1")
        assert [ranks.said(name) for name in ("A0", "B1")] == ["met AB", "met AB"]
        for name in late.split():
            ranks.start(name)
            text = ranks.said(name)
            assert text.startswith(f"Refused two processes claim to be rank {name[1]} of this job: "), text
        first = late.split()[0]
        for text in ranks.go_on("A0", "B1"):
            assert text.startswith("Aborted "), text
            assert f"two processes claim to be rank {first[1]} of this job: " in text
            pair = {first, "A0" if first == "B0" else "B1"}
            assert all(ranks.who(one) in text for one in pair), text
            assert "may have ranks of both" in text


@WAYS
def test_a_claim_that_comes_later_ends_no_job(tmp_path: Path, way: int) -> None:
    with two_jobs(tmp_path, way, doubt_seconds=0.0) as ranks:
        for name in ("A0", "A1"):
            ranks.start(name)
        assert [ranks.said(name) for name in ("A0", "A1")] == ["met AA", "met AA"]
        for name in ("B1", "B0"):
            ranks.start(name)
            assert ranks.said(name).startswith("Refused two processes claim to be rank ")
        assert ranks.go_on("A0", "A1") == ["went on", "went on"]
        assert (
            f"this job goes on: two processes claim to be rank 1 of this job: {ranks.who('A1')}"
            in ranks.log("A0")
        )
        assert ranks.who("B1") in ranks.log("A0")


@WAYS
@pytest.mark.parametrize("order", ["B0 A1", "A1 B0"])
def test_ranks_whose_launcher_names_another_start_are_refused_alone(
    tmp_path: Path, way: int, order: str
) -> None:
    of_job = {"A": "41", "B": "42"}
    with two_jobs(tmp_path, way) as ranks:
        for name in ("A0", "B1", *order.split()):
            launcher = {"PMI_RANK": name[1], "PMI_SIZE": "2", "PMI_JOBID": of_job[name[0]]}
            ranks.start(name, launcher)
            if name == "A0" and way == 0:
                while not (tmp_path / "meet").exists():  # else B1 may wait for B0
                    assert ranks.processes["A0"].poll() is None
            if name[0] == "B":
                text = ranks.said(name)
                assert text.startswith(f"Refused two starts of a job meet: {ranks.who('A0')}"), text
                assert ranks.who(name) in text
                assert all(one in text for one in ("PMI_JOBID=41", "PMI_JOBID=42", "MASTER_PORT")), text
        assert [ranks.said(name) for name in ("A0", "A1")] == ["met AA", "met AA"]
        assert ranks.go_on("A0", "A1") == ["went on", "went on"]
        assert f"{ranks.who('B1')}" in ranks.log("A0")


SLURM = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "3"}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "1"}
MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "prterun-a-1@1"}


@pytest.mark.parametrize(
    ("environ", "identity"),
    [
        ({}, {}),
        (SLURM, {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "3"}),
        (SLURM | {"SLURM_PROCID": "0"}, {}),  # an srun for each host
        (SLURM | {"SLURM_STEP_NUM_TASKS": "1"}, {}),
        (SLURM | {"SLURM_HET_SIZE": "2"}, {}),
        (TORCHRUN | {"TORCHELASTIC_RUN_ID": "none"}, {}),
        (TORCHRUN | {"TORCHELASTIC_RUN_ID": "x"}, {"TORCHELASTIC_RUN_ID": "x"}),
        (MPI, {"PMIX_NAMESPACE": "prterun-a-1@1"}),
        (MPI | {"OMPI_COMM_WORLD_SIZE": "4"}, {}),
    ],
)
def test_what_names_a_start(environ: dict[str, str], identity: dict[str, str]) -> None:
    assert start_identity(Placement("env", 1, 2), environ) == identity


class Store:
    """Starts with a clock of the test's; a process has its name as token."""

    def __init__(self, owner: dict[str, str] | None = None) -> None:
        self.now = 100.0
        entry = None if owner is None else Entry("", 0, b"A0".ljust(16), "A0", owner)
        self.starts = Starts(owner=entry, clock=lambda: self.now)
        self.told: list[str] = []

    def enter(self, name: str, start: str = "1", **identity: str) -> str:
        came = Entry(start, int(name[1]), name.encode().ljust(16), name, identity)
        self.start, objection = self.starts.enter(Entry.unpack(came.pack()))
        return objection

    def met(self, *ranks: int) -> None:
        for rank in ranks:
            self.starts.leave(self.start, rank)
        self.starts.claims.watch(self.start.epoch, self.told.append)


def test_the_job_is_in_doubt_for_a_time_after_it_has_met() -> None:
    for seconds, doubted in ((DOUBT_SECONDS - 1, True), (DOUBT_SECONDS, False)):
        store = Store()
        assert not store.enter("A0")
        assert not store.enter("B1")
        store.met(0, 1)
        store.now += seconds
        assert "A1" in store.enter("A1")
        assert [("B1, and A1" in text) for text in store.told] == [True] * doubted


def test_a_claim_before_all_have_left_is_told_to_those_that_have() -> None:
    store = Store()
    store.enter("A0")
    store.enter("B1")
    store.starts.leave(store.start, 1)
    text = store.enter("A1")
    assert store.start.conflict == text != ""
    store.starts.claims.watch(store.start.epoch, store.told.append)  # it watches later than that
    assert store.told == [text]


def test_the_time_runs_from_the_first_start_of_the_processes() -> None:
    store = Store()
    for start in ("1", "2"):
        store.enter("A0", start)
        store.enter("A1", start)
        store.met(0, 1)
        store.now += DOUBT_SECONDS
    assert store.enter("B1", "1")
    assert store.enter("B1", "2")
    assert store.told == []


def test_a_process_without_a_name_counts_as_before_unless_the_others_have_one() -> None:
    store = Store(owner={"JOB": "a"})
    assert not store.enter("A0", JOB="a")
    assert not store.enter("A1")
    store.met(0, 1)
    assert store.enter("B1")
    assert len(store.told) == 1  # nobody knows whose rank 1 the first one is
    store = Store(owner={"JOB": "a"})
    assert not store.enter("A0", JOB="a")
    assert not store.enter("A1", JOB="a")
    assert store.enter("B1")
    assert not store.start.conflict
    assert not store.enter("A2", JOB="a")
    store.met(0, 1, 2)
    assert store.enter("B2", JOB="b").startswith("two starts of a job meet: A0 has JOB=a, and B2 has JOB=b")
    assert store.enter("B2")
    assert store.told == []


def test_rank_0_is_not_refused_by_whoever_reaches_its_store_first() -> None:
    store = Store(owner={"JOB": "a"})
    assert store.enter("B1", JOB="b")
    assert not store.enter("A0", JOB="a")


@pytest.mark.parametrize("more", [b"x", b"[]", b'{"a": 1}'])
def test_a_malformed_identity_is_refused(more: bytes) -> None:
    body = Entry("1", 0, bytes(16), "A0", {}).pack()
    with pytest.raises(struct.error):
        Entry.unpack(body + more)


def test_ranks_whose_start_has_failed_start_again_without_its_losses() -> None:
    starts = Starts(again=True)

    def come(rank: int, life: int) -> Start:
        start, objection = starts.enter(
            Entry("1", rank, bytes([rank, life]) * 8, f"process {rank}.{life}", {})
        )
        assert not objection
        return start

    first = come(0, 0)
    assert come(1, 0) is first
    first.lose(1, "was killed")
    news = starts.bad_news(first, 3)
    assert news is not None
    assert news[0] == 1
    assert come(2, 0) is first  # it is late, and hears of that, too
    first.lose(0, "gave up")
    first.lose(2, "gave up")
    second = come(1, 1)
    assert second is not first
    assert come(0, 1) is second
    assert starts.bad_news(second, 3) is None
    assert come(2, 1) is second
    assert starts.bad_news(second, 3) is None
