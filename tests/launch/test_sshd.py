"""`slipstream run` through a real ssh server, where there is one."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import slipstream.launch
from launch.test_guard import parent_of
from slipstream.launch.torch_rendezvous import master_port

SOURCE = Path(slipstream.launch.__file__).parents[2]
SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")

pytestmark = pytest.mark.skipif(
    SSHD is None or shutil.which("ssh-keygen") is None, reason="no ssh server is installed"
)


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Path]:
    """Starts a server of our own on loopback; yields a client configuration that calls it ``node1``."""
    assert SSHD is not None
    tmp_path.chmod(0o700)
    for name in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True
        )
    port = master_port(local=True)
    server = tmp_path / "sshd_config"
    server.write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {tmp_path}/host\nPidFile none\nStrictModes no\n"
        f"AuthorizedKeysFile {tmp_path}/user.pub\nPasswordAuthentication no\nPermitRootLogin yes\n"
    )
    client = tmp_path / "ssh_config"
    client.write_text(
        f"Host node1\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {tmp_path}/user\n"
        f"  UserKnownHostsFile {tmp_path}/known\n  StrictHostKeyChecking no\n  LogLevel ERROR\n"
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # the server's privilege separation wants it
    process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(server)], stderr=subprocess.PIPE)
    try:
        end = time.monotonic() + 20
        while True:
            if process.poll() is not None:
                assert process.stderr is not None
                pytest.skip(f"sshd does not start here: {process.stderr.read().decode()[:200]}")
            try:
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
                break
            except OSError:
                assert time.monotonic() < end
                time.sleep(0.01)
        yield client
    finally:
        process.terminate()
        process.communicate(timeout=20)


def run(config: Path, *command: str) -> subprocess.Popen[str]:
    paths = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
    arguments = ["-np", "2", "-H", "localhost:1,node1:1", "--ssh-command", f"ssh -F {config}"]
    return subprocess.Popen(
        [sys.executable, "-m", "slipstream", "run", *arguments, "--", *command],
        env=os.environ | {"PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_ranks_run_there(config: Path) -> None:
    out, err = run(config, "sh", "-c", "echo $RANK of $WORLD_SIZE on $HOROVOD_HOSTNAME").communicate(
        timeout=60
    )
    assert sorted(out.splitlines()) == ["[0] 0 of 2 on localhost", "[1] 1 of 2 on node1"], err


def wait_for_the_end_of(pids: list[int]) -> None:
    end = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_killing_the_launcher_leaves_nothing_there(config: Path) -> None:
    process = run(config, "sh", "-c", "sleep 1000 & echo $! $$; wait")
    assert process.stdout is not None
    pids = [int(pid) for _ in range(2) for pid in process.stdout.readline()[4:].split()]
    assert len(pids) == 4
    process.kill()
    process.communicate(timeout=60)
    wait_for_the_end_of(pids)


def test_a_stopped_guard_there_does_not_hide_the_end_of_its_agent(config: Path) -> None:
    process = run(config, "sh", "-c", "setsid sleep 1000 & echo $! $PPID $RANK; wait")
    assert process.stdout is not None
    told = [line[4:].split() for line in (process.stdout.readline(), process.stdout.readline())]
    sleeper, agent = next((int(pid), int(parent)) for pid, parent, rank in told if rank == "1")
    guard = parent_of(agent)
    os.kill(guard, signal.SIGSTOP)
    os.kill(agent, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    assert "lost rank 1" in err
    wait_for_the_end_of([sleeper, guard])
