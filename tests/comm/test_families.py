"""Hosts with IPv6 alone, or with both families; machines with one host id; listeners and addresses that are chosen."""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipstream.base.settings import Settings
from slipstream.comm.rendezvous import machines
from slipstream.comm.rendezvous.store import Store
from slipstream.comm.rendezvous.store_server import StoreServer
from slipstream.launch.environment import passed_on

RANK = """
import json, os, sys
import numpy as np
import slipstream

def listening():
    inodes = set()
    for fd in range(256):
        try:
            inodes.add(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            pass
    found = set()
    for name in ("tcp", "tcp6"):
        for line in open(f"/proc/net/{name}").read().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
                found.add(words[1].split(":")[0])
    return sorted(found)

slipstream.init()
total = slipstream.all_reduce(np.full(1 << 18, slipstream.rank() + 1, np.float32))
assert (total == sum(range(1, slipstream.size() + 1))).all()
ends = [lane.remote for link in slipstream.link_statistics() for lane in link.lanes if lane.remote]
slipstream.barrier()
print(json.dumps({"rank": slipstream.rank(), "ends": ends, "listening": listening()}), flush=True)
slipstream.barrier()
slipstream.shutdown()
"""

TORCH = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.full((1 << 16,), dist.get_rank() + 1.0)
dist.all_reduce(total)
assert (total == 3).all()
print(type(dist.group.WORLD).__name__, total[0].item())
"""

needs_lab = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("tc") is None, reason="a lab needs root and iproute2"
)


def lines(text: str) -> dict[int, dict[str, Any]]:
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return {one["rank"]: one for one in found}


def launched(lab: Any, n: int, *more: str, **env: str) -> tuple[dict[int, dict[str, Any]], str]:
    command = [sys.executable, "-m", "slipstream", "run", "-np", str(n), "--no-prefix", *more]
    done = lab.run(
        "h1",
        [*command, "--", sys.executable, "-c", RANK],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return lines(done.stdout), done.stderr


def by_hand(lab: Any, meeting: Callable[[int], dict[str, str]]) -> dict[int, dict[str, Any]]:
    """One rank a host, without a launcher; ``meeting``: what tells a rank where they meet, and more."""
    secret = secrets.token_hex(32)
    processes = []
    for rank, host in enumerate(lab.hosts):
        own = {"RANK": str(rank), "SIZE": str(len(lab.hosts)), "SECRET": secret}
        env = {f"SLIPSTREAM_{name}": value for name, value in own.items()} | meeting(rank)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes.append(lab.popen(host, [sys.executable, "-c", RANK], env=env, **pipes))
    found = {}
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        found.update(lines(out))
    return found


@needs_lab
@pytest.mark.parametrize("family", ["ipv6", "both"])
def test_a_job_over_ipv6(family: str) -> None:
    from slipstream.lab import Lab

    with Lab(3, family=family) as lab:
        found, _ = launched(lab, 3)
    assert sorted(found) == [0, 1, 2]
    if family == "ipv6":
        assert all(end.startswith("[fd77::") for one in found.values() for end in one["ends"])
    assert found[0]["ends"]


def in_lab_run(flag: str, *words: str) -> str:
    """What `slipstream lab run` with that flag prints, of `slipstream run` with these words on a host for each rank."""
    program = [sys.executable, "-m", "slipstream"]
    hosts = ["--hosts", "2", "--reducers", "1"]
    start = ["run", "-np", "2", "--start-timeout", "200"]
    command = [*program, "lab", "run", "-q", *hosts, flag, "--", *program, *start, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_lab
@pytest.mark.parametrize(
    ("flag", "families"), [("--ipv6-only", {"inet6"}), ("--ipv6", {"inet", "inet6"}), ("-q", {"inet"})]
)
def test_a_lab_has_the_families_of_its_flag(flag: str, families: set[str]) -> None:
    found = in_lab_run(flag, "--no-prefix", "--", "ip", "-oneline", "address", "show", "scope", "global")
    assert {line.split()[2] for line in found.splitlines()} == families


@needs_lab
def test_torch_over_ipv6() -> None:
    pytest.importorskip("torch")
    found = in_lab_run("--ipv6-only", "--no-prefix", "--replace", "gloo", "--", sys.executable, "-c", TORCH)
    assert found.splitlines() == ["SlipstreamGroup 3.0"] * 2


@needs_lab
def test_reducers_over_ipv6() -> None:
    """The ranks fail if the reducer takes no part."""
    rank = str(Path(__file__).parents[1] / "reducer" / "job_rank.py")
    assert in_lab_run("--ipv6-only", "--reducers", "auto", "--", sys.executable, rank, "asynchronous") == ""


@needs_lab
@pytest.mark.parametrize("way", ["file", "master"])
def test_ranks_meet_over_ipv6_without_a_launcher(way: str, tmp_path: Path) -> None:
    from slipstream.lab import Lab

    meeting = {
        "file": {"SLIPSTREAM_RENDEZVOUS": f"file://{tmp_path / 'meet'}"},
        "master": {"MASTER_ADDR": "h1", "MASTER_PORT": "29400"},  # of the lab's host: nobody else is there
    }[way]
    with Lab(2, family="ipv6") as lab:
        found = by_hand(lab, lambda rank: meeting)
    assert all(end.startswith("[fd77::") for one in found.values() for end in one["ends"])


@needs_lab
def test_machines_with_one_host_id_use_tcp() -> None:
    from slipstream.lab import Lab

    with Lab(2, slots=2) as lab:
        found, said = launched(lab, 4, SLIPSTREAM_HOST_ID="a-clone")
    assert found[0]["ends"]
    assert "has the same host id as rank 2, rank 3 but is not on one machine" in said


def test_who_is_here_is_found_out() -> None:
    # Threads of one process reach each other's sockets, whatever their marks say.
    barrier, texts = threading.Barrier(2), {}

    def exchange(rank: int) -> Callable[[bytes], list[bytes]]:
        def gather(own: bytes) -> list[bytes]:
            texts[rank] = own
            barrier.wait()
            found = [texts[0], texts[1]]
            barrier.wait()
            return found

        return gather

    found: dict[int, list[str]] = {}
    other = threading.Thread(target=lambda: found.update({1: machines.told_apart("aa", 1, exchange(1))}))
    other.start()
    found[0] = machines.told_apart("aa", 0, exchange(0))
    other.join()
    assert found == {0: ["a", "a"], 1: ["a", "a"]}
    assert machines.doubtful("aab", "xxy") is False
    assert machines.doubtful("aba", "xyz") is True


def test_where_a_clone_is_not_here(caplog: pytest.LogCaptureFixture) -> None:
    answers = iter([[b'"nobody-binds-this"', b'"here"'], [b"0", b"1"]])
    with caplog.at_level(logging.WARNING):
        found = machines.told_apart(["a", "a"], 1, lambda own: next(answers))
    assert found == ["a/0", "a/1"]
    assert "rank 1 has the same host id as rank 0" in caplog.text


@needs_lab
def test_listeners_bind_the_interfaces_that_are_named(tmp_path: Path) -> None:
    from slipstream.lab import Lab

    def meeting(rank: int) -> dict[str, str]:
        return {"SLIPSTREAM_RENDEZVOUS": f"file://{tmp_path / 'meet'}", "SLIPSTREAM_INTERFACE": "eth0,eth1"}

    with Lab(2, interfaces=2) as lab:
        found = by_hand(lab, meeting)
    assert found[0]["listening"] == ["01004D0A", "01004E0A"]  # 10.77.0.1 and 10.78.0.1
    assert found[1]["listening"] == ["02004D0A", "02004E0A"]


@needs_lab
def test_the_address_that_others_are_told_may_be_set(tmp_path: Path) -> None:
    from slipstream.lab import Lab

    def meeting(rank: int) -> dict[str, str]:
        rendezvous = {"SLIPSTREAM_RENDEZVOUS": f"file://{tmp_path / 'meet'}"}
        return {**rendezvous, "SLIPSTREAM_ADDRESS": f"10.77.1.{rank + 1}"}

    with Lab(2) as lab:
        for rank, host in enumerate(
            lab.hosts
        ):  # as a machine that translates addresses does: others know them alone
            lab.run(host, ["ip", "addr", "add", f"10.77.1.{rank + 1}/32", "dev", "lo"])
            there = f"10.77.1.{2 - rank}"
            lab.run(host, ["ip", "route", "add", there, "via", lab.address(lab.hosts[1 - rank])])
        found = by_hand(lab, meeting)
    assert all(end.startswith("10.77.1.2:") for end in found[0]["ends"])


def test_an_address_is_of_one_host() -> None:
    assert Settings.from_environment({"SLIPSTREAM_ADDRESS": "10.0.0.1,fd00::1"}).address == (
        "10.0.0.1",
        "fd00::1",
    )
    with pytest.raises(ValueError, match=r"^SLIPSTREAM_ADDRESS: expected numeric addresses"):
        Settings.from_environment({"SLIPSTREAM_ADDRESS": "h1"})
    assert passed_on({"SLIPSTREAM_ADDRESS": "10.0.0.1"}, remote=True) == {}


def test_a_store_listens_at_several_addresses() -> None:
    server = StoreServer(["127.0.0.1", "127.0.0.2"], b"s" * 32, "job")
    try:
        for address in ("127.0.0.1", "127.0.0.2"):
            store = Store(address, server.address[1], b"s" * 32, "job", 10)
            store.set("key", address.encode())
            assert store.get("key", 10) == address.encode()
            store.close()
    finally:
        server.close()
