"""How long LightGBM trains on digits over slipstream, and over its own sockets, in turns.

    slipstream run -np 2 -- python benchmarks/lightgbm_digits.py

Each rank has its share of the rows, and one thread. What is timed is the boosting alone: neither way's connections, nor
the datasets. The two models must be the same on all ranks. Rank 0 prints medians; what a loaded machine gives is no
result.
"""

from __future__ import annotations

import argparse
import hashlib
import socket
import statistics
import sys
import time
from typing import Any

import lightgbm
import numpy as np
from sklearn.datasets import load_digits

import slipstream
import slipstream.lightgbm

_FIXED = {"objective": "multiclass", "num_class": 10, "num_threads": 1, "verbose": -1, "seed": 0}


def train(parameters: dict[str, Any], rounds: int, repeat: int) -> tuple[float, str]:
    """Seconds that ``rounds`` iterations take, and the model's text."""
    digits = load_digits()
    images = np.tile(digits.data, (repeat, 1))
    images += np.random.default_rng(0).normal(0, 0.5, images.shape)  # more values than 17: full histograms
    mine = slice(slipstream.rank(), None, slipstream.size())
    data = lightgbm.Dataset(images[mine], np.tile(digits.target, repeat)[mine])
    begun = 0.0

    def begin(environment: Any) -> None:
        nonlocal begun
        if environment.iteration == 0:
            slipstream.barrier()
            begun = time.perf_counter()

    begin.before_iteration = True  # type: ignore[attr-defined]
    model = lightgbm.train({**_FIXED, **parameters}, data, rounds, callbacks=[begin])
    return time.perf_counter() - begun, model.model_to_string()


def over_slipstream(rounds: int, repeat: int) -> tuple[float, str]:
    """`train` in a block of `slipstream.lightgbm.network`."""
    with slipstream.lightgbm.network() as parallel:
        return train(parallel, rounds, repeat)


def over_sockets(rounds: int, repeat: int) -> tuple[float, str]:
    """`train` with LightGBM's own network, on ports that were free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    ports = slipstream.all_gather(np.array([port]))
    parallel = {
        "machines": ",".join(f"127.0.0.1:{one}" for one in ports),
        "local_listen_port": port,
        "num_machines": slipstream.size(),
        "tree_learner": "data",
        "pre_partition": True,
    }
    return train(parallel, rounds, repeat)


def main() -> int:
    """Trains in turns; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument(
        "--repeat", type=int, default=1, help="how many times the 1797 images, with noise (1)"
    )
    given = parser.parse_args()
    slipstream.init()
    took: dict[str, list[float]] = {"slipstream": [], "sockets": []}
    for _ in range(given.turns):
        for name, way in (("slipstream", over_slipstream), ("sockets", over_sockets)):
            seconds, model = way(given.rounds, given.repeat)
            digest = np.frombuffer(
                hashlib.sha256(model.split("\nparameters:")[0].encode()).digest(), np.uint8
            )
            if len(np.unique(slipstream.all_gather(digest[None]), axis=0)) != 1:
                raise RuntimeError(f"the ranks' models differ after training over {name}")
            took[name].append(float(slipstream.all_reduce(np.array([seconds]), "max")[0]))
    if slipstream.rank() == 0:
        medians = {name: statistics.median(times) for name, times in took.items()}
        for name, times in took.items():
            shown = ", ".join(f"{one:.3f}" for one in times)
            print(f"{name}: median {medians[name]:.3f} s of {shown}")
        print(f"slipstream / sockets: {medians['slipstream'] / medians['sockets']:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
