"""The key-value store: what it keeps, whom it refuses, and that nobody can hurt or block it."""

from __future__ import annotations

import contextlib
import http.server
import logging
import os
import queue
import re
import resource
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream.base.errors import PeerLost, Refused, SlipstreamError, Timeout
from slipstream.base.protocol import PROTOCOL, VERSIONS_DIFFER, package_version
from slipstream.comm.rendezvous import admission, handshake, requests
from slipstream.comm.rendezvous import server as connections
from slipstream.comm.rendezvous.questions import QuestionServer
from slipstream.comm.rendezvous.store import Store, _connect
from slipstream.comm.rendezvous.store_server import StoreServer
from slipstream.comm.rendezvous.waiting import says_who_is_late

SECRET = b"k" * 32


@pytest.fixture(scope="module")
def shared() -> Iterator[StoreServer]:
    server = StoreServer("127.0.0.1", SECRET, "job")
    yield server
    server.close()


@pytest.fixture
def server() -> Iterator[StoreServer]:
    server = StoreServer("127.0.0.1", SECRET, "job")
    yield server
    server.close()


def client(server: StoreServer, timeout: float = 20.0) -> Store:
    return Store(*server.address, SECRET, "job", timeout)


def raw(server: StoreServer) -> socket.socket:
    sock = socket.create_connection(server.address, timeout=20)
    sock.settimeout(20)
    return sock


def hello(**changes: object) -> handshake.Hello:
    values = {"purpose": handshake.PURPOSE_STORE, "job": handshake.job_id("job"), **changes}
    return handshake.Hello(**values)  # type: ignore[arg-type]


def closed(sock: socket.socket) -> bool:
    """Waits for the end of the stream; False if the server goes on talking."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def usable(server: StoreServer) -> None:
    store = client(server)
    store.set("alive", b"yes")
    assert store.get("alive") == b"yes"
    store.close()


def test_set_get_add_delete(server: StoreServer) -> None:
    one, two = client(server), client(server)
    one.set("key", b"\0value")
    assert two.get("key") == b"\0value"
    one.set("key", b"")
    assert two.get("key") == b""
    assert [one.add("n", 5), two.add("n", -7), one.add("n", 0)] == [5, -2, -2]
    assert two.get("n") == b"-2"
    one.set("a/1", b"")
    one.set("a/2", b"")
    assert two.delete_prefix("a/") == 2
    with pytest.raises(Timeout, match="a/1"):
        one.get("a/1", timeout=0)
    one.set("text", b"x")
    with pytest.raises(SlipstreamError, match="no number"):
        one.add("text", 1)
    usable(server)


def test_packets_are_as_small_as_every_path_carries(server: StoreServer) -> None:
    with raw(server) as sock:  # one end's limit holds for both directions
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) <= 536


def test_who_gets_no_answer_is_told_of_the_size_of_packets() -> None:
    over = threading.Event()

    def answer(*_: object) -> bytes:
        over.wait(60)
        return b""

    mute = QuestionServer("127.0.0.1", SECRET, "job", 0, answer)
    try:
        with pytest.raises(Timeout, match=r"does not answer: it is stopped, or the network .* set the MTU"):
            client(mute).ask(b"?", 0.05)
    finally:
        over.set()
        mute.close()


def test_get_waits_for_another_client(server: StoreServer) -> None:
    one, two = client(server), client(server)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(one.get, "late")
        two.set("late", b"now")
        assert waiting.result(timeout=20) == b"now"


def test_gather_is_in_order_and_names_who_is_missing(server: StoreServer) -> None:
    one, two = client(server), client(server)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(one.gather, "g", 12)
        for i in reversed(range(12)):
            two.set(f"g/{i}", b"v%d" % i)
        assert waiting.result(timeout=20) == [b"v%d" % i for i in range(12)]
    two.delete_prefix("g/3")
    with pytest.raises(Timeout, match=r"ranks 3, 12 of 13 did not come"):
        one.gather("g", 13, timeout=0.01)


def test_a_gather_notices_a_deletion_while_it_waits(server: StoreServer) -> None:
    one, two = client(server), client(server)
    two.set("g/0", b"old")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(one.gather, "g", 2)
        two.delete_prefix("g/")
        two.set("g/1", b"b")
        two.set("g/0", b"a")
        assert waiting.result(timeout=20) == [b"a", b"b"]


def test_largest_value_and_one_more(server: StoreServer) -> None:
    store = client(server)
    value = os.urandom(requests.MAX_VALUE)
    store.set("k" * requests.MAX_KEY, value)
    assert store.get("k" * requests.MAX_KEY) == value
    with pytest.raises(ValueError, match="more than"):
        store.set("key", value + b"x")
    with pytest.raises(ValueError, match="512"):
        store.set("k" * (requests.MAX_KEY + 1), b"")


def test_total_is_bounded(server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server._quota, "most", 1 << 20)
    store = client(server)
    store.set("a", bytes(600 << 10))
    with pytest.raises((SlipstreamError, PeerLost), match=r"full|lost"):
        store.set("b", bytes(600 << 10))
    store.delete_prefix("a")
    store.set("b", bytes(600 << 10))
    for _ in range(100):  # replacing must not count twice
        store.set("b", bytes(300 << 10))


def test_wrong_secret_and_wrong_job(server: StoreServer) -> None:
    with pytest.raises(Refused, match="SLIPSTREAM_SECRET"):
        Store(*server.address, b"x" * 32, "job", 5)
    with pytest.raises(Refused, match="SLIPSTREAM_JOB"):
        Store(*server.address, SECRET, "other job", 5)
    usable(server)


def test_a_server_without_the_secret_learns_nothing() -> None:
    """The caller sends no proof before the server has given its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        call = pool.submit(Store, *listener.getsockname(), SECRET, "job", 5)
        sock, _ = listener.accept()
        with sock:
            sock.sendall(bytes(handshake.NONCE_SIZE + handshake.MAC_SIZE))
            received = b"".join(iter(lambda: sock.recv(4096), b""))
        assert len(received) == handshake.HELLO_SIZE
        with pytest.raises(Refused):
            call.result(timeout=20)


@pytest.mark.parametrize("more", ["", "Server: SimpleHTTP/0.6 Python/3.11.7\r\n\r\n"])
def test_another_program_that_has_the_port_is_told_from_another_secret(more: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        call = pool.submit(Store, *listener.getsockname(), SECRET, "job", 5)
        sock, _ = listener.accept()
        with sock:
            sock.recv(4096)
            sock.sendall(b"HTTP/1.0 400 Bad request syntax\r\n" + more.encode())
        with pytest.raises(
            Refused, match=r"another program answers there, and says 'HTTP/1.0 400 Bad .*port"
        ):
            call.result(timeout=20)


def test_a_web_server_that_has_the_port_is_told() -> None:
    """It waits for the end of a line."""
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with pytest.raises(Refused, match="another program answers there"):
                Store("127.0.0.1", server.server_port, SECRET, "job", 2)
        finally:
            server.shutdown()
            thread.join()


def test_another_program_at_one_address_hides_no_store_at_the_next(server: StoreServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        hello = handshake.Hello(handshake.PURPOSE_STORE, handshake.job_id("job"))
        both = [listener.getsockname(), server.address]
        call = pool.submit(_connect, lambda: both, SECRET, hello, time.monotonic() + 20)
        sock, _ = listener.accept()
        with sock:
            sock.recv(4096)
            sock.sendall(b"-ERR unknown command\r\n")
        call.result(timeout=30).close()


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    with pytest.raises(Timeout, match=str(address[1])):
        Store(*address, SECRET, "job", 0.05)


def test_a_replayed_conversation_is_refused(server: StoreServer) -> None:
    greeting = hello().pack()
    with raw(server) as sock:
        sock.sendall(greeting)
        answer = sock.recv(64, socket.MSG_WAITALL)
        proof = handshake.client_mac(SECRET, greeting, answer[:32])
        sock.sendall(proof)
        assert sock.recv(1) == handshake.ACCEPTED
    with raw(server) as sock:
        sock.sendall(greeting)
        again = sock.recv(64, socket.MSG_WAITALL)
        assert again[:32] != answer[:32]
        sock.sendall(proof)
        assert closed(sock)
    with raw(server) as sock:  # and its own proof cannot be turned against it
        sock.sendall(greeting)
        sock.sendall(sock.recv(64, socket.MSG_WAITALL)[32:])
        assert closed(sock)
    usable(server)


@pytest.mark.parametrize(
    "change",
    [{"purpose": 2}, {"target": 1}, {"job": bytes(16)}],
    ids=lambda change: next(iter(change)),
)
def test_a_hello_for_someone_else_gets_silence(server: StoreServer, change: dict[str, object]) -> None:
    with raw(server) as sock:
        sock.sendall(hello(**change).pack())
        assert closed(sock)


@pytest.mark.parametrize("at", [0, 36])
def test_a_damaged_hello_gets_silence(server: StoreServer, at: int) -> None:
    packed = bytearray(hello().pack())
    packed[at] ^= 0x40  # the magic, the reserved word
    with raw(server) as sock:
        sock.sendall(packed)
        assert closed(sock)


def of_version(hello: handshake.Hello, version: int) -> bytes:
    packed = bytearray(hello.pack())
    struct.pack_into("<H", packed, 4, version)
    return bytes(packed)


def test_only_a_caller_of_this_job_is_told_the_version(
    server: StoreServer, caplog: pytest.LogCaptureFixture
) -> None:
    with raw(server) as sock:
        sock.sendall(of_version(hello(job=bytes(16)), PROTOCOL + 1))
        assert closed(sock)
    with raw(server) as sock:
        sock.sendall(of_version(hello(), PROTOCOL + 1))
        assert b"".join(iter(lambda: sock.recv(4096), b"")) == handshake.version_notice()
    ours = f"this process protocol version {PROTOCOL} (slipstream {package_version()})"
    usable(server)  # the server writes its log after its answer, and before it serves the next caller
    assert f"it speaks protocol version {PROTOCOL + 1}, {ours}: {VERSIONS_DIFFER}" in caplog.text


def answered(answer: bytes) -> str:
    """What a caller makes of that answer to its hello."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        call = pool.submit(Store, *listener.getsockname(), SECRET, "job", 5)
        sock, _ = listener.accept()
        with sock:
            sock.sendall(answer)
            assert len(b"".join(iter(lambda: sock.recv(4096), b""))) == handshake.HELLO_SIZE
        with pytest.raises(Refused) as caught:
            call.result(timeout=20)
    return str(caught.value)


def test_a_caller_names_both_versions_and_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(handshake, "PROTOCOL", PROTOCOL + 1)
        patch.setattr(handshake, "package_version", lambda: "9.1.0")
        notice = handshake.version_notice()
    why = answered(notice)
    assert f"it speaks protocol version {PROTOCOL + 1} (slipstream 9.1.0)" in why
    assert f"this process protocol version {PROTOCOL} (slipstream {package_version()})" in why
    assert why.endswith(VERSIONS_DIFFER)
    assert "SECRET" not in why
    # what is none says nothing of versions
    for other in (handshake.version_notice(), notice[:-1] + b"x", b"slip" + notice[4:]):
        assert "SLIPSTREAM_SECRET" in answered(other)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(min_size=handshake.HELLO_SIZE, max_size=400))
def test_fuzzed_strangers(shared: StoreServer, data: bytes) -> None:
    with raw(shared) as sock:
        sock.sendall(data)
        assert closed(sock)
    usable(shared)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(op=st.integers(0, 255), body=st.binary(max_size=600), claim=st.none() | st.integers(0, 0xFFFFFFFF))
def test_fuzzed_members(shared: StoreServer, op: int, body: bytes, claim: int | None) -> None:
    """Even one who knows the secret cannot break the server for the others."""
    with raw(shared) as sock:
        handshake.call(sock, SECRET, hello())
        with contextlib.suppress(OSError):
            sock.sendall(struct.pack("<BI", op, len(body) if claim is None else claim) + body)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(4096):
                pass
    usable(shared)


@pytest.mark.parametrize("length", [requests.MAX_VALUE + (1 << 20), 0xFFFFFFFF, 0])
def test_an_oversized_request_is_cut_off(server: StoreServer, length: int) -> None:
    with raw(server) as sock:
        handshake.call(sock, SECRET, hello())
        sock.sendall(struct.pack("<BI", requests.SET, length))
        assert closed(sock)
    usable(server)


def test_a_second_request_while_one_is_pending_is_cut_off(server: StoreServer) -> None:
    body = requests.GET_HEAD.pack(20_000) + b"nothing"
    with raw(server) as sock:
        handshake.call(sock, SECRET, hello())
        sock.sendall((requests.HEADER.pack(requests.GET, len(body)) + body) * 2)
        assert closed(sock)
    usable(server)


def test_silent_strangers_are_cut_off_and_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "SECONDS", 0.05)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    monkeypatch.setattr(
        logging.getLogger("slipstream.store"), "warning", lambda text, *why, **_: lines.put(text % why)
    )
    server = StoreServer("127.0.0.1", SECRET, "job")
    with raw(server) as silent, raw(server) as slow:
        slow.sendall(hello().pack()[:79])
        assert closed(silent)
        assert closed(slow)
        ports = [str(one.getsockname()[1]) for one in (silent, slow)]  # of one address: the first is named
    line = lines.get(timeout=60)
    assert any(port in line for port in ports)
    assert "in time" in line
    server.close()


def test_a_store_without_descriptors_waits(server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: queue.SimpleQueue[tuple[float, str]] = queue.SimpleQueue()
    monkeypatch.setattr(
        connections._log, "warning", lambda text, *why: refused.put((time.monotonic(), text % why))
    )
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as caller:
        start = time.monotonic()
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))  # what has lower numbers stays open
        try:
            caller.connect(server.address)
            found = [refused.get(timeout=60) for _ in range(3)]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert all(
            "cannot accept a connection" in text and "Too many open files" in text for _, text in found
        )
        assert found[-1][0] - start >= 0.2  # it looks every 0.1 s, or later
        usable(server)


def test_a_crowd_of_strangers_does_not_keep_members_out(server: StoreServer) -> None:
    crowd = [raw(server) for _ in range(2 * admission.MOST)]
    try:
        usable(server)
        assert len(server._server._strangers) <= admission.MOST
    finally:
        for sock in crowd:
            sock.close()


def test_a_client_that_does_not_read_blocks_nobody(server: StoreServer) -> None:
    store = client(server)
    store.set("big", bytes(requests.MAX_VALUE))
    body = requests.GET_HEAD.pack(0) + b"big"
    with raw(server) as sock:
        handshake.call(sock, SECRET, hello())
        sock.sendall(requests.HEADER.pack(requests.GET, len(body)) + body)
        for _ in range(3):
            usable(server)


def test_closing_wakes_those_who_wait(server: StoreServer) -> None:
    store = client(server)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.get, "never")
        while not server._getters:
            time.sleep(0.001)
        server.close()
        with pytest.raises(PeerLost, match="store"):
            waiting.result(timeout=20)


def test_a_dead_client_leaves_no_trace(server: StoreServer) -> None:
    sock = raw(server)
    handshake.call(sock, SECRET, hello())
    body = requests.GATHER_HEAD.pack(20_000, 5) + b"g"
    sock.sendall(requests.HEADER.pack(requests.GATHER, len(body)) + body)
    store = client(server)
    while not server._gathers:
        store.add("turn", 1)
    sock.close()
    while len(server._server.clients) > 1:
        store.add("turn", 1)
    store.add("turn", 1)  # the server has done with the other client before it answers
    assert not server._gathers


def test_many_clients_meet_at_once(server: StoreServer) -> None:
    """More callers at the same moment than may be unauthenticated."""
    count = 300
    results: list[list[bytes]] = []
    failed: list[BaseException] = []

    def one(rank: int) -> None:
        try:
            store = Store(*server.address, SECRET, "job", 60, rank=rank)
            store.set(f"many/{rank}", b"%d" % rank)
            results.append(store.gather("many", count))
            store.close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failed
    assert results == [[b"%d" % rank for rank in range(count)]] * count


def test_an_interrupted_request_does_not_spoil_the_next(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = client(server)
    store.set("a", b"1")
    with monkeypatch.context() as patch:

        def interrupted(*args: object) -> int:
            raise KeyboardInterrupt

        patch.setattr("slipstream.comm.rendezvous.store._Wire.receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.get("a")
    store.set("b", b"2")
    assert [store.get("a"), store.get("b")] == [b"1", b"2"]


def test_opening_and_closing_leaks_nothing() -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    before, threads = count(), threading.active_count()
    for _ in range(20):
        server = StoreServer("127.0.0.1", SECRET, "job")
        store = client(server)
        store.set("a", b"")
        server.close()
        store.close()
    assert count() <= before  # what an earlier test has left may be gone
    assert threading.active_count() <= threads


def test_those_that_are_late_are_named_while_others_wait(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("slipstream.comm.rendezvous.store._FIRST_WORD", 0.01)
    monkeypatch.setattr(logging.getLogger("slipstream"), "hasHandlers", lambda: False)
    one = client(server)
    for rank in (1, 3):
        one.set(f"g/{rank}", b"")
    for rank in (1, 3):
        late = says_who_is_late(rank, 5, 0.5, "every rank must call init")
        with pytest.raises(Timeout, match=r"^ranks 0, 2, 4 of 5 did not come within 0.5 s: call init; wait$"):
            one.gather("g", 5, 0.5, "call init", "; wait", late)
    lines = capsys.readouterr().err.splitlines()
    waited = r"has waited \d s for ranks 0, 2, 4 of 5: every rank must call init. It waits 0.5 s at most"
    assert 1 < len(lines) < 6, "more and more rarely"
    for line in lines:  # the first of those that have come speaks for all
        assert re.fullmatch(f"slipstream: rank 1: {waited}", line)
