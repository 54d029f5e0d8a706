"""What is on its way through a pipe whose reader may be slow or stopped."""

from __future__ import annotations

import os
import selectors

__all__ = ["Outbox"]

_CHUNK = 65536


class Outbox:
    """Bytes for a pipe that does not block; while some are left, the selector's loop is to call `flush`."""

    def __init__(self, fd: int, selector: selectors.BaseSelector) -> None:
        self.broken = False  # the reader is gone: what is added from now on is lost
        self._fd = fd
        self._selector = selector
        self._left = bytearray()

    def __len__(self) -> int:
        """How many bytes are left."""
        return len(self._left)

    def add(self, data: bytes) -> None:
        """Takes what the next `flush` is to write."""
        self._left += data

    def post(self, data: bytes) -> None:
        """Writes up to PIPE_BUF bytes. May run in a signal handler, so it leaves a write in progress to the loop."""
        if self._left:
            self._left += data
            return
        try:
            os.write(self._fd, data)  # whole or not at all
        except BlockingIOError:
            self._left += data
        except OSError:
            self.broken = True

    def flush(self, *_: object) -> None:
        """Writes what the pipe takes now."""
        try:
            while self._left:
                del self._left[: os.write(self._fd, self._left[:_CHUNK])]
        except BlockingIOError:
            pass
        except OSError:
            self.broken = True
            self._left.clear()
        self._watch(bool(self._left))

    def close(self) -> None:
        """Forgets what is left; the pipe may be closed after that."""
        self._left.clear()
        self._watch(False)

    def _watch(self, wanted: bool) -> None:
        """Has the selector look for room in the pipe, or not."""
        if wanted == (self._fd in self._selector.get_map()):
            return
        if wanted:
            self._selector.register(self._fd, selectors.EVENT_WRITE, self.flush)
        else:
            self._selector.unregister(self._fd)
