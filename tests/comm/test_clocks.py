"""Clocks that differ between ranks, and clocks that are set while a job runs: nothing is measured with those."""

from __future__ import annotations

import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from comm.outage_jobs import COMMAND, RANK, Job, local_job

SOURCES = Path(__file__).parents[2]
SHIM = Path(__file__).with_name("jumping_clock.c")
DAY = 24 * 60 * 60


def test_a_rank_whose_clocks_differ_from_the_others(tmp_path: Path) -> None:
    clocks = ["unshare", "--time", "--monotonic", "1000000", "--boottime", "1000000", "--fork"]
    if (
        os.geteuid() != 0
        or subprocess.run([*clocks, "true"], check=False, capture_output=True).returncode != 0
    ):
        pytest.skip("time namespaces need root and a kernel that has them")
    # Rank 1 runs 11 days ahead by every clock that time-outs may be measured with.
    wrapper = tmp_path / "python"
    wrapper.write_text(
        f'#!/bin/sh\n[ "$SLIPSTREAM_RANK" = 1 ] && exec {" ".join(clocks)} {sys.executable} "$@"\n'
        f'exec {sys.executable} "$@"\n'
    )
    wrapper.chmod(0o755)
    command = [*COMMAND, "2", "--", str(wrapper), str(RANK), str(tmp_path)]
    with (tmp_path / "output").open("wb") as file:
        environment = {**os.environ, "SLIPSTREAM_TRANSPORT": "tcp", "SLIPSTREAM_HEARTBEAT": "2"}
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
    job = Job.of(process, tmp_path, 2)
    job.go()
    job.end()


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that moves the clock on the wall for whoever preloads it."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler, for what moves the clock")
    library = tmp_path_factory.mktemp("shim") / "jumping_clock.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, SHIM, "-ldl"], check=True)
    return library


def set_clock(file: Path, seconds: int) -> None:
    """Moves the clock on the wall of all processes that have the file, at once."""
    with file.open("r+b") as out:
        out.write(struct.pack("q", seconds))


def test_a_clock_that_is_set_while_a_job_runs(shim: Path, tmp_path: Path) -> None:
    jump = tmp_path / "jump"
    jump.write_bytes(bytes(8))
    moved = {"LD_PRELOAD": str(shim), "CLOCK_JUMP": str(jump)}
    job = local_job(tmp_path, 2, SLIPSTREAM_HEARTBEAT="8", SLIPSTREAM_TIMEOUT="60", **moved)
    for pid in (job.process.pid, job.pid(0), job.pid(1)):
        assert str(shim) in Path(f"/proc/{pid}/maps").read_text()
    job.go()
    for seconds in (DAY, -DAY):
        set_clock(jump, seconds)
        shown = subprocess.check_output(
            [sys.executable, "-c", "import time; print(time.time())"], env={**os.environ, **moved}
        )
        assert abs(float(shown) - time.time() - seconds) < DAY / 2
        job.goes_on()
        os.kill(job.pid(1), signal.SIGSTOP)  # so that rank 0 waits in an operation while the clock is set
        for again in (-seconds, seconds):
            set_clock(jump, again)
            with pytest.raises(subprocess.TimeoutExpired):
                job.process.wait(0.5)  # the wait is the thing tested: no time-out ends it
        os.kill(job.pid(1), signal.SIGCONT)
        job.goes_on()
    job.end()
    assert "slipstream" not in job.output(), job.output()  # no warning either


WALL = re.compile(
    r"system_clock|CLOCK_REALTIME|gettimeofday|\btime\.time(?:_ns)?\(|from time import|\bstd::time\("
    r"|date(?:time)?\.(?:now|utcnow|today)\("
)
# They tell people, or the timelines of other hosts, when something was; nothing waits for it.
TELL = {
    "src/slipstream/cli/tuning.py": 1,
    "src/slipstream/comm/tuning/job_tuning.py": 1,
    "src/slipstream/comm/tuning/journal.py": 1,
    "src/slipstream/observe/metrics_jobs.py": 1,
    "src/slipstream/bench/record.py": 1,
    "src/slipstream/comm/measuring/clocks.py": 1,
    "src/slipstream/launch/output.py": 1,
    "src/slipstream/observe/timeline.py": 1,
}


def test_nothing_waits_by_the_clock_on_the_wall() -> None:
    # Such a clock jumps when it is set: no time-out and no heartbeat may be measured with it.
    sources = [path for folder in ("native", "src/slipstream") for path in (SOURCES / folder).rglob("*")]
    found = Counter(
        str(path.relative_to(SOURCES))
        for path in sources
        if path.suffix in (".py", ".cpp", ".h", ".inl")
        for line in path.read_text().splitlines()
        if WALL.search(line)
    )
    assert found == TELL
