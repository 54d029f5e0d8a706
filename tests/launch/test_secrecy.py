"""What a whole job shows: its secret in no output, and nothing of its processes to another user."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from comm import ranks
from comm.test_secrets import NOBODY, shown
from launch.test_run import LIMIT, command, environment, marked, tag, wait_for
from reducer import service
from reducer.test_job import environment as of_reducers

__all__ = ["tag"]

RANK = Path(__file__).parents[1] / "comm" / "secret_rank.py"
HIDDEN = ("environ", "maps", "fd", "mem")


@contextmanager
def running(tag: str, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A job of two ranks and a reducer that says all it can, once its ranks have said all they can; and its output."""
    (folder / "hosts").write_text("localhost slots=2\n127.0.0.1 reducer\n")
    given = ["-vv", "-np", "2", "--hostfile", str(folder / "hosts"), "--reducers", "auto"]
    words = command(*given, "--", sys.executable, str(RANK), str(folder / "done"))
    env = environment(tag, SLIPSTREAM_TRANSPORT="tcp")
    output = folder / "output"
    with (
        output.open("wb") as file,
        subprocess.Popen(words, env=env, stdout=file, stderr=subprocess.STDOUT) as process,
    ):
        try:
            wait_for(
                lambda: output.read_text().count("] said\n") == 2 or process.poll() is not None,
                "the end of the ranks' words",
            )
            assert process.poll() is None, output.read_text()
            yield process, output
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(LIMIT)


def part(pid: int, launcher: int) -> str:
    """Which part of the job a process is."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    if pid == launcher:
        return "launcher"
    if str(RANK).encode() in words:
        return "rank"
    return "reducer" if b"reducer" in words else "other"


def secret_of(pid: int) -> bytes:
    """The job's, as one of its ranks has it."""
    words = dict(
        word.split(b"=", 1) for word in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if word
    )
    return bytes.fromhex(words[b"SLIPSTREAM_SECRET"].decode())


def test_a_secret_is_in_no_output_and_no_command_line(tag: str, tmp_path: Path) -> None:
    with running(tag, tmp_path) as (process, output):
        parts = {pid: part(pid, process.pid) for pid in marked(tag)}
        assert {"launcher", "rank", "reducer"} <= set(parts.values())
        secret = secret_of(next(pid for pid, what in parts.items() if what == "rank"))
        for pid in parts:
            assert not shown(secret, Path(f"/proc/{pid}/cmdline").read_bytes())
        (tmp_path / "done").touch()
        assert process.wait(LIMIT) == 0, output.read_text()
    text = output.read_bytes()
    for said in (b"ranks started: 2 of 2", b"] said", b"reducers: 127.0.0.1:", b"split between reducers"):
        assert said in text  # the launcher's words, the ranks', and what debugging adds
    assert not shown(secret, text)


def test_a_reducers_secret_is_in_neither_its_log_nor_its_pages(tmp_path: Path) -> None:
    with service.started(tmp_path) as one:
        (tmp_path / "done").touch()
        ranks.run(RANK, 2, transport="tcp", args=[str(tmp_path / "done")], env=of_reducers([one]))
        service.wait_for(lambda: "ended after" in one.log.read_text(), "the end of the job")
        for text in (one.log.read_text(), one.page("metrics")[1], one.page("healthz")[1]):
            assert text
            assert not shown(service.SECRET, text.encode())


def as_nobody(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )


def refused(pid: int, name: str) -> bool:
    """Whether another user may not look into this file, or folder, of the process."""
    path = f"/proc/{pid}/{name}"
    done = as_nobody("ls", path) if name == "fd" else as_nobody("head", "-c", "1", path)
    return done.returncode != 0 and done.stdout == "" and "Permission denied" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can look as another user")
def test_another_user_sees_nothing_of_a_job(tag: str, tmp_path: Path) -> None:
    stranger = subprocess.Popen(["sleep", "1000"], user=NOBODY, group=NOBODY, extra_groups=[])
    try:  # what they may see of a process of their own
        assert [name for name in HIDDEN if refused(stranger.pid, name)] == []
    finally:
        stranger.kill()
        stranger.wait()
    with running(tag, tmp_path) as (process, _):
        for pid in marked(tag):
            what = part(pid, process.pid)
            assert as_nobody("cat", f"/proc/{pid}/cmdline").stdout  # it can be seen that there is one
            assert [name for name in HIDDEN if not refused(pid, name)] == [], what
        (tmp_path / "done").touch()
        assert process.wait(LIMIT) == 0
