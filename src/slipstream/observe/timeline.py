"""The timeline: a file that shows when the operations of a job ran and what became of its connections.

``SLIPSTREAM_TIMELINE=FILE`` begins it with the job, `start_timeline` later. docs/timeline.md says how to look at it.
The engine only notes what happens; a thread of this module takes that at the times of a `Pace` and writes it, or sends
it to rank 0, which writes one file for all.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Protocol

from slipstream.base import recording
from slipstream.base.errors import SlipstreamError
from slipstream.base.log import Log
from slipstream.base.outputs import CannotWrite, objection
from slipstream.base.settings import Settings
from slipstream.base.spans import format_spans
from slipstream.base.timelines import file_of, is_one_for_all
from slipstream.comm.membership.job import Job, current_or_only
from slipstream.observe import chrome
from slipstream.observe.alignment import Alignment
from slipstream.observe.collecting import Collector
from slipstream.observe.forwarding import Forwarding
from slipstream.observe.pace import Pace
from slipstream.observe.trace_file import TraceFile

__all__ = ["Timeline", "follow", "start_timeline", "stop_timeline"]

_PERIOD = 0.25  # seconds between two writes, at most
_CAPACITY = 1 << 15  # events between two writes; more are dropped, and counted
_NEAR = 50_000  # nanoseconds by which clocks are off where the network is quick

_log = Log("slipstream")
_running: dict[Job, Timeline] = {}
_collectors: dict[
    Job, Collector
] = {}  # of rank 0, from the first timeline of all ranks to the end of the job
_begun: Counter[str] = Counter()  # how often this process has begun each timeline
# Held while a timeline begins, or ends. The engine has one trace: a second timeline that begins beside the first, or
# while that ends, takes its events or ends with it. An end takes 5 s at most.
_lock = threading.RLock()


class Sink(Protocol):
    """Where the events of a rank go."""

    @property
    def offset(self) -> int:
        """Nanoseconds from this rank's monotonic clock to the time in the file."""

    def ready(self, *, last: bool = False) -> bool:
        """Whether it takes events now. ``last``: it is not asked again."""

    def write(self, lines: Sequence[str]) -> int:
        """Takes events; returns how many of them are lost. Raises OSError if it will take no more."""

    def finish(self) -> None:
        """There are no more."""

    def forget(self) -> None:
        """In a forked child."""


class _Own:
    """A file of this rank; that of all ranks if there is a ``collector``, and this is rank 0."""

    def __init__(self, job: Job, path: str, alignment: Alignment, collector: Collector | None) -> None:
        self.offset = alignment.offset
        self._path, self._collector = path, collector
        self._file = TraceFile(path)
        if collector is not None:
            collector.begin(self._file, self.offset)

    def ready(self, *, last: bool = False) -> bool:
        return True

    def write(self, lines: Sequence[str]) -> int:
        self._file.write(lines)
        return 0

    def finish(self) -> None:
        missing = [] if self._collector is None else self._collector.end()
        if missing:
            ranks = f"rank{'s' if len(missing) > 1 else ''} {format_spans(missing)}"
            _log.info("the timeline %s may lack the last events of %s", self._path, ranks)
        self._file.finish()

    def forget(self) -> None:
        pass


class Timeline:
    """Gives what this rank does from now on to ``sink``, until it is closed."""

    def __init__(self, job: Job, sink: Sink, *, capacity: int = _CAPACITY) -> None:
        self._job, self._sink = job, sink
        self._rows = chrome.Rows(job.rank)
        self._capacity = capacity
        self._recorded: deque[recording.Recorded] = deque()  # by Python code
        self._missing = 0  # events that are lost
        self._waiting: list[chrome.Event] = chrome.introduction(job.rank, job.names[job.rank], _label(job))
        self._links = job.session.link_statistics()
        self._pace = Pace(_PERIOD)
        self._thread = threading.Thread(target=self._run, name="slipstream-timeline", daemon=True)
        job.session.start_trace(capacity, job.settings.timeline_detail == "steps")
        recording.listen(self._note)
        self._thread.start()

    def _note(self, event: recording.Recorded) -> None:
        if len(self._recorded) < self._capacity:
            self._recorded.append(event)
        else:
            self._missing += 1
        self._pace.came()

    def _run(self) -> None:
        try:
            while not self._pace.ended:
                self._pace.listen()
                self._pace.wait(not self._sink.ready() or self._drain())  # what it does not take now waits
        except OSError as error:  # a full disk must not end a training
            self._stop_recording()
            _log.warning("the timeline ends here: %s", error.strerror or error)

    def _drain(self) -> bool:
        """Gives what there is; returns whether anything had happened."""
        native, missing = self._job.session.take_trace()
        offset = self._sink.offset
        events = self._waiting + chrome.translate(native, self._rows, offset)
        self._waiting = []
        recorded = [self._recorded.popleft() for _ in range(len(self._recorded))]
        events += chrome.translate_recorded(recorded, self._rows, offset)
        missing, self._missing = missing + self._missing, 0
        if missing:
            events.append(chrome.dropped(self._job.rank, missing, time.monotonic_ns() + offset))
        self._missing += self._sink.write([chrome.line(event) for event in events])
        return bool(native or recorded)

    def _stop_recording(self) -> None:
        recording.stop_listening(self._note)
        self._job.session.stop_trace()

    def close(self) -> None:
        """Gives what is left, and ends."""
        self._stop_recording()
        self._pace.end()
        self._thread.join()
        try:
            if self._sink.ready(last=True):
                at = time.monotonic_ns() + self._sink.offset
                self._waiting += chrome.totals(
                    self._links, self._job.session.link_statistics(), self._rows, at
                )
                self._drain()
        except OSError as error:
            _log.warning("the end of the timeline is missing: %s", error.strerror or error)
            with contextlib.suppress(OSError):  # it has been told
                self._sink.finish()
            return
        try:
            self._sink.finish()
        except OSError as error:
            _log.warning("the end of the timeline is missing: %s", error.strerror or error)

    def forget(self) -> None:
        """In a forked child, which is no rank."""
        self._sink.forget()


def _label(job: Job) -> str:
    """What no other start of a job is called."""
    return f"job {job.membership.job} {job.nonce.hex()[:8]}"


def _alignment(job: Job) -> Alignment:
    """This rank's clock as the start of the job has measured it."""
    measured, now = job.measured, time.monotonic_ns()
    clock, error = (0, 0) if measured is None else (measured.clock, int(measured.latency * 1e9) + _NEAR)
    return Alignment(time.time_ns() - now + clock, error, now)


def _sink(job: Job, template: str) -> Sink:
    path, alignment = file_of(template, job.rank), _alignment(job)
    if path is None:
        return Forwarding(job, alignment)
    if _begun[template]:
        path += f".{_begun[template] + 1}"
    collector = None
    if job.size > 1 and is_one_for_all(template):
        collector = _collectors.get(job) or Collector(job)
        _collectors[job] = collector
    why: str | None = objection(path)
    try:
        if not why:
            return _Own(job, path, alignment, collector)
    except OSError as error:
        why = error.strerror
    raise CannotWrite(f"rank {job.rank} cannot write its timeline {path}: {why}")


def _begin(job: Job, template: str) -> None:
    with _lock:
        if job in _running:
            raise SlipstreamError("a timeline is being written already: call stop_timeline() first")
        sink = _sink(job, template)
        _begun[template] += 1
        _running[job] = Timeline(job, sink)
    job.when_left(lambda: _leave(job))


def _end(job: Job) -> None:
    with _lock:
        timeline = _running.pop(job, None)
        if timeline is not None:
            timeline.close()


def _leave(job: Job) -> None:
    with _lock:
        _end(job)
        collector = _collectors.pop(job, None)
        if collector is not None:
            collector.close()


def follow(job: Job, settings: Settings) -> None:
    """Begins the timeline of a job that the settings ask for, if they do.

    Raises CannotWrite if the file cannot be written. A job that goes on after a `shrink` has no timeline then.
    """
    if settings.timeline is None:
        return
    try:
        _begin(job, settings.timeline)
    except CannotWrite as error:
        if not job.former_ranks:
            raise
        _log.warning("there is no timeline after the shrink: %s", error)


def start_timeline(file: str | os.PathLike[str]) -> None:
    """Writes a timeline of this job from now on; call it on every rank.

    Rank 0 writes one ``file`` for all ranks that have called it. If there is ``{rank}`` in ``file``, each rank writes a
    file of its own: ``{rank}`` is replaced by its number. A file that this process has written before is left alone:
    ``.2`` is put behind the name. Without `init` the job is that of ``torch.distributed``. Raises SlipstreamError
    without a job and while a timeline is being written, OSError if the file cannot be written.

    >>> slipstream.start_timeline("trace.json")
    >>> slipstream.barrier()
    >>> slipstream.stop_timeline()
    """
    _begin(current_or_only(), os.fspath(file))


def stop_timeline() -> None:
    """Ends the timeline, if there is one; the file is complete then. Raises SlipstreamError before `init`.

    Rank 0 waits up to 5 s for the other ranks to call it, too; later events of theirs are lost.

    >>> slipstream.stop_timeline()
    """
    _end(current_or_only())


def _forget_after_fork() -> None:
    """A child is no rank: it lets go of the files and connections."""
    global _lock
    _lock = threading.RLock()  # whoever held it is not here
    for timeline in _running.values():
        timeline.forget()
    for collector in _collectors.values():
        collector.forget()
    _running.clear()
    _collectors.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
