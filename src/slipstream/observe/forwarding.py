"""The way of a rank's events to the file of rank 0, and the clock of that."""

from __future__ import annotations

import contextlib
import os
import time
import zlib
from collections.abc import Iterator, Sequence

from slipstream.base.errors import PeerLost, Refused, SlipstreamError, Timeout
from slipstream.base.log import Log
from slipstream.comm.membership.job import Job
from slipstream.comm.rendezvous.requests import LATE
from slipstream.comm.rendezvous.store import Called, Store, connect_any
from slipstream.observe.alignment import Alignment
from slipstream.observe.collecting import CLOCK, END, EVENTS, MAX_TEXT, NUMBER, TIME, job_name

__all__ = ["Forwarding", "batches"]

_DIAL = 3.0  # seconds of one attempt to reach rank 0
_LAST_DIAL = 1.0  # seconds of the last one
_ANSWER = 3.0  # seconds for a reply
_PAUSE, _LONGEST_PAUSE = 0.25, 4.0  # seconds between attempts
_CLOCK_EVERY = 5.0  # seconds between looks at rank 0's clock
_LOOKS = 8
_log = Log("slipstream")
_CALLED = Called("rank 0, which writes the timeline, at {} port {}", absent="")


class Forwarding:
    """A rank's way to rank 0. One thread at a time uses it; nothing of it is known to the session."""

    def __init__(self, job: Job, alignment: Alignment) -> None:
        self._job = job
        self._alignment = alignment
        self._store: Store | None = None
        self._number = int.from_bytes(
            os.urandom(3), "little"
        )  # of the last batch; another one after a new begin
        self._next_attempt, self._pause = 0.0, _PAUSE
        self._next_look = 0.0
        self._trouble: str | None = ""  # why rank 0 cannot be reached; None: it was

    @property
    def offset(self) -> int:
        """Nanoseconds from this rank's monotonic clock to the Unix time of rank 0."""
        return self._alignment.offset

    def ready(self, *, last: bool = False) -> bool:
        """Whether rank 0 takes events; tries to reach it, from time to time, and if this is the ``last`` question."""
        now = time.monotonic()
        if now < self._next_attempt and not last:
            return False
        if self._store is not None and now < self._next_look:
            return True
        try:
            self._connect(_LAST_DIAL if last else _DIAL)
            taken = all(self._look() for _ in range(_LOOKS))
        except SlipstreamError as error:
            taken = False
            self._trouble = str(error) if self._trouble is not None else None
            self._hang_up()
        if taken:
            self._trouble = None
            self._next_look, self._pause = time.monotonic() + _CLOCK_EVERY, _PAUSE
        else:
            self._next_attempt = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return taken

    def write(self, lines: Sequence[str]) -> int:
        """Sends events; returns how many were lost. Raises OSError if rank 0 cannot write any more."""
        lost = 0
        for batch in batches(lines):
            self._number = (self._number + 1) & 0xFFFFFFFF
            body = NUMBER.pack(self._number) + zlib.compress(",\n".join(batch).encode(), 1)
            if not self._send(body):
                lost += len(batch)
        return lost

    def _send(self, body: bytes) -> bool:
        for _ in range(2):  # the connection may have broken, with the reply of a batch that has come
            try:
                self._ask(EVENTS, body)
                return True
            except (PeerLost, Timeout, Refused):
                pass
            except SlipstreamError as error:
                raise OSError(str(error)) from None
        self._hang_up()
        return False

    def finish(self) -> None:
        """Says that these were all events, and hangs up."""
        if self._store is not None:
            with contextlib.suppress(SlipstreamError):
                self._ask(END, b"\0")
            self._hang_up()
        if self._trouble:
            _log.warning("the timeline lacks the events of rank %d: %s", self._job.rank, self._trouble)

    def forget(self) -> None:
        """In a forked child: closes its copy of the connection."""
        if self._store is not None:
            self._store.forget()

    def _connect(self, seconds: float) -> None:
        if self._store is not None:
            return
        place, job = self._job.collector, self._job
        assert place is not None
        addresses = [(address, place.port) for address in place.addresses]
        self._store = connect_any(
            lambda: addresses,
            job.membership.secret,
            job_name(job),
            seconds,
            job.rank,
            "",
            encrypt=job.settings.encrypt,
            called=_CALLED,
        )

    def _hang_up(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def _look(self) -> bool:
        """Looks at rank 0's clock. False: it takes no events of this rank."""
        sent = time.monotonic_ns()
        theirs = self._ask(CLOCK, b"\0")
        if theirs is None:
            return False
        self._alignment.take(sent, theirs, time.monotonic_ns())
        return True

    def _ask(self, op: int, body: bytes) -> int | None:
        """The time of rank 0's reply, in nanoseconds; None: it takes no events of this rank now."""
        assert self._store is not None
        status, answer = self._store.request(op, body, _ANSWER)
        return None if status == LATE else int(TIME.unpack(answer)[0])


def batches(lines: Sequence[str]) -> Iterator[list[str]]:
    """The events in batches that rank 0 takes; one that is too long for any is left out."""
    batch: list[str] = []
    room = MAX_TEXT
    for line in lines:
        need = len(line.encode()) + 2
        if need > room and batch:
            yield batch
            batch, room = [], MAX_TEXT
        if need <= room:
            batch.append(line)
            room -= need
    if batch:
        yield batch
