"""Why a job failed: of all ranks that failed, which was the first cause."""

from __future__ import annotations

import json
import re
import signal
import site
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NamedTuple

from slipstream.base.excepthook import CONSEQUENCE, MIXED, OWN
from slipstream.base.faces import JOINING
from slipstream.launch.blame import Accusation, judge
from slipstream.launch.session_failures import SessionFailure, read

__all__ = ["Causes", "Failure", "advice", "explained"]

_TRACEBACK = b"Traceback (most recent call last):"
_LOST = re.compile(r"\bPeerLost: (?:the job has failed before: )?rank (\d+)\b")
_FOLLOWS = re.compile(rb"(?:[A-Za-z_][\w.]*\.)?(PeerLost|Aborted): ")
_MISSING = re.compile(r"ModuleNotFoundError: No module named '(\w+)'")
_NOT_TAKEN = re.compile(r"some of what it had sent is lost: (rank \d+)")
_MESSAGE = re.compile(r"\bstill waits in (?:send|recv)\b")
_MOST = 8000
_ABORTED = 128 + signal.SIGABRT  # how C++ ends a process whose exception nobody catches


@dataclass(frozen=True)
class Failure:
    """A rank that failed: the exit code that it stands for, how it ended, and its error as far as it is known.

    ``after``: the error of the job that it handled when it raised that one; "" if there was none. ``session``: why its
    session failed, if that is known. ``judgement``: what the reports of all ranks say together; "" if no more.
    ``faces``: those that its program uses; None: it has not said so.
    """

    rank: int
    code: int
    how: str
    grade: int
    error: str = ""
    after: str = ""
    session: SessionFailure | None = None
    judgement: str = ""
    faces: frozenset[str] | None = None

    @property
    def lost(self) -> int | None:
        """The rank whose loss made this one fail, if its error names one."""
        if self.session is not None and (lost := self.session.lost(self.rank)) is not None:
            return lost
        match = _LOST.search(self.error) or _LOST.search(self.after)
        return None if match is None else int(match[1])


class _Raised(NamedTuple):
    """What a rank has said of the exception that ends it."""

    grade: int
    error: str
    after: str


class Causes:
    """What the ranks reported and how they ended, in order of arrival."""

    def __init__(self, hosts: Mapping[int, str] | None = None) -> None:
        """``hosts``: that of each rank, as people know it."""
        self._hosts = hosts or {}
        self._raised: dict[int, _Raised] = {}
        self._sessions: dict[int, SessionFailure] = {}  # those that the rank has not gone on after
        self._faces: dict[int, frozenset[str]] = {}
        self._failures: list[Failure] = []
        self._finished: set[int] = set()

    def report(self, rank: int, data: bytes) -> None:
        """Takes what a rank says of an exception, or of a session; what makes no sense is passed over."""
        for line in data.splitlines():
            try:
                told = json.loads(line.decode(errors="replace"))
            except (ValueError, RecursionError):
                continue
            if isinstance(told, dict) and "session" in told:
                self._of_session(rank, told["session"])
            elif isinstance(told, dict):
                self._of_exception(rank, told)

    def _of_session(self, rank: int, told: object) -> None:
        failure = read(told)
        if told is None:
            self._sessions.pop(rank, None)  # another one has begun
        elif failure is not None:
            self._sessions.setdefault(rank, failure)

    def _of_exception(self, rank: int, told: dict[str, object]) -> None:
        grade, error, after = told.get("grade"), told.get("text"), told.get("after", "")
        if type(grade) is not int or grade not in (OWN, MIXED, CONSEQUENCE):
            return
        if not isinstance(error, str) or not isinstance(after, str):
            return
        faces = told.get("faces")
        if isinstance(faces, list):
            self._faces[rank] = frozenset(one for one in faces if isinstance(one, str))
        session = self._sessions.get(rank)
        if session is not None and session.grade(rank) != OWN:
            grade = max(grade, MIXED)  # it came after the failure of the session, of which it may say nothing
        self._raised[rank] = _Raised(grade, error[:_MOST], after[:_MOST])

    def finished(self, rank: int) -> None:
        """A rank ended with code 0."""
        self._finished.add(rank)

    def failed(self, rank: int, code: int, how: str, tail: Iterable[bytes]) -> None:
        """A rank ended with ``code`` (128 + signal); ``tail``: the last lines of its standard error."""
        raised = self._raised.get(rank)
        session = self._sessions.get(rank)
        follows = session is not None and session.grade(rank) != OWN
        if raised is None and code < 128 and (error := _last_error(tail)):
            least = MIXED if follows else OWN
            raised = _Raised(CONSEQUENCE if _FOLLOWS.match(error.encode()) else least, error, "")
        elif raised is None and session is None:
            raised = _Raised(OWN, "", "")
        elif raised is None and follows and code > 128 and code != _ABORTED:
            raised = _Raised(MIXED, str(session), "")  # by whom, nobody knows
        self._failures.append(self._failure(rank, code, how, raised))

    def forget(self, ranks: Iterable[int]) -> None:
        """The job goes on without them."""
        for rank in ranks:
            self._raised.pop(rank, None)
            self._sessions.pop(rank, None)

    def _failure(self, rank: int, code: int, how: str, raised: _Raised | None) -> Failure:
        session = self._sessions.get(rank)
        if session is None:
            assert raised is not None
            return Failure(rank, code, how, *raised)
        grade = session.grade(rank)
        if raised is None:
            return Failure(rank, code, how, grade, str(session), session=session)
        after = raised.after
        if not after and raised.grade == MIXED and str(session) != raised.error:
            after = str(session)
        grade = OWN if grade == OWN else raised.grade
        return Failure(rank, code, how, grade, raised.error, after, session)

    @property
    def certain(self) -> bool:
        """Whether a rank has failed that others could not have brought down."""
        if not self._failures:
            return False
        ended = self._finished & self._sessions.keys()
        own = any(self._sessions[rank].grade(rank) == OWN for rank in ended)
        return own or any(one.grade == OWN for one in self._failures)

    @property
    def session_failed(self) -> set[int]:
        """Ranks whose session has failed."""
        return set(self._sessions)

    @property
    def one_sided(self) -> bool:
        """Whether all that is known comes from one host of several, which may be cut off from the others.

        Its ranks then have lost a rank that lives, on one of two hosts or more, or all others, and no rank there says
        anything.
        """
        told = self._all()
        here = {self._hosts.get(one.rank) for one in told}
        lost = {one.lost for one in told if one.lost is not None and self._hosts.get(one.lost) not in here}
        living = lost - {one.rank for one in self._failures} - self._finished
        doubt = bool(living) or any(one.heard_nobody for one in self._sessions.values())
        return len(here) == 1 and len(set(self._hosts.values())) > 2 and doubt

    def first(self) -> Failure | None:
        """The first cause as far as it is known."""
        if not self._failures:
            return None
        told = self._all()
        lowest = min(one.grade for one in told)
        those = [one for one in told if one.grade == lowest]
        accusations = [_accusation(one) for one in those]
        judgement = judge(accusations, lambda rank: self._hosts.get(rank, ""))
        found = next(one for one in those if one.rank == judgement.cause)
        return replace(found, judgement=judgement.saying, faces=self._faces.get(found.rank))

    def _all(self) -> list[Failure]:
        """Those that have failed, then those that have said why they will."""
        ended = {one.rank for one in self._failures}
        rest = dict.fromkeys(rank for rank in (*self._raised, *self._sessions) if rank not in ended)
        return self._failures + [
            self._failure(rank, *self._end(rank), self._raised.get(rank)) for rank in rest
        ]

    def _end(self, rank: int) -> tuple[int, str]:
        """Code and words for a rank that has not ended with a code of its own."""
        if rank in self._finished and self._failures:
            return self._failures[0].code, "finished (exit code 0), though its job had failed"
        return 1, "failed"


def _accusation(failure: Failure) -> Accusation:
    session = failure.session
    text = f"{failure.error}\n{failure.after}" if session is None else session.text
    return Accusation(failure.rank, failure.lost, text, None if session is None else session.told_by)


def explained(
    cause: Failure, host: str, tail: Iterable[bytes], cure: str, traceback: str = "", others: str = ""
) -> list[str]:
    """What the launcher says of the cause. ``tail``: the end of the rank's standard error; ``cure``: see `advice`.

    ``traceback``: the rank's, if it has not been shown; ``others``: what other ranks have raised, in a line.
    """
    what = f"rank {cause.rank} on host {host} {_how_and_why(cause)}"
    first = [others] if others else []
    if traceback or cause.error:
        lines = (traceback or cause.error).splitlines()
        if cause.after and cause.after not in "\n".join(lines):  # the program has hidden it
            lines.append(f"after {cause.after}")
        return [text for text in (*first, f"{what}:\n{_indented(lines)}", cause.judgement, cure) if text]
    last = _indented([line.decode(errors="replace") for line in tail])
    return [*first, what, f"the last lines of its standard error:\n{last}"] if last else [*first, what]


def _indented(lines: Iterable[str]) -> str:
    return "\n".join("    " + line for line in lines)


def _how_and_why(cause: Failure) -> str:
    """How the rank ended, with what often is the reason."""
    if "(SIGKILL)" in cause.how:  # not by us: we kill only once the cause is known
        return f"{cause.how}, often by the kernel's out-of-memory killer: see dmesg"
    return cause.how


def advice(cause: Failure, finished: Collection[int], program: str | None) -> str:
    """What its error may mean, and the cure; "" if that is unknown. ``finished``: the ranks that ended with code 0.

    ``program`` is what the rank was started with, if that is a file of this machine.
    """
    if not_taken := _NOT_TAKEN.search(cause.error):
        return (
            f"{not_taken[1]} was stopped, or had no processor, for that long. Find out why, or let the others wait "
            "longer for it (SLIPSTREAM_HEARTBEAT)"
        )
    if cause.lost in finished and "has not joined" not in cause.error:
        # the error of the rank that waits may have been made before the exit code was known
        known = "" if "exit code 0" in cause.error else f"rank {cause.lost} finished (exit code 0); "
        waits = f"rank {cause.rank} still waited for it"
        if _MESSAGE.search(cause.error):
            return f"{known}{waits}. Each send needs a recv on the other rank with the same tag, and each recv a send"
        cure = (
            f"{known}{waits}. If rank {cause.lost} ran fewer steps: give all ranks the same number of batches"
        )
        ways = _ways_to_join(cause.faces)
        return f"{cure}, or let it join after its loop ({ways})" if ways else cure
    missing = _MISSING.match(cause.error)
    if missing and program is not None and _has_only_here(missing[1], program):
        return (
            f"{program} has no {missing[1]}; the launcher runs with {sys.executable}. Activate that environment, "
            "or give its python in the command"
        )
    return ""


def _has_only_here(module: str, program: str) -> bool:
    """Whether the launcher's Python has ``module`` installed, and is another one than ``program``."""
    if Path(program).parent == Path(sys.executable).parent:
        return False
    found = PathFinder.find_spec(module, [*site.getsitepackages(), site.getusersitepackages()])
    return found is not None and found.origin is not None  # it has none if it is a mere folder


def _ways_to_join(faces: frozenset[str] | None) -> str:
    """How a rank without batches takes part in a program of these faces; "" where it cannot."""
    hvd = ["hvd.join()"] if faces is None or faces & JOINING else []
    ddp = ["DDP: with model.join()"] if faces is None or "torch.distributed" in faces else []
    return "; ".join(hvd + ddp)


def _last_error(tail: Iterable[bytes]) -> str:
    """The exception that a Python traceback at the end of ``tail`` tells; "" if there is none."""
    lines = list(tail)
    inside = [at for at, line in enumerate(lines) if line == _TRACEBACK or line.startswith(b"  File ")]
    if not inside:
        return ""
    rest = iter(range(inside[-1] + 1, len(lines)))
    at = next((at for at in rest if lines[at][:1] not in (b" ", b"")), None)
    return "" if at is None else b"\n".join(lines[at:]).decode(errors="replace").strip()
