"""Finding each other: every kind of environment, in real processes, and what goes wrong in words."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import slipstream.comm.rendezvous.join
from slipstream.base.errors import Refused
from slipstream.base.settings import Settings, variables
from slipstream.comm.rendezvous.join import local_layout
from slipstream.comm.rendezvous.rank_sources import expand_nodelist, find_placement, slurm_port
from slipstream.comm.rendezvous.secret import find_secret, private_directory
from slipstream.launch.torch_rendezvous import master_port

SECRET = "ab" * 32
SOURCE = Path(slipstream.comm.rendezvous.join.__file__).parents[3]

JOIN = """
import json, sys
from slipstream.base.settings import Settings
from slipstream.comm.rendezvous.join import exchange, join
for round in range(int(sys.argv[1])):
    member = join(Settings.from_environment())
    seen = [text.decode() for text in exchange(member, b"%d of %d" % (member.rank, round))]
    assert seen == [f"{r} of {round}" for r in range(member.size)], seen
    keys = member.store.get(member.key("exchange/1/0"), 0) if round == 0 and member.store else None
    exchange(member, b"")
    member.close()
print(json.dumps([member.rank, member.size, member.local_rank, member.local_size, member.cross_rank,
                  member.cross_size]))
"""


def environment(tmp_path: Path, extra: Mapping[str, str]) -> dict[str, str]:
    paths = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
    plain = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "PYTHONPATH": paths}
    return plain | extra


def start(
    tmp_path: Path, extra: Mapping[str, str], rounds: int = 3, script: str = JOIN
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, str(rounds)],
        env=environment(tmp_path, extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> list[int]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    result: list[int] = json.loads(out)
    return result


def free_port() -> int:
    """None of those that the system gives to whoever asks for any."""
    return master_port(local=True)


ONE_HOST = [[0, 3, 0, 3, 0, 1], [1, 3, 1, 3, 0, 1], [2, 3, 2, 3, 0, 1]]


def test_alone(tmp_path: Path) -> None:
    assert finish(start(tmp_path, {})) == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize("names", [("RANK", "WORLD_SIZE"), ("SLIPSTREAM_RANK", "SLIPSTREAM_SIZE")])
def test_shared_file(tmp_path: Path, names: tuple[str, str]) -> None:
    path = tmp_path / "meet"
    path.write_text('{"hosts": ["127.0.0.1"], "port": 1}')  # left by an earlier job that was killed
    common = {"SLIPSTREAM_RENDEZVOUS": f"file://{path}", "SLIPSTREAM_SECRET": SECRET}
    ranks = [start(tmp_path, common | {names[0]: str(r), names[1]: "3"}) for r in (2, 1, 0)]
    assert sorted(map(finish, ranks)) == ONE_HOST
    assert not path.exists()


def test_master_address(tmp_path: Path) -> None:
    """Like torchrun without its own store; the secret is a file each user has, made on first use."""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "3"}
    ranks = [start(tmp_path, common | {"RANK": str(r)}) for r in (2, 1, 0)]
    assert sorted(map(finish, ranks)) == ONE_HOST
    secret = tmp_path / ".config" / "slipstream" / "secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_a_rank_that_does_not_find_the_master_names_what_says_where_it_is(tmp_path: Path) -> None:
    port = str(free_port())
    common = {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2", "RANK": "1", "SLIPSTREAM_START_TIMEOUT": "0.2"}
    for setting in ({"MASTER_PORT": port}, {"MASTER_PORT": "1", "SLIPSTREAM_PORT": port}):
        process = start(tmp_path, common | setting)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 1
        assert f"cannot reach the store at 127.0.0.1 port {port}" in err
        assert f"MASTER_ADDR and {list(setting)[-1]} must name the host of rank 0" in err
        assert "Rank 1 has tried for 0.2 s" in err


def test_open_mpi_on_one_host(tmp_path: Path) -> None:
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    ranks = []
    for r in (2, 1, 0):
        values = {f"OMPI_COMM_WORLD_{n}": str(v) for n, v in zip(names, (r, 3, r, 3), strict=True)}
        ranks.append(start(tmp_path, values | {"PMIX_NAMESPACE": "job.7@1"}))
    assert sorted(map(finish, ranks)) == ONE_HOST


def test_open_mpi_on_several_hosts_says_what_it_needs(tmp_path: Path) -> None:
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    values = {f"OMPI_COMM_WORLD_{n}": str(v) for n, v in zip(names, (0, 4, 0, 2), strict=True)}
    process = start(tmp_path, values)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "SLIPSTREAM_RENDEZVOUS" in err
    assert "MASTER_ADDR" in err


def test_slurm(tmp_path: Path) -> None:
    common = {
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_NUM_TASKS": "3",
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_ID": "0",
        "SLIPSTREAM_PORT": str(free_port()),
    }
    ranks = [start(tmp_path, common | {"SLURM_PROCID": str(r), "SLURM_LOCALID": str(r)}) for r in (2, 1, 0)]
    assert sorted(map(finish, ranks)) == ONE_HOST


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_the_store_of_torchrun(tmp_path: Path) -> None:
    import torch.distributed

    agent = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(agent.port), "WORLD_SIZE": "2"}
    common |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "x"}
    ranks = [start(tmp_path, common | {"RANK": str(r)}) for r in (1, 0)]
    assert sorted(map(finish, ranks)) == [[0, 2, 0, 2, 0, 1], [1, 2, 1, 2, 0, 1]]


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_two_jobs_at_one_torch_store(tmp_path: Path) -> None:
    """A second rank 1 is refused while the job lives; afterwards the same store brings another job together."""
    import torch.distributed

    agent = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(agent.port), "WORLD_SIZE": "2"}
    env |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "SLIPSTREAM_START_TIMEOUT": "120"}
    job = [started(tmp_path, env | {"RANK": str(r)}, f"A{r}") for r in range(2)]
    first = [said(process) for process in job]
    other = started(tmp_path, env | {"RANK": "1", "SLIPSTREAM_START_TIMEOUT": "10"}, "B1")
    text = said(other)
    ended(other, *job)
    assert all(one.endswith("A0 A1") for one in first), first
    assert text.startswith("Refused two processes claim to be rank 1 of this job: "), text
    assert all(f"process {process.pid} on host " in text for process in (job[1], other)), text
    # B1 has counted rank 1's starts; a start of the agent has keys of its own, as with torchrun.
    env["TORCHELASTIC_RESTART_COUNT"] = "1"
    again = [started(tmp_path, env | {"RANK": str(r)}, f"C{r}") for r in range(2)]
    second = [said(process) for process in again]
    ended(*again)
    assert all(one.endswith("C0 C1") for one in second), second


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_a_job_starts_again_at_the_same_torch_store(tmp_path: Path) -> None:
    import torch.distributed

    agent = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(agent.port), "WORLD_SIZE": "2"}
    env |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "SLIPSTREAM_START_TIMEOUT": "120"}
    for name in "AB":
        job = [started(tmp_path, env | {"RANK": str(r)}, f"{name}{r}") for r in range(2)]
        texts = [said(process) for process in job]
        ended(*job)
        assert all(text.endswith(f"{name}0 {name}1") for text in texts), texts


def test_hosts_are_told_apart(tmp_path: Path) -> None:
    common = {
        "SLIPSTREAM_RENDEZVOUS": f"file://{tmp_path}/meet",
        "SLIPSTREAM_SECRET": SECRET,
        "WORLD_SIZE": "3",
    }
    ranks = [start(tmp_path, common | {"RANK": str(r), "SLIPSTREAM_HOST_ID": "abb"[r]}) for r in (2, 1, 0)]
    assert sorted(map(finish, ranks)) == [[0, 3, 0, 1, 0, 2], [1, 3, 0, 2, 1, 2], [2, 3, 1, 2, 0, 1]]


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    common = {
        "SLIPSTREAM_RENDEZVOUS": f"file://{tmp_path}/meet",
        "SLIPSTREAM_SECRET": SECRET,
        "WORLD_SIZE": "3",
    }
    common["SLIPSTREAM_START_TIMEOUT"] = "6"
    ranks = [start(tmp_path, common | {"RANK": str(r)}) for r in (0, 2)]
    for process in ranks:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "Timeout" in err
        assert "rank 1 of 3 did not come within 6 s: every rank must start and call slipstream.init" in err
        assert "epoch/" not in err
        assert "--start-timeout SECONDS" in err


def test_a_rank_0_that_ends_with_the_store_tells_whom_it_has_waited_for(tmp_path: Path) -> None:
    common = {
        "SLIPSTREAM_RENDEZVOUS": f"file://{tmp_path}/meet",
        "SLIPSTREAM_SECRET": SECRET,
        "WORLD_SIZE": "3",
    }
    script = "import sys, os; sys.excepthook = lambda *_: os._exit(1)\n" + JOIN
    other = start(tmp_path, common | {"RANK": "2", "SLIPSTREAM_START_TIMEOUT": "60"})
    first = start(tmp_path, common | {"RANK": "0", "SLIPSTREAM_START_TIMEOUT": "5"}, script=script)
    _, err = other.communicate(timeout=60)
    first.communicate(timeout=60)
    assert first.returncode == 1
    assert "gave up: Timeout: rank 1 of 3 did not come within 5 s" in err, err


def test_another_secret_is_refused(tmp_path: Path) -> None:
    common = {"SLIPSTREAM_RENDEZVOUS": f"file://{tmp_path}/meet", "WORLD_SIZE": "2"}
    first = start(tmp_path, common | {"RANK": "0", "SLIPSTREAM_SECRET": SECRET})
    other = start(tmp_path, common | {"RANK": "1", "SLIPSTREAM_SECRET": "cd" * 32})
    _, err = other.communicate(timeout=60)
    assert other.returncode == 1
    assert "Refused" in err
    assert "SLIPSTREAM_SECRET" in err
    first.terminate()  # it waits for rank 1
    first.communicate(timeout=60)


def test_different_sizes_are_a_mismatch(tmp_path: Path) -> None:
    common = {"SLIPSTREAM_RENDEZVOUS": f"file://{tmp_path}/meet", "SLIPSTREAM_SECRET": SECRET}
    small = start(tmp_path, common | {"RANK": "0", "WORLD_SIZE": "2"})
    large = start(tmp_path, common | {"RANK": "1", "WORLD_SIZE": "3"})
    _, err = small.communicate(timeout=60)
    assert small.returncode == 1
    said = "Mismatch: the ranks were started with different sizes: 2 on rank 0; 3 on rank 1: SLIPSTREAM_SIZE"
    assert said in err
    _, err = large.communicate(timeout=60)
    assert large.returncode == 1
    assert f"gave up: {said}" in err


def test_a_rank_of_another_job_is_refused_with_both_names_and_ends_nobody_else(tmp_path: Path) -> None:
    common = {
        "SLIPSTREAM_RENDEZVOUS": f"file://{tmp_path}/meet",
        "SLIPSTREAM_SECRET": SECRET,
        "SLIPSTREAM_JOB": "a",
        "WORLD_SIZE": "3",
    }
    early = [start(tmp_path, common | {"RANK": str(r)}) for r in (0, 1)]
    stray = start(tmp_path, common | {"RANK": "1", "SLIPSTREAM_JOB": "b"})
    _, err = stray.communicate(timeout=60)
    assert stray.returncode == 1
    wrote = f"the rank 0 that wrote {tmp_path}/meet"
    said = f"Refused: SLIPSTREAM_JOB differs: it is 'a' on {wrote}, and 'b' on this rank 1:"
    assert said in err
    late = start(tmp_path, common | {"RANK": "2"})
    assert sorted(finish(process)[0] for process in (*early, late)) == [0, 1, 2]


def test_rank_0_hears_of_a_rank_of_another_job(tmp_path: Path) -> None:
    common = {
        "SLIPSTREAM_RENDEZVOUS": f"file://{tmp_path}/meet",
        "SLIPSTREAM_SECRET": SECRET,
        "WORLD_SIZE": "2",
    }
    first = start(tmp_path, common | {"RANK": "0", "SLIPSTREAM_START_TIMEOUT": "15"})
    other = start(tmp_path, common | {"RANK": "1", "SLIPSTREAM_JOB": "b"})
    other.communicate(timeout=60)
    _, err = first.communicate(timeout=60)
    assert "it belongs to another job: compare SLIPSTREAM_JOB; it says that it is rank 1" in err
    assert "Timeout: rank 1 of 2 did not come within 15 s: " in err
    assert "with the same SLIPSTREAM_JOB; " in err


@given(hosts=st.lists(st.sampled_from("abcd"), min_size=1, max_size=16))
def test_layout_numbers_every_rank_once(hosts: list[str]) -> None:
    layouts = [local_layout(hosts, rank) for rank in range(len(hosts))]
    for host in set(hosts):
        here = [layout for layout, other in zip(layouts, hosts, strict=True) if other == host]
        assert [layout.local_rank for layout in here] == list(range(len(here)))
        assert {layout.local_size for layout in here} == {len(here)}
    for local_rank in {layout.local_rank for layout in layouts}:
        across = [layout for layout in layouts if layout.local_rank == local_rank]
        assert [layout.cross_rank for layout in across] == list(range(len(across)))
        assert {layout.cross_size for layout in across} == {len(across)}


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", ["node1"]),
        ("gpu[01-03,7],login", ["gpu01", "gpu02", "gpu03", "gpu7", "login"]),
        ("r[1-2]n[09-10]", ["r1n09", "r1n10", "r2n09", "r2n10"]),
        ("a,b-c.d,e[5]x", ["a", "b-c.d", "e5x"]),
    ],
)
def test_nodelist(text: str, hosts: list[str]) -> None:
    assert expand_nodelist(text) == hosts


@pytest.mark.parametrize("text", ["", "a[1-", "a[3-1]", "a b", "a[-]"])
def test_bad_nodelist(text: str) -> None:
    with pytest.raises(ValueError, match="SLURM_STEP_NODELIST"):
        expand_nodelist(text)


def test_slurm_ports_are_below_the_ephemeral_ones() -> None:
    assert all(10000 <= slurm_port({"SLURM_JOB_ID": str(job)}) < 30000 for job in range(0, 10**6, 997))


@pytest.mark.parametrize(
    ("environ", "source", "rank"),
    [
        ({}, "none", 0),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, "none", 0),  # a batch script, not a step
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_STEP_NODELIST": "a"}, "slurm", 3),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "6"},
            "env",
            1,
        ),
        ({"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "6"}, "openmpi", 5),
    ],
)
def test_which_source_counts(environ: dict[str, str], source: str, rank: int) -> None:
    found = find_placement(Settings(), environ)
    assert (found.source, found.rank) == (source, rank)


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({"RANK": "1"}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "2"}, "RANK"),  # as PyTorch's test classes leave it
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK"),
    ],
)
def test_a_broken_environment_is_named(environ: dict[str, str], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        find_placement(Settings(), environ)
    told = find_placement(Settings(), environ, 1, 4)
    assert (told.source, told.rank, told.size) == ("arguments", 1, 4)


def test_secret_files_must_be_private(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n")
    settings = Settings(secret_file=str(path))
    path.chmod(0o640)
    with pytest.raises(Refused, match="chmod 600"):
        find_secret(settings)
    path.chmod(0o600)
    assert find_secret(settings) == bytes.fromhex(SECRET)
    path.write_text("short")
    with pytest.raises(Refused, match="hexadecimal"):
        find_secret(settings)


def test_a_home_that_cannot_be_written_names_the_variable_and_its_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    text = r"cannot make the secret .*; set SLIPSTREAM_SECRET to 32 or more hexadecimal digits, the same on all ranks"
    with pytest.raises(Refused, match=text):
        find_secret(Settings())


def test_a_directory_of_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(Refused):
        private_directory(tmp_path / "open")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(Refused):
        private_directory(tmp_path / "link")


GOOD = {
    "SLIPSTREAM_STORE": "[::1]:80",
    "SLIPSTREAM_SECRET": SECRET,
    "SLIPSTREAM_LANES": "64",
    "SLIPSTREAM_TRANSPORT": "tcp",
    "SLIPSTREAM_HEARTBEAT": "0.5",
    "SLIPSTREAM_RENDEZVOUS": "file:///a/b",
}


def test_settings() -> None:
    found = Settings.from_environment(GOOD | {"OTHER": "x"})
    assert (found.store, found.lanes, found.transport) == (("::1", 80), 64, "tcp")
    assert (found.secret, found.heartbeat, found.rendezvous) == (bytes.fromhex(SECRET), 0.5, "/a/b")
    assert SECRET not in repr(found)
    assert repr(found.secret) not in repr(found)
    assert all(variables().values())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLIPSTREAM_LANE", "2"),
        ("SLIPSTREAM_LANES", "0"),
        ("SLIPSTREAM_LANES", "2x"),
        ("SLIPSTREAM_LANES", ""),
        ("SLIPSTREAM_TRANSPORT", "TCP"),
        ("SLIPSTREAM_HEARTBEAT", "nan"),
        ("SLIPSTREAM_TIMEOUT", "-1"),
        ("SLIPSTREAM_STORE", "host"),
        ("SLIPSTREAM_STORE", "host:0"),
        ("SLIPSTREAM_SECRET", "ab" * 15),
        ("SLIPSTREAM_RENDEZVOUS", "http://x"),
        ("SLIPSTREAM_RANK", "1"),
    ],
)
def test_malformed_settings_are_named(name: str, value: str) -> None:
    expected = "SLIPSTREAM_SIZE" if name == "SLIPSTREAM_RANK" else name
    with pytest.raises(ValueError, match=expected) as caught:
        Settings.from_environment({name: value})
    if name == "SLIPSTREAM_SECRET":
        assert value not in str(caught.value)


STAY = """
import os, sys
from slipstream.base.errors import SlipstreamError
from slipstream.base.settings import Settings
from slipstream.comm.rendezvous.join import exchange, join
try:
    member = join(Settings.from_environment())
    print("met", member.epoch, sys.argv[1], *(text.decode() for text in exchange(member, sys.argv[1].encode())))
    member.close()
except SlipstreamError as error:
    print(type(error).__name__, error)
sys.stdout.flush()
sys.stdin.read()
"""


def started(tmp_path: Path, extra: Mapping[str, str], who: str) -> subprocess.Popen[str]:
    """A rank that says what became of its join, and then stays until its standard input is closed."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", STAY, who]
    return subprocess.Popen(
        command,
        env=environment(tmp_path, extra),
        stdin=pipe,
        stdout=pipe,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def ended(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        process.communicate(timeout=60)


def meeting_points(tmp_path: Path) -> list[dict[str, str]]:
    common = {"SLIPSTREAM_SECRET": SECRET, "WORLD_SIZE": "2", "SLIPSTREAM_START_TIMEOUT": "30"}
    return [
        common | {"SLIPSTREAM_RENDEZVOUS": f"file://{tmp_path}/meet"},
        common | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())},
    ]


@pytest.mark.parametrize("way", [0, 1], ids=["file", "port"])
def test_two_jobs_at_one_meeting_point_are_refused(tmp_path: Path, way: int) -> None:
    """Nobody can tell whose rank 1 comes next: both fail, and the texts name both processes."""
    env = meeting_points(tmp_path)[way]
    one = started(tmp_path, env | {"RANK": "0"}, "A0")
    while way == 0 and not (tmp_path / "meet").exists():
        assert one.poll() is None
    if way == 1:  # it listens
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", int(env["MASTER_PORT"]))) == 0:
                    break
    other = started(tmp_path, env | {"RANK": "0"}, "B0")
    texts = [said(one), said(other)]
    ended(one, other)
    for text in texts:
        assert text.startswith("Refused two processes claim to be rank 0 of this job: "), text
        assert all(f"process {process.pid} on host " in text for process in (one, other)), text


@pytest.mark.parametrize("way", [0, 1], ids=["file", "port"])
def test_a_second_rank_1_is_refused_when_the_first_has_met(tmp_path: Path, way: int) -> None:
    env = meeting_points(tmp_path)[way]
    job = [started(tmp_path, env | {"RANK": str(r)}, f"A{r}") for r in range(2)]
    met = [said(process) for process in job]
    other = started(tmp_path, env | {"RANK": "1"}, "B1")
    text = said(other)
    ended(other, *job)
    assert [one.rpartition("A0 A1")[1] for one in met] == ["A0 A1", "A0 A1"], met
    assert met[0].split()[1] == met[1].split()[1] != "1"  # the start's nonce
    assert text.startswith("Refused two processes claim to be rank 1 of this job: "), text
    assert all(f"process {process.pid} on host " in text for process in (job[1], other)), text


@pytest.mark.parametrize("way", [0, 1], ids=["file", "port"])
def test_a_job_starts_again_at_the_same_meeting_point(tmp_path: Path, way: int) -> None:
    env = meeting_points(tmp_path)[way]
    nonces = set()
    for _ in range(2):
        job = [started(tmp_path, env | {"RANK": str(r)}, f"A{r}") for r in range(2)]
        nonces |= {said(process).split()[1] for process in job}
        ended(*job)
    assert len(nonces) == 2
