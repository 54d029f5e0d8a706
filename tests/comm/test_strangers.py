"""Strangers at every listener of a running job: they are refused and logged, and the job does not notice."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import re
import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from comm import ranks
from slipstream.comm.rendezvous import handshake

SCRIPT = Path(__file__).with_name("steady_rank.py")
N = 3
LINK, LANE, KNOCK, SHM = 2, 3, 4, 5
CHALLENGE = handshake.NONCE_SIZE + handshake.MAC_SIZE


@dataclass(frozen=True)
class Door:
    """A listener of the job, and what a genuine caller would say there."""

    name: str
    rank: int  # -1: the store
    family: socket.AddressFamily
    address: tuple[str, int] | str
    job: str
    purpose: int
    harmless: int  # a purpose whose genuine handshake changes nothing
    caller: int  # the rank that a caller claims to be

    def open(self) -> socket.socket:
        sock = socket.socket(self.family, socket.SOCK_STREAM)
        sock.settimeout(20)
        sock.connect(self.address)
        return sock

    def hello(self, **changes: object) -> bytes:
        values: dict[str, object] = {
            "purpose": self.purpose,
            "job": handshake.job_id(self.job),
            "rank": self.caller,
            "target": max(self.rank, 0),
            "nonce": os.urandom(handshake.NONCE_SIZE),
        }
        return handshake.Hello(**{**values, **changes}).pack()  # type: ignore[arg-type]


def until_closed(sock: socket.socket) -> bytes:
    """What the server still says before it hangs up; TimeoutError if it does not."""
    said = b""
    with contextlib.suppress(ConnectionError):
        while data := sock.recv(4096):
            said += data
    return said


def speak(door: Door, *messages: bytes) -> bytes:
    """Says all that at once, and nothing more; returns the answer. AssertionError if that was an acceptance."""
    with door.open() as sock:
        with contextlib.suppress(OSError):  # it may hang up in the middle
            for message in messages:
                sock.sendall(message)
            sock.shutdown(socket.SHUT_WR)
        answer = until_closed(sock)
    assert len(answer) <= CHALLENGE, f"{door.name} says {len(answer)} bytes to a stranger"
    return answer


def random_bytes(door: Door, rng: random.Random) -> None:
    for _ in range(150):
        assert speak(door, rng.randbytes(rng.randrange(1, 400))) == b""
    for _ in range(150):
        damaged = bytearray(door.hello())
        at = rng.randrange(28)  # magic, version, purpose, job, or the start of the rank
        damaged[at] ^= rng.randrange(1, 256)
        answer = speak(door, bytes(damaged), rng.randbytes(rng.randrange(200)))
        told = door.name == "store" and at in (4, 5) and answer == handshake.version_notice()
        assert not answer or told or at >= 6, f"{door.name} answers a wrong magic or version"


def wrong_macs(door: Door, rng: random.Random, refused: list[str]) -> None:
    for _ in range(40):
        with door.open() as sock:
            sock.sendall(door.hello())
            assert len(sock.recv(CHALLENGE, socket.MSG_WAITALL)) == CHALLENGE
            sock.sendall(rng.randbytes(handshake.MAC_SIZE))
            assert until_closed(sock) == b""
        refused.append(door.name)


def strangers_hellos(door: Door) -> None:
    """Another job, service, rank, protocol: silence and a close."""
    assert speak(door, door.hello(job=bytes(16))) == b""
    assert speak(door, door.hello(purpose=99)) == b""
    assert speak(door, door.hello(target=77)) == b""
    for other in {1, LINK, LANE, KNOCK, SHM} - {
        door.purpose,
        door.harmless,
        LANE if door.purpose == LINK else 0,
    }:
        assert speak(door, door.hello(purpose=other)) == b"", other
    if door.rank >= 0:
        assert speak(door, door.hello(rank=N)) == b""


def replays(door: Door, secret: bytes, refused: list[str]) -> None:
    """A genuine conversation, word for word again; and the server's own proof thrown back at it."""
    hello = door.hello(purpose=door.harmless)
    with door.open() as sock:
        sock.sendall(hello)
        challenge = sock.recv(CHALLENGE, socket.MSG_WAITALL)
        nonce, mac = challenge[: handshake.NONCE_SIZE], challenge[handshake.NONCE_SIZE :]
        assert mac == handshake.server_mac(secret, hello, nonce)
        proof = handshake.client_mac(secret, hello, nonce)
        sock.sendall(proof)
        assert sock.recv(1) == handshake.ACCEPTED  # so that the rest of this test means something
    for words in (proof, mac):
        with door.open() as sock:
            sock.sendall(hello)
            again = sock.recv(CHALLENGE, socket.MSG_WAITALL)
            assert len(again) == CHALLENGE
            assert again != challenge
            sock.sendall(words if words is proof else again[handshake.NONCE_SIZE :])
            assert until_closed(sock) == b""
        refused.append(door.name)
    assert len(speak(door, hello + proof)) == CHALLENGE
    refused.append(door.name)


def oversized(door: Door, rng: random.Random) -> None:
    """Much more than anybody wants to read, before and after a hello."""
    huge = rng.randbytes(1 << 20)
    assert speak(door, huge) == b""
    assert speak(door, b"\xff" * (1 << 20)) == b""
    assert len(speak(door, door.hello(), huge)) <= CHALLENGE
    lengths = struct.pack("<BIQ", 1, 0xFFFFFFFF, (1 << 64) - 1)
    assert len(speak(door, door.hello(), lengths * 100)) <= CHALLENGE


def connect_and_close(door: Door) -> None:
    for i in range(200):
        with door.open() as sock:
            if i % 2:  # with a reset
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def attack(door: Door, secret: bytes, seed: int, refused: list[str]) -> None:
    rng = random.Random(seed)
    wrong_macs(door, rng, refused)  # first: a flood's later lines are counted in the log, not shown
    replays(door, secret, refused)
    random_bytes(door, rng)
    strangers_hellos(door)
    oversized(door, rng)
    connect_and_close(door)


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def wait_for(what: str, true: Callable[[], bool], job: list[ranks.Rank]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        texts = "\n".join(f"--- rank {r.number}\n{r.text()[-3000:]}" for r in job)
        assert time.monotonic() < deadline, f"waiting for {what}\n{texts}"
        assert all(r.process.poll() is None for r in job), texts
        time.sleep(0.01)  # a poll of files that other processes write


def find_doors(job: list[ranks.Rank]) -> list[Door]:
    wait_for("the listeners", lambda: all('"tcp"' in r.text() for r in job), job)
    host, port = job[0].environment["SLIPSTREAM_STORE"].rsplit(":", 1)
    found = [Door("store", -1, socket.AF_INET, (host, int(port)), "job", 1, 1, handshake.NOBODY)]
    for rank in job:
        places = json.loads(next(line for line in rank.text().splitlines() if '"tcp"' in line))
        # A knock asks the lower rank to dial the higher one: they have a link, or make the one they need anyway.
        r, caller = rank.number, (rank.number + 1) % N
        for port in places["tcp"]:
            address = ("127.0.0.1", port)
            found.append(Door(f"tcp {r}", r, socket.AF_INET, address, places["job"], LINK, KNOCK, caller))
        for name in places["unix"]:
            abstract = "\0" + name[1:]
            found.append(Door(f"unix {r}", r, socket.AF_UNIX, abstract, places["job"], SHM, KNOCK, caller))
    return found


def count_refused(log: str) -> int:
    """Connections that a rank says it refused; it names the first of each kind and counts the others."""
    named = log.count("refused a connection from")
    return named + sum(int(n) for n in re.findall(r"refused (\d+) more such connections", log))


@pytest.mark.parametrize("transport", ["tcp", "shm"])
@pytest.mark.usefixtures("many_files")
def test_strangers_at_every_listener(
    transport: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "slipstream.store")
    refused: list[str] = []
    with ranks.started(SCRIPT, N, transport=transport, args=[str(tmp_path)]) as job:
        doors = find_doors(job)
        kind = {"tcp": socket.AF_INET, "shm": socket.AF_UNIX}[transport]
        assert [d.rank for d in doors if d.family == kind and d.rank >= 0] == list(range(N)), doors
        secret = bytes.fromhex(job[0].environment["SLIPSTREAM_SECRET"])
        for seed, door in enumerate(doors):
            attack(door, secret, seed, refused)
        with contextlib.ExitStack() as crowd:  # silent, and there while rank 2 meets the others
            for door in doors:
                for _ in range(200):
                    crowd.enter_context(door.open())
            (tmp_path / "all").touch()
            wait_for("all ranks", lambda: all("all meet" in r.text() for r in job), job)
            for seed, door in enumerate(doors):
                attack(door, secret, 100 + seed, refused)
        (tmp_path / "stop").touch()
        for rank in job:
            rank.process.wait(60)
        for rank in job:
            assert rank.process.returncode == 0, rank.text()[-3000:]
            assert "unharmed" in rank.text()
            logged = count_refused(rank.text())
            expected = sum(name.endswith(f" {rank.number}") for name in refused)
            assert expected > 0
            assert re.search(r"refused a connection from .*: does not know our secret", rank.text())
            assert logged >= expected, rank.text()[-3000:]
    assert any("does not know the secret" in line for line in caplog.messages)
