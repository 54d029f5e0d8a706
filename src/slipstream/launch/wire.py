"""What the launcher and its agents say to each other, over the agent's standard input and output.

The agent first writes `PREAMBLE`, so that anything a login shell prints before it is told apart. Then both
sides send messages: kind u8, rank u32, length u32, payload. The launcher's first message is the spec, which
holds the job's secret: it travels only here, never in an argument.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass

__all__ = ["MAX_MESSAGE", "PREAMBLE", "AgentMessages", "Spec", "SpecRank", "message"]

PREAMBLE = b"\0\1slipstream-agent 1\n"
MAX_MESSAGE = 16 << 20
_HEAD = struct.Struct("<BII")

# launcher -> agent
SPEC = 1
SIGNAL = 2  # payload: signal number u8, grace in seconds f32; then whatever is left is killed
KILL = 3
# agent -> launcher
STARTED = 16  # rank; payload: pid u32
OUT = 17
ERR = 18
EXITED = 19  # rank; payload: i32, the exit code, or minus the signal
FAILED = 20  # rank; payload: text, why it could not be started
DONE = 21  # every process of this host is gone
REPORT = 22  # rank; payload: lines of JSON, of an exception that ends it (`base.excepthook`), or of a failed session

SIGNAL_BODY = struct.Struct("<Bf")
CODE = struct.Struct("<i")
PID = struct.Struct("<I")


@dataclass(frozen=True)
class SpecRank:
    """One rank to start: its number and the variables that only it gets."""

    rank: int
    env: dict[str, str]


@dataclass(frozen=True)
class Spec:
    """What an agent starts: the command, where, with which variables.

    ``env`` is laid over the agent's own environment when ``inherit``, else it is all there is. ``horovod``,
    ``mpi4jax``: the ranks find slipstream by the name of Horovod, of mpi4jax and mpi4py (`launch.environment`).
    """

    argv: list[str]
    cwd: str
    env: dict[str, str]
    inherit: bool
    ranks: list[SpecRank]
    horovod: bool = False
    mpi4jax: bool = False

    def pack(self) -> bytes:
        """This spec as JSON."""
        return json.dumps(asdict(self)).encode("utf-8", "surrogateescape")

    @classmethod
    def unpack(cls, data: bytes) -> Spec:
        """Reads what `pack` wrote; raises ValueError, KeyError or TypeError when it is something else."""
        raw = json.loads(data.decode("utf-8", "surrogateescape"))
        ranks = [SpecRank(int(rank["rank"]), dict(rank["env"])) for rank in raw["ranks"]]
        names = bool(raw["horovod"]), bool(raw["mpi4jax"])
        return cls(list(raw["argv"]), str(raw["cwd"]), dict(raw["env"]), bool(raw["inherit"]), ranks, *names)


def message(kind: int, rank: int = 0, payload: bytes = b"") -> bytes:
    """A message ready to be sent."""
    return _HEAD.pack(kind, rank, len(payload)) + payload


class AgentMessages:
    """Cuts a stream of bytes into messages. With ``preamble``, what comes before it is kept in `noise`."""

    def __init__(self, preamble: bool) -> None:
        self._buffer = bytearray()
        self._waiting = preamble
        self.noise = b""

    def feed(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """The messages (kind, rank, payload) complete so far; raises ValueError on one that is too large."""
        self._buffer += data
        if self._waiting and not self._skip():
            return []
        messages, at = [], 0
        while len(self._buffer) - at >= _HEAD.size:
            kind, rank, length = _HEAD.unpack_from(self._buffer, at)
            if length > MAX_MESSAGE:
                raise ValueError(f"a message of {length} bytes")
            end = at + _HEAD.size + length
            if len(self._buffer) < end:
                break
            messages.append((kind, rank, bytes(self._buffer[at + _HEAD.size : end])))
            at = end
        del self._buffer[:at]
        return messages

    def _skip(self) -> bool:
        at = self._buffer.find(PREAMBLE)
        if at < 0:
            keep = len(PREAMBLE) - 1
            self.noise = (self.noise + bytes(self._buffer[:-keep]))[-65536:]
            del self._buffer[:-keep]
            return False
        self.noise = (self.noise + bytes(self._buffer[:at]))[-65536:]
        del self._buffer[: at + len(PREAMBLE)]
        self._waiting = False
        return True
