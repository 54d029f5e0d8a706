"""One rank of the tests of ranks that are lost, finish or raise; prints the error it gets as a line of JSON.

lost_rank.py unlinked TOGETHER  ranks 0 and 1 (or 2 and 3: TOGETHER is their first) work together until the second of
                                them is killed; of the others one waits for the other, which is in no operation
lost_rank.py knocks FOLDER      ranks 1 and 2 stop, to be killed; when rank 0 has failed by that, 3 knocks at it
lost_rank.py init WHEN          rank 1 dies in init: before, between or after what it publishes; or raises there
lost_rank.py serves             rank 0, which serves the store, dies in init when all others wait there
lost_rank.py finished           rank 1 ends while rank 0 waits for it, with a link between them
lost_rank.py finished-early F 1   rank 1 has ended, as file F says, before rank 0 seeks it; 0: the other way round
lost_rank.py raises HOW         rank 1 raises: uncaught, or with shutdown in a finally, or earlier than the others call
lost_rank.py slow               rank 1 is late by more than the first warning
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import slipstream
from slipstream import SlipstreamError
from slipstream.comm.membership import opening
from slipstream.comm.rendezvous import store


def unlinked(first: int) -> None:
    slipstream.init()
    me = slipstream.rank()
    together = [first, first + 1]
    pair = slipstream.Group(together) if me in together else None
    if pair is not None:
        for i in range(1 << 40):
            slipstream.all_reduce(np.ones(100), group=pair)
            if i == 10 and me == together[1]:
                time.sleep(0.5)  # the others wait by then; it is no matter if they do not
                os.kill(os.getpid(), signal.SIGKILL)
    elif me in (0, 3):  # it knocks at a lower rank, or dials a higher one
        slipstream.recv(np.ones(10), 1 if me == 0 else 2)
    else:
        while True:
            slipstream.world().session.check()
            time.sleep(0.01)  # a poll of what other threads change


def knocks(folder: Path) -> None:
    slipstream.init()
    me = slipstream.rank()
    if me == 3:
        wait_for(folder / "failed")
        try:
            slipstream.recv(np.ones(10), 0)
        finally:
            (folder / "heard").touch()
        return
    group = slipstream.Group([0, 1, 2])
    slipstream.barrier(group=group)
    if me > 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        slipstream.all_reduce(np.ones(10), group=group)
    finally:
        (folder / "failed").touch()
        wait_for(folder / "heard")


def wait_for(sign: Path) -> None:
    while not sign.exists():
        time.sleep(0.01)  # a poll of what another process writes


def dies_in_init(when: str) -> None:
    if int(os.environ["SLIPSTREAM_RANK"]) == 1:
        publish, calls = store.Store.set, 0

        def dying(self: store.Store, key: str, value: bytes) -> None:
            nonlocal calls
            calls += 1
            if when == "before" or (when == "between" and calls == 2):
                os.kill(os.getpid(), signal.SIGKILL)
            publish(self, key, value)
            if when == "after":
                os.kill(os.getpid(), signal.SIGKILL)

        def raising(*_: object) -> None:
            raise ValueError("no such card")

        if when == "raises":
            opening._open = raising  # type: ignore[assignment]
        else:
            store.Store.set = dying  # type: ignore[method-assign]
    slipstream.init()


def serves() -> None:
    publish = store.Store.set

    def dying(self: store.Store, key: str, value: bytes) -> None:
        prefix, _, number = key.rpartition("/")
        if number == "0" and prefix.endswith("exchange/2"):
            for other in range(1, int(os.environ["SLIPSTREAM_SIZE"])):
                self.get(f"{prefix}/{other}", 120)
            os.kill(os.getpid(), signal.SIGKILL)
        publish(self, key, value)

    store.Store.set = dying  # type: ignore[method-assign]
    slipstream.init()


def finished() -> None:
    slipstream.init()
    slipstream.barrier()
    if slipstream.rank() == 0:
        slipstream.all_reduce(np.ones(10))


def finished_early(sign: Path, leaves: int) -> None:
    slipstream.init()
    if slipstream.rank() != leaves:
        wait_for(sign)
        slipstream.all_reduce(np.ones(10))


def wait_for_a_failure() -> None:
    while True:
        try:
            slipstream.world().session.check()
        except SlipstreamError:
            return
        time.sleep(0.01)  # a poll of what other threads change


def raises(how: str) -> None:
    slipstream.init()
    if how != "earlier":
        slipstream.barrier()
    try:
        if slipstream.rank() == 1:
            raise ValueError("no such batch")
        if how == "earlier":
            wait_for_a_failure()
        slipstream.all_reduce(np.ones(10))
    finally:
        if how == "finally":
            slipstream.shutdown()


def slow() -> None:
    slipstream.init()
    if slipstream.rank() == 1:
        time.sleep(11)
    slipstream.all_reduce(np.ones(10))


def main() -> None:
    what, *arguments = sys.argv[1:]
    try:
        if what == "unlinked":
            unlinked(int(arguments[0]))
        elif what == "knocks":
            knocks(Path(arguments[0]))
        elif what == "init":
            dies_in_init(arguments[0])
        elif what == "serves":
            serves()
        elif what == "finished":
            finished()
        elif what == "finished-early":
            finished_early(Path(arguments[0]), int(arguments[1]))
        elif what == "raises":
            raises(arguments[0])
        else:
            slow()
    except SlipstreamError as error:
        report = {"error": type(error).__name__, "rank": getattr(error, "rank", None), "text": str(error)}
        print(json.dumps(report), flush=True)


main()
