"""One rank of the tests of `Group.shrink`: sums, checks each sum, and goes on with the survivors.

shrink_rank.py rounds 0,3;1    the ranks (of the first job) that are killed in each round
shrink_rank.py join 1 2        rank 1 is killed at work; rank 2 when it has come to the meeting
shrink_rank.py lead 1 0        rank 1 is killed at work; rank 0, which leads, when it has said who is in
shrink_rank.py few 1,2 LEAST   ranks 1 and 2 of three are killed at once; the last goes on if LEAST allows it
shrink_rank.py absent          rank 1 is killed, and rank 0 does not shrink
shrink_rank.py abort           rank 1 aborts; all shrink
shrink_rank.py late DIR        rank 0 of two goes on alone, and shrinks again; then rank 1 shrinks
shrink_rank.py often           nobody dies; all shrink again and again, and say how many sockets listen
shrink_rank.py apart DIR 0     rank 0 stops itself; who goes on stays until DIR/over is there. -1: nobody stops

Each prints what it sees as lines of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import numpy as np

import slipstream
from slipstream import SlipstreamError
from slipstream.base.log import Log
from slipstream.comm.membership import shrink

STEPS = 40
SHRINKS = 4  # of those that do it often
FIRST = int(os.environ["SLIPSTREAM_RANK"])  # in the first job


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def work(alive: list[int], victims: list[int]) -> None:
    """Sums of all sizes over all ranks and over a group of every second one; dies if it is one of the victims."""
    group = slipstream.world()
    evens = list(range(0, slipstream.size(), 2))
    some = slipstream.Group(evens) if slipstream.rank() in evens else None
    for step in range(STEPS):
        if step == STEPS // 2 and FIRST in victims:
            die()
        count = (1, 1000, 300_000)[step % 3]
        total = slipstream.all_reduce(np.full(count, FIRST + 1.0), group=group)
        assert (total == sum(r + 1.0 for r in alive)).all(), (total[0], alive)
        if some is not None:
            part = slipstream.all_reduce(np.full(7, FIRST + 1.0), group=some)
            assert (part == sum(r + 1.0 for r in alive[::2])).all(), (part[0], alive)
    slipstream.barrier()
    if victims:
        raise AssertionError("the victims live")


def go_on(**options: float) -> slipstream.Group:
    old = slipstream.world()
    new = old.shrink(**options)  # type: ignore[arg-type]
    assert new is slipstream.world()
    assert (slipstream.rank(), slipstream.size()) == (new.rank, new.size)
    try:
        slipstream.all_reduce(np.ones(3), group=old)
        raise AssertionError("the old job's group works")
    except SlipstreamError:
        pass
    return new


def rounds(plan: str) -> None:
    alive = list(range(slipstream.size()))
    for text in [*plan.split(";"), ""]:
        victims = [int(r) for r in text.split(",") if r]
        try:
            work(alive, victims)
        except SlipstreamError as error:
            if FIRST in victims:  # it has heard of the other victim's death before its own step came
                die()
            group = go_on()
            Log("slipstream").warning("this rank goes on")
            before, alive = alive, [r for r in alive if r not in victims]
            assert [before[r] for r in group.former_ranks] == alive, (group.former_ranks, before, alive)
            say(
                error=type(error).__name__,
                rank=getattr(error, "rank", None),
                now=slipstream.rank(),
                size=group.size,
            )
    say(done=alive)


def dies_in_shrink(where: str, first: int, second: int) -> None:
    if second == FIRST:
        if where == "join":

            def joins(self: shrink._Survivors) -> None:
                assert self.store is not None
                self.store.set(self._key(self.old.rank), b"here")
                die()

            shrink._Survivors._hear = joins  # type: ignore[assignment, method-assign]
        else:

            def starts(self: shrink._Survivors, ranks: list[int], nonce: str) -> None:
                die()

            shrink._Survivors._start = starts  # type: ignore[assignment, method-assign]
    try:
        work(list(range(slipstream.size())), [first])
    except SlipstreamError:
        go_on()
    alive = [r for r in range(int(os.environ["SLIPSTREAM_SIZE"])) if r not in (first, second)]
    work(alive, [])
    say(done=alive)


def few(victims: str, least: int) -> None:
    try:
        work([0, 1, 2], [int(r) for r in victims.split(",")])
    except SlipstreamError:
        group = go_on(at_least=least) if least else go_on()
        work([0], [])
        say(size=group.size)


def absent() -> None:
    try:
        work([0, 1, 2], [1])
    except SlipstreamError:
        if FIRST == 0:
            signal.pause()  # until the test has seen what rank 2 says, and kills this rank
        else:
            go_on(timeout=1.0)


def abort() -> None:
    try:
        slipstream.barrier()
        if FIRST == 1:
            slipstream.world().abort("the loss is not a number")
        while True:
            slipstream.all_reduce(np.ones(1000))
    except slipstream.Aborted as error:
        say(text=str(error))
    go_on()
    work([0, 1, 2], [])
    say(done=True)


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)  # a poll of a file that another process writes


def late(folder: Path) -> None:
    if FIRST == 0:
        slipstream.world().abort("nobody is lost")
        go_on(timeout=0.1)
        say(size=go_on().size)
        (folder / "gone-on").touch()
        wait_for(folder / "over")
        return
    wait_for(folder / "gone-on")
    say(size=go_on().size)


def listening() -> int:
    """How many of this process's sockets listen."""
    count = 0
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed by now
            if os.readlink(path).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(path.name))) as one:
                    count += one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    return count


def often() -> None:
    for _ in range(SHRINKS):
        go_on()
        with contextlib.suppress(SlipstreamError):  # another rank is at the end of it, and shrinks again
            work([0, 1, 2], [])
        say(listening=listening())
    slipstream.shutdown()
    say(listening=listening())


def apart(folder: Path, victim: int) -> None:
    try:
        slipstream.barrier()
        say(ready=True)
        if victim == FIRST:
            os.kill(os.getpid(), signal.SIGSTOP)
        while True:
            slipstream.all_reduce(np.ones(1000))
    except SlipstreamError:
        pass
    say(former=go_on().former_ranks)
    wait_for(folder / "over")


def main() -> None:
    what, *arguments = sys.argv[1:]
    slipstream.init()
    try:
        if what == "rounds":
            rounds(*arguments)
        elif what in ("join", "lead"):
            dies_in_shrink(what, int(arguments[0]), int(arguments[1]))
        elif what == "few":
            few(arguments[0], int(arguments[1]))
        elif what == "absent":
            absent()
        elif what == "late":
            late(Path(arguments[0]))
        elif what == "often":
            often()
        elif what == "apart":
            apart(Path(arguments[0]), int(arguments[1]))
        else:
            abort()
    except SlipstreamError as error:
        say(error=type(error).__name__, text=str(error))


main()
