"""The limit of open files: raised at the start of a job, and named with its cure where it is reached all the same."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

SOFT, HARD = 200, 300
SCRIPT = """
import resource
import numpy as np
import slipstream
slipstream.init()
slipstream.all_reduce(np.ones(1))  # what is loaded on first use needs a file, too
print(resource.getrlimit(resource.RLIMIT_NOFILE))
arrays = []
try:
    for _ in range(1000):
        arrays.append(slipstream.empty(10, np.float32))
except slipstream.SlipstreamError as error:
    print(error)
del arrays[0]
arrays.append(slipstream.empty(10, np.float32))
print(slipstream.all_reduce(arrays[-1]).size)
slipstream.shutdown()
"""


@pytest.fixture(scope="module")
def output() -> list[str]:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT, HARD))

    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_job_may_open_as_many_files_as_the_system_allows(output: list[str]) -> None:
    assert output[0] == f"({HARD}, {HARD})"


def test_too_many_arrays_name_the_limit_and_its_cure(output: list[str]) -> None:
    assert f"has {HARD} files open, as many as it may (ulimit -n)" in output[1]
    assert "Free arrays, make one large array and cut it, or raise the limit" in output[1]


def test_one_array_less_is_enough_to_go_on(output: list[str]) -> None:
    assert output[2] == "10"
