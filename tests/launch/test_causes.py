"""Which rank brought the job down: its own exception is the last line, whoever ended first."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest

from launch.test_run import run, ssh, tag
from slipstream.base.excepthook import CONSEQUENCE, MIXED, OWN
from slipstream.launch.causes import Causes
from slipstream.launch.hosts import shown_names

__all__ = ["ssh", "tag"]


def report(grade: object, text: object) -> bytes:
    return json.dumps({"grade": grade, "text": text}).encode() + b"\n"


def test_the_first_of_those_that_failed_by_themselves() -> None:
    causes = Causes()
    causes.report(0, report(CONSEQUENCE, "PeerLost: x"))
    causes.failed(0, 1, "exited with code 1", [])
    assert not causes.certain
    causes.report(3, report(MIXED, "PeerLost: y"))
    causes.failed(3, 1, "exited with code 1", [])
    assert not causes.certain
    causes.report(2, report(OWN, "ValueError: z"))  # its process has not ended yet
    first = causes.first()
    assert first is not None
    assert (first.rank, first.code, first.error) == (2, 1, "ValueError: z")
    causes.failed(1, 137, "was ended by signal 9 (SIGKILL)", [])
    assert causes.certain
    first = causes.first()
    assert first is not None
    assert first.rank == 1


@pytest.mark.parametrize(
    "data", [b"", b"\n", b"{", b"[]", b"null", report(7, "x"), report(OWN, 3), b"\xff\n", report([], "x")]
)
def test_reports_without_sense_are_passed_over(data: bytes) -> None:
    causes = Causes()
    causes.report(0, data)
    assert causes.first() is None


@pytest.mark.parametrize(
    ("tail", "grade", "error"),
    [
        ([], OWN, ""),
        ([b"no traceback", b"here"], OWN, ""),
        (
            [b"Traceback (most recent call last):", b'  File "x"', b"    f()", b"KeyError: 3"],
            OWN,
            "KeyError: 3",
        ),
        ([b'  File "x"', b"    f()", b"slipstream.base.errors.PeerLost: gone"], CONSEQUENCE, None),
        ([b'  File "x"', b"    f()", b"ValueError: two", b"lines"], OWN, "ValueError: two\nlines"),
    ],
)
def test_without_a_report_standard_error_tells(tail: list[bytes], grade: int, error: str | None) -> None:
    causes = Causes()
    causes.failed(0, 1, "exited with code 1", tail)
    first = causes.first()
    assert first is not None
    assert first.grade == grade
    assert error is None or first.error == error


def test_a_host_has_one_name() -> None:
    assert shown_names(["localhost"]) == {"localhost": "localhost"}
    here = socket.gethostname()
    assert shown_names(["localhost", "me@node1"]) == {"localhost": here, "me@node1": "node1"}


# Rank 0 ends first, because it has lost rank 1, which fails by itself.
BYSTANDER = """
import os, sys, time
import slipstream
gone = sys.argv[1]
def train():
    if os.environ["RANK"] == "0":
        raise slipstream.PeerLost("rank 1 is gone", 1, "node1")
    while os.path.exists(f"/proc/{open(gone).read()}/fd"):
        time.sleep(0.01)
    raise ValueError("bad batch 17")
if os.environ["RANK"] == "0":
    open(gone + ".new", "w").write(str(os.getpid()))
    os.rename(gone + ".new", gone)
while not os.path.exists(gone):
    time.sleep(0.01)
train()
"""


@pytest.mark.parametrize("hosts", ["localhost:2", "localhost,node1"])
def test_a_bystander_is_not_blamed(tag: str, ssh: Path, tmp_path: Path, hosts: str) -> None:
    arguments = ("-np", "2", "-H", hosts, "--ssh-command", str(ssh))
    code, _, err = run(tag, *arguments, "--", sys.executable, "-c", BYSTANDER, str(tmp_path / "gone"))
    assert code == 1
    host = "localhost" if hosts == "localhost:2" else "node1"
    said = [f"slipstream: rank 1 on host {host} exited with code 1:", "    ValueError: bad batch 17"]
    assert err.splitlines()[-2:] == said
    assert err.count("slipstream: rank") == 1
    assert err.count("Traceback") == 2  # one for each rank


def test_if_all_lost_another_the_first_is_named(tag: str) -> None:
    program = "import slipstream; raise slipstream.PeerLost('rank 7 is gone')"
    code, _, err = run(tag, "-np", "2", "--", sys.executable, "-c", program)
    assert code == 1
    assert err.splitlines()[-1] == "    slipstream.base.errors.PeerLost: rank 7 is gone"
    assert err.count("slipstream: rank") == 1


def test_a_rank_that_only_exits_is_the_cause(tag: str, tmp_path: Path) -> None:
    program = BYSTANDER.replace('raise ValueError("bad batch 17")', "sys.exit(5)")
    code, _, err = run(tag, "-np", "2", "--", sys.executable, "-c", program, str(tmp_path / "gone"))
    assert code == 5
    assert err.splitlines()[-1] == "slipstream: rank 1 on host localhost exited with code 5"


def test_an_exception_before_slipstream_is_loaded_is_told_once(tag: str) -> None:
    code, _, err = run(tag, "-np", "1", "--", sys.executable, "-c", "import no_such_module")
    assert code == 1
    assert err.count("Traceback") == 1
    assert err.splitlines()[-1] == "    ModuleNotFoundError: No module named 'no_such_module'"


JOB = """
import numpy, slipstream
slipstream.init()
slipstream.all_reduce(numpy.ones(4))
if slipstream.rank() == 1:
    raise ValueError("bad batch 17")
slipstream.all_reduce(numpy.ones(4))
"""


@pytest.mark.parametrize("full", [False, True])
def test_a_job_names_the_rank_that_raised(tag: str, full: bool) -> None:
    option = ["--full-traceback"] if full else []
    code, _, err = run(tag, "-np", "3", *option, "--", sys.executable, "-c", JOB)
    assert code == 1
    assert err.splitlines()[-1] == "    ValueError: bad batch 17"


@pytest.mark.parametrize("full", [False, True])
def test_own_frames_are_shown_on_demand(tag: str, full: bool) -> None:
    option = ["--full-traceback"] if full else []
    program = "import slipstream; slipstream.rank()"  # raises in our code: init has not been called
    code, _, err = run(tag, "-np", "1", *option, "--", sys.executable, "-c", program)
    assert code == 1
    assert ("job.py" in err) == full
    assert "slipstream.init()" in err.splitlines()[-1]
