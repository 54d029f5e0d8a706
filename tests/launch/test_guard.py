"""Whichever process of a host is killed or stopped, nothing that the job started there is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.test_run import LIMIT, command, environment, marked, tag, wait_for
from slipstream.launch import control_group
from slipstream.launch.sweep import mark_of

__all__ = ["tag"]

# A host that is no descendant of the launcher, as behind ssh: the server starts what comes with three descriptors.
SERVER = """
import array, os, socket, subprocess, sys, threading
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
name, value = sys.argv[2].split("=", 1)
print("ready", flush=True)
def serve(peer):
    text, fds, _, _ = socket.recv_fds(peer, 1 << 20, 3)
    stdin, stdout, stderr = fds
    child = subprocess.Popen(["sh", "-c", text.decode()], stdin=stdin, stdout=stdout, stderr=stderr,
                             env=os.environ | {name: value}, start_new_session=True)
    for fd in fds:
        os.close(fd)
    code = child.wait()
    peer.sendall(bytes([code & 255]))
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
CLIENT = """#!{python}
import os, socket, sys
rest = sys.argv[sys.argv.index("--") + 2:]
sock = socket.socket(socket.AF_UNIX)
sock.connect({path!r})
socket.send_fds(sock, [" ".join(rest).encode()], [0, 1, 2])
for fd in (0, 1, 2):
    os.close(fd)
os._exit(sock.recv(1)[0])
"""

# Tells the process ids of rank and agent. Its children: one beside it, one in a session of its own, one orphan.
RANK = "sleep 1000 & setsid sleep 1000 & (sleep 1000 &); echo $$ $PPID; wait"


@pytest.fixture
def elsewhere(tmp_path: Path, tag: str) -> Iterator[Path]:
    path = tmp_path / "host"
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(path), tag], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    stand_in = tmp_path / "ssh"
    stand_in.write_text(CLIENT.format(python=sys.executable, path=str(path)))
    stand_in.chmod(0o755)
    yield stand_in
    server.kill()
    server.communicate()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])


def start(tag: str, ssh: Path, host: str) -> tuple[subprocess.Popen[str], dict[str, int]]:
    """A job of one rank on ``host``; its launcher, and the processes there."""
    process = subprocess.Popen(
        command("-np", "1", "-H", host, "--ssh-command", str(ssh), "--", "sh", "-c", RANK),
        env=environment(tag),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    rank, agent, *child = map(int, process.stdout.readline()[4:].split())
    named = dict.fromkeys(["child"], child[0]) if child else {}
    return process, {"rank": rank, "agent": agent, "guard": parent_of(agent), **named}


@pytest.mark.parametrize("host", ["localhost", "node1"])
@pytest.mark.parametrize("victim", ["agent", "guard"])
def test_killing_either_leaves_nothing(tag: str, elsewhere: Path, host: str, victim: str) -> None:
    process, there = start(tag, elsewhere, host)
    os.kill(there[victim], signal.SIGKILL)
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    assert "lost rank 0" in err or "rank 0" in err
    wait_for(lambda: not marked(tag), "the end of every process")


@pytest.mark.parametrize("host", ["localhost", "node1"])
def test_killing_both_at_once_leaves_nothing(tag: str, elsewhere: Path, host: str) -> None:
    process, there = start(tag, elsewhere, host)
    os.kill(there["agent"], signal.SIGSTOP)  # so that it learns nothing of the guard's end
    os.kill(there["guard"], signal.SIGKILL)
    os.kill(there["agent"], signal.SIGKILL)
    process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    wait_for(lambda: not marked(tag), "the end of every process")


@pytest.fixture
def mounted() -> Iterator[Path]:
    """The folder of this process's control group; skips where this user may make none in it."""
    mark = mark_of(os.urandom(16))
    made = control_group.make(mark)
    if made is None:
        pytest.skip("this user may make no control group")
    assert control_group.find(mark) == [made]
    yield made.parent
    assert control_group.end(made)
    assert control_group.end(made)  # it is not there
    assert not made.exists()


def group_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text().split("0::", 1)[1].split("\n")[0].rpartition("/")[2]


def gone(pid: int) -> bool:
    """It has ended; whoever has adopted it may not have reaped it."""
    try:
        return not Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_process_without_a_variable_of_the_job_is_left_on_no_host(
    tag: str, elsewhere: Path, mounted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rank's agent and the guard are killed in one moment."""
    monkeypatch.setitem(globals(), "RANK", "setsid env -i sleep 1000 & echo $$ $PPID $!; wait")
    process, there = start(tag, elsewhere, "node1")
    group, hidden = group_of(there["rank"]), there["child"]
    assert group.startswith("slipstream-")
    assert (mounted / group).exists()
    wait_for(lambda: b"sleep" in Path(f"/proc/{hidden}/cmdline").read_bytes().split(b"\0"), "env")
    os.kill(there["agent"], signal.SIGSTOP)
    os.kill(there["guard"], signal.SIGKILL)
    os.kill(there["agent"], signal.SIGKILL)
    process.communicate(timeout=LIMIT)
    try:
        wait_for(lambda: gone(hidden), "the end of every process")
    finally:
        if not gone(hidden):
            os.kill(hidden, signal.SIGKILL)
    wait_for(lambda: not (mounted / group).exists(), "the end of the control group")


@pytest.mark.parametrize("host", ["localhost", "node1"])
@pytest.mark.parametrize("victim", ["rank", "agent", "guard"])
def test_no_control_group_is_left(tag: str, elsewhere: Path, mounted: Path, host: str, victim: str) -> None:
    process, there = start(tag, elsewhere, host)
    group = group_of(there["rank"])
    assert group.startswith("slipstream-")
    assert (mounted / group).exists()
    os.kill(there[victim], signal.SIGKILL)
    process.communicate(timeout=LIMIT)
    wait_for(lambda: not (mounted / group).exists(), "the end of the control group")


@pytest.mark.parametrize("host", ["localhost", "node1"])
def test_stopping_the_guard_and_killing_the_agent_leaves_nothing(
    tag: str, elsewhere: Path, host: str
) -> None:
    process, there = start(tag, elsewhere, host)
    os.kill(there["guard"], signal.SIGSTOP)
    os.kill(there["agent"], signal.SIGKILL)
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    assert "lost rank 0" in err
    wait_for(lambda: not marked(tag), "the end of every process")


def test_stopping_both_and_killing_the_launcher_leaves_nothing(tag: str, elsewhere: Path) -> None:
    """Here alone: on another host nobody is left to wake them."""
    process, there = start(tag, elsewhere, "localhost")
    os.kill(there["guard"], signal.SIGSTOP)
    os.kill(there["agent"], signal.SIGSTOP)
    process.kill()
    process.communicate(timeout=LIMIT)
    wait_for(lambda: not marked(tag), "the end of every process")


@pytest.mark.parametrize("host", ["localhost", "node1"])
@pytest.mark.parametrize("stopped", [["agent"], ["guard"], ["agent", "rank"]])
def test_stopping_one_and_killing_the_launcher_leaves_nothing(
    tag: str, elsewhere: Path, host: str, stopped: list[str]
) -> None:
    process, there = start(tag, elsewhere, host)
    for one in stopped:
        os.kill(there[one], signal.SIGSTOP)
    process.kill()
    process.communicate(timeout=LIMIT)
    wait_for(lambda: not marked(tag), "the end of every process")


def test_an_agent_that_cannot_end_is_killed(tag: str, elsewhere: Path, tmp_path: Path) -> None:
    """One that does nothing about the end of its launcher, and ignores every signal that may be ignored."""
    script = """
import signal, subprocess, sys, time
from slipstream.launch import guard
guard._PATIENCE = 0.3
def run():
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    subprocess.Popen(["sh", "-c", "trap '' TERM HUP; setsid sleep 1000 & sleep 1000"])
    print("up", flush=True)
    time.sleep(1000)
sys.exit(guard.guarded(run))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env=environment(tag),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    process.stdin.close()
    assert process.wait(LIMIT) == 137
    process.stdout.close()
    assert not marked(tag)
