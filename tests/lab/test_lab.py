"""Labs that are really made: what is on the hosts, what the links do, and that nothing stays."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import slipstream.lab
from slipstream.lab import Lab, LabError, registry
from slipstream.lab.measure import measure, neighbours
from slipstream.lab.namespaces import members
from slipstream.launch.processes import descendants

SOURCE = Path(slipstream.lab.__file__).parents[2]
ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "slipstream"]
SSHD = shutil.which("sshd", path=os.environ.get("PATH", os.defpath) + ":/usr/sbin")

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("tc") is None, reason="a lab needs root and iproute2"
)


@pytest.fixture(autouse=True)
def same_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts run the slipstream that is tested."""
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
    )


OWN = f"test-{os.getpid()}"  # the name of a lab that a test starts with a command


def lab_of(process: int | str) -> str | None:
    """The lab that a process lives in. It holds the lab's namespaces: they end with the last of its processes."""
    with contextlib.suppress(OSError):
        found = re.search(r"/labs/([^/ ]+)/hosts /etc/hosts ", Path(f"/proc/{process}/mountinfo").read_text())
        return found and found[1]
    return None


def nobodys() -> list[str]:
    """Processes that live in a lab which is gone."""
    return [
        f"{process} of {name}"
        for process in os.listdir("/proc")
        if process.isdigit()
        and (name := lab_of(process)) is not None
        and not registry.folder_of(name).exists()
        and lab_of(process) == name  # it did not end just now
    ]


def ownerless() -> list[str]:
    """Labs that the next sweep would take down."""
    found = []
    for folder in registry.ROOT.iterdir() if registry.ROOT.exists() else ():
        with contextlib.suppress(OSError), (folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found += [] if registry._stays(folder.name) else [folder.name]
    return found


@pytest.fixture
def nothing_stays() -> Iterator[None]:
    """Processes, with their namespaces, files and interfaces are the same before and after.

    Labs of other tests may come and go meanwhile.
    """
    registry.sweep()

    def now() -> tuple[object, ...]:
        return (
            descendants(os.getpid()),
            registry.folder_of(OWN).exists(),
            sorted(os.listdir("/sys/class/net")),
        )

    before = now()
    yield
    assert now() == before
    end = time.monotonic() + 20
    while left := nobodys() + ownerless():
        assert time.monotonic() < end, left  # not one that somebody just takes down
        time.sleep(0.05)


def test_labs_may_be_made_while_others_are_swept() -> None:
    """A folder without a lock, which nobody has locked yet or any more, is not taken for one that was left."""

    def make_and_remove(maker: int) -> None:
        for turn in range(30):
            name = f"{OWN}-{maker}-{turn}"
            lock = registry.claim(name)
            try:
                assert (registry.folder_of(name) / "lock").exists()
            finally:
                shutil.rmtree(registry.folder_of(name), ignore_errors=True)
                os.close(lock)

    with ThreadPoolExecutor(4) as pool:
        made = [pool.submit(make_and_remove, maker) for maker in range(3)]
        while not all(one.done() for one in made):
            registry.sweep()
    for one in made:
        one.result()


def wait_for_member(lab: Lab, process: int) -> None:
    """A process is in its host a moment after it was started."""
    end = time.monotonic() + 60
    while process not in members(registry.marker(lab.name)):
        assert time.monotonic() < end, "it never came into its host"
        time.sleep(0.01)


def test_hosts_are_hosts(nothing_stays: None) -> None:
    with Lab(3, rate="1gbit", slots=2, reducers=1) as lab:
        script = "hostname; ls /sys/class/net; cat $SLIPSTREAM_HOSTFILE; getent hosts h3; echo $SLIPSTREAM_LAB_RATE"
        done = lab.run("h2", ["sh", "-c", script], capture_output=True, text=True)
        words = done.stdout.split()
        assert words[:3] == ["h2", "eth0", "lo"]
        assert "h1 slots=2 h2 slots=2 h3 slots=2 r1 slots=0 reducer" in " ".join(words)
        assert words[-3:] == ["10.77.0.3", "h3", "1gbit"]
        assert lab.hosts == ["h1", "h2", "h3", "r1"]
        with lab.popen("h1", ["sleep", "1000"]) as sleeper:
            wait_for_member(lab, sleeper.pid)
            lab.close()  # ends it
            assert sleeper.wait(10) == -signal.SIGKILL


Rates = dict[Any, float]


def within(measurement: Callable[[], Rates], bounds: dict[Any, tuple[float, float]]) -> Rates:
    """The rates of the first of eight measurements that lie within ``bounds``; those of the last one if none does.

    Other work on the machine takes rate away, and what came while a receiver did not run is counted when it does.
    """
    rates: Rates = {}
    for _ in range(8):
        rates = measurement()
        if all(key in bounds and bounds[key][0] < rate < bounds[key][1] for key, rate in rates.items()):
            break
    return rates


@pytest.mark.alone
@pytest.mark.parametrize("n", [4, 8])
def test_links_have_their_rate(n: int, nothing_stays: None) -> None:
    """A low rate, which a busy machine keeps too; benchmarks/lab.py measures how exactly."""
    with Lab(n, rate="50mbit") as lab:
        pairs = neighbours(lab.hosts)
        bounds = dict.fromkeys(pairs, (0.5 * 50e6, 1.05 * 50e6))
        rates = within(
            lambda: {(flow.source, flow.target): flow.rate for flow in measure(lab, pairs, seconds=1.0)},
            bounds,
        )
        for pair in pairs:
            least, most = bounds[pair]
            assert least < rates[pair] < most, rates


@pytest.mark.alone
def test_paths_are_unequal_flow_by_flow(nothing_stays: None) -> None:
    with Lab(2, paths="8mbit,16mbit,32mbit") as lab:
        bounds = {
            (host, 1 + i): (0.4 * rate, 1.1 * rate)
            for host in lab.hosts
            for i, rate in enumerate(lab.spec.host(host).paths)
        }

        def measurement() -> Rates:
            by_path: Rates = defaultdict(float)
            for flow in measure(lab, [("h1", "h2"), ("h2", "h1")], flows=12, seconds=1.5):
                by_path[flow.source, flow.path] += flow.rate
            return by_path

        rates = within(measurement, bounds)
        assert len(rates) > 2, "the flows of a host all took one path"
        for key, rate in rates.items():
            assert bounds[key][0] < rate < bounds[key][1], rates


def test_interfaces_are_links_of_their_own(nothing_stays: None) -> None:
    with Lab(2, rate="30mbit", interfaces=2) as lab:
        done = lab.run("h2", ["ls", "/sys/class/net"], capture_output=True, text=True)
        assert done.stdout.split() == ["eth0", "eth1", "lo"]
        assert lab.environment()["SLIPSTREAM_LAB_RATE"] == "60mbit"

        def answers(interface: int) -> bool:
            code = f"import socket; socket.create_connection(({lab.address('h2', interface)!r}, 1), 2)"
            done = lab.run("h1", [sys.executable, "-c", code], capture_output=True, text=True, check=False)
            return "ConnectionRefusedError" in done.stderr

        assert answers(1)
        assert answers(2)
        lab.cut("h2", 2)
        assert answers(1)
        assert not answers(2)
        (record,) = [one for one in registry.records() if one.name == lab.name]
        assert record.cut_interfaces("h2") == [2]
        lab.cut("h2")
        lab.heal("h2", 2)
        assert answers(2)
        assert not answers(1)
        lab.rate("h2", "20mbit")
        shaped = lab.run("h2", ["tc", "class", "show", "dev", "eth1"], capture_output=True, text=True).stdout
        assert "rate 20Mbit" in shaped


@pytest.mark.alone
def test_a_rate_changes_while_data_flows(nothing_stays: None) -> None:
    with Lab(2) as lab:
        for rate, least, most in ((None, 200e6, 1e12), ("20mbit", 5e6, 21e6), ("80mbit", 30e6, 84e6)):
            if rate is not None:
                lab.rate("h2", rate)
            rates = within(
                lambda: {"h2": measure(lab, [("h1", "h2")], seconds=0.7)[0].rate}, {"h2": (least, most)}
            )
            assert least < rates["h2"] < most, rate
        assert lab.spec.host("h2").rate == 80_000_000


LOOP = """
import os, sys, time
import numpy as np
import slipstream
slipstream.init()
data = np.ones(50_000, np.float32)
for i in range(10**9):
    out = slipstream.all_reduce(data)
    assert (out == slipstream.size()).all()
    if slipstream.rank() == 0:
        print(i, flush=True)
    if slipstream.broadcast(np.array([os.path.exists(sys.argv[1])]))[0]:
        break
slipstream.shutdown()
"""


def test_a_job_survives_a_cut_that_heals(tmp_path: Path, nothing_stays: None) -> None:
    script, stop, output = tmp_path / "loop.py", tmp_path / "stop", tmp_path / "output"
    script.write_text(LOOP)

    def steps() -> int:
        return len(output.read_text().splitlines())

    def wait_for(count: int) -> None:
        end = time.monotonic() + 60
        while steps() < count:
            assert job.poll() is None, output.read_text()
            assert time.monotonic() < end
            time.sleep(0.01)  # a poll of a file that another process writes

    run = [*COMMAND, "run", "-np", "3", "--no-prefix", "--", sys.executable, str(script), str(stop)]
    with Lab(3, rate="200mbit") as lab, output.open("wb") as file, lab.popen("h1", run, stdout=file) as job:
        wait_for(5)
        lab.cut("h3")
        end = time.monotonic() + 1
        while time.monotonic() < end:  # what is under way settles; then nothing gets through
            time.sleep(0.1)
        stuck = steps()
        lab.heal("h3")
        wait_for(stuck + 20)
        lab.rate("h2", "20mbit")
        wait_for(steps() + 5)
        stop.touch()
        assert job.wait(60) == 0, output.read_text()


@pytest.mark.slow
@pytest.mark.timeout(600)  # eight processes import PyTorch and train: minutes where others run beside them
@pytest.mark.skipif(SSHD is None, reason="openssh-server is not installed")
def test_digits_over_ssh_are_those_of_one_host(tmp_path: Path, nothing_stays: None) -> None:
    """In float64: another topology adds in another order, and float32 would show that after some steps."""
    pytest.importorskip("sklearn")

    def digits(name: str) -> list[str]:
        script = [sys.executable, "examples/torch_digits.py", "--dtype", "float64", "--epochs", "4"]
        return [
            *COMMAND,
            "run",
            "-np",
            "4",
            "--no-prefix",
            "--",
            *script,
            "--loss-file",
            str(tmp_path / name),
        ]

    one = subprocess.run(digits("one"), cwd=ROOT, capture_output=True, text=True, check=True)
    with Lab(4, rate="500mbit", ssh=True) as lab:
        assert lab.environment()["SLIPSTREAM_SSH_COMMAND"].startswith("ssh -F ")
        four = lab.run("h1", digits("four"), cwd=ROOT, capture_output=True, text=True)
    losses = [json.loads((tmp_path / name).read_text()) for name in ("one", "four")]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert losses[0][-1] < losses[0][0] / 2
    assert four.stdout.splitlines()[-1] == one.stdout.splitlines()[-1]
    assert four.stdout.splitlines()[-1].startswith("accuracy: 0.9")


@pytest.mark.parametrize("moment", ["up", "making"])
def test_after_kill_9_the_next_start_leaves_nothing(moment: str, nothing_stays: None) -> None:
    run = [
        *COMMAND,
        "lab",
        "run",
        "--hosts",
        "8",
        "--name",
        OWN,
        "--",
        "sh",
        "-c",
        "sleep 1000 & echo up; wait",
    ]
    folder = registry.folder_of(OWN)
    with subprocess.Popen(run, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        if moment == "up":
            assert process.stdout.readline() == b"up\n"
        else:
            while not (folder / "hosts").exists():
                assert process.poll() is None
        process.kill()
        process.stdout.close()
    with Lab(1) as other:
        assert not folder.exists()
        assert members(registry.marker(OWN)) == []
        up = {record.name for record in registry.records()}
        assert other.name in up
        assert OWN not in up


def test_a_child_that_a_killed_owner_had_just_started_is_waited_for(
    nothing_stays: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the lock until it execs."""
    code = (
        "import os, signal, sys; from slipstream.lab import registry; registry.claim(sys.argv[1])\n"
        "if os.fork(): os.kill(os.getpid(), signal.SIGKILL)\n"
        "sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code, OWN], stdin=subprocess.PIPE) as owner:
        assert owner.wait() == -signal.SIGKILL
        assert owner.stdin is not None
        looks: list[float] = []

        def sleep(duration: float) -> None:
            looks.append(duration)
            assert owner.stdin is not None
            owner.stdin.close()  # the child ends
            time.sleep(duration)

        monkeypatch.setattr(registry, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
        registry.sweep()
    assert looks
    assert not registry.folder_of(OWN).exists()


def test_a_lab_that_stays(nothing_stays: None) -> None:
    name = OWN

    def lab(*arguments: str) -> str:
        done = subprocess.run([*COMMAND, "lab", *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        assert lab("up", "--name", name, "--hosts", "2", "--rate", "100mbit").strip() == name
        lab("rate", "--name", name, "h2", "50mbit")
        lab("cut", "--name", name, "h1")
        (listed,) = [one for one in json.loads(lab("list", "--json")) if one["name"] == name]
        assert [host["rate"] for host in listed["hosts"]] == [100_000_000, 50_000_000]
        assert [host["cut"] for host in listed["hosts"]] == [True, False]
        lab("heal", "--name", name, "h1")
        assert lab("exec", "--name", name, "h2", "hostname") == "h2\n"
        with pytest.raises(LabError, match="already"):
            Lab(1, name=name)
        Lab(1).close()  # its sweep leaves the one that stays alone
        rows = json.loads(lab("measure", "--name", name, "--seconds", "0.5", "--json"))
        assert {(row["source"], row["target"]) for row in rows} == {("h1", "h2"), ("h2", "h1")}
    finally:
        lab("down", "--name", name)
    assert not registry.folder_of(name).exists()


def test_a_command_says_that_its_lab_was_removed(nothing_stays: None) -> None:
    with Lab(1, name=OWN) as lab:
        command = [*COMMAND, "lab", "exec", "--name", OWN, "h1", "--", "sh", "-c", "echo there; sleep 600"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            assert running.stderr is not None
            assert running.stdout.readline() == "there\n"
            lab.close()
            assert running.wait(30) == 128 + signal.SIGKILL
            assert f"lab {OWN} was removed while sh was running there" in running.stderr.read()


def test_down_without_a_name_spares_the_lab_of_a_running_command(
    nothing_stays: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLIPSTREAM_LAB", raising=False)
    with Lab(1) as lab:
        monkeypatch.setattr(
            registry, "records", lambda: [registry.read(lab.name)]
        )  # whatever else is up here
        with pytest.raises(
            LabError, match=f"only one of `slipstream lab run`; say which: .* down {lab.name}"
        ):
            registry.find_kept(None)
        assert registry.find_kept(lab.name).name == lab.name
        assert registry.find(None).name == lab.name  # for exec, rate, cut and measure it is clear enough
        kept = dataclasses.replace(registry.read(lab.name), name="kept", keep=True)
        monkeypatch.setattr(registry, "records", lambda: [registry.read(lab.name), kept])
        assert registry.find_kept(None) is kept


def test_what_up_advises_works_as_it_is_typed(nothing_stays: None) -> None:
    """`lab up` names the commands to go on with; a shell runs them here, with true in the place of bash."""
    name = OWN
    slipstream = f"{shlex.quote(sys.executable)} -m slipstream"

    def typed(command: str) -> subprocess.CompletedProcess[str]:
        command = command.replace("slipstream", slipstream, 1)
        return subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)

    with Lab(1):  # of somebody's `lab run`: it does not get into the way
        try:
            advice = typed(f"slipstream lab up --name {name}").stderr.partition("next: ")[2].strip()
            assert advice == f"slipstream lab exec --name {name} h1 -- bash; slipstream lab down {name}"
            for command in advice.replace("bash", "true").split("; "):
                done = typed(command)
                assert done.returncode == 0, (command, done.stderr)
            assert not registry.folder_of(name).exists()
        finally:
            registry.destroy(name)


def test_exec_takes_a_command_with_and_without_dashes(nothing_stays: None) -> None:
    with Lab(1) as lab:

        def execute(*words: str) -> subprocess.CompletedProcess[str]:
            command = [*COMMAND, "lab", "exec", "--name", lab.name, "h1", *words]
            return subprocess.run(command, capture_output=True, text=True, check=False)

        assert execute("--", "echo", "--", "-x").stdout == "-- -x\n"
        assert execute("echo", "--", "-x").stdout == "-- -x\n"
        assert "the command for h1 is missing" in execute("--").stderr


def test_measure_leaves_out_hosts_that_are_cut(nothing_stays: None) -> None:
    with Lab(3, rate="100mbit") as lab:

        def measured() -> subprocess.CompletedProcess[str]:
            command = [*COMMAND, "lab", "measure", "--name", lab.name, "--seconds", "0.2"]
            return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

        lab.cut("h2")
        done = measured()
        assert done.returncode == 0, done.stderr
        assert "left out, as their cables are out: h2" in done.stderr
        assert [line.split()[:3] for line in done.stdout.splitlines()] == [
            ["h1", "->", "h3"],
            ["h3", "->", "h1"],
        ]
        lab.cut("h3")
        done = measured()
        assert done.returncode == 1
        assert "two hosts that are not cut are needed; this lab has 1" in done.stderr
        assert "Traceback" not in done.stderr


def test_events_come_while_the_command_runs(nothing_stays: None) -> None:
    script = "until grep -q CUT /dev/stdin <<< $($0 -m slipstream lab list); do :; done"
    run = [*COMMAND, "lab", "run", "--event", "10ms:cut:h2", "--", "bash", "-c", script, sys.executable]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "event 0.01s:cut:h2" in done.stderr


def test_the_exit_code_is_the_command_s(nothing_stays: None) -> None:
    run = [*COMMAND, "lab", "run", "-q", "--", "sh", "-c", "exit 7"]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (7, "")
    run = [*COMMAND, "lab", "run", "-q", "--", "no-such-program"]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert "cannot run 'no-such-program': no folder of PATH has a command of that name" in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run", "--rate", "fast", "--", "true"], "Invalid value for '--rate': 'fast' is not a rate"),
        (["run", "--paths", "1gbit,fast", "--", "true"], "Invalid value for '--paths': 'fast' is not a rate"),
        (["rate", "h1", "fast"], "Invalid value for 'RATE': 'fast' is not a rate"),
        (["run", "--", "/no/such/program"], "/no/such/program"),
        (["exec", "--name", "nothing", "h1", "true"], "there is no lab 'nothing'"),
        (["run", "--on", "h9", "--", "true"], "the lab has no host 'h9'; it has h1, h2"),
    ],
)
def test_errors_say_what_to_do(arguments: list[str], text: str, nothing_stays: None) -> None:
    done = subprocess.run([*COMMAND, "lab", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_delay_works_or_says_why_not(nothing_stays: None) -> None:
    with contextlib.ExitStack() as stack:
        try:
            lab = stack.enter_context(Lab(2, rate="100mbit", delay="20ms"))
        except LabError as error:
            text = str(error)
        else:
            lab.run("h1", ["true"])
            return
    assert "no netem" in text


def test_without_root_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LabError, match="needs root"):
        Lab(1)


@pytest.mark.slow
def test_100_times_up_and_down(nothing_stays: None) -> None:
    for i in range(100):
        with Lab(4, rate="500mbit", ssh=SSHD is not None and i % 10 == 0) as lab:
            lab.run("h4", ["true"])
