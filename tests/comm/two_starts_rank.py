"""A rank that says whom it met, then waits for its standard input, and says what becomes of an operation."""

from __future__ import annotations

import sys

import numpy as np

import slipstream
from slipstream.comm.rendezvous import second_claims


def main(letter: str, doubt_seconds: float) -> None:
    second_claims.DOUBT_SECONDS = doubt_seconds
    try:
        slipstream.init()
        met = slipstream.all_gather(np.frombuffer(letter.encode(), dtype=np.uint8)).tobytes().decode()
        print("met", met, flush=True)
        sys.stdin.readline()
        slipstream.barrier()
        print("went on", flush=True)
    except slipstream.SlipstreamError as error:
        if error.__context__ is not None and not error.__suppress_context__:
            raise  # its traceback would show another one first
        print(type(error).__name__, str(error).replace("\n", " "), flush=True)
    sys.stdin.readline()


main(sys.argv[1], float(sys.argv[2]))
