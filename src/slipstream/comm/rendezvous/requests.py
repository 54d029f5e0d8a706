"""What callers and servers say to each other, in bytes: server.py says how it arrives, store_server.py what it does.

Callers import this alone: most ranks serve nothing.

    SET: key length u16, key, value     GET: milliseconds u32, key       ADD: i64, key     DELETE: prefix
    GATHER: milliseconds u32, n u32, prefix
    ENTER: an `Entry`                   LEAVE: 0, and why it gives up    ASK: a question
    replies: OK: result   LATE: (GATHER: missing ranks, u32 each)   ERROR: text   LOST: rank u32, text   REFUSED: text

Limits: key 512 B, value 16 MiB, 256 MiB in all (stored and being received), a gathered reply 64 MiB.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import NamedTuple

HEADER = struct.Struct("<BI")  # of a request or a reply: which, or its status, and the length of the body

SET, GET, ADD, GATHER, DELETE, ASK, ENTER, LEAVE = 1, 2, 3, 4, 5, 6, 7, 8
OK, LATE, ERROR, LOST, REFUSED = 0, 1, 2, 3, 4  # the status of a reply

MAX_KEY = 512
MAX_VALUE = 16 << 20
MAX_TOTAL = 256 << 20
MAX_REPLY = 64 << 20
MAX_GATHER = 1 << 20
MAX_WORDS = 4 << 10  # of why a rank gives up
MAX_QUESTION = 64 << 10

SET_HEAD = struct.Struct("<H")
ADD_HEAD = struct.Struct("<q")
GATHER_HEAD = struct.Struct("<II")
GET_HEAD = LENGTH = LOST_HEAD = struct.Struct("<I")

_HEAD = struct.Struct("<I16sBB")  # rank, the process's token, length of the start's name, and of who it is
ENTER_SIZE = _HEAD.size + 510 + 2048


class Entry(NamedTuple):
    """An ENTER: the start's name, the rank, 16 bytes that only this process has, who it is, its start's identity."""

    name: str
    rank: int
    token: bytes
    who: str
    identity: Mapping[str, str]

    def pack(self) -> bytes:
        """The body of the request."""
        start, words = self.name.encode()[:255], self.who.encode()[:255]
        more = json.dumps(self.identity).encode() if self.identity else b""
        return _HEAD.pack(self.rank, self.token, len(start), len(words)) + start + words + more

    @classmethod
    def unpack(cls, body: bytes) -> Entry:
        """Raises struct.error for a body that is none."""
        rank, token, length, more = _HEAD.unpack_from(body)
        name, rest = body[_HEAD.size : _HEAD.size + length], body[_HEAD.size + length :]
        who, written = rest[:more], rest[more:]
        if len(name) != length or len(who) != more:
            raise struct.error("malformed")
        try:
            identity = json.loads(written) if written else {}
        except ValueError:
            raise struct.error("malformed") from None
        if not isinstance(identity, dict) or not all(isinstance(value, str) for value in identity.values()):
            raise struct.error("malformed")
        return cls(name.decode(errors="replace"), rank, token, who.decode(errors="replace"), identity)
