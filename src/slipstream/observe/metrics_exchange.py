"""Ranks tell how they are doing when they are asked: over TCP, to callers that prove that they may know.

Every rank has a listener for that, and a thread that sleeps until somebody calls. What a caller proves is a key that
is made from the job's secret: who has it can ask, and can neither join the job nor send it anything.
"""

from __future__ import annotations

import hmac
import json
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from slipstream.base.errors import SlipstreamError
from slipstream.comm.membership.job import Job
from slipstream.comm.membership.meeting import MeetingPlace
from slipstream.comm.rendezvous.questions import QuestionServer
from slipstream.comm.rendezvous.store import Called, Store
from slipstream.observe.metrics import Snapshot

__all__ = ["Answers", "ask", "ask_all", "key_of", "name_of"]

_SNAPSHOT, _LAST = b"snapshot", b"last "
_LONGEST = 1 << 20  # bytes of a snapshot
_SECONDS = 2.0  # for an answer
_AT_ONCE = 16  # ranks that are asked

_CALLED = Called(name="the rank at {}:{}", secret="it belongs to another job", mute="it is busy", absent="")


def key_of(job: Job) -> bytes:
    """What callers prove that they know."""
    return hmac.digest(job.membership.secret, b"slipstream metrics", "sha256")


def name_of(job: Job) -> str:
    """The name under which the ranks of a job are asked: no other start of a job has it."""
    return f"{job.membership.job}/{job.membership.epoch}/{job.nonce.hex()[:16]} metrics"


class Answers:
    """Answers callers until `close`. ``snapshot`` is called on the answering thread."""

    def __init__(self, job: Job, snapshot: Callable[[], Snapshot]) -> None:
        assert job.questions is not None
        self._snapshot = snapshot
        self._told = threading.Condition()
        self._last: dict[int, Snapshot] = {}
        self.asked_last = threading.Event()  # rank 0 has asked for what it shows at the end
        self._server = QuestionServer(
            "",
            key_of(job),
            name_of(job),
            0,
            self._answer,
            job.settings.encrypt,
            listeners=job.questions.share(),
            most=_LONGEST,
        )
        _serving.add(self)

    def last(self, count: int = 0, seconds: float = 0.0) -> dict[int, Snapshot]:
        """What ranks have sent as they left, by rank; waits until that are ``count``, for so many seconds."""
        with self._told:
            self._told.wait_for(lambda: len(self._last) >= count, seconds)
            return dict(self._last)

    def _answer(self, question: bytes, who: str, encrypted: bool) -> bytes:
        try:
            if question.startswith(_LAST) and len(question) > len(_LAST):
                found = json.loads(question[len(_LAST) :])
                with self._told:
                    self._last[int(found["rank"])] = found
                    self._told.notify()
                return b"{}"
            if question == _LAST.strip():
                self.asked_last.set()
            return json.dumps(self._snapshot()).encode()
        except Exception as error:  # this thread serves others, too
            return json.dumps({"error": str(error)[:200]}).encode()

    def close(self) -> None:
        """Answers no more."""
        _serving.discard(self)
        self._server.close()

    def forget(self) -> None:
        """In a forked child: closes what it has of the parent's."""
        self._server.forget()


_serving: set[Answers] = set()


def _forget_after_fork() -> None:
    for answers in _serving:
        answers.forget()
    _serving.clear()


os.register_at_fork(after_in_child=_forget_after_fork)


def ask(
    place: MeetingPlace,
    key: bytes,
    name: str,
    *,
    encrypt: bool = False,
    last: bool = False,
    tell: Snapshot | None = None,
    seconds: float = _SECONDS,
) -> Snapshot | None:
    """The snapshot of the rank at ``place``; None if it gives none within ``seconds``.

    ``last``: it is what is shown at the end of the job. ``tell``: instead of a question, the caller's own last words.
    """
    question = _LAST.strip() if last else _SNAPSHOT
    if tell is not None:
        question = _LAST + json.dumps(tell).encode()
    for address in place.addresses:
        try:
            store = Store(address, place.port, key, name, seconds, encrypt=encrypt, called=_CALLED)
            try:
                found: Any = json.loads(store.ask(question, seconds, _LONGEST))
            finally:
                store.close()
        except (SlipstreamError, OSError, ValueError):
            continue
        return found if isinstance(found, dict) and "error" not in found else None
    return None


def ask_all(
    places: Sequence[MeetingPlace | None], key: bytes, name: str, *, encrypt: bool = False, last: bool = False
) -> list[Snapshot | None]:
    """The snapshots of ranks, in their order; None for those without a place, and for those that do not answer."""

    def one(place: MeetingPlace | None) -> Snapshot | None:
        return None if place is None else ask(place, key, name, encrypt=encrypt, last=last)

    found: list[Snapshot | None] = [None] * len(places)
    several = min(len(places), _AT_ONCE)

    def some(first: int) -> None:
        for number in range(first, len(places), several):
            found[number] = one(places[number])

    threads = []
    for first in range(1, several):
        thread = threading.Thread(target=some, args=(first,), daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter ends: from Python 3.12 on it starts no thread then
            some(first)
        else:
            threads.append(thread)
    if several:
        some(0)
    for thread in threads:
        thread.join()
    return found
