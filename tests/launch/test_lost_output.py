"""Output that cannot be written: the job goes on, and the launcher says what was lost."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.test_run import LIMIT, command, environment, run, tag

__all__ = ["tag"]

FULL = Path("/dev/full")
BYTES = 100_000
PRINT = f"print(('x' * 99 + chr(10)) * {BYTES // 100}, end=''); import sys; print('y', file=sys.stderr); print('last')"
JOB = ("--", sys.executable, "-c", PRINT)

needs_full = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")


@needs_full
def test_a_full_disk_under_the_output_folder_ends_no_job(tag: str, tmp_path: Path) -> None:
    (tmp_path / "rank.1").mkdir()
    lost = tmp_path / "rank.1" / "stdout"
    lost.symlink_to(FULL)
    code, out, err = run(tag, "-np", "2", "--output-dir", str(tmp_path), *JOB)
    assert code == 0
    assert {"[0] last", "[1] last"} <= set(out.splitlines())
    assert (tmp_path / "rank.0" / "stdout").stat().st_size == BYTES + 5
    said = [line for line in err.splitlines() if line.startswith("slipstream: ")]
    why = "No space left on device"
    assert said == [
        f"slipstream: warning: cannot write {lost}: {why}; the job goes on",
        f"slipstream: warning: {BYTES + 5} bytes of output were lost: {lost}: {why}",
    ]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_becomes_full_keeps_what_fitted(tag: str, small_disk: Path) -> None:
    code, out, err = run(tag, "-np", "1", "--no-prefix", "--output-dir", str(small_disk), *JOB)
    assert (code, len(out)) == (0, BYTES + 5)
    kept = (small_disk / "rank.0" / "stdout").stat().st_size
    assert 0 < kept <= 65536
    assert f"{BYTES + 5 - kept} bytes of output were lost: {small_disk}/rank.0/stdout: No space left" in err


@needs_full
def test_a_full_disk_under_standard_output_ends_no_job(tag: str) -> None:
    with FULL.open("wb") as full:
        process = subprocess.Popen(
            command("-np", "1", "--no-prefix", *JOB),
            env=environment(tag),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0
    first, *rest = [line for line in err.splitlines() if line != "y"]
    assert "standard output: No space left on device; output is lost, and the job goes on" in first
    assert rest == [
        f"slipstream: warning: {BYTES + 5} bytes of output were lost: standard output: No space left on device"
    ]


def test_a_reader_that_has_left_ends_no_job(tag: str, tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("-np", "1", "--", "sh", "-c", f"seq 100000; touch {tmp_path}/end; exit 7"),
        env=environment(tag),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(LIMIT) == 7
    process.stderr.close()
    assert (tmp_path / "end").exists()
    assert re.search(r"\d+ bytes of output were lost: standard output: Broken pipe", err)


def test_a_terminal_that_has_gone_ends_no_job(tag: str) -> None:
    master, slave = os.openpty()
    process = subprocess.Popen(
        command("-np", "1", *JOB), env=environment(tag), stdout=slave, stderr=subprocess.PIPE, text=True
    )
    os.close(slave)
    os.read(master, 1)
    os.close(master)
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0
    assert "bytes of output were lost: standard output: Input/output error" in err


def test_without_any_standard_stream_the_job_runs(tag: str, tmp_path: Path) -> None:
    inner = subprocess.list2cmdline(command("-np", "2", "--output-dir", str(tmp_path), "--", "echo", "hello"))
    done = subprocess.run(["sh", "-c", f"{inner} <&- >&- 2>&-"], env=environment(tag), timeout=LIMIT)
    assert done.returncode == 0
    assert (tmp_path / "rank.1" / "stdout").read_text() == "hello\n"


def test_a_folder_that_cannot_be_made_names_the_option(tag: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, out, err = run(tag, "-np", "2", "--output-dir", f"{tmp_path}/file/logs", "--", "echo", "started")
    assert (code, out) == (2, "")
    assert f"Error: --output-dir {tmp_path}/file/logs: cannot write {tmp_path}/file" in err
    assert ": Not a directory" in err
    assert "Errno" not in err


def test_output_is_its_owners_alone(tag: str, tmp_path: Path) -> None:
    earlier = tmp_path / "logs" / "rank.1"
    earlier.mkdir(parents=True, mode=0o755)
    for folder in (tmp_path / "new", tmp_path / "logs"):
        assert run(tag, "-np", "2", "--output-dir", str(folder), "--", "echo", "hello")[0] == 0
        for rank in range(2):
            assert (folder / f"rank.{rank}").stat().st_mode & 0o777 == 0o700
            assert (folder / f"rank.{rank}" / "stdout").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
