"""A job of two workers that knows a reducer's secret and means no good. rogue.py MODE HOST PORT

MODE, again and again, with a new session whenever the reducer has ended one:

    data      offers an all-reduce of 4 TiB; one worker sends its part for ever, the other one nothing
    early     one worker sends data for ever for all-reduces that nobody has offered
    leave     offers an all-reduce, sends a bit of it and leaves
    offers    one worker offers the same all-reduce for ever
    twice     one worker opens its link again while the reducer holds what came over the first, and goes on over both
    pings     one worker asks for ever whether the reducer is there, and never reads the answers
    sizes     the workers say different sizes, and send pieces of others, or offer what cannot be

Says when a session begins, and when it ends how many bytes it sent.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import secrets
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator

from slipstream import _core
from slipstream.base.dtypes import DType, Op
from slipstream.base.errors import SlipstreamError
from slipstream.comm.reducers.client import Request, register
from slipstream.comm.rendezvous import handshake

# native/engine/work_header.h: type, flags, stream, length, channel, seq, signature, chunk, piece, reserved
FRAME = struct.Struct("<BBHIQIIIHH")
CHECK = struct.Struct(
    "<II"
)  # native/transport/tcp/checksums.h: of the payload (0: none), and of place and header
HEAD = FRAME.size + CHECK.size
# native/reducers/offer.cpp: count, signed count, extra, divisor, postscale, root, chunk bytes, lengths, dtype, op
OFFER = struct.Struct("<QQQQdiIHHBBH")
DATA, READY, PING, OFFERED = 1, 2, 6, 16
LINK = 2  # native/transport/handshake.h: the purpose of a link's first connection
CHUNK = 16 << 10  # bytes: what may come over that connection
WORKERS = 2
CHANNEL = 1
SILENCE = 3.0  # seconds; then a reducer that holds the sender back is left
SHARE = 512 << 20  # bytes in one session of "early" and "pings", if the reducer lets them all in


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def table_entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


TABLE = [table_entry(byte) for byte in range(256)]
# A checksum is linear: what each byte of the place adds is known beforehand, so that a flood is quick to make.
BEFORE = struct.Struct("<Q")
COVERED = FRAME.size + 4
ZERO = crc32c(bytes(BEFORE.size + COVERED))
PLACES = [
    [crc32c(bytes(i) + bytes([b]) + bytes(BEFORE.size - 1 - i + COVERED)) ^ ZERO for b in range(256)]
    for i in range(BEFORE.size)
]


@functools.lru_cache(maxsize=64)
def check_at_start(head: bytes) -> int:
    return crc32c(bytes(BEFORE.size) + head + bytes(4))


def sealed(data: bytes, place: int) -> bytes:
    """A frame as it stands after ``place`` bytes of the connection's stream, its payload unchecked."""
    head, check = data[: FRAME.size], check_at_start(data[: FRAME.size])
    for table, byte in zip(PLACES, BEFORE.pack(place), strict=True):
        check ^= table[byte]
    return head + CHECK.pack(0, check) + data[FRAME.size :]


def frame(kind: int, payload: bytes = b"", **fields: int) -> bytes:
    values = {
        "signature": 0,
        "seq": 0,
        "chunk": 0,
        "stream": 0,
        "piece": 0,
        "flags": 0,
        "length": len(payload),
    }
    values |= fields
    head = FRAME.pack(
        kind,
        values["flags"],
        values["stream"],
        values["length"],
        CHANNEL,
        values["seq"],
        values["signature"],
        values["chunk"],
        values["piece"],
        0,
    )
    return head + payload


def offer(count: int, *, chunk: int = CHUNK, dtype: int = DType.F32, op: int = Op.SUM, seq: int = 0) -> bytes:
    operation, name = b"all_reduce/reducers", b""
    fixed = OFFER.pack(count, count, 0, 1, 1.0, -1, chunk, len(operation), len(name), dtype, op, 0)
    return frame(OFFERED, fixed + operation + name, seq=seq)


class Worker:
    """A link to the reducer."""

    def __init__(self, rank: int, host: str, incarnation: int, secret: bytes) -> None:
        self._arguments = (rank, host, incarnation, secret)
        name, own = _core.reducer_session("rogue", secret, incarnation)
        self.sock = socket.create_connection((host, incarnation >> 48), timeout=SILENCE)
        hello = handshake.Hello(
            LINK, handshake.job_id(name), rank, WORKERS, token=secrets.randbits(63), nonce=os.urandom(32)
        )
        handshake.call(self.sock, own, hello)
        self.sent = 0

    def again(self) -> Worker:
        """Another link of the same worker in the same session."""
        return Worker(*self._arguments)

    def send(self, *frames: bytes) -> None:
        data = []
        for one in frames:
            data.append(sealed(one, self.sent))
            self.sent += len(data[-1])
        self.sock.sendall(b"".join(data))

    def signature(self) -> int:
        """What the reducer calls the work that was offered: its `ready` says so."""
        data = b""
        while True:
            while len(data) < HEAD:
                data += self._read()
            kind, _, _, length, _, _, signature, *_ = FRAME.unpack_from(data)
            if kind == READY:
                return int(signature)
            while len(data) < HEAD + length:
                data += self._read()
            data = data[HEAD + length :]

    def _read(self) -> bytes:
        data = self.sock.recv(65536)
        if not data:
            raise ConnectionResetError("the reducer hung up")
        return data


def send_data(one: Worker, other: Worker, turn: int) -> None:
    for worker in (one, other):
        worker.send(offer(1 << 40))
    signature = one.signature()
    for chunk in itertools.count():
        one.send(frame(DATA, bytes(CHUNK), chunk=chunk, signature=signature))


def send_early(one: Worker, other: Worker, turn: int) -> None:
    while one.sent < SHARE:
        one.send(frame(DATA, bytes(CHUNK), seq=1000 + one.sent // (64 * CHUNK), chunk=one.sent // CHUNK % 64))


def send_and_leave(one: Worker, other: Worker, turn: int) -> None:
    for worker in (one, other):
        worker.send(offer(1 << 30))
    signature = one.signature()
    for chunk in range(64):
        one.send(frame(DATA, bytes(CHUNK), chunk=chunk, signature=signature))


def send_offers(one: Worker, other: Worker, turn: int) -> None:
    many = [offer(1 << 20)] * 1000
    while one.sent < SHARE:
        one.send(*many)


def send_twice(one: Worker, other: Worker, turn: int) -> None:
    for worker in (one, other):
        worker.send(offer(1 << 30))
    signature = one.signature()
    for chunk in range(32):  # the reducer keeps what rank 1 sends until rank 0's is there
        other.send(frame(DATA, bytes(CHUNK), chunk=chunk, signature=signature))
    with contextlib.closing(other.again().sock):
        for chunk in itertools.count():
            for worker in (one, other):
                worker.send(frame(DATA, bytes(CHUNK), chunk=32 + chunk, signature=signature))


def send_pings(one: Worker, other: Worker, turn: int) -> None:
    many = [frame(PING)] * 1000
    while one.sent < SHARE:
        one.send(*many)


def lies() -> list[Callable[[Worker, Worker], None]]:
    def sizes(one: Worker, other: Worker) -> None:
        one.send(offer(1 << 20))
        other.send(offer(1 << 10))

    def piece(length: int, **fields: int) -> Callable[[Worker, Worker], None]:
        def lie(one: Worker, other: Worker) -> None:
            for worker in (one, other):
                worker.send(offer(1 << 20))
            signature = one.signature()
            for chunk in range(8):
                data = {"signature": signature, "chunk": chunk} | fields
                one.send(frame(DATA, bytes(length), **data))
            other.send(frame(DATA, bytes(CHUNK), signature=signature))

        return lie

    def announced(one: Worker, other: Worker) -> None:
        one.send(offer(1 << 20))
        one.send(frame(DATA, bytes(100), signature=one.signature(), length=(1 << 32) - 1))

    def offers(*data: bytes) -> Callable[[Worker, Worker], None]:
        return lambda one, other: one.send(*data)

    return [
        sizes,
        piece(CHUNK - 4),
        piece(3),
        piece(0),
        piece(CHUNK, chunk=(1 << 32) - 1),
        piece(CHUNK, chunk=0),  # the same, eight times
        piece(CHUNK, stream=7),
        piece(CHUNK, piece=9),
        piece(CHUNK, flags=255),
        announced,
        offers(offer(0)),
        offers(offer((1 << 64) - 1)),
        offers(offer(1 << 41, chunk=64)),
        offers(offer(1, chunk=1)),
        offers(offer(1, dtype=255)),
        offers(offer(1, op=255)),
        offers(offer(1, seq=5)),
        offers(frame(OFFERED, bytes(10))),
        offers(*(offer(1 << 30, seq=seq) for seq in range(2000))),
    ]


def send_lies(one: Worker, other: Worker, turn: int) -> None:
    all_lies = lies()
    all_lies[turn % len(all_lies)](one, other)
    one.sock.settimeout(1.0)
    while one.sock.recv(65536):  # what it says to that, until it hangs up or has nothing to say
        pass


MODES = {
    "data": send_data,
    "early": send_early,
    "leave": send_and_leave,
    "offers": send_offers,
    "pings": send_pings,
    "twice": send_twice,
    "sizes": send_lies,
}


def sessions(host: str, port: int, secret: bytes) -> Iterator[tuple[Worker, Worker]]:
    while True:
        with contextlib.suppress(OSError, SlipstreamError):
            request = Request("rogue", WORKERS, 2)
            incarnation = register(host, port, secret, request)
            one, other = (Worker(r, host, incarnation, secret) for r in range(WORKERS))
            yield one, other
            one.sock.close()
            other.sock.close()


def main() -> None:
    mode, host, port = sys.argv[1:]
    secret = bytes.fromhex(os.environ["SLIPSTREAM_REDUCER_SECRET"])
    for turn, (one, other) in enumerate(sessions(host, int(port), secret)):
        print(f"session {turn} begins", flush=True)
        begin, why = time.monotonic(), "done"
        try:
            MODES[mode](one, other, turn)
        except OSError as error:
            why = type(error).__name__
        print(f"{mode} {turn}: {one.sent} bytes in {time.monotonic() - begin:.2f} s: {why}", flush=True)


main()
