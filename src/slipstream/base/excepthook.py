"""What a rank does with an exception that ends it: shown without slipstream's own frames, and told to its launcher.

One rank's exception makes all others fail: they lose a peer. The launcher names the first cause, so it has to know
which is which. ``SLIPSTREAM_REPORT`` tells a rank where to say so: a pipe of the agent that has started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import stat
import sys
import traceback
from collections.abc import Mapping
from types import TracebackType

from slipstream.base.errors import Aborted, PeerLost, SlipstreamError
from slipstream.base.faces import faces_in_use

__all__ = ["CONSEQUENCE", "MIXED", "OWN", "grade", "install", "is_reporting", "report_pipe", "trimmed"]

# What an exception is: this rank's own, one raised while another was handled, or what follows from another rank's end.
OWN, MIXED, CONSEQUENCE = 0, 1, 2

# As in frames: links in it, if any, are not followed.
_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_ON_PURPOSE = (SlipstreamError, ValueError, TypeError, NotImplementedError, KeyboardInterrupt)
_LOOK_UP = ("__getattr__", "__dir__")  # of a module: what they raise is about the user's spelling
_MOST = 4000  # bytes of a report, which are written at once (PIPE_BUF)
_MOST_RECORDS = 8  # of them, with a traceback; a pipe has room for twice as many
_FRAMES = re.compile(r"\n\nAt:\n(?:  \S+\(\d+\): .*\n?)+")  # what C++ adds to the text of a Python exception
_SAYS_SO = re.compile(r"\b(PeerLost|Aborted): ")  # in the text of an exception that has passed through C++


_PATIENCE = 1.0  # seconds that a report waits for room in the pipe


_reporting: int | None = None  # the process that tells a launcher
_pipe: tuple[int, int] | None = None  # to the launcher: descriptor and inode


def is_reporting() -> bool:
    """Whether this process tells a launcher of its exceptions: the launcher has started it, and not a child of it."""
    return _reporting == os.getpid()


def report_pipe() -> tuple[int, int] | None:
    """Descriptor and inode of the pipe to this process's launcher, which does not block; None without a launcher.

    None in a child of the process that the launcher has started, too.
    """
    return _pipe if is_reporting() else None


def install(environ: Mapping[str, str] = os.environ) -> None:
    """Shows this process's uncaught exceptions, and tells a launcher of them if one waits for word."""
    global _reporting, _pipe
    _pipe = _named_pipe(environ.get("SLIPSTREAM_REPORT", ""))
    pipe = None if _pipe is None else _pipe[0]
    own, before = os.getpid(), sys.excepthook
    _reporting = None if pipe is None else own
    plain = before is sys.__excepthook__ and environ.get("SLIPSTREAM_FULL_TRACEBACK") != "1"
    if pipe is not None:
        os.set_inheritable(pipe, False)
        os.set_blocking(pipe, False)
    elif not plain:
        return

    def hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        text = trimmed(value, trace) if plain else ""
        if pipe is not None and os.getpid() == own:  # not a child of the rank's
            with contextlib.suppress(OSError):
                for record in _announced(text):
                    _tell(pipe, record)
                _tell(pipe, _report(kind, value))
        if plain:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(text)
        else:
            before(kind, value, trace)

    sys.excepthook = hook


def _tell(pipe: int, record: bytes) -> None:
    """Writes it as a whole; OSError if there is no room for it for `_PATIENCE`: the launcher may be stopped."""
    room = select.poll()
    room.register(pipe, select.POLLOUT)
    if not room.poll(_PATIENCE * 1000):
        raise BlockingIOError
    os.write(pipe, record)


def _named_pipe(text: str) -> tuple[int, int] | None:
    """Descriptor and inode, of ``number:inode``, if it is still that pipe in this process."""
    match = re.fullmatch(r"(\d{1,9}):(\d{1,20})", text)
    if match is None:
        return None
    try:
        found = os.fstat(int(match[1]))
    except OSError:
        return None
    is_it = stat.S_ISFIFO(found.st_mode) and found.st_ino == int(match[2])
    return (int(match[1]), found.st_ino) if is_it else None


def _report(kind: type[BaseException], value: BaseException) -> bytes:
    text = _line(kind, value)
    after = next((_line(type(one), one) for one in _chain(value)[1:] if _follows(one)), "")
    most = _MOST
    while True:
        told = {"grade": grade(value), "text": text[:most], "faces": faces_in_use()}
        if after:
            told["after"] = after[:most]
        data = json.dumps(told).encode() + b"\n"
        if len(data) <= _MOST:
            return data
        most = min(max(len(text), len(after)), most) // 2


def _line(kind: type[BaseException], value: BaseException) -> str:
    return _FRAMES.sub("\n", "".join(traceback.format_exception_only(kind, value))).strip()


def _announced(text: str) -> list[bytes]:
    """Tells the launcher what is about to be written to standard error, so that it can show that once."""
    records: list[bytes] = []
    step = _MOST
    while text and len(records) < _MOST_RECORDS:
        data = json.dumps({"shown": text[:step]}).encode() + b"\n"
        if len(data) <= _MOST:
            records.append(data)
            text, step = text[step:], _MOST
        else:
            step = step * 7 // 8
    return [] if text else records


def _chain(error: BaseException) -> list[BaseException]:
    """It, what was handled when it was raised (``from None`` hides that from readers alone), and so on."""
    chain: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in chain:
        chain.append(one)
        one = one.__cause__ or one.__context__
    return chain


def _follows(error: BaseException) -> bool:
    return isinstance(error, (PeerLost, Aborted)) or bool(_SAYS_SO.search(str(error)))


def grade(error: BaseException) -> int:
    """`OWN`, `MIXED` or `CONSEQUENCE`."""
    if len(getattr(error, "exceptions", ())):  # a group
        return min(grade(one) for one in error.exceptions)  # type: ignore[attr-defined]
    follows = [_follows(one) for one in _chain(error)]
    if not any(follows):
        return OWN
    return CONSEQUENCE if follows[-1] else MIXED


def trimmed(error: BaseException, trace: TracebackType | None) -> str:
    """A traceback without frames of slipstream's own where the user's tell enough.

    They do for errors that slipstream raises on purpose, and for Ctrl-C. Any other out of its code is a mistake there,
    and shown whole.
    """
    told = traceback.TracebackException(type(error), error, trace)
    _trim(told, error)
    return _FRAMES.sub("\n", "".join(told.format()))


def _trim(told: traceback.TracebackException | None, error: BaseException | None) -> None:
    if told is None or error is None:
        return
    missing = (
        isinstance(error, AttributeError | ImportError) and told.stack and told.stack[-1].name in _LOOK_UP
    )
    if (missing or isinstance(error, _ON_PURPOSE)) and "_core" not in str(error):
        kept = [frame for frame in told.stack if not frame.filename.startswith(_PACKAGE)]
        if kept:
            told.stack[:] = kept
    _trim(told.__cause__, error.__cause__)
    _trim(told.__context__, error.__context__)
    for below, one in zip(
        getattr(told, "exceptions", None) or (), getattr(error, "exceptions", ()), strict=False
    ):
        _trim(below, one)
