"""One rank of the measurement: ``python -m slipstream.bench.train.rank OPTIONS``, with `Options` as JSON.

Rank 0 reports: what is measured (``start``), each turn of a contender as it is over (``turn``), and what it took
(``end``). Contenders take turns. In a turn a contender makes some steps and is checked;
then the same buckets are exchanged once more with nothing to overlap.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from slipstream import comm
from slipstream.base.dtypes import Op
from slipstream.base.settings import Settings
from slipstream.bench.jobs import channel
from slipstream.bench.train import contenders
from slipstream.bench.train.contenders import Contender
from slipstream.bench.train.options import PLAIN, RING, Options
from slipstream.bench.train.workloads import Delayed, Real, Shapes, Workload, find_shapes
from slipstream.bench.turns import agreed, start_message, turns
from slipstream.comm.membership import job

__all__ = ["main"]

_WARMUP = 3  # steps at least: DDP makes its buckets anew after the first


def main() -> None:
    """Measures what the first argument asks for."""
    options = Options(**json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    comm.init()
    report = channel(comm.rank())
    try:
        shapes = find_shapes(options.model)
    except ValueError as error:
        sys.exit(f"slipstream bench train: {error}")
    absent = _absent(options)
    names = [PLAIN, *(name for name in options.contenders if name not in absent)]
    hosts = job.current().membership.host_ids
    report(start_message(hosts, absent, "torch") | _about(options, shapes))
    if "nccl" in names:
        torch.cuda.set_device(comm.local_rank())
    workloads = _workloads(options, shapes, names)
    sgd = options.optimizer == "sgd"
    running = [contenders.build(name, workloads[_device(name)], options.bucket_mb, sgd) for name in names]
    _measure(running, options, report)
    peak = _largest(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    found = {one["name"]: bool(one["used"]) for one in contenders.reducers()}
    buckets = {contender.name: contender.buckets() for contender in running}
    report({"kind": "end", "peak_memory": int(peak), "buckets": buckets, "reducers": found})
    comm.barrier()
    contenders.leave()
    comm.shutdown()


_ON_WIRE = (
    "slipstream",
    "slipstream-horovod",
    RING,
)  # whose gradients travel in fewer bits if the settings say so
# Of the largest gradient: what a rank's part, and a sum of parts, may be off.
_PRECISION = {"exact": 0.0, "bf16": 2.0**-7, "f16": 2.0**-9, "f8": 2.0**-3, "int8": 2 / 127}


def _absent(options: Options) -> dict[str, str]:
    """Contenders that some rank cannot have, and why; the same on all ranks."""
    reasons = {name: contenders.missing(name, options.compute) for name in options.contenders}
    return agreed({name: reason for name, reason in reasons.items() if reason})


def _largest(value: float) -> float:
    return float(comm.all_reduce(np.array([value]), Op.MAX)[0])


def _device(name: str) -> str:
    return f"cuda:{comm.local_rank()}" if name == "nccl" else "cpu"


def _workloads(options: Options, shapes: Shapes, names: list[str]) -> dict[str, Workload]:
    if options.compute == "real":
        return {"cpu": Real(options.model, options.batch or 1)}
    return {
        device: Delayed(shapes, options.seconds, torch.device(device))
        for device in {_device(n) for n in names}
    }


def _about(options: Options, shapes: Shapes) -> dict[str, Any]:
    """What is measured."""
    nbytes = shapes.nbytes()
    return {
        "options": dataclasses.asdict(options),
        "ranks": comm.size(),
        "parameters": sum(nbytes) // 4,
        "tensors": len(nbytes),
        "bytes": sum(nbytes),
        "ready": shapes.ready(options.seconds) if options.compute == "delay" else None,
        "cores": len(os.sched_getaffinity(0)),
    }


def _measure(running: list[Contender], options: Options, report: Callable[[Mapping[str, Any]], None]) -> None:
    steps = _Steps(options)
    for contender in running:
        for _ in range(max(options.warmup, _WARMUP)):
            steps.step(contender)
        if contender.name == PLAIN:
            contender.workload.learn([parameter.grad for parameter in contender.parameters])
        contender.exchange()
    gc.collect()
    gc.disable()
    for repeat, _, contender in turns(running, options.repeats):
        seconds = [steps.step(contender) for _ in range(options.steps)]
        wrong = steps.check(contender)
        *each, exchange = _slowest([*seconds, _exchange_seconds(contender)])
        found = {"repeat": repeat, "contender": contender.name, "steps": each, "exchange": exchange}
        report({"kind": "turn", **found, "wrong": wrong})


class _Steps:
    """Numbers the steps, and spoils one result if it is told to."""

    def __init__(self, options: Options) -> None:
        self._step = 0
        self._spoil = options.inject_error
        self._off = _PRECISION[Settings.from_environment().wire] * comm.size()

    def step(self, contender: Contender) -> float:
        """One step; its seconds on this rank."""
        self._step += 1
        contender.workload.begin(self._step)
        comm.barrier()
        start = time.perf_counter()
        for parameter in contender.parameters:
            parameter.grad = None
        torch.autograd.backward(contender.workload.loss(contender.module))
        contender.finish()
        return time.perf_counter() - start

    def check(self, contender: Contender) -> int:
        """How many gradients of the last step are wrong, over all ranks."""
        gradients = [parameter.grad for parameter in contender.parameters]
        if contender.name == self._spoil and comm.rank() == comm.size() - 1:
            self._spoil = ""
            gradients[0] = _spoilt(gradients[0])
        off = self._off if contender.name in _ON_WIRE else 0.0
        wrong = contender.workload.wrong(gradients, averaged=contender.name != PLAIN, off=off)
        for parameter in contender.parameters:
            parameter.grad = None
        return int(comm.all_reduce(np.array([wrong]))[0])


def _spoilt(gradient: torch.Tensor | None) -> torch.Tensor | None:
    if gradient is not None:
        gradient = gradient.clone()
        gradient.view(-1)[0] += 1
    return gradient


def _exchange_seconds(contender: Contender) -> float:
    comm.barrier()
    start = time.perf_counter()
    contender.exchange()
    return time.perf_counter() - start


def _slowest(seconds: list[float]) -> list[float]:
    """Each time as the slowest rank had it."""
    return [float(value) for value in comm.all_reduce(np.array(seconds), Op.MAX)]


if __name__ == "__main__":
    main()
