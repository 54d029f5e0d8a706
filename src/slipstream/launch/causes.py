"""Why a job failed: of all ranks that failed, which was the first cause."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from slipstream.base.excepthook import CONSEQUENCE, MIXED, OWN

__all__ = ["Causes", "Failure", "advice", "explained", "named"]

_TRACEBACK = b"Traceback (most recent call last):"
_LOST = re.compile(r"\bPeerLost: (?:the job has failed before: )?rank (\d+)\b")
_FOLLOWS = re.compile(rb"(?:[A-Za-z_][\w.]*\.)?(PeerLost|Aborted): ")
_LEFT = (
    "has given up the connection that broke"  # as the rank that has done so knows why, its error tells more
)
_MOST = 8000


@dataclass(frozen=True)
class Failure:
    """A rank that failed: the exit code that it stands for, how it ended, and its error as far as it is known.

    ``after``: the error of the job that it handled when it raised that one; "" if there was none.
    """

    rank: int
    code: int
    how: str
    grade: int
    error: str = ""
    after: str = ""

    @property
    def lost(self) -> int | None:
        """The rank whose loss made this one fail, if its error names one."""
        match = _LOST.search(self.error) or _LOST.search(self.after)
        return None if match is None else int(match[1])


class Causes:
    """What the ranks reported and how they ended, in order of arrival."""

    def __init__(self) -> None:
        self._reports: dict[int, tuple[int, str, str]] = {}
        self._failures: list[Failure] = []

    def report(self, rank: int, data: bytes) -> None:
        """Takes what a rank says of an exception; anything that makes no sense is passed over."""
        for line in data.splitlines():
            try:
                told = json.loads(line)
                found = told["grade"], told["text"], told.get("after", "")
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
            if (
                found[0] in (OWN, MIXED, CONSEQUENCE)
                and isinstance(found[1], str)
                and isinstance(found[2], str)
            ):
                self._reports[rank] = found[0], found[1][:_MOST], found[2][:_MOST]

    def failed(self, rank: int, code: int, how: str, tail: Iterable[bytes]) -> None:
        """A rank ended with ``code`` (128 + signal); ``tail``: the last lines of its standard error."""
        grade, error, after = self._reports.get(rank, (OWN, "", ""))
        if not error and code < 128:
            error = _last_error(tail)
            grade = CONSEQUENCE if _FOLLOWS.match(error.encode()) else OWN
        self._failures.append(Failure(rank, code, how, grade, error, after))

    @property
    def certain(self) -> bool:
        """Whether a rank has failed that others could not have brought down."""
        return any(one.grade == OWN for one in self._failures)

    def first(self) -> Failure | None:
        """The first cause as far as it is known."""
        if not self._failures:
            return None
        ended = {one.rank for one in self._failures}
        raised = [  # those that still live, at their end perhaps
            Failure(rank, 1, "failed", grade, error, after)
            for rank, (grade, error, after) in self._reports.items()
            if rank not in ended
        ]
        lowest = min(one.grade for one in self._failures + raised)
        return _followed([one for one in self._failures + raised if one.grade == lowest])


def _followed(failures: list[Failure]) -> Failure:
    """The first of ``failures``, or of the rank whose loss made it fail, and so on.

    Ranks that name each other fail by what is between them: then the first that knows why.
    """
    of_rank = {one.rank: one for one in failures}
    one, seen = failures[0], list[Failure]()
    while one not in seen:
        seen.append(one)
        if one.lost not in of_rank:
            return one
        one = of_rank[one.lost]
    circle = seen[seen.index(one) :]
    return min(circle, key=lambda one: (_LEFT in one.error, failures.index(one)))


def named(ranks: Sequence[int]) -> str:
    """``rank 3``, or ``ranks 0, 1``."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


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
        said = [*first, f"{what}:\n{_indented(lines)}"]
        return [*said, cure] if cure else said
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
    if cause.lost in finished and "has not joined" not in cause.error:
        # the error of the rank that waits may have been made before the exit code was known
        known = "" if "exit code 0" in cause.error else f"rank {cause.lost} finished (exit code 0); "
        waits = f"rank {cause.rank} still waited for it"
        return (
            f"{known}{waits}. If rank {cause.lost} ran fewer steps: give all ranks the same number of batches, or let "
            "it join after its loop (hvd.join(); DDP: with model.join())"
        )
    missing = cause.error.startswith("ModuleNotFoundError: No module named 'slipstream'")
    if missing and program is not None and program != sys.executable:
        return (
            f"{program} has no slipstream; the launcher runs with {sys.executable}. Activate that environment, "
            "or give its python in the command"
        )
    return ""


def _last_error(tail: Iterable[bytes]) -> str:
    """The exception that a Python traceback at the end of ``tail`` tells; "" if there is none."""
    lines = list(tail)
    inside = [at for at, line in enumerate(lines) if line == _TRACEBACK or line.startswith(b"  File ")]
    if not inside:
        return ""
    rest = iter(range(inside[-1] + 1, len(lines)))
    at = next((at for at in rest if lines[at][:1] not in (b" ", b"")), None)
    return "" if at is None else b"\n".join(lines[at:]).decode(errors="replace").strip()
