"""The first bytes on every stream: who calls, and proof on both sides that it knows the job's secret.

The caller sends an 80-byte hello, the server answers with a nonce and a mac over both nonces, the caller with
its own mac, the server with one byte. Nothing else is parsed before that. A flag of the hello says whether what
follows is encrypted; both sides must want the same. The layout: docs/architecture.md.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
from typing import TYPE_CHECKING, NamedTuple

from slipstream.base.errors import Refused
from slipstream.base.protocol import PROTOCOL, VERSIONS_DIFFER, package_version

if TYPE_CHECKING:
    from slipstream._core import Records

__all__ = [
    "ACCEPTED",
    "ENCRYPTED",
    "HELLO_SIZE",
    "MAC_SIZE",
    "NOBODY",
    "NONCE_SIZE",
    "PURPOSE_STORE",
    "Differs",
    "Hello",
    "OtherVersion",
    "call",
    "client_mac",
    "difference",
    "job_id",
    "macs_equal",
    "parse_hello",
    "records",
    "server_mac",
    "version_notice",
]

MAGIC = b"SLIP"
PURPOSE_STORE = 1
NOBODY = 0xFFFFFFFF  # a caller that is no rank of the job, such as the launcher
NONCE_SIZE = 32
MAC_SIZE = 32
ACCEPTED = b"\x01"
ENCRYPTED = 1  # of a hello's flags

_HELLO = struct.Struct("<4sHH16sIIIIQ32s")
HELLO_SIZE = _HELLO.size
_NOTICE = struct.Struct("<4sHH24s32x")  # as long as a nonce and a mac, and no mac is zeros


class OtherVersion(Refused):
    """The two sides speak different versions of the protocol."""

    def __init__(self, version: int, package: str = "") -> None:
        its = f"protocol version {version}" + (f" (slipstream {package})" if package else "")
        ours = f"protocol version {PROTOCOL} (slipstream {package_version()})"
        super().__init__(f"it speaks {its}, this process {ours}: {VERSIONS_DIFFER}")


def job_id(name: str) -> bytes:
    """The 16 bytes that stand for a job's name."""
    return hashlib.sha256(name.encode()).digest()[:16]


_WORD = 4  # bytes of an answer that tell a language from chance
_REPLY = 1.0  # seconds in which a program replies to an empty line


class NoServer(Refused):
    """Another program answers there."""


def _stranger(answer: bytes) -> NoServer | None:
    """The error for an answer in plain text, such as that of a web server: no proof of ours looks like that."""
    text = answer.decode("ascii", "replace")
    if (
        len(text) < _WORD
        or not all(letter.isprintable() or letter in "\r\n\t" for letter in text)
        or "\ufffd" in text
    ):
        return None
    return NoServer(f"another program answers there, and says {text.split(chr(10))[0].strip()!r}")


class Differs(Refused):
    """One side encrypts, and the other one does not."""


def difference(encrypts: bool, other: str, own: str) -> str:
    """What is wrong where ``other`` differs from ``own``, which encrypts or not."""
    has, lacks = (own, other) if encrypts else (other, own)
    return (
        f"{has} encrypts its connections (SLIPSTREAM_ENCRYPT=1), and {lacks} does not: SLIPSTREAM_ENCRYPT must be the "
        "same on all ranks; slipstream run --encrypt sets it"
    )


class Hello(NamedTuple):
    """What a caller says of itself: purpose, job, its rank, whom it wants, and a fresh nonce."""

    purpose: int
    job: bytes
    rank: int = NOBODY
    target: int = 0
    lane: int = 0
    token: int = 0
    nonce: bytes = b""
    encrypt: bool = False

    def pack(self) -> bytes:
        """The 80 bytes of this hello; draws a nonce if there is none yet."""
        nonce = self.nonce or os.urandom(NONCE_SIZE)
        flags = ENCRYPTED if self.encrypt else 0
        return _HELLO.pack(
            MAGIC,
            PROTOCOL,
            self.purpose,
            self.job,
            self.rank,
            self.target,
            self.lane,
            flags,
            self.token,
            nonce,
        )


def parse_hello(data: bytes, *, job: bytes, purpose: int, target: int) -> Hello:
    """Checks the 80 bytes of a caller against what this server is; raises Refused saying what is wrong.

    OtherVersion only for a caller of this job: it may be told, with `version_notice`.
    """
    magic, version, its_purpose, its_job, rank, its_target, lane, flags, token, nonce = _HELLO.unpack(data)
    if magic != MAGIC:
        raise Refused("not a slipstream peer")
    if its_job != job:
        claims = "" if rank == NOBODY else f"; it says that it is rank {rank}"
        raise Refused(f"it belongs to another job: compare SLIPSTREAM_JOB{claims}")
    if version != PROTOCOL:
        raise OtherVersion(version)
    if flags & ~ENCRYPTED:
        raise Refused("its hello is damaged")
    if its_purpose != purpose or its_target != target:
        raise Refused("it wants another service")
    return Hello(its_purpose, its_job, rank, its_target, lane, token, nonce, flags == ENCRYPTED)


def version_notice() -> bytes:
    """What a server answers to a caller of another version, in the place of its nonce and mac."""
    return _NOTICE.pack(MAGIC, PROTOCOL, 0, package_version().encode()[:24])


def _noticed(answer: bytes) -> OtherVersion | None:
    """What a `version_notice` says, None if ``answer`` is none. Nobody has proved it: it may only word an error."""
    magic, version, zero, package = _NOTICE.unpack(answer)
    if magic != MAGIC or zero != 0 or version == PROTOCOL or any(answer[NONCE_SIZE:]):
        return None
    text = package.rstrip(b"\0").decode("ascii", "replace")
    return OtherVersion(version, text if text.isprintable() else "")


def server_mac(secret: bytes, hello: bytes, nonce: bytes, *, differs: bool = False) -> bytes:
    """The server's proof, over the caller's hello (with its nonce) and the server's nonce.

    ``differs``: only one of the two encrypts. That is proved with another label: who merely changes a hello on its way
    cannot make either side believe it.
    """
    label = b"slipstream server differs" if differs else b"slipstream server"
    return hmac.digest(secret, label + hello + nonce, "sha256")


def client_mac(secret: bytes, hello: bytes, nonce: bytes, *, differs: bool = False) -> bytes:
    """The caller's proof, over the same bytes under another label, so that it cannot be echoed."""
    label = b"slipstream client differs" if differs else b"slipstream client"
    return hmac.digest(secret, label + hello + nonce, "sha256")


def macs_equal(one: bytes, other: bytes) -> bool:
    """Whether two macs are equal, in constant time."""
    return hmac.compare_digest(one, other)


def records(secret: bytes, hello: bytes, nonce: bytes, *, client: bool) -> Records:
    """What seals and opens all that follows a handshake of this hello and the server's nonce."""
    from slipstream import _core  # only who encrypts needs it here

    return _core.Records(secret, hello, nonce, client)


def _receive(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        try:
            part = sock.recv(count - len(data))
        except TimeoutError:
            raise _stranger(data) or TimeoutError("timed out") from None
        if not part:
            raise _stranger(data) or ConnectionResetError("the connection was closed during the handshake")
        data += part
    return data


def _spoken_to(sock: socket.socket) -> NoServer | None:
    """The error for a program that answers a line of text: many wait for the end of one."""
    sock.settimeout(_REPLY)
    try:
        sock.sendall(b"\r\n\r\n")
        return _stranger(sock.recv(NONCE_SIZE + MAC_SIZE))
    except OSError:
        return None


def call(sock: socket.socket, secret: bytes, hello: Hello) -> Records | None:
    """The caller's side on a connected blocking socket (its timeout bounds each read); None if it stays plain.

    Raises Refused when the server does not prove the secret or refuses ours; OtherVersion or Differs (both a Refused)
    when the server says so; NoServer (a Refused) when it answers in plain text; ConnectionResetError when it closes
    without a word (another job, or it was busy); OSError like sockets.
    """
    packed = hello.pack()
    sock.sendall(packed)
    try:
        answer = _receive(sock, NONCE_SIZE + MAC_SIZE)
    except TimeoutError:
        raise _spoken_to(sock) or TimeoutError("it accepts the connection, and does not answer") from None
    nonce, mac = answer[:NONCE_SIZE], answer[NONCE_SIZE:]
    if macs_equal(mac, server_mac(secret, packed, nonce, differs=True)):
        sock.sendall(client_mac(secret, packed, nonce, differs=True))
        raise Differs(difference(hello.encrypt, "who serves it", "this process"))
    if not macs_equal(mac, server_mac(secret, packed, nonce)):
        raise _noticed(answer) or _stranger(answer) or Refused("the secrets differ")
    sock.sendall(client_mac(secret, packed, nonce))
    if _receive(sock, 1) != ACCEPTED:
        raise Refused("the server did not accept this process's secret")
    return records(secret, packed, nonce, client=True) if hello.encrypt else None
