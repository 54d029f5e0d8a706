"""The timeline: a file that shows when this process's operations ran and what became of its connections.

``SLIPSTREAM_TIMELINE=FILE`` begins it with the job, `start_timeline` later. docs/timeline.md says how to look at it.
The engine only notes what happens; a thread of this module takes that several times a second and writes it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque

from slipstream.base import recording
from slipstream.base.errors import SlipstreamError
from slipstream.base.settings import Settings
from slipstream.base.timelines import file_of, objection
from slipstream.comm.membership.job import Job, current_or_only
from slipstream.observe import chrome

__all__ = ["Timeline", "follow", "start_timeline", "stop_timeline"]

_PERIOD = 0.25  # seconds between two writes
_CAPACITY = 1 << 15  # events between two writes; more are dropped, and counted

_log = logging.getLogger("slipstream")
_running: dict[Job, Timeline | None] = {}  # None: other ranks write
_written: dict[str, int] = {}  # how often this process has begun each file


class Timeline:
    """Writes what a job does from now on to the file ``path``, until it is closed. Raises OSError if it cannot.

    What has been written is a valid trace at any time, also if the process is killed.
    """

    def __init__(self, job: Job, path: str, *, capacity: int = _CAPACITY) -> None:
        self._job = job
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        clock = 0 if job.measured is None else job.measured.clock
        self._offset = time.time_ns() - time.monotonic_ns() + clock
        self._rows = chrome.Rows(job.rank)
        self._capacity = capacity
        self._recorded: deque[recording.Recorded] = deque()  # by Python code
        self._missing = 0  # of these
        self._begun = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slipstream-timeline", daemon=True)
        self._write(chrome.introduction(job.rank, job.names[job.rank]))
        job.session.start_trace(capacity)
        recording.listen(self._note)
        self._thread.start()

    def _note(self, event: recording.Recorded) -> None:
        if len(self._recorded) < self._capacity:
            self._recorded.append(event)
        else:
            self._missing += 1

    def _run(self) -> None:
        try:
            while not self._stop.wait(_PERIOD):
                self._drain()
        except OSError as error:  # a full disk must not end a training
            self._stop_recording()
            _log.warning("the timeline ends here: %s", error)

    def _drain(self) -> None:
        native, missing = self._job.session.take_trace()
        events = chrome.translate(native, self._rows, self._offset)
        recorded = [self._recorded.popleft() for _ in range(len(self._recorded))]
        events += chrome.translate_recorded(recorded, self._rows, self._offset)
        missing, self._missing = missing + self._missing, 0
        if missing:
            at = time.monotonic_ns() + self._offset
            events.append(chrome.dropped(self._job.rank, missing, at))
        self._write(events)

    def _write(self, events: list[chrome.Event]) -> None:
        if not events:
            return
        text = ",\n".join(map(chrome.line, events))
        self._put((",\n" if self._begun else "[\n") + text)
        self._begun = True

    def _put(self, text: str) -> None:
        left = text.encode()
        while left:
            left = left[os.write(self._file, left) :]

    def _stop_recording(self) -> None:
        recording.stop_listening(self._note)
        self._job.session.stop_trace()

    def close(self) -> None:
        """Writes what is left, and the end."""
        self._stop_recording()
        self._stop.set()
        self._thread.join()
        try:
            self._drain()
            self._put("\n]\n")
        except OSError as error:
            _log.warning("the end of the timeline is missing: %s", error)
        finally:
            os.close(self._file)


def _begin(job: Job, template: str) -> None:
    path = file_of(template, job.rank)
    timeline = None
    if path is not None:
        times = _written.get(path, 0) + 1
        file = path if times == 1 else f"{path}.{times}"
        try:
            timeline = Timeline(job, file)
        except OSError as error:
            why = objection(file) or error.strerror
            raise type(error)(f"rank {job.rank} cannot write its timeline {file}: {why}") from None
        _written[path] = times
    _running[job] = timeline
    job.when_left(lambda: _end(job))


def _end(job: Job) -> None:
    timeline = _running.pop(job, None)
    if timeline is not None:
        timeline.close()


def follow(job: Job, settings: Settings) -> None:
    """Begins the timeline of a job that the settings ask for, if they do."""
    if settings.timeline is not None:
        _begin(job, settings.timeline)


def start_timeline(file: str | os.PathLike[str]) -> None:
    """Writes a timeline of this job from now on: ``{rank}`` in ``file`` is replaced, without it only rank 0 writes.

    A file that this process has written before is left alone: ``.2`` is put behind the name. Without
    `init` the job is that of ``torch.distributed``. Raises SlipstreamError without a job and while a timeline is being
    written, OSError if the file cannot be written.

    >>> slipstream.start_timeline("trace-{rank}.json")
    >>> slipstream.barrier()
    >>> slipstream.stop_timeline()
    """
    job = current_or_only()
    if job in _running:
        raise SlipstreamError("a timeline is being written already: call stop_timeline() first")
    _begin(job, os.fspath(file))


def stop_timeline() -> None:
    """Ends the timeline, if there is one; the file is complete then. Raises SlipstreamError before `init`.

    >>> slipstream.stop_timeline()
    """
    _end(current_or_only())


os.register_at_fork(after_in_child=_running.clear)  # a child is no rank
