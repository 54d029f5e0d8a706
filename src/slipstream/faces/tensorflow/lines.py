"""Lines: operations that all ranks start in one order (native/tensorflow/line.h), and ranks that have joined in them.

The first operation of a line opens it, by a request like that of any other operation outside of graphs. So ranks that
have joined hear of lines that they do not know. From then on native code alone goes on with it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from slipstream import _core
from slipstream.comm.collectives.native_calls import Failure, failure_of, handle_of
from slipstream.comm.membership.group import Group
from slipstream.comm.negotiation.agreement import Request
from slipstream.comm.negotiation.negotiated import DONE, Pending
from slipstream.comm.negotiation.negotiator import negotiator_of
from slipstream.faces.horovod.handles import joins_beside, may_take_part
from slipstream.faces.horovod.process_sets import ProcessSet, process_set_of
from slipstream.faces.tensorflow.operations import set_opener

__all__ = ["group_of", "line_of", "ranks_of"]

_KIND = "start of operations in TensorFlow's graphs"  # of the requests
_ALL = "all"


class _Line:
    def __init__(self, text: str) -> None:
        self._text = text
        self._group: Group | None = None  # of the process set, in the job as it is now

    def open(self) -> None:
        """Has all ranks agree that there is this line; ValueError where the process set is not registered."""
        ranks, _, name = self._text.partition(": ")
        group = group_of(ranks)
        # Nobody has been told anything if there is no thread.
        threading.Thread(
            target=self._agree,
            args=(group, Request(_KIND, name, "")),
            name="slipstream opens a line",
            daemon=True,
        ).start()

    def _agree(self, group: Group, request: Request) -> None:
        try:
            negotiator_of(group).submit(request, lambda _: DONE).wait()
            self.give(group)
        except BaseException as error:
            code, _, _, text = failure_of(error)
            _core.tensorflow_refused(self._text, code, text)

    def give(self, group: Group) -> None:
        """All ranks have agreed."""
        if self._group is not group:
            self._group = group
            group.job.when_left(lambda: self._forget(group))
        name = f"TensorFlow's line {self._text}"
        operations, questions = (handle_of(group.beside(one)) for one in (name, f"questions of {name}"))
        _core.tensorflow_opened(self._text, operations, questions)

    def _forget(self, group: Group) -> None:
        if self._group is group:
            self._group = None
            _core.tensorflow_forget(self._text)


_lock = threading.RLock()  # a signal's handler may start an operation, too
_lines: dict[str, _Line] = {}


def line_of(process_set: ProcessSet, name: str) -> str:
    """What the line is called, in a graph that another process may load: a process set's number is this one's alone."""
    return f"{ranks_of(process_set)}: {name}"


def ranks_of(process_set: ProcessSet) -> str:
    """Its ranks, as graphs name them."""
    ranks = [_ALL] if process_set.process_set_id == 0 else process_set.group.ranks
    return ",".join(map(str, ranks))


def group_of(ranks: str) -> Group:
    """The group of the process set that `ranks_of` names; ValueError where it is not registered."""
    found: Group = process_set_of([int(rank) for rank in ranks.split(",") if rank != _ALL] or None).group
    return found


def _known(text: str) -> _Line:
    with _lock:
        return _lines.setdefault(text, _Line(text))


def _open(text: str) -> Failure | None:
    try:
        _known(text).open()
    except BaseException as error:
        return failure_of(error)
    return None


def _take_part(request: Request, _: Group) -> Pending:
    """On a rank that has joined: it takes part in the operations of a line that is new to it."""
    text = f"{_ALL}: {request.name}"
    _known(text).give(process_set_of(None).group)
    _core.tensorflow_join(text)
    return DONE


@contextlib.contextmanager
def _joins() -> Iterator[Callable[[], bool]]:
    """Around `join`: this rank takes part in what the others start on lines of all ranks."""
    before = _core.tensorflow_helped()
    _core.tensorflow_joining(True)
    try:
        with _lock:
            known = [one for one in _lines if one.startswith(f"{_ALL}: ")]
        for text in known:
            _core.tensorflow_join(text)
        yield lambda: _core.tensorflow_helped() > before
    finally:
        _core.tensorflow_joining(False)


set_opener(_open)
may_take_part([_KIND], _take_part)
joins_beside(_joins)
