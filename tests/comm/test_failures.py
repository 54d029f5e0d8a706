"""What happens when a rank dies, freezes, is cut off, or disagrees: every survivor says who and why."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from comm import ranks

SCRIPT = Path(__file__).with_name("failure_rank.py")
N = 4
BYTES = 8 << 20


def wait_until_running(job: list[ranks.Rank]) -> None:
    deadline = time.monotonic() + 60
    while not all("running" in r.text() for r in job):
        assert time.monotonic() < deadline, [r.text() for r in job]
        for r in job:
            assert r.process.poll() is None, r.text()
        time.sleep(0.01)  # a poll of files that other processes write


def report(rank: ranks.Rank, within: float) -> dict[str, Any]:
    try:
        rank.process.wait(within)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"rank {rank.number} hangs:\n{rank.text()}") from None
    assert rank.process.returncode == 0, rank.text()
    lines = [line for line in rank.text().splitlines() if line.startswith("{")]
    assert len(lines) == 1, rank.text()
    found: dict[str, Any] = json.loads(lines[0])
    return found


def check_survivors(job: list[ranks.Rank], victim: int, since: float, seconds: float, says: str = "") -> None:
    for rank in job:
        if rank.number == victim:
            continue
        error = report(rank, seconds + 20)
        assert (error["error"], error["rank"]) == ("PeerLost", victim), error
        assert f"rank {victim}" in error["text"]
        assert says in error["text"]
        assert re.search(r"; rank \d (still waits in|has called) all_reduce\(", error["text"]), error
        assert re.search(r" \(failure_rank\.py:\d+\)$", error["text"]), error
        assert error["at"] - since < seconds, error


def sockets_of(job: list[ranks.Rank]) -> set[str]:
    """The names of the unix sockets that the ranks listen on now."""
    names = {}
    for line in Path("/proc/net/unix").read_text().splitlines():
        if "@slipstream-" in line:
            fields = line.split()
            names[fields[6]] = fields[7]
    found = set()
    for rank in job:
        for fd in Path(f"/proc/{rank.process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = os.readlink(fd)
                found |= {name for inode, name in names.items() if target == f"socket:[{inode}]"}
    return found


def check_nothing_left(job: list[ranks.Rank], sockets: set[str]) -> None:
    now = Path("/proc/net/unix").read_text()
    assert not [name for name in sockets if name in now]
    assert not [p for p in Path("/dev/shm").iterdir() if "slipstream" in p.name]
    assert not [r for r in job if Path(f"/proc/{r.process.pid}").exists()]


def kill_one(transport: str, victim: int, seconds: float) -> None:
    env = {"SLIPSTREAM_HEARTBEAT": "60"}  # its silence tells nothing in time
    with ranks.started(SCRIPT, N, transport=transport, args=["loop", str(BYTES)], env=env) as job:
        wait_until_running(job)
        sockets = sockets_of(job)
        assert len(sockets) == (0 if transport == "tcp" else N)
        since = time.monotonic()
        job[victim].process.send_signal(signal.SIGKILL)
        check_survivors(job, victim, since, seconds)
    check_nothing_left(job, sockets)


def stop_one(transport: str, victim: int, heartbeat: float, seconds: float) -> None:
    env = {"SLIPSTREAM_HEARTBEAT": str(heartbeat)}
    with ranks.started(SCRIPT, N, transport=transport, args=["loop", str(BYTES)], env=env) as job:
        wait_until_running(job)
        sockets = sockets_of(job)
        since = time.monotonic()
        job[victim].process.send_signal(signal.SIGSTOP)
        silence = (
            f" has sent nothing for {heartbeat + 2:g} s (SLIPSTREAM_HEARTBEAT + 2 s), and answers no ping: "
        )
        check_survivors(job, victim, since, seconds, silence)
    check_nothing_left(job, sockets)


@pytest.mark.alone
@pytest.mark.parametrize("transport", ranks.TRANSPORTS)
def test_a_killed_rank_is_named_at_once(transport: str) -> None:
    for victim in (0, 3):
        kill_one(transport, victim, seconds=10.0)  # a busy machine makes no difference


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("repeat", range(50))
def test_killed_again_and_again(repeat: int) -> None:
    kill_one(ranks.TRANSPORTS[repeat % 3], repeat % N, seconds=1.0)


@pytest.mark.alone
@pytest.mark.parametrize("transport", ranks.TRANSPORTS)
def test_a_frozen_rank_is_named(transport: str) -> None:
    stop_one(transport, 2, heartbeat=1.0, seconds=12.0)


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("repeat", range(50))
def test_frozen_again_and_again(repeat: int) -> None:
    stop_one(ranks.TRANSPORTS[repeat % 3], repeat % N, heartbeat=1.0, seconds=6.0)


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("transport", ranks.TRANSPORTS)
def test_a_frozen_rank_is_named_within_15_seconds_by_default(transport: str) -> None:
    stop_one(transport, 1, heartbeat=10.0, seconds=15.0)


def ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True)


@contextlib.contextmanager
def network(n: int) -> Iterator[list[str]]:
    """``n`` network namespaces on a bridge in one of their own; yields their names, the bridge's last.

    Host i has 10.77.0.(i + 1); the bridge has 10.77.0.254.
    """
    tag = "ss" + uuid.uuid4().hex[:6]
    hub, hosts = f"{tag}hub", [f"{tag}h{i}" for i in range(n)]
    try:
        ip("netns", "add", hub)
        ip("-n", hub, "link", "add", "br0", "type", "bridge")
        ip("-n", hub, "addr", "add", "10.77.0.254/24", "dev", "br0")
        ip("-n", hub, "link", "set", "br0", "up")
        ip("-n", hub, "link", "set", "lo", "up")
        for i, host in enumerate(hosts):
            ip("netns", "add", host)
            ip("-n", hub, "link", "add", f"p{i}", "type", "veth", "peer", "name", "eth0", "netns", host)
            ip("-n", hub, "link", "set", f"p{i}", "master", "br0", "up")
            ip("-n", host, "addr", "add", f"10.77.0.{i + 1}/24", "dev", "eth0")
            ip("-n", host, "link", "set", "eth0", "up")
            ip("-n", host, "link", "set", "lo", "up")
        yield [*hosts, hub]
    finally:
        for name in (*hosts, hub):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


needs_network = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="network namespaces need root and the ip command"
)


def cut_one(victim: int, heartbeat: float, seconds: float) -> None:
    server = Path(__file__).with_name("store_process.py")
    with network(N) as (*hosts, hub):
        prefix = {i: ["ip", "netns", "exec", host] for i, host in enumerate(hosts)}
        env = {"SLIPSTREAM_HEARTBEAT": str(heartbeat)}
        inside = ["ip", "netns", "exec", hub]
        with ranks.started(
            SCRIPT,
            N,
            transport="auto",
            args=["loop", str(BYTES)],
            env=env,
            prefix=prefix,
            store_process=[*inside, ranks.PYTHON, str(server), "10.77.0.254"],
        ) as job:
            wait_until_running(job)
            since = time.monotonic()
            ip("-n", hub, "link", "set", f"p{victim}", "down")
            check_survivors(job, victim, since, seconds)
            error = report(job[victim], seconds + 20)  # it lost everybody: it names one of them
            assert error["error"] == "PeerLost"
            assert error["rank"] != victim


@pytest.mark.alone
@needs_network
def test_a_rank_whose_network_is_cut_is_named() -> None:
    cut_one(1, heartbeat=1.0, seconds=12.0)


@pytest.mark.alone
@needs_network
@pytest.mark.slow
@pytest.mark.parametrize("repeat", range(50))
def test_cut_again_and_again(repeat: int) -> None:
    cut_one(repeat % N, heartbeat=1.0, seconds=6.0)


@pytest.mark.parametrize("transport", ranks.TRANSPORTS)
@pytest.mark.parametrize(
    "what", ["shape", "large-shape", "transposed", "dtype", "op", "order", "root", "counts", "scale"]
)
def test_a_rank_that_differs_is_an_error_on_all(what: str, transport: str) -> None:
    with ranks.started(SCRIPT, 3, transport=transport, args=["mismatch", what]) as job:
        errors = [report(rank, 30) for rank in job]
    for error in errors:
        assert error["error"] == "Mismatch", error
        assert "rank 1" in error["text"]
        shown = {
            "shape": ("1000 elements", "1001 elements"),
            "large-shape": ("1000000 elements", "1000001 elements"),
            "transposed": ("all_reduce[shape=20x50](", "all_reduce[shape=50x20]("),
            "dtype": ("float32", "float64"),
            "op": ("op=sum", "op=max"),
            "order": ("all_reduce(", "broadcast("),
            "root": ("root=0", "root=1"),
            "counts": ("all_gather(float32, 3000 elements)", "all_gather[counts=1000+1001+999]("),
            "scale": ("all_reduce[prescale=0.25](", "all_reduce[prescale=0.5]("),
        }[what]
        assert "options" not in error["text"]
        assert all(text in error["text"] for text in shown), error


@pytest.mark.parametrize("transport", ["tcp", "shm"])
@pytest.mark.parametrize(
    ("what", "sent", "expected"),
    [
        ("send of another count", "float32, 6 elements", "float32, 8 elements"),
        ("send of another dtype", "float32, 6 elements", "int32, 6 elements"),
        ("broadcast of another shape", "broadcast[shape=2x3](", "broadcast[shape=3x2]("),
        ("broadcast of another dtype", "float32, 6 elements", "int32, 6 elements"),
        ("reduce of another count", "float32, 6 elements", "float32, 8 elements"),
    ],
)
def test_what_does_not_fit_the_call_of_a_rank_that_has_ended_is_a_mismatch(
    what: str, sent: str, expected: str, transport: str, tmp_path: Path
) -> None:
    ended = tmp_path / "ended"
    with ranks.started(SCRIPT, 2, transport=transport, args=["finished", what, str(ended)]) as job:
        assert job[0].process.wait(60) == 0, job[0].text()
        ended.touch()
        error = report(job[1], 60)
    assert (error["error"], error["rank"]) == ("Mismatch", None), error
    assert "rank 0" in error["text"]
    assert sent in error["text"]
    assert expected in error["text"]


@pytest.mark.parametrize("transport", ranks.TRANSPORTS)
def test_a_rank_that_left_is_named(transport: str) -> None:
    with ranks.started(SCRIPT, 3, transport=transport, args=["absent"]) as job:
        for rank in (job[0], job[2]):
            error = report(rank, 30)
            assert (error["error"], error["rank"]) == ("PeerLost", 1), error
