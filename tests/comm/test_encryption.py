"""Encrypted jobs: right values whatever is done on the way, nothing to read there, and no half-encrypted job."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from comm import ranks
from slipstream.base.errors import Refused, SlipstreamError
from slipstream.comm.rendezvous import handshake
from slipstream.comm.rendezvous.store import Store
from slipstream.comm.rendezvous.store_server import StoreServer

SCRIPT = Path(__file__).with_name("encryption_rank.py")
SECRET = b"k" * 32
ENCRYPT = {"SLIPSTREAM_ENCRYPT": "1", "SLIPSTREAM_HEARTBEAT": "20"}


def numbers(outputs: list[str], word: str) -> list[int]:
    return [int(output.rsplit(f"{word} ", 1)[1].split()[0]) for output in outputs]


def run(n: int, how: str, env: dict[str, str], transport: str = "tcp") -> list[str]:
    encrypt = env.get("SLIPSTREAM_ENCRYPT") == "1"
    return ranks.run(SCRIPT, n, transport=transport, args=[how, "12"], env=env, encrypt=encrypt)


@pytest.mark.parametrize(
    ("n", "lanes", "threads"), [(2, "2", "0"), (3, "1", "0"), (4, "4", "0"), (2, "3", "2")]
)
def test_values_and_nothing_to_read(n: int, lanes: str, threads: str) -> None:
    env = {**ENCRYPT, "SLIPSTREAM_LANES": lanes, "SLIPSTREAM_THREADS": threads}
    outputs = run(n, "listen", env)
    assert sum(numbers(outputs, "heard")) > 10 << 20
    assert numbers(outputs, "found") == [0] * n
    assert numbers(outputs, "damaged") == [0] * n


def test_what_is_not_encrypted_can_be_read() -> None:
    """Else the test above would show nothing."""
    assert sum(numbers(run(2, "plain", {}), "found")) > 0


def test_between_hosts_alone() -> None:
    outputs = run(4, "listen", ENCRYPT, transport="mixed")
    assert numbers(outputs, "found") == [0] * 4


@pytest.mark.parametrize("how", ["bit", "start", "swap", "cut", "repeat"])
def test_what_is_changed_on_the_way_is_never_believed(how: str) -> None:
    outputs = run(2, how, ENCRYPT)
    assert sum(numbers(outputs, "damaged")) > 0
    assert any("was damaged or tampered with on the way" in output for output in outputs)


@pytest.mark.parametrize(("served", "odd"), [(True, 1), (False, 1), (True, 0), (False, 0)])
def test_ranks_that_differ_all_get_the_error(served: bool, odd: int) -> None:
    """Whoever serves the store, and whichever rank is the one that differs from it."""
    environments = {r: {"SLIPSTREAM_ENCRYPT": str(int(served != (r == odd)))} for r in range(3)}
    with ranks.started(
        SCRIPT, 3, transport="tcp", args=["listen", "0"], env={}, encrypt=served, envs=environments
    ) as job:
        for rank in job:
            rank.process.wait(100)
        for rank in job:
            assert rank.process.returncode != 0
            assert "SLIPSTREAM_ENCRYPT must be the same on all ranks" in rank.text(), rank.text()
            assert f"rank {odd}" in rank.text() or rank.number == odd


# ---- the store


class Tap:
    """A relay to the store that keeps what passes, and changes one byte at ``flip`` of what the server says."""

    def __init__(self, target: tuple[str, int], flip: int = -1) -> None:
        self.target, self.flip = target, flip
        self.seen = bytearray()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()[:2]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near = self.listener.accept()[0]
            except OSError:
                return
            far = socket.create_connection(self.target)
            for one, other, back in ((near, far, False), (far, near, True)):
                threading.Thread(target=self._carry, args=(one, other, back), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, back: bool) -> None:
        passed = 0
        try:
            while data := bytearray(source.recv(1 << 16)):
                self.seen += data
                if back and passed <= self.flip < passed + len(data):
                    data[self.flip - passed] ^= 1
                passed += len(data)
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for sock in (source, sink):
                sock.close()


@contextmanager
def store_server(encrypt: bool | None) -> Iterator[StoreServer]:
    server = StoreServer("127.0.0.1", SECRET, "job", encrypt=encrypt)
    try:
        yield server
    finally:
        server.close()


def test_the_stores_connections_are_encrypted() -> None:
    mark = b"<the text that nobody may read>"
    for encrypt in (True, False):
        with store_server(encrypt) as server:
            tap = Tap(server.address)
            store = Store(*tap.address, SECRET, "job", 20, encrypt=encrypt)
            for size in (1, 1000, 300_000):
                store.set(f"key/{size}", mark * size)
                assert store.get(f"key/{size}") == mark * size
            assert store.add("count", 5) == 5
            store.close()
            assert (mark in tap.seen) == (not encrypt)
            assert (b"count" in tap.seen) == (not encrypt)


def test_many_clients_of_an_encrypted_store() -> None:
    n = 24
    with store_server(True) as server, ThreadPoolExecutor(n) as pool:

        def one(rank: int) -> list[bytes]:
            store = Store(*server.address, SECRET, "job", 20, rank=rank, encrypt=True)
            store.set(f"all/{rank}", b"%d" % rank * 20_000)
            values = store.gather("all", n)
            store.close()
            return values

        expected = [b"%d" % rank * 20_000 for rank in range(n)]
        assert all(values == expected for values in pool.map(one, range(n)))


def test_an_answer_that_was_changed_is_not_believed() -> None:
    with store_server(True) as server:
        first = Store(*server.address, SECRET, "job", 20, encrypt=True)
        first.set("key", b"v" * 1000)
        tap = Tap(server.address, flip=handshake.NONCE_SIZE + handshake.MAC_SIZE + 1 + 50)
        store = Store(*tap.address, SECRET, "job", 20, encrypt=True)
        with pytest.raises(SlipstreamError):
            store.get("key")
        store.close()
        assert first.get("key") == b"v" * 1000
        first.close()


def test_a_request_that_was_changed_is_not_believed() -> None:
    with store_server(True) as server:
        sock = socket.create_connection(server.address, timeout=20)
        hello = handshake.Hello(
            handshake.PURPOSE_STORE, handshake.job_id("job"), nonce=secrets.token_bytes(32), encrypt=True
        )
        records = handshake.call(sock, SECRET, hello)
        assert records is not None
        sealed = bytearray(records.seal(b"\1" + b"\0" * 50))
        sealed[-1] ^= 1
        sock.sendall(sealed)
        assert sock.recv(1) == b""
        sock.close()


@pytest.mark.parametrize("encrypt", [True, False])
def test_a_store_that_differs_refuses_with_the_cure(encrypt: bool) -> None:
    with store_server(encrypt) as server:
        with pytest.raises(Refused, match="SLIPSTREAM_ENCRYPT must be the same on all ranks"):
            Store(*server.address, SECRET, "job", 20, encrypt=not encrypt)
        with pytest.raises(Refused, match="secrets differ"):
            Store(*server.address, b"x" * 32, "job", 20, encrypt=not encrypt)
        Store(*server.address, SECRET, "job", 20, encrypt=encrypt).close()


def test_a_store_may_follow_its_callers() -> None:
    with store_server(None) as server:
        for encrypt in (True, False):
            store = Store(*server.address, SECRET, "job", 20, encrypt=encrypt)
            assert store.add("count", 1) == 1 + (not encrypt)
            store.close()


# ---- slipstream run


@pytest.mark.parametrize("arguments", [["--encrypt"], ["-e", "SLIPSTREAM_ENCRYPT=1"], []])
def test_run_encrypts(arguments: list[str]) -> None:
    program = (
        "import numpy, slipstream; slipstream.init(); slipstream.all_reduce(numpy.ones(100000)); "
        "print('encrypted:', [link.encrypted for link in slipstream.link_statistics()]); slipstream.barrier()"
    )
    command = ["run", "-np", "2", "--transport", "tcp", *arguments, "-v", "--", sys.executable, "-c", program]
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLIPSTREAM_")}
    done = subprocess.run(
        [sys.executable, "-m", "slipstream", *command], env=env, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"encrypted: [{bool(arguments)}]") == 2
    assert f"{'' if arguments else 'not '}encrypted" in done.stderr
