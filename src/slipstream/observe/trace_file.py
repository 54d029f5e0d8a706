"""The file of a timeline: a JSON array that grows, and that viewers read at any time."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence

__all__ = ["TraceFile"]


class TraceFile:
    """Writes events to the file ``path``; any thread. Raises OSError if it cannot.

    What has been written is a valid trace at any time, also if the process is killed. An error ends the file behind the
    last whole event.
    """

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self._lock = threading.Lock()
        self._whole = 0  # bytes, up to the end of an event
        self._error: OSError | None = None

    def write(self, lines: Sequence[str]) -> None:
        """Adds events, one in each line."""
        if lines:
            self.write_text(",\n".join(lines).encode())

    def write_text(self, text: bytes) -> None:
        """Adds events that are joined already."""
        with self._lock:
            self._put((b",\n" if self._whole else b"[\n") + text)

    def finish(self) -> None:
        """Writes the end, and closes the file."""
        with self._lock:
            try:
                self._put(b"\n]\n" if self._whole else b"[]\n")
            finally:
                os.close(self._file)
                self._error = OSError("the timeline has ended")

    def _put(self, left: bytes) -> None:
        if self._error is not None:
            raise self._error
        size = len(left)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            self._error = error
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._whole)  # which leaves room for the end, on a full disk too
                os.pwrite(self._file, b"\n]\n" if self._whole else b"[]\n", self._whole)
            raise
        self._whole += size
