"""What the ranks print, made readable: whole lines after their rank, progress bars that move in place."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from slipstream.launch.terminal import harmless

__all__ = ["Console", "RankOutput", "RankOutputs", "standard_console"]

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_MAX_LINE = 1 << 20  # a longer line is cut in two
_MAX_PAINTED = 4096  # bytes of a line that is painted in place: some widths of a terminal
_TAIL_LINES, _TAIL_WIDTH = 20, 2000
_BREAK = re.compile(rb"[\r\n]")


@dataclass(eq=False)
class _Sink:
    """Where bytes go, and how many were lost there: a full disk or a reader that has left ends no job."""

    name: str
    file: BinaryIO  # unbuffered, so that nothing is written twice
    lost: int = 0
    why: str = ""  # of the last loss

    def write(self, data: bytes) -> bool:
        """Writes all of it; False if some of it was lost."""
        left = memoryview(data)
        try:
            while left:
                written = self.file.write(left)
                if written is None:  # it does not block, and takes no more for now
                    select.select([], [self.file], [])
                    continue
                left = left[written:]
        except (OSError, ValueError) as error:
            self.lost += len(left)
            self.why = getattr(error, "strerror", None) or str(error)
            return False
        return True


class Console:
    """Standard output and error of the launcher, shared by all ranks.

    A *transient* is a line that ended in a carriage return, such as a progress bar: it is painted in place
    on a terminal, and makes way for whole lines of other ranks.
    """

    def __init__(self, out: BinaryIO, err: BinaryIO, *, prefix: bool, timestamps: bool) -> None:
        """``out`` and ``err`` are unbuffered."""
        self._sinks = {False: _Sink("standard output", out), True: _Sink("standard error", err)}
        self._all = list(self._sinks.values())
        self._tty = {False: out.isatty(), True: err.isatty()}
        self._prefix = prefix
        self._timestamps = timestamps
        self._painted: tuple[RankOutput, bool, bytes] | None = None  # who, on which stream, what

    def terminal(self, error: bool) -> bool:
        """Whether that stream is a terminal."""
        return self._tty[error]

    def shown(self, line: bytes, error: bool) -> bytes:
        """A rank's line as that stream may have it: a terminal obeys what it is sent, a file does not."""
        return harmless(line) if self._tty[error] else line

    def sink(self, path: Path) -> _Sink:
        """Opens a file of output, which its owner alone may read; OSError if that is impossible."""
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        one = _Sink(str(path), open(number, "wb", buffering=0))  # noqa: SIM115
        self._all.append(one)
        return one

    def keep(self, sink: _Sink, data: bytes) -> None:
        """Writes to a file, and says so when that fails for the first time."""
        known = sink.lost
        if not sink.write(data) and not known:
            self.say(f"warning: cannot write {sink.name}: {sink.why}; the job goes on")

    def say_what_was_lost(self) -> None:
        """One line for each stream and file that did not take everything; on whatever still takes it."""
        for sink in self._all:
            if sink.lost:
                self.say(f"warning: {sink.lost} bytes of output were lost: {sink.name}: {sink.why}")

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

    def transient(self, who: RankOutput, text: bytes | bytearray) -> None:
        """Shows a line that will be replaced; on a terminal its beginning, unless that is there already."""
        line = who, who.error, bytes(text[:_MAX_PAINTED] if self._tty[who.error] else text)
        painted = self._painted
        if painted == line and self._tty[who.error]:
            return
        if painted is not None and painted[0] is not who and not self._tty[painted[1]]:
            self._write(painted[1], b"\n")
        self._paint(line)

    def _paint(self, line: tuple[RankOutput, bool, bytes]) -> None:
        who, error, text = line
        self._painted = line
        head = self.head(who.rank, error)
        if self._tty[error]:
            shown = _fit(self.shown(text, error), len(f"[{who.rank}] "))
            self._write(error, b"\r\x1b[2K" + head + shown)
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
        data = f"slipstream: {text}\n".encode(errors="replace")
        known = [sink.lost for sink in self._sinks.values()]
        if not self._sinks[True].write(self.shown(data, True)):
            self._sinks[False].write(self.shown(data, False))
        for sink, lost in zip(self._sinks.values(), known, strict=True):
            sink.lost = lost  # what is counted is the job's

    def _write(self, error: bool, data: bytes) -> None:
        sink = self._sinks[error]
        known = sink.lost
        if not sink.write(data) and not known:
            self.say(
                f"warning: {sink.name}: {sink.why}; output is lost, and the job goes on (Ctrl-C ends it)"
            )


def standard_console(*, prefix: bool, timestamps: bool) -> Console:
    """The console on this process's standard output and error."""
    out, err = (open(fd, "wb", buffering=0, closefd=False) for fd in (1, 2))  # noqa: SIM115
    return Console(out, err, prefix=prefix, timestamps=timestamps)


def _fit(text: bytes, used: int) -> bytes:
    """Cuts a transient to the width of the terminal: one that wraps cannot be painted over."""
    # a new terminal may say that it has 0 columns, and Python 3.10 passes that on
    columns = shutil.get_terminal_size().columns or 80
    width = columns - used - 1
    shown = text.decode(errors="replace")
    if b"\x1b" in text or len(shown) <= width:
        return text
    return shown[: max(width, 0)].encode()


def _folder_of(directory: Path, rank: int) -> Path:
    """Makes the folder of a rank's output, closed to others; OSError if that is impossible."""
    folder = directory / f"rank.{rank}"
    if not directory.exists():
        directory.mkdir(mode=0o700, parents=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)  # one of an earlier job, perhaps
    return folder


class RankOutput:
    """One stream of one rank: cut into lines for the console, kept raw in a file, its end remembered."""

    def __init__(self, rank: int, error: bool, console: Console, directory: Path | None) -> None:
        self.rank = rank
        self.error = error
        self.tail: deque[bytes] = deque(maxlen=_TAIL_LINES)
        self.held_back: Callable[[bytes], bool] | None = None  # whether a line is not to be shown as it comes
        self._console = console
        self._line = bytearray()  # since the last line end or carriage return
        self._shown: bytes | None = None  # the transient shown, if nothing came after its carriage return
        self._progress = False  # this stream has used carriage returns
        self._file: _Sink | None = None
        if directory is not None:
            try:
                self._file = console.sink(_folder_of(directory, rank) / ("stderr" if error else "stdout"))
            except OSError as failure:
                text = f"--output-dir {directory}: cannot write {failure.filename}: {failure.strerror}"
                raise ValueError(text) from None

    def feed(self, data: bytes) -> None:
        """Takes the next bytes; an empty chunk is the end of the stream."""
        if not data:
            self.flush()
            self.close()
            return
        if self._file is not None:
            self._console.keep(self._file, data)
        whole: list[bytes] = []
        at = 0
        for match in _BREAK.finditer(data):
            self._line += data[at : match.start()]
            at = match.end()
            if match[0] == b"\n":
                whole.append(self._complete())
            elif self._line:
                self._write(whole)
                self._replace()
        self._line += data[at:]
        while len(self._line) > _MAX_LINE:
            rest = self._line[_MAX_LINE:]
            del self._line[_MAX_LINE:]
            whole.append(self._complete())
            self._line = rest
        self._write(whole)
        if self._line and self._console.terminal(self.error) and (self._progress or self.rank == 0):
            self._console.transient(self, self._line)

    def _write(self, whole: list[bytes]) -> None:
        """Writes these lines at once, and empties the list."""
        if whole:
            self._console.lines(self, b"".join(whole))
            whole.clear()

    def _replace(self) -> None:
        """A carriage return has ended the line: it is shown until the next one replaces it."""
        self._progress = True
        self._shown, self._line = bytes(self._line), bytearray()
        self._console.transient(self, self._shown)

    def _complete(self) -> bytes:
        """The line that has just ended: what the last carriage return left stays if nothing followed."""
        line = bytes(self._line) if self._line or self._shown is None else self._shown
        self._line, self._shown = bytearray(), None
        self.tail.append(line[:_TAIL_WIDTH])
        if self.held_back is not None and self.held_back(line):
            return b""
        return self._shown_line(line)

    def _shown_line(self, line: bytes) -> bytes:
        console = self._console
        return console.head(self.rank, self.error) + console.shown(line, self.error) + b"\n"

    def show(self, lines: Iterable[bytes]) -> None:
        """Shows lines that were held back."""
        self._write([self._shown_line(line) for line in lines])

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
            with contextlib.suppress(OSError):
                self._file.file.close()
            self._file = None


class RankOutputs:
    """Both streams of all ranks of a job."""

    def __init__(self, console: Console, directory: Path | None) -> None:
        self._console = console
        self._directory = directory
        self._all: dict[tuple[int, bool], RankOutput] = {}

    def add(self, rank: int) -> None:
        """Opens the files of a rank; ValueError if that is impossible."""
        for error in (False, True):
            self._all[rank, error] = RankOutput(rank, error, self._console, self._directory)

    def feed(self, rank: int, error: bool, data: bytes) -> None:
        """Takes the next bytes of a stream; an empty chunk is its end."""
        self._all[rank, error].feed(data)

    def flush(self, rank: int) -> None:
        """Ends the lines that a rank has begun."""
        for error in (False, True):
            self._all[rank, error].flush()

    def hold_back(self, rank: int, which: Callable[[bytes], bool] | None) -> None:
        """Has the lines of the rank's standard error not shown for which that is true."""
        self._all[rank, True].held_back = which

    def show(self, rank: int, lines: Iterable[bytes]) -> None:
        """Shows lines of the rank's standard error that were held back."""
        self._all[rank, True].show(lines)

    def tail(self, rank: int) -> deque[bytes]:
        """The last lines of a rank's standard error."""
        return self._all[rank, True].tail

    def close(self) -> None:
        """Closes all files."""
        for output in self._all.values():
            output.close()
