"""`slipstream run`, as a user types it: exit codes, output, and that nothing it started outlives it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import slipstream.launch

SOURCE = Path(slipstream.launch.__file__).parents[2]
LIMIT = 60.0

FAKE_SSH = """#!/bin/sh
# Runs the command here, as ssh would there; writes down how it was called.
echo "$@" >> "$0.calls"
while [ $# -gt 0 ]; do
  case "$1" in
    -o|-p|-i) shift 2 ;;
    --) shift; break ;;
    *) echo "an option after --, or none" >&2; exit 255 ;;
  esac
done
[ "$1" = unreachable ] && { echo "no route to host" >&2; exit 255; }
[ "$1" = silent ] && exec sleep 1000
shift
echo "Welcome to this host"
sh -c "$*"
"""


@pytest.fixture
def ssh(tmp_path: Path) -> Path:
    path = tmp_path / "ssh"
    path.write_text(FAKE_SSH)
    path.chmod(0o755)
    return path


@pytest.fixture
def tag(tmp_path: Path) -> Iterator[str]:
    """A variable that marks every process of the test; whatever bears it at the end is a leak."""
    mark = f"SLIPTEST_TAG={tmp_path}"
    yield mark
    left = marked(mark)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def marked(tag: str) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if tag.encode() in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.append(int(name))
        except OSError:
            continue
    return found


def wait_for(condition: object, what: str) -> None:
    end = time.monotonic() + LIMIT
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.01)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "slipstream", "run", *arguments]


def environment(tag: str, **more: str) -> dict[str, str]:
    name, value = tag.split("=", 1)
    paths = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
    return os.environ | {name: value, "PYTHONPATH": paths} | more


def launch(tag: str, *arguments: str, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(*arguments),
        env=environment(tag, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(tag: str, *arguments: str, **more: str) -> tuple[int, str, str]:
    """Runs it to its end; ``more``: further variables of its environment."""
    process = launch(tag, *arguments, **more)
    out, err = process.communicate(timeout=LIMIT)
    return process.returncode, out, err


PRINT_ENV = "import json, os; print(json.dumps(dict(os.environ)))"


def test_ranks_learn_their_place(tag: str) -> None:
    code, out, err = run(tag, "-np", "3", "-e", "COLOUR=red", "--", sys.executable, "-c", PRINT_ENV)
    assert (code, err) == (0, "")
    lines = dict(re.fullmatch(r"\[(\d)\] (.*)", line).groups() for line in out.splitlines())  # type: ignore[union-attr]
    assert sorted(lines) == ["0", "1", "2"]
    secrets = set()
    for rank, text in lines.items():
        env = json.loads(text)
        for family in ("SLIPSTREAM", "HOROVOD"):
            names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
            assert [env[f"{family}_{name}"] for name in names] == [rank, "3", rank, "3", "0", "1"]
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "COLOUR", "PYTHONUNBUFFERED")
        assert [env[name] for name in names] == [rank, "3", rank, "3", "red", "1"]
        assert int(env["OMP_NUM_THREADS"]) == max(1, len(os.sched_getaffinity(0)) // 3)
        assert env["SLIPSTREAM_STORE"].startswith("127.0.0.1:")
        assert env["HOROVOD_HOSTNAME"] == "localhost"
        secrets.add(env["SLIPSTREAM_SECRET"])
    assert len(secrets) == 1
    assert len(secrets.pop()) == 64


@pytest.mark.parametrize("hosts", ["localhost:2", "localhost:1,node1:1", "node1:2", "node1:1,localhost:1"])
def test_ranks_learn_where_torch_distributed_meets(tag: str, ssh: Path, hosts: str) -> None:
    arguments = ("-np", "2", "-H", hosts, "--ssh-command", str(ssh))
    script = "echo $MASTER_ADDR $MASTER_PORT"
    code, out, err = run(tag, *arguments, "--", "sh", "-c", script, MASTER_ADDR="outer", MASTER_PORT="1")
    assert code == 0, err
    (first, port), (second, other) = (line.split()[1:] for line in sorted(out.splitlines()))
    assert port == other
    assert 1024 < int(port) < 32768
    if "," not in hosts:
        assert (first, second) == ("127.0.0.1", "127.0.0.1")
    assert "outer" not in (first, second)
    if hosts.startswith("node1:1,"):
        assert (first, second) == ("node1", "node1")  # a name that only ssh knows


def test_where_torch_distributed_meets_can_be_set(tag: str) -> None:
    given = ("-e", "MASTER_ADDR=::1", "-e", "MASTER_PORT=4711")
    code, out, _ = run(tag, "-np", "1", *given, "--", "sh", "-c", "echo $MASTER_ADDR $MASTER_PORT")
    assert (code, out) == (0, "[0] ::1 4711\n")


def test_replace_reaches_the_ranks(tag: str) -> None:
    arguments = ("-np", "1", "--replace", "gloo,nccl")
    code, out, _ = run(tag, *arguments, "--", "sh", "-c", "echo $SLIPSTREAM_REPLACE")
    assert (code, out) == (0, "[0] gloo,nccl\n")


JOIN = """
from slipstream.base.settings import Settings
from slipstream.comm.rendezvous.join import exchange, join
member = join(Settings.from_environment())
print(member.rank, member.local_rank, member.cross_rank, exchange(member, b"%d" % member.rank))
"""


@pytest.mark.parametrize("hosts", ["localhost:3", "localhost:1,node1:2"])
def test_ranks_find_each_other(tag: str, ssh: Path, hosts: str) -> None:
    arguments = ("-np", "3", "-H", hosts, "--ssh-command", str(ssh))
    code, out, err = run(tag, *arguments, "--", sys.executable, "-c", JOIN)
    assert code == 0, err
    places = ["0 0 0", "1 1 0", "2 2 0"] if hosts == "localhost:3" else ["0 0 0", "1 0 1", "2 1 0"]
    everyone = [b"0", b"1", b"2"]
    assert sorted(out.splitlines()) == [f"[{r}] {place} {everyone}" for r, place in enumerate(places)]


@pytest.mark.parametrize("how", ["exit 7", "kill -9 $$", "kill -15 $$"])
def test_a_failing_rank_ends_the_job_with_its_code(tag: str, how: str) -> None:
    script = f'[ "$RANK" = 1 ] || exec sleep 1000; seq 30 >&2; {how}'
    code, _, err = run(tag, "-np", "3", "--", "sh", "-c", script)
    expected = {"exit 7": 7, "kill -9 $$": 137, "kill -15 $$": 143}[how]
    assert code == expected
    summary = err[err.index("slipstream: ") :]
    said = {
        7: "exited with code 7",
        137: "was ended by signal 9 (SIGKILL), often by the kernel's out-of-memory killer: see dmesg",
        143: "was ended by signal 15 (SIGTERM)",
    }
    assert f"rank 1 on host localhost {said[code]}" in summary
    assert [line.strip() for line in summary.splitlines()[2:]] == [str(n) for n in range(11, 31)]


def test_a_rank_that_ignores_sigterm_is_killed(tag: str, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = f"""
[ "$RANK" = 1 ] && {{ while [ ! -e {ready} ]; do sleep 0.01; done; exit 3; }}
trap '' TERM; touch {ready}; while true; do sleep 1000; done"""
    code, _, _ = run(tag, "-np", "2", "--", "sh", "-c", script)
    assert code == 3


def test_a_command_that_does_not_exist(tag: str) -> None:
    code, _, err = run(tag, "-np", "2", "--", "no-such-command")
    assert code == 127
    assert "no-such-command" in err


def test_lines_are_whole_and_files_are_raw(tag: str, tmp_path: Path) -> None:
    program = """
import os, sys
rank = os.environ["RANK"]
for i in range(300):
    for part in (f"{rank}-{i}-", "x" * 300, "-end", "\\n"):
        sys.stdout.write(part); sys.stdout.flush()
print("problem", rank, file=sys.stderr)
sys.stdout.write("no newline")
"""
    logs = tmp_path / "logs"
    code, out, err = run(tag, "-np", "3", "--output-dir", str(logs), "--", sys.executable, "-c", program)
    assert code == 0
    for rank in range(3):
        lines = [f"{rank}-{i}-{'x' * 300}-end" for i in range(300)]
        mine = [line[4:] for line in out.splitlines() if line.startswith(f"[{rank}] ")]
        assert mine == [*lines, "no newline"]
        assert (logs / f"rank.{rank}" / "stdout").read_text() == "\n".join([*lines, "no newline"])
        assert (logs / f"rank.{rank}" / "stderr").read_text() == f"problem {rank}\n"
    assert len(out.splitlines()) == 903
    assert sorted(err.splitlines()) == [f"[{rank}] problem {rank}" for rank in range(3)]


def test_no_prefix_and_timestamps(tag: str) -> None:
    assert run(tag, "-np", "1", "--no-prefix", "--", "echo", "plain")[1] == "plain\n"
    stamped = run(tag, "-np", "1", "--timestamps", "--", "echo", "plain")[1]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \[0\] plain\n", stamped)


GRANDCHILDREN = "setsid sh -c 'sleep 1000 & sleep 1000 & wait' & (sleep 1000 &) ; sleep 1000"


@pytest.mark.parametrize("hosts", ["localhost:2", "localhost:1,node1:1"])
def test_killing_the_launcher_leaves_nothing(tag: str, ssh: Path, hosts: str) -> None:
    process = launch(
        tag, "-np", "2", "-H", hosts, "--ssh-command", str(ssh), "--", "sh", "-c", f"echo up; {GRANDCHILDREN}"
    )
    assert process.stdout is not None
    assert sorted(process.stdout.readline() for _ in range(2)) == ["[0] up\n", "[1] up\n"]
    wait_for(lambda: len(marked(tag)) >= 12, "all sleepers running")
    process.kill()
    process.communicate(timeout=LIMIT)
    wait_for(lambda: not marked(tag), "the end of every process")


def test_killing_the_agent_leaves_nothing(tag: str) -> None:
    process = launch(tag, "-np", "2", "--", "sh", "-c", f"echo up; {GRANDCHILDREN}")
    assert process.stdout is not None
    assert {process.stdout.readline() for _ in range(2)} == {"[0] up\n", "[1] up\n"}
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 1
    os.kill(int(children[0]), signal.SIGKILL)
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    assert "lost ranks 0, 1\n" in err
    assert not marked(tag)


def test_killing_ssh_ends_the_job(tag: str, ssh: Path) -> None:
    arguments = ("-np", "2", "-H", "localhost:1,node1:1", "--ssh-command", str(ssh))
    process = launch(tag, *arguments, "--", "sh", "-c", "echo up; sleep 1000 & wait")
    assert process.stdout is not None
    assert {process.stdout.readline() for _ in range(2)} == {"[0] up\n", "[1] up\n"}
    shells = [pid for pid in marked(tag) if str(ssh).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]
    shells = [pid for pid in shells if pid != process.pid]
    assert len(shells) == 1
    os.kill(shells[0], signal.SIGKILL)
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    assert "host node1" in err
    wait_for(lambda: not marked(tag), "the end of every process")


def test_nothing_is_left_behind_by_ranks_that_succeed(tag: str) -> None:
    code, _, _ = run(tag, "-np", "2", "--", "sh", "-c", "setsid sleep 1000 & exit 0")
    assert code == 0
    assert not marked(tag)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_reaches_every_rank(tag: str, tmp_path: Path, number: int) -> None:
    name = "INT" if number == signal.SIGINT else "TERM"
    script = f"trap 'echo caught; exit 0' {name}; echo up; while true; do sleep 0.05; done"
    process = launch(tag, "-np", "2", "--", "sh", "-c", script)
    assert process.stdout is not None
    assert {process.stdout.readline() for _ in range(2)} == {"[0] up\n", "[1] up\n"}
    process.send_signal(number)
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 128 + number
    assert sorted(out.splitlines()) == ["[0] caught", "[1] caught"]
    said = [
        line for line in err.splitlines() if line.startswith("slipstream: ")
    ]  # that ranks end now is no failure
    assert said == [
        f"slipstream: the job was interrupted ({signal.Signals(number).name}); all its ranks have ended"
    ]


def test_a_second_interrupt_kills_at_once(tag: str) -> None:
    script = "trap 'echo caught' INT; echo up; while true; do sleep 0.05; done"
    process = launch(tag, "-np", "2", "--", "sh", "-c", script)
    assert process.stdout is not None
    assert {process.stdout.readline() for _ in range(2)} == {"[0] up\n", "[1] up\n"}
    process.send_signal(signal.SIGINT)
    assert {process.stdout.readline() for _ in range(2)} == {"[0] caught\n", "[1] caught\n"}
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert time.monotonic() - begin < 4.5  # less than the grace the first one gives
    assert not marked(tag)


def test_the_secret_is_in_no_command_line(tag: str, ssh: Path) -> None:
    arguments = ("-np", "2", "-H", "localhost:1,node1:1", "--ssh-command", str(ssh))
    process = launch(tag, *arguments, "--", "sh", "-c", "echo $SLIPSTREAM_SECRET; sleep 1000")
    assert process.stdout is not None
    secrets = {process.stdout.readline()[4:].strip() for _ in range(2)}
    assert len(secrets) == 1
    secret = secrets.pop().encode()
    assert len(secret) == 64
    pids = marked(tag)
    assert len(pids) >= 5
    assert not [pid for pid in pids if secret in Path(f"/proc/{pid}/cmdline").read_bytes()]
    # the launcher, the agents and ssh do not even have it in their environment
    bearers = [pid for pid in pids if secret in Path(f"/proc/{pid}/environ").read_bytes()]
    names = {Path(f"/proc/{pid}/comm").read_text().strip() for pid in bearers}
    assert names <= {"sh", "sleep"}
    assert secret.decode() not in Path(f"{ssh}.calls").read_text()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LIMIT)


def test_ssh_options(tag: str, ssh: Path) -> None:
    arguments = ["-np", "1", "-H", "node1", "--ssh-command", str(ssh), "--ssh-port", "2222"]
    arguments += ["--ssh-identity-file", "/keys/id"]
    code, out, _ = run(tag, *arguments, "--", "pwd")
    assert (code, out) == (0, f"[0] {os.getcwd()}\n")
    calls = Path(f"{ssh}.calls").read_text()
    assert "-o BatchMode=yes" in calls
    assert "-p 2222 -i /keys/id -- node1 cd " in calls


def test_an_unreachable_host_is_named(tag: str, ssh: Path) -> None:
    arguments = ("-np", "2", "-H", "localhost:1,unreachable:1", "--ssh-command", str(ssh))
    code, _, err = run(tag, *arguments, "--", "sleep", "1000")
    assert code == 1
    assert "host unreachable: no route to host" in err
    assert "rank 1 did not start" in err


def test_start_timeout_names_the_host(tag: str, ssh: Path) -> None:
    arguments = ("-np", "2", "-H", "localhost:1,silent:1", "--ssh-command", str(ssh), "--start-timeout", "5")
    code, _, err = run(tag, *arguments, "--", "sleep", "1000")
    assert code == 1
    assert "host silent did not start rank 1 within 5 s" in err


def test_a_lot_of_output_arrives(tag: str) -> None:
    code, out, _ = run(tag, "-np", "2", "--no-prefix", "--", "seq", "200000")
    assert code == 0
    assert len(out.splitlines()) == 400_000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-np", "3", "-H", "a:1,b:1", "--", "true"], "3 ranks do not fit the 2 slots"),
        (["-np", "1", "-H", "a:x", "--", "true"], "a:x"),
        (["-np", "1", "--hostfile", "/nonexistent", "--", "true"], "/nonexistent"),
        (["-np", "0", "--", "true"], "-np"),
        (["-np", "1", "-e", "X", "--", "true"], "VAR=VAL"),
        (["-np", "1", "--interface", "nope0", "--", "true"], "nope0"),
        (["-np", "1", "--replace", "glo", "--", "true"], "one or more of gloo, mpi, nccl, ucc"),
        (["-np", "1"], "COMMAND"),
    ],
)
def test_mistakes_are_explained(tag: str, arguments: list[str], said: str) -> None:
    code, _, err = run(tag, *arguments)
    assert code in (1, 2)
    assert said in err
    assert "Traceback" not in err


def test_the_command_keeps_its_own_options_without_a_separator(tag: str) -> None:
    assert run(tag, "-np", "1", "echo", "-np", "--help")[1] == "[0] -np --help\n"


@pytest.mark.skipif(shutil.which("script") is None, reason="needs the script command for a terminal")
def test_on_a_terminal_prefixes_are_coloured_and_bars_repainted(tag: str) -> None:
    program = r"import sys; [sys.stderr.write(f'\r{i}%') for i in range(3)]; print('line')"
    inner = subprocess.list2cmdline([*command("-np", "1"), "--", sys.executable, "-c", "PROGRAM"])
    inner = inner.replace("PROGRAM", '"$PROGRAM"')
    env = environment(tag) | {"PROGRAM": program, "TERM": "xterm"}
    env.pop("NO_COLOR", None)
    done = subprocess.run(
        ["script", "-qec", inner, "/dev/null"], env=env, capture_output=True, timeout=LIMIT, check=True
    )
    assert b"\x1b[36m[0]\x1b[0m line\r\n" in done.stdout
    assert b"\r\x1b[2K\x1b[36m[0]\x1b[0m 2%" in done.stdout
