"""What the ranks print, made readable: whole lines after their rank, progress bars that move in place."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections import deque
from pathlib import Path
from typing import BinaryIO

__all__ = ["Console", "RankOutput"]

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_MAX_LINE = 64 << 10  # a longer line is cut
_TAIL_LINES, _TAIL_WIDTH = 20, 2000
_BREAK = re.compile(rb"[\r\n]")


class Console:
    """Standard output and error of the launcher, shared by all ranks.

    A *transient* is a line that ended in a carriage return, such as a progress bar: it is painted in place
    on a terminal, and makes way for whole lines of other ranks.
    """

    def __init__(self, out: BinaryIO, err: BinaryIO, *, prefix: bool, timestamps: bool) -> None:
        self._files = {False: out, True: err}
        self._tty = {False: out.isatty(), True: err.isatty()}
        self._prefix = prefix
        self._timestamps = timestamps
        self._painted: tuple[RankOutput, bool, bytes] | None = None  # who, on which stream, what

    def terminal(self, error: bool) -> bool:
        """Whether that stream is a terminal."""
        return self._tty[error]

    def head(self, rank: int, error: bool) -> bytes:
        """What stands before each line of a rank."""
        text = ""
        if self._timestamps:
            now = time.time()
            stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
            text = f"{stamp}.{int(now % 1 * 1000):03d} "
        if self._prefix:
            label = f"[{rank}]"
            if self._tty[error] and "NO_COLOR" not in os.environ:
                label = f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{label}\x1b[0m"
            text += label + " "
        return text.encode()

    def lines(self, who: RankOutput, data: bytes) -> None:
        """Writes whole lines (each with its end)."""
        error = who.error
        painted = self._painted
        clear = b""
        if painted is not None:
            self._painted = None
            clear = b"\r\x1b[2K" if self._tty[painted[1]] else (b"" if painted[0] is who else b"\n")
        if painted is not None and painted[1] != error and clear:
            self._write(painted[1], clear)
            clear = b""
        self._write(error, clear + data)
        if painted is not None and painted[0] is not who and self._tty[painted[1]]:
            self._paint(painted)

    def transient(self, who: RankOutput, text: bytes) -> None:
        """Shows a line that will be replaced."""
        painted = self._painted
        if painted is not None and painted[0] is not who and not self._tty[painted[1]]:
            self._write(painted[1], b"\n")
        self._paint((who, who.error, text))

    def _paint(self, line: tuple[RankOutput, bool, bytes]) -> None:
        who, error, text = line
        self._painted = line
        head = self.head(who.rank, error)
        if self._tty[error]:
            self._write(error, b"\r\x1b[2K" + head + _fit(text, len(f"[{who.rank}] ")))
        else:
            self._write(error, head + text + b"\r")

    def settle(self) -> None:
        """Ends a transient that is still shown."""
        if self._painted is not None:
            error, self._painted = self._painted[1], None
            self._write(error, b"\n")

    def say(self, text: str) -> None:
        """Writes a line of the launcher's own to standard error."""
        self.settle()
        self._write(True, f"slipstream: {text}\n".encode(errors="replace"))

    def _write(self, error: bool, data: bytes) -> None:
        file = self._files[error]
        file.write(data)
        file.flush()


def _fit(text: bytes, used: int) -> bytes:
    """Cuts a transient to the width of the terminal: one that wraps cannot be painted over."""
    # a new terminal may say that it has 0 columns, and Python 3.10 passes that on
    columns = shutil.get_terminal_size().columns or 80
    width = columns - used - 1
    shown = text.decode(errors="replace")
    if b"\x1b" in text or len(shown) <= width:
        return text
    return shown[: max(width, 0)].encode()


class RankOutput:
    """One stream of one rank: cut into lines for the console, kept raw in a file, its end remembered."""

    def __init__(self, rank: int, error: bool, console: Console, directory: Path | None) -> None:
        self.rank = rank
        self.error = error
        self.tail: deque[bytes] = deque(maxlen=_TAIL_LINES)
        self._console = console
        self._line = b""  # since the last line end or carriage return
        self._shown: bytes | None = None  # the transient shown, if nothing came after its carriage return
        self._progress = False  # this stream has used carriage returns
        self._file: BinaryIO | None = None
        if directory is not None:
            folder = directory / f"rank.{rank}"
            folder.mkdir(parents=True, exist_ok=True)
            self._file = open(folder / ("stderr" if error else "stdout"), "wb", buffering=0)  # noqa: SIM115

    def feed(self, data: bytes) -> None:
        """Takes the next bytes; an empty chunk is the end of the stream."""
        if not data:
            self.flush()
            self.close()
            return
        if self._file is not None:
            self._file.write(data)
        whole: list[bytes] = []
        at = 0
        for match in _BREAK.finditer(data):
            self._line += data[at : match.start()]
            at = match.end()
            if match[0] == b"\n":
                whole.append(self._complete())
            elif self._line:
                self._progress = True
                if whole:
                    self._console.lines(self, b"".join(whole))
                    whole = []
                self._shown, self._line = self._line, b""
                self._console.transient(self, self._shown)
        self._line += data[at:]
        while len(self._line) > _MAX_LINE:
            rest = self._line[_MAX_LINE:]
            self._line = self._line[:_MAX_LINE]
            whole.append(self._complete())
            self._line = rest
        if whole:
            self._console.lines(self, b"".join(whole))
        if self._line and self._console.terminal(self.error) and (self._progress or self.rank == 0):
            self._console.transient(self, self._line)

    def _complete(self) -> bytes:
        """The line that has just ended: what the last carriage return left stays if nothing followed."""
        line = self._line if self._line or self._shown is None else self._shown
        self._line, self._shown = b"", None
        self.tail.append(line[:_TAIL_WIDTH])
        return self._console.head(self.rank, self.error) + line + b"\n"

    def flush(self) -> None:
        """Ends a line that has begun."""
        if self._line:
            self._console.lines(self, self._complete())
        elif self._shown is not None:
            self.tail.append(self._shown[:_TAIL_WIDTH])
            self._shown = None

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
