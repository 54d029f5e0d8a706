"""One rank of the tests of ranks that are lost, finish or raise; prints the error it gets as a line of JSON.

lost_rank.py unlinked           ranks 0 and 1 work together until 1 is killed; 3 waits for 2, which is in no operation
lost_rank.py init WHEN          rank 1 dies in init: before, between or after what it publishes; or raises there
lost_rank.py finished           rank 1 ends while rank 0 waits for it, with a link between them
lost_rank.py finished-early F   rank 1 has ended, as file F says, before rank 0 seeks it
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
from slipstream.comm import job, store


def unlinked() -> None:
    slipstream.init()
    me = slipstream.rank()
    pair = slipstream.Group([0, 1]) if me < 2 else None
    if pair is not None:
        for i in range(1 << 40):
            slipstream.all_reduce(np.ones(100), group=pair)
            if i == 10 and me == 1:
                time.sleep(0.5)  # the others wait by then; it is no matter if they do not
                os.kill(os.getpid(), signal.SIGKILL)
    elif me == 3:
        slipstream.recv(np.ones(10), 2)
    else:
        while True:
            slipstream.world().session.check()
            time.sleep(0.01)  # a poll of what other threads change


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
            job._open = raising  # type: ignore[assignment]
        else:
            store.Store.set = dying  # type: ignore[method-assign]
    slipstream.init()


def finished() -> None:
    slipstream.init()
    slipstream.barrier()
    if slipstream.rank() == 0:
        slipstream.all_reduce(np.ones(10))


def finished_early(sign: Path) -> None:
    slipstream.init()
    if slipstream.rank() == 0:
        while not sign.exists():
            time.sleep(0.01)  # a poll of what the test writes
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
            unlinked()
        elif what == "init":
            dies_in_init(arguments[0])
        elif what == "finished":
            finished()
        elif what == "finished-early":
            finished_early(Path(arguments[0]))
        elif what == "raises":
            raises(arguments[0])
        else:
            slow()
    except SlipstreamError as error:
        report = {"error": type(error).__name__, "rank": getattr(error, "rank", None), "text": str(error)}
        print(json.dumps(report), flush=True)


main()
