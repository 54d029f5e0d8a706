"""What a call of slipstream.mxnet takes, and a step of training beside what it computes and what it communicates.

    slipstream run -np 2 --no-prefix -- python benchmarks/mxnet_calls.py

Rank 0 prints the time until `allreduce_` of 4 KiB returns (the push), until its result is there, and the same for a
step of six layers of 1024 x 1024: computing alone, communicating alone, both, and both over the larger of the two.
Medians of rounds in turn.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import slipstream.mxnet as hvd  # isort: skip

import mxnet as mx
from mxnet import autograd, gluon

LAYERS, WIDTH = 6, 1024


def timed(call: Callable[[], object]) -> float:
    """Seconds of a call that all ranks begin together."""
    hvd.barrier()
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def small_calls(count: int) -> tuple[float, float, float]:
    """Microseconds: of the push, of one of many that follow one another, of one that is waited for."""
    x = mx.nd.ones(1024)

    def pushes() -> None:
        for _ in range(count):
            hvd.allreduce_(x)

    def pushed() -> None:
        pushes()
        x.wait_to_read()

    def waited() -> None:
        for _ in range(count):
            hvd.allreduce_(x)
            x.wait_to_read()

    push = timed(pushes)
    x.wait_to_read()
    return push / count * 1e6, timed(pushed) / count * 1e6, timed(waited) / count * 1e6


class Step:
    """A step of training, and its halves."""

    def __init__(self, batch: int) -> None:
        self.net = gluon.nn.HybridSequential()
        for _ in range(LAYERS):
            self.net.add(gluon.nn.Dense(WIDTH, in_units=WIDTH, use_bias=False))
        self.net.initialize(mx.init.Normal(0.01))
        params = self.net.collect_params()
        hvd.broadcast_parameters(params)
        self.alone = gluon.Trainer(params, "sgd", {"learning_rate": 1e-3}, kvstore=None)
        self.together = hvd.DistributedTrainer(params, "sgd", {"learning_rate": 1e-3})
        self.batch = mx.nd.ones((batch, WIDTH))

    def run(self, trainer: gluon.Trainer) -> None:
        """With this trainer, to its end."""
        with autograd.record():
            loss = self.net(self.batch).sum()
        loss.backward()
        trainer.step(len(self.batch))
        mx.nd.waitall()

    def exchange(self) -> None:
        """The sums of the gradients alone."""
        self.together.allreduce_grads()
        mx.nd.waitall()


def main() -> None:
    """Measures, and has rank 0 print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=128)
    options = parser.parse_args()
    hvd.init()
    small = [small_calls(options.calls) for _ in range(options.rounds)][1:]
    push, following, waited = (statistics.median(column) for column in zip(*small, strict=True))
    step = Step(options.batch)
    turns = [
        (timed(lambda: step.run(step.alone)), timed(step.exchange), timed(lambda: step.run(step.together)))
        for _ in range(options.rounds)
    ][1:]
    compute, communicate, both = (statistics.median(column) for column in zip(*turns, strict=True))
    ratio = statistics.median(b / max(c, e) for c, e, b in turns)
    if hvd.rank() == 0:
        print(
            f"allreduce_ of 4 KiB: push {push:.1f} us, one of many {following:.1f} us, waited for {waited:.1f} us"
        )
        print(
            f"a step: computing {compute * 1e3:.1f} ms, communicating {communicate * 1e3:.1f} ms, "
            f"both {both * 1e3:.1f} ms, {ratio:.2f} times the larger"
        )


if __name__ == "__main__":
    main()
