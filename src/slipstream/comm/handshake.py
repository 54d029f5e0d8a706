"""The first bytes on every stream: who calls, and proof on both sides that it knows the job's secret.

The caller sends an 80-byte hello, the server answers with a nonce and a mac over both nonces, the caller with
its own mac, the server with one byte. Nothing else is parsed before that. The layout: docs/architecture.md.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
from dataclasses import dataclass

from slipstream.base.errors import Refused

__all__ = [
    "ACCEPTED",
    "HELLO_SIZE",
    "MAC_SIZE",
    "NOBODY",
    "NONCE_SIZE",
    "PURPOSE_STORE",
    "Hello",
    "call",
    "client_mac",
    "job_id",
    "macs_equal",
    "parse_hello",
    "server_mac",
]

MAGIC = b"SLIP"
VERSION = 3
PURPOSE_STORE = 1
NOBODY = 0xFFFFFFFF  # a caller that is no rank of the job, such as the launcher
NONCE_SIZE = 32
MAC_SIZE = 32
ACCEPTED = b"\x01"

_HELLO = struct.Struct("<4sHH16sIIIIQ32s")
HELLO_SIZE = _HELLO.size


def job_id(name: str) -> bytes:
    """The 16 bytes that stand for a job's name."""
    return hashlib.sha256(name.encode()).digest()[:16]


@dataclass(frozen=True)
class Hello:
    """What a caller says of itself: purpose, job, its rank, whom it wants, and a fresh nonce."""

    purpose: int
    job: bytes
    rank: int = NOBODY
    target: int = 0
    lane: int = 0
    token: int = 0
    nonce: bytes = b""

    def pack(self) -> bytes:
        """The 80 bytes of this hello; draws a nonce if there is none yet."""
        nonce = self.nonce or os.urandom(NONCE_SIZE)
        return _HELLO.pack(
            MAGIC, VERSION, self.purpose, self.job, self.rank, self.target, self.lane, 0, self.token, nonce
        )


def parse_hello(data: bytes, *, job: bytes, purpose: int, target: int) -> Hello:
    """Checks the 80 bytes of a caller against what this server is; raises Refused saying what is wrong."""
    magic, version, its_purpose, its_job, rank, its_target, lane, reserved, token, nonce = _HELLO.unpack(data)
    if magic != MAGIC:
        raise Refused("not a slipstream peer")
    if version != VERSION or reserved != 0:
        raise Refused(f"it speaks version {version} of the protocol, this process version {VERSION}")
    if its_job != job:
        raise Refused("it belongs to another job")
    if its_purpose != purpose or its_target != target:
        raise Refused("it wants another service")
    return Hello(its_purpose, its_job, rank, its_target, lane, token, nonce)


def server_mac(secret: bytes, hello: bytes, nonce: bytes) -> bytes:
    """The server's proof, over the caller's hello (with its nonce) and the server's nonce."""
    return hmac.digest(secret, b"slipstream server" + hello + nonce, "sha256")


def client_mac(secret: bytes, hello: bytes, nonce: bytes) -> bytes:
    """The caller's proof, over the same bytes under another label, so that it cannot be echoed."""
    return hmac.digest(secret, b"slipstream client" + hello + nonce, "sha256")


def macs_equal(one: bytes, other: bytes) -> bool:
    """Whether two macs are equal, in constant time."""
    return hmac.compare_digest(one, other)


def _receive(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            raise ConnectionResetError("closed during the handshake")
        data += part
    return data


def call(sock: socket.socket, secret: bytes, hello: Hello) -> None:
    """The caller's side on a connected blocking socket (its timeout bounds each read).

    Raises Refused when the server does not prove the secret or refuses ours, ConnectionResetError when
    it closes without a word (another job, or it was busy), OSError like sockets.
    """
    packed = hello.pack()
    sock.sendall(packed)
    answer = _receive(sock, NONCE_SIZE + MAC_SIZE)
    nonce, mac = answer[:NONCE_SIZE], answer[NONCE_SIZE:]
    if not macs_equal(mac, server_mac(secret, packed, nonce)):
        raise Refused("the secrets differ")
    sock.sendall(client_mac(secret, packed, nonce))
    if _receive(sock, 1) != ACCEPTED:
        raise Refused("the server did not accept our proof")
