"""The back end under torchrun: a dead worker, a dead node, and what comes after."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slipstream.launch.torch_rendezvous import master_port

pytest.importorskip("torch")

SCRIPT = Path(__file__).with_name("elastic_rank.py")
LIMIT = 150.0
FORMING = 20.0  # seconds: a group forms in less than one, if the processors are free, and gives up after 60


@pytest.fixture
def agents() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Agents of torchrun; whatever is left of them and their workers is killed at the end."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for agent in started:
        for pid in [*workers_of(agent.pid), agent.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        agent.wait()


def workers_of(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def start(
    agents: list[subprocess.Popen[bytes]], folder: Path, options: list[str], arguments: list[str]
) -> subprocess.Popen[bytes]:
    """Starts an agent; its output, with that of its workers, goes to a file."""
    output = folder / f"agent-{len(agents)}.txt"
    with output.open("wb") as file:
        agents.append(
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "torch.distributed.run",
                    *options,
                    str(SCRIPT),
                    str(folder),
                    *arguments,
                ],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        )
    return agents[-1]


def outputs(folder: Path) -> str:
    return "\n".join(f"--- {path.name}\n{path.read_text()[-5000:]}" for path in folder.glob("agent-*.txt"))


def wait_for(condition: Callable[[], bool], folder: Path) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, outputs(folder)
        time.sleep(0.05)


def notes(folder: Path, event: str, attempt: int) -> dict[int, str]:
    """What the ranks of an attempt wrote about an event."""
    return {int(path.suffix[1:]): path.read_text() for path in folder.glob(f"{event}.{attempt}.*[0-9]")}


def report(folder: Path, attempt: int, size: int) -> None:
    """Checks that all formed a group in time, and prints how long it took."""
    formed = {rank: text.split() for rank, text in notes(folder, "formed", attempt).items()}
    assert {rank: int(words[1]) for rank, words in formed.items()} == dict.fromkeys(range(size), size)
    seconds = [float(words[0]) for words in formed.values()]
    print(f"attempt {attempt}: {size} ranks formed in {max(seconds):.3f} s")
    if attempt > 0:  # ranks of a first attempt also wait for each other's start
        assert max(seconds) < FORMING


@pytest.mark.alone
@pytest.mark.slow
def test_a_worker_that_dies_is_replaced(agents: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
    size, victim = 3, 1
    options = ["--nproc-per-node", str(size), "--max-restarts", "2", "--rdzv-backend", "c10d"]
    # the agent looks seldom enough for the survivors to notice by themselves before it ends them
    options += ["--rdzv-endpoint", "localhost:0", "--monitor-interval", "3"]
    agent = start(agents, tmp_path, options, [str(victim), "4"])
    assert agent.wait(LIMIT) == 0, outputs(tmp_path)
    died = float(notes(tmp_path, "died", 0)[victim])
    failed = notes(tmp_path, "failed", 0)
    assert sorted(failed) == [rank for rank in range(size) if rank != victim]
    for text in failed.values():
        when, _, error = text.partition(" ")
        print(f"noticed after {float(when) - died:.3f} s: {error}")
        assert float(when) - died < 2.0
        assert "PeerLost" in error
        assert f"rank {victim}" in error
    for attempt in (0, 1):
        report(tmp_path, attempt, size)
    ended = notes(tmp_path, "ended", 1)
    assert len(ended) == size
    assert len(set(ended.values())) == 1


@pytest.mark.alone
@pytest.mark.slow
def test_a_node_that_dies_leaves_a_smaller_job(agents: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
    port = master_port(local=True)
    options = ["--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "3", "--rdzv-backend", "c10d"]
    options += ["--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", "job", "--local-addr", "localhost"]
    options += ["--rdzv-conf", "last_call_timeout=10,join_timeout=100"]
    first = start(agents, tmp_path, options, ["-1", "0"])

    def listens() -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return True
        return False

    wait_for(listens, tmp_path)  # the first agent holds the store that the job lives by
    second = start(agents, tmp_path, options, ["-1", "0"])
    wait_for(lambda: len(notes(tmp_path, "formed", 0)) == 2, tmp_path)
    report(tmp_path, 0, 2)
    workers = workers_of(second.pid)
    assert workers
    for pid in (second.pid, *workers):
        os.kill(pid, signal.SIGKILL)
    assert first.wait(LIMIT) == 0, outputs(tmp_path)
    (failed,) = notes(tmp_path, "failed", 0).values()
    assert "PeerLost" in failed
    report(tmp_path, 1, 1)
    assert sorted(notes(tmp_path, "ended", 1)) == [0]


STATIC = """
import os, torch, torch.distributed as dist
dist.init_process_group("slipstream")
x = torch.ones(3)
dist.all_reduce(x)
assert x.tolist() == [2.0] * 3 and dist.get_backend() == "slipstream"
dist.destroy_process_group()
open(os.path.join(os.environ["FOLDER"], "done." + os.environ["RANK"]), "w").close()
"""


def test_a_plain_job_under_torchrun(tmp_path: Path) -> None:
    """No elastic options, no import of ours."""
    script = tmp_path / "script.py"
    script.write_text(STATIC)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(script),
    ]
    done = subprocess.run(
        command, env={**os.environ, "FOLDER": str(tmp_path)}, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.glob("done.*")} == {"done.0", "done.1"}
