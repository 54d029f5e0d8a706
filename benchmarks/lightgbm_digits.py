"""How long LightGBM trains over slipstream, and over its own sockets, on two data sets.

    python benchmarks/lightgbm_digits.py                  # 2 and 3 processes: about two minutes
    python benchmarks/lightgbm_digits.py --save           # keep the record, and renew docs/lightgbm.md

The data: scikit-learn's digits with noise (10 classes, so 10 trees an iteration: much communication for little work),
and 200,000 rows of 50 features (bulk). Each rank has its share of the rows, and one thread. The two ways take turns.
What is timed is the boosting alone: neither way's connections, nor the datasets. The models of a way must be the same
on all ranks. Ends with code 1 if they are not, 2 if a job failed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import slipstream
from slipstream.bench import jobs, machine
from slipstream.bench.gathering import gather_objects
from slipstream.bench.judgements import Judgement, judgement_table
from slipstream.bench.page import renew
from slipstream.bench.record import head, keep, origin
from slipstream.bench.samples import slowest
from slipstream.bench.table import grid

_HERE = Path(__file__).resolve().parent
_DOCUMENT = _HERE.parent / "docs" / "lightgbm.md"
_NAME = "lightgbm"
_RANKS = 2, 3
_ITERATIONS = 10
_FIXED = {"num_threads": 1, "verbose": -1, "seed": 0}
_WANTED = 1.0  # slipstream's time, relative to that of LightGBM's sockets

Data = tuple[Any, Any, dict[str, Any]]  # rows, labels, and parameters


def _digits() -> Data:
    digits = importlib.import_module("sklearn.datasets").load_digits()
    noise = np.random.default_rng(0).normal(0, 0.5, digits.data.shape)  # more values than 17: full histograms
    return digits.data + noise, digits.target, {"objective": "multiclass", "num_class": 10}


def _many_rows() -> Data:
    make = importlib.import_module("sklearn.datasets").make_classification
    rows, labels = make(200_000, 50, n_informative=20, random_state=0)
    return rows, labels, {"objective": "binary"}


_DATA: dict[str, Callable[[], Data]] = {"digits, 1797 x 64": _digits, "200,000 x 50": _many_rows}


def train(parameters: dict[str, Any], given: Data) -> tuple[float, str]:
    """Seconds of the boosting, and the digest of the model."""
    lightgbm: Any = importlib.import_module("lightgbm")
    rows, labels, task = given
    mine = slice(slipstream.rank(), None, slipstream.size())
    data = lightgbm.Dataset(rows[mine], labels[mine])
    begun = 0.0

    def begin(environment: Any) -> None:
        nonlocal begun
        if environment.iteration == 0:
            slipstream.barrier()
            begun = time.perf_counter()

    begin.before_iteration = True  # type: ignore[attr-defined]
    model = lightgbm.train({**_FIXED, **task, **parameters}, data, _ITERATIONS, callbacks=[begin])
    seconds = time.perf_counter() - begun
    text = model.model_to_string().split("\nparameters:")[0]
    return seconds, hashlib.sha256(text.encode()).hexdigest()


def over_slipstream(given: Data) -> tuple[float, str]:
    """`train` in a block of `slipstream.lightgbm.network`."""
    network: Any = importlib.import_module("slipstream.lightgbm").network
    with network() as parallel:
        return train(parallel, given)


def over_sockets(given: Data) -> tuple[float, str]:
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
    return train(parallel, given)


_WAYS = {"slipstream": over_slipstream, "sockets": over_sockets}


def _rank(turns: int) -> None:
    report = jobs.channel(int(os.environ["RANK"]))
    slipstream.init()
    found: dict[str, dict[str, list[float]]] = {}
    models = []
    for data, make in _DATA.items():
        given = make()
        found[data] = {way: [] for way in _WAYS}
        for _ in range(turns):
            for way, run in _WAYS.items():
                seconds, model = run(given)
                found[data][way].append(seconds)
                models.append(model)
    versions = machine.versions("slipstream", "numpy", "lightgbm")
    report({"ranks": gather_objects({"seconds": found, "models": models, "versions": versions})})


def _rows(record: Mapping[str, Any]) -> list[tuple[int, str, float, float]]:
    """Processes, data, and the two medians."""
    return [
        (job["processes"], data, *(statistics.median(times[way]) for way in _WAYS))
        for job in record["jobs"]
        for data, times in job["seconds"].items()
    ]


def judge(record: Mapping[str, Any]) -> list[Judgement]:
    """How the record compares with what is wanted."""
    found = []
    for n, data, ours, theirs in _rows(record):
        ratio = ours / theirs
        what = f"{data}, {n} processes: slipstream's time / LightGBM's sockets"
        found.append(Judgement(what, f"<= {_WANTED:g}", f"{ratio:.2f}", ratio <= _WANTED))
    return found


def page(record: Mapping[str, Any]) -> str:
    """What docs/lightgbm.md says of a record."""
    rows = [
        (data, str(n), f"{ours:.3f}", f"{theirs:.3f}", f"{ours / theirs:.2f}")
        for n, data, ours, theirs in _rows(record)
    ]
    columns = ("data", "processes", "slipstream, s", "its sockets, s", "ratio")
    return "\n\n".join([f"{origin(record)}.", grid(columns, rows), judgement_table(judge(record))])


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", default=5, type=int, help="how often each way trains (5)")
    parser.add_argument("--save", action="store_true", help="keep the record, renew docs/lightgbm.md")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)  # be one
    options = parser.parse_args(arguments)
    if options.rank:
        _rank(options.turns)
        return 0
    record: dict[str, Any] = head(_NAME) | {"iterations": _ITERATIONS, "jobs": []}
    environment = {"PYTHONPATH": str(_HERE), "OMP_NUM_THREADS": "1"}
    for ranks in _RANKS:
        given = ["--rank", "--turns", str(options.turns)]
        try:
            (message,) = jobs.run(
                "lightgbm_digits",
                given,
                jobs.Placement(ranks),
                mpi=False,
                limit=600,
                environment=environment,
            )
        except jobs.JobFailed as error:
            print(f"lightgbm_digits: {error}", file=sys.stderr)
            return 2
        found = message["ranks"]
        if any(one["models"] != found[0]["models"] for one in found):
            print(f"THE MODELS of {ranks} processes differ; nothing is kept", file=sys.stderr)
            return 1
        record["versions"] = found[0]["versions"]
        seconds = {
            data: {
                way: [round(one, 4) for one in slowest([one["seconds"][data][way] for one in found])]
                for way in _WAYS
            }
            for data in _DATA
        }
        record["jobs"].append({"processes": ranks, "seconds": seconds})
    print(page(record))
    if options.save:
        keep(record, _NAME, _HERE / "results")
        renew(_DOCUMENT, _NAME, page(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
