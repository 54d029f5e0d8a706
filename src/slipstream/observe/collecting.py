"""One file for all ranks: rank 0 takes the events of the others, over connections of the job's own, and writes them.

These connections are beside those of the session, so that the last events of a job that fails arrive, too. A rank's
events are lost from the moment on in which it is killed, and nobody waits for them.

    EVENTS: number u32 of the batch, events joined as in the file, deflated    CLOCK: 0    END: 0
    replies: OK: the Unix time of rank 0 in nanoseconds, i64    LATE: no timeline takes this rank's events now
"""

from __future__ import annotations

import struct
import threading
import time
import zlib
from collections.abc import Mapping

from slipstream.comm.membership.job import Job
from slipstream.comm.rendezvous.requests import ERROR, LATE, OK
from slipstream.comm.rendezvous.server import Quota, Server
from slipstream.comm.rendezvous.store_clients import Bad, Client
from slipstream.observe.trace_file import TraceFile

__all__ = ["CLOCK", "END", "EVENTS", "MAX_TEXT", "NUMBER", "TIME", "Collector", "job_name"]

EVENTS, CLOCK, END = 16, 17, 18
NUMBER, TIME = struct.Struct("<I"), struct.Struct("<q")
MAX_TEXT = 1 << 20  # bytes of a batch as it is in the file
_MAX_BODY = NUMBER.size + MAX_TEXT + (MAX_TEXT >> 8) + 64  # what does not deflate gets a little longer
_MOST_HELD = 256 << 20  # bytes of batches that arrive
_LAST_EVENTS = 5.0  # seconds at the end for ranks that are connected
_COME = 2.0  # seconds at the end for those that have not come yet


def job_name(job: Job) -> str:
    """What the two sides of a connection prove that they belong to."""
    return f"{job.membership.job}/{job.membership.epoch}/timeline"


class Collector:
    """Rank 0's end: serves as long as the job lasts, and writes to the file that `begin` names until `end`."""

    def __init__(self, job: Job) -> None:
        assert job.collecting is not None
        self.requests: Mapping[int, int] = {EVENTS: _MAX_BODY, CLOCK: 1, END: 1}
        self._changed = threading.Condition()
        self._size = job.size
        self._file: TraceFile | None = None
        self._offset = 0
        self._here: dict[int, Client] = {}
        self._seen: set[int] = set()  # since `begin`
        self._done: set[int] = set()  # since then
        self._last: dict[int, int] = {}  # the number of each rank's last batch
        secret, encrypt = job.membership.secret, job.settings.encrypt
        listeners = job.collecting.share()
        self._server = Server(
            self, Quota(_MOST_HELD), "", secret, job_name(job), listeners=listeners, encrypt=encrypt
        )
        self._server.start()

    def begin(self, file: TraceFile, offset: int) -> None:
        """Writes to ``file`` from now on. ``offset``: from this process's monotonic clock to its Unix time."""
        with self._changed:
            self._file, self._offset = file, offset
            self._seen, self._done, self._last = set(self._here), set(), {}

    def end(self) -> list[int]:
        """Waits a little for the last events of the others; returns the ranks that did not say that they were."""
        begin = time.monotonic()
        with self._changed:
            while (left := self._patience() - (time.monotonic() - begin)) > 0:
                self._changed.wait(left)
            self._file = None
            return [rank for rank in range(1, self._size) if rank not in self._done]

    def _patience(self) -> float:
        """Seconds for which an end waits, as things are."""
        missing = set(range(1, self._size)) - self._done
        if missing & self._here.keys():
            return _LAST_EVENTS
        return _COME if missing - self._seen else 0.0

    def close(self) -> None:
        """Serves no more."""
        self._server.close()

    def forget(self) -> None:
        """In a forked child: closes its copies of the descriptors."""
        self._server.forget()

    # ---- what the server calls, on its thread ----

    def execute(self, client: Client, op: int, body: memoryview) -> None:
        """One request of a rank."""
        with self._changed:
            if op == END:  # it comes anew for the next timeline, maybe before this connection is closed
                self._leaves(client)
            if self._file is None or client.rank in self._done:
                self._server.reply(client, LATE)
                return
            try:
                if op == EVENTS:
                    self._take(self._file, client.rank, body)
            except OSError as error:
                self._server.reply(
                    client, ERROR, f"rank 0 cannot write it: {error.strerror or error}".encode()
                )
                return
            if op == END:
                self._done.add(client.rank)
                self._changed.notify_all()
            self._server.reply(client, OK, TIME.pack(time.monotonic_ns() + self._offset))

    def _take(self, file: TraceFile, rank: int, body: memoryview) -> None:
        (number,) = NUMBER.unpack_from(body)
        if self._last.get(rank) == number:
            return  # the rank has not had the reply, and sent it again
        inflate = zlib.decompressobj()
        try:
            text = inflate.decompress(body[NUMBER.size :], MAX_TEXT)
        except zlib.error as error:
            raise Bad(f"a damaged batch of events: {error}") from None
        if not inflate.eof or not text.startswith(b"{") or not text.endswith(b"}"):
            raise Bad("a malformed batch of events")
        file.write_text(text)
        self._last[rank] = number

    def admitted(self, client: Client) -> None:
        """A rank has come; it may stay as long as it likes."""
        if not 0 < client.rank < self._size:
            self._server.drop(client)
            return
        with self._changed:
            self._here[client.rank] = client
            self._seen.add(client.rank)
            self._changed.notify_all()

    def dropped(self, client: Client) -> None:
        """A rank is gone."""
        with self._changed:
            self._leaves(client)

    def _leaves(self, client: Client) -> None:
        if self._here.get(client.rank) is client:
            del self._here[client.rank]
        self._changed.notify_all()

    def overdue(self, client: Client) -> None:
        """There are no deadlines."""

    def differs(self, client: Client, why: str) -> None:
        """It has been told, which is enough."""

    def woken(self) -> None:
        """Nothing comes from other threads."""
