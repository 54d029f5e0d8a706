"""A rank for `test_persistent_ranks`: does what it is told, to itself."""

from __future__ import annotations

import os
import threading

from persistent_ranks import serve

RANK = int(os.environ["RANK"])


def handle(request: tuple[str, int]) -> object:
    """(what, the rank that does it): the others return their process id."""
    what, culprit = request
    if culprit == RANK:
        if what == "raise":
            raise ValueError("on purpose")
        if what == "exit":
            print("last words", flush=True)
            os._exit(7)
        if what == "hang":
            threading.Event().wait()
        if what == "complain":
            return "bad"
    return os.getpid()


if __name__ == "__main__":
    serve(handle)
