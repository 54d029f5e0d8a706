"""A rank of test_lightgbm.py: trains, and prints a digest of its model, or what was raised."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import sys
import threading
import time
from typing import Any

import lightgbm
from sklearn.datasets import load_digits

import slipstream
import slipstream.lightgbm

mode = sys.argv[1]
slipstream.init()
rank, size = slipstream.rank(), slipstream.size()
digits = load_digits()
held = slice(1500, None)
rows = slice(rank, 1500, size)
fixed = {"objective": "multiclass", "num_class": 10, "num_threads": 1, "verbose": -1, "num_leaves": 8}


def train(parallel: dict[str, Any], *callbacks: Any) -> lightgbm.Booster:
    """Six iterations over this rank's rows."""
    data = lightgbm.Dataset(digits.data[rows], digits.target[rows])
    return lightgbm.train({**fixed, **parallel}, data, 6, callbacks=list(callbacks))


def die(environment: Any) -> None:
    """A callback of LightGBM's: ends the last rank in the midst of the training."""
    if rank == size - 1 and environment.iteration == 2:
        os._exit(0)


def show(model: lightgbm.Booster) -> None:
    """Prints a digest of the model. That of the learner "voting" has values of inner nodes that are a rank's own."""
    guesses = model.predict(digits.data[held])
    text = model.model_to_string().split("\nparameters:")[0].encode()
    digest = hashlib.sha256(guesses.tobytes() if mode == "voting" else text).hexdigest()
    print(f"model {digest} {(guesses.argmax(1) == digits.target[held]).mean():.3f}")


def lost() -> None:
    try:
        with slipstream.lightgbm.network() as parallel:
            try:
                train(parallel, die)
            except lightgbm.basic.LightGBMError:
                print("LightGBM told")
                raise
    except slipstream.PeerLost as error:
        print(f"raised {type(error.__cause__).__name__}: {error}")
    # LightGBM is whole, and trains on alone.
    show(train({}))


def interrupted() -> None:
    """Rank 0 waits inside LightGBM for a rank that does not come, and is interrupted there."""
    others = slipstream.Group([0, 1])
    session = slipstream.world().session

    def interrupt() -> None:
        while not re.search("\n  waits: .*LightGBM", session.report()):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    def stay_away(environment: Any) -> None:
        if environment.iteration == 2:
            if rank == 1:
                slipstream.barrier(group=others)
            threading.Thread(target=interrupt).start()

    try:
        with slipstream.lightgbm.network() as parallel:
            train(parallel, stay_away)
    except KeyboardInterrupt as error:
        print(f"raised {type(error).__name__} from {type(error.__cause__).__name__}")
    except slipstream.Aborted as error:
        print(f"raised {type(error).__name__}: {error}")
    show(train({}))


def caught() -> None:
    """All ranks leave a block by an exception, and go on; then one alone does, and the others learn of it."""

    def fail(environment: Any) -> None:
        if environment.iteration == 2:
            raise ValueError("this trial failed")

    for failing in (0, 1), (1,):
        try:
            with slipstream.lightgbm.network() as parallel:
                show(train(parallel, *([fail] if rank in failing else [])))
        except (ValueError, slipstream.Mismatch) as error:
            print(f"raised {type(error).__name__}: {error}")


def outside() -> None:
    """Parameters of the network where there is none."""
    with slipstream.lightgbm.network() as parallel:
        thread = threading.Thread(target=refused, args=(parallel,))
        thread.start()
        thread.join()
    refused(parallel)
    with slipstream.lightgbm.network() as parallel:
        model = train(parallel)
    model.refit(digits.data[rows], digits.target[rows])  # of a model that is there: on each rank alone
    block = slipstream.lightgbm.network()
    parallel = block.__enter__()
    thread = threading.Thread(target=leave, args=(block,))
    thread.start()
    thread.join()
    show(train(parallel))  # the block is as it was
    block.__exit__(None, None, None)


def leave(block: Any) -> None:
    try:
        block.__exit__(None, None, None)
    except RuntimeError as error:
        print(f"raised {error}")


def refused(parallel: dict[str, Any]) -> None:
    try:
        train(parallel)
    except RuntimeError as error:
        print(f"raised {error}")


def halves() -> None:
    group = slipstream.Group([0, 1] if rank < 2 else [2])
    with slipstream.lightgbm.network(group=group) as parallel:
        print("alone" if not parallel else "not alone")
        show(train(parallel))


def in_thread() -> None:
    def work() -> None:
        with slipstream.lightgbm.network() as parallel:
            show(train(parallel))
        show(train({}))  # LightGBM's network is gone

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


if mode == "lost":
    lost()
elif mode == "interrupted":
    interrupted()
elif mode == "caught":
    caught()
elif mode == "outside":
    outside()
elif mode == "halves":
    halves()
elif mode == "thread":
    in_thread()
else:
    with slipstream.lightgbm.network(mode) as parallel:
        show(train(parallel))
    with slipstream.lightgbm.network(mode) as parallel:  # and again
        show(train(parallel))
