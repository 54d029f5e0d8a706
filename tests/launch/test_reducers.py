"""`slipstream run --reducers`: what the ranks are told, and the reducers that are started for a job."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from launch.test_run import FAKE_SSH, LIMIT, launch, marked, run, ssh, tag, wait_for
from slipstream.launch.reducers import StartedReducer

__all__ = ["ssh", "tag"]

JOB_RANK = Path(__file__).parents[1] / "reducer" / "job_rank.py"
TOLD = "echo $SLIPSTREAM_REDUCERS ${SLIPSTREAM_REDUCER_SECRET_FILE-none} $SLIPSTREAM_REDUCER_SECRET $SLIPSTREAM_SECRET"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without a secret."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def hostfile(folder: Path, *lines: str) -> list[str]:
    path = folder / "hosts"
    path.write_text("\n".join(lines))
    return ["--hostfile", str(path)]


def command_lines(tag: str, word: bytes) -> list[int]:
    """Processes of the test with this argument."""
    found = []
    for pid in marked(tag):
        try:
            if word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                found.append(pid)
        except OSError:
            continue
    return found


# ---- reducers that run already


@pytest.mark.parametrize("way", ["option", "environment", "-e"])
def test_ranks_are_told_of_reducers_and_the_users_secret(tag: str, home: Path, way: str) -> None:
    given, env = ["-np", "2"], {}
    if way == "option":
        given += ["--reducers", "cpu1,cpu2:4000,[::1]:5"]
    elif way == "environment":
        env["SLIPSTREAM_REDUCERS"] = "cpu1,cpu2:4000,[::1]:5"
    else:
        given += ["-e", "SLIPSTREAM_REDUCERS=cpu1:29700,cpu2:4000,[::1]:5"]
    code, out, err = run(tag, *given, "--", "sh", "-c", TOLD, **env)
    assert (code, err) == (0, "")
    secret = (home / "config" / "slipstream" / "secret").read_text().strip()
    for line in out.splitlines():
        _, reducers, file, reducer_secret, job_secret = line.split()
        assert reducers == "cpu1:29700,cpu2:4000,[::1]:5"
        assert (file, reducer_secret) == ("none", secret)
        assert job_secret != secret


def test_the_reducers_secret_is_read_here_and_travels(tag: str, home: Path, ssh: Path) -> None:
    file = home / "reducers"
    file.write_text("ab" * 32)
    file.chmod(0o600)
    given = ["-np", "2", "-H", "localhost,node1", "--ssh-command", str(ssh), "--reducers", "cpu1"]
    code, out, _ = run(tag, *given, "--", "sh", "-c", TOLD, SLIPSTREAM_REDUCER_SECRET_FILE=str(file))
    assert code == 0
    assert [line.split()[2:4] for line in out.splitlines()] == [["none", "ab" * 32]] * 2
    assert "ab" * 32 not in Path(f"{ssh}.calls").read_text()
    file.chmod(0o644)
    code, _, err = run(tag, *given, "--", "true", SLIPSTREAM_REDUCER_SECRET_FILE=str(file))
    assert code == 2
    assert "chmod 600" in err


def test_without_reducers_ranks_are_told_nothing(tag: str, home: Path) -> None:
    code, out, _ = run(tag, "-np", "1", "--", "sh", "-c", "env | grep -c SLIPSTREAM_REDUCER")
    assert (code, out) == (1, "[0] 0\n")
    assert not (home / "config").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--reducers", "a:x"], "--reducers: expected host:port"),
        (["--reducers", "a,a"], "each once"),
        (["--reducers", "auto"], "the host file marks no host 'reducer'"),
        (["--reducers", "auto", "-H", "localhost"], "the host file marks no host 'reducer'"),
        (["-e", "SLIPSTREAM_REDUCERS=a:0"], "the port must be"),
    ],
)
def test_mistakes_are_explained(tag: str, given: list[str], said: str) -> None:
    code, _, err = run(tag, "-np", "1", *given, "--", "true")
    assert code == 2
    assert said in err
    assert "Traceback" not in err


# ---- reducers of the job's own


def test_auto_starts_reducers_that_the_job_uses(tag: str, tmp_path: Path) -> None:
    hosts = hostfile(tmp_path, "localhost slots=3", "127.0.0.1 reducer", "127.0.0.2 reducer")
    given = ["-np", "3", *hosts, "--reducers", "auto", "-e", "SLIPSTREAM_TRANSPORT=tcp"]
    # a SLIPSTREAM_REDUCERS of the user's does not matter
    code, out, err = run(
        tag, *given, "--", sys.executable, str(JOB_RANK), "asynchronous", SLIPSTREAM_REDUCERS="x:1"
    )
    assert (code, out, err) == (0, "", "")
    assert not marked(tag)


def test_reducers_are_no_ranks_that_have_started(tag: str, tmp_path: Path) -> None:
    hosts = hostfile(tmp_path, "localhost", "127.0.0.1 reducer", "127.0.0.2 reducer")
    code, _, err = run(tag, "-v", *hosts, "--reducers", "auto", "--", "true")
    assert code == 0
    assert "slipstream: ranks started: 1 of 1\n" in err  # or the start time-out would end the job


@pytest.mark.parametrize("host", ["127.0.0.1", "node1"])
def test_auto_gives_reducers_the_jobs_secret_in_no_command_line(
    tag: str, tmp_path: Path, ssh: Path, host: str
) -> None:
    hosts = hostfile(tmp_path, "localhost slots=1", f"{host} reducer")
    given = ["-np", "1", *hosts, "--reducers", "auto", "--ssh-command", str(ssh)]
    process = launch(tag, *given, "--", "sh", "-c", f"{TOLD}; exec sleep 1000")
    assert process.stdout is not None
    _, reducers, file, reducer_secret, job_secret = process.stdout.readline().split()
    assert reducers.rpartition(":")[0] == host
    assert int(reducers.rpartition(":")[2]) > 0
    assert (file, reducer_secret) == ("none", job_secret)
    (reducer,) = command_lines(tag, b"reducer")
    assert job_secret.encode() in Path(f"/proc/{reducer}/environ").read_bytes()
    assert os.readlink(f"/proc/{reducer}/cwd") == "/"  # no file of the user's stands in for a module
    for pid in marked(tag):
        assert job_secret.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert not marked(tag)


def test_a_reducer_that_cannot_start_is_named_and_the_job_goes_on(
    tag: str, tmp_path: Path, ssh: Path
) -> None:
    hosts = hostfile(tmp_path, "localhost slots=2", "127.0.0.1 reducer", "unreachable reducer")
    given = ["-np", "2", *hosts, "--reducers", "auto", "--ssh-command", str(ssh)]
    code, out, err = run(tag, *given, "--", "sh", "-c", "echo $SLIPSTREAM_REDUCERS")
    assert code == 0, err
    assert "warning: the reducer on host unreachable: the connection" in err
    assert "no route to host" in err
    assert len(out.splitlines()) == 2
    assert all("unreachable" not in line and "," not in line for line in out.splitlines())


def test_no_reducer_at_all_is_an_error(tag: str, tmp_path: Path, ssh: Path) -> None:
    hosts = hostfile(tmp_path, "localhost slots=1", "unreachable reducer", "silent reducer")
    given = ["-np", "1", *hosts, "--reducers", "auto", "--ssh-command", str(ssh), "--start-timeout", "1"]
    code, out, err = run(tag, *given, "--", "echo", "started")
    assert code == 1
    assert out == ""
    assert "the reducer on host silent: it did not start within 0.5 s" in err
    assert "--reducers auto: no reducer could be started" in err
    assert not marked(tag)


def test_why_a_reducer_does_not_start_is_said(tag: str, tmp_path: Path, ssh: Path) -> None:
    ssh.write_text(FAKE_SSH.replace('sh -c "$*"', 'SLIPSTREAM_REDUCER_HEARTBEAT=never sh -c "$*"'))
    hosts = hostfile(tmp_path, "localhost slots=1", "node1 reducer")
    given = ["-np", "1", *hosts, "--reducers", "auto", "--ssh-command", str(ssh)]
    code, _, err = run(tag, *given, "--", "true")
    assert code == 1
    assert "reducer on host node1: Error: SLIPSTREAM_REDUCER_HEARTBEAT: expected a positive number" in err
    assert "the reducer on host node1: exited with code 1" in err


def test_a_reducer_that_dies_is_named_and_the_job_goes_on(tag: str, tmp_path: Path) -> None:
    hosts = hostfile(tmp_path, "localhost slots=2", "127.0.0.1 reducer")
    go = tmp_path / "go"
    script = f"echo up; while [ ! -e {go} ]; do sleep 0.01; done; echo end"
    process = launch(tag, "-np", "2", *hosts, "--reducers", "auto", "--", "sh", "-c", script)
    assert process.stdout is not None
    assert process.stderr is not None
    assert {process.stdout.readline() for _ in range(2)} == {"[0] up\n", "[1] up\n"}
    (reducer,) = command_lines(tag, b"reducer")
    os.kill(reducer, signal.SIGKILL)
    said = process.stderr.readline()
    name = socket.gethostname()  # as everywhere in a job of several hosts
    assert f"the reducer on host {name}: was ended by signal 9 (SIGKILL); the job goes on without it" in said
    go.touch()
    out, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, err) == (0, "")
    assert sorted(out.splitlines()) == ["[0] end", "[1] end"]
    wait_for(lambda: not marked(tag), "the end of every process")


def test_killing_the_launcher_ends_its_reducers(tag: str, tmp_path: Path, ssh: Path) -> None:
    hosts = hostfile(tmp_path, "localhost slots=1", "127.0.0.1 reducer", "node1 reducer")
    given = ["-np", "1", *hosts, "--reducers", "auto", "--ssh-command", str(ssh)]
    process = launch(tag, *given, "--", "sh", "-c", "echo up; exec sleep 1000")
    assert process.stdout is not None
    assert process.stdout.readline() == "[0] up\n"
    assert len(command_lines(tag, b"reducer")) == 2
    process.kill()
    process.communicate(timeout=LIMIT)
    wait_for(lambda: not marked(tag), "the end of every process")


def test_what_a_reducer_prints_may_nest_as_deep_as_it_likes() -> None:
    reducer = StartedReducer("node1", "node1")
    line = b"[" * 60_000
    reducer.feed(False, line + b'\n{"event": "listening", "port": 7}\n')
    assert (reducer.port, reducer.warnings) == (7, [line.decode()])
