"""How much of communication one function of TensorFlow hides behind its compute.

    slipstream run -np 2 -- python benchmarks/tensorflow_overlap.py --threads 1
    slipstream lab run --hosts 2 --rate 1gbit -- slipstream run -np 2 -- python benchmarks/tensorflow_overlap.py

A function goes through layers like a backward pass: each makes a gradient, which is summed over the ranks while the
next layers compute. With --tape it is a step of training: a tape makes the gradients of dense layers, and
DistributedGradientTape averages them while it does. The ideal is the larger of compute and communication, each measured
alone; with --tape it is the forward pass and then the larger of the backward pass and communication. The compute of a
layer is chosen so that all of it, or of the backward pass, takes about as long as all communication, or the multiple
that --compute says. Medians in milliseconds, after --warm steps. Ranks check the sums of the last step.
SLIPSTREAM_TENSORFLOW_GRAPHS=negotiated has operations by Python.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

import slipstream
import slipstream.tensorflow as hvd

_SIDE = 192  # of the matrices that layers multiply
_STEPS = 9


def _step(layers: int, elements: int, rounds: int, computes: bool, communicates: bool) -> Any:
    """A function of a matrix and the gradients that layers hand out where they do not compute."""

    def layer(x: Any) -> Any:
        return tf.while_loop(
            lambda i, _: i < rounds,
            lambda i, y: (i + 1, tf.tanh(tf.matmul(y, x))),
            [0, x],
            parallel_iterations=1,
        )[1]

    def run(x: Any, gradient: Any) -> Any:
        sums = []
        for number in range(layers):
            if computes:
                x = layer(x)
            made = gradient + tf.cast(number, tf.float32) + (x[0, 0] * 0.0)
            sums.append(hvd.allreduce(made, op=hvd.Sum) if communicates else made)
        return x, [one[-1] for one in sums]

    return tf.function(run)


def _training(layers: int, elements: int, examples: int, backward: bool, communicates: bool) -> Any:
    """A step of SGD on a chain of dense layers, with so many examples for each rank; and the variables."""
    side = round(elements**0.5)
    initial = np.random.default_rng(0).standard_normal((layers, side, side), np.float32) / side**0.5
    weights = [tf.Variable(one) for one in initial]
    x = tf.random.stateless_normal([examples, side], [hvd.rank(), 1])

    def run() -> Any:
        with tf.GradientTape() as tape:
            y = x
            for weight in weights:
                y = tf.tanh(tf.matmul(y, weight))
            loss = tf.reduce_mean(y * y)
        if backward:
            shared = hvd.DistributedGradientTape(tape) if communicates else tape
            for weight, grad in zip(weights, shared.gradient(loss, weights), strict=True):
                weight.assign_sub(grad * 0.01)
        return loss

    return tf.function(run), weights


def _time(call: Callable[[], Any], warm: int) -> float:
    times = []
    for number in range(warm + _STEPS):
        slipstream.barrier()
        begin = time.perf_counter()
        call()
        if number >= warm:
            times.append(time.perf_counter() - begin)
    # A step is over when it is on all ranks.
    return float(slipstream.all_reduce(np.array([statistics.median(times)]), op="max")[0]) * 1e3


@dataclass(frozen=True)
class _Found:
    """Milliseconds: each alone, and all in one step."""

    forward: float
    compute: float  # with forward
    communication: float
    both: float


def _of_chain(options: argparse.Namespace) -> _Found:
    x = tf.constant(np.random.default_rng(0).standard_normal((_SIDE, _SIDE)), tf.float32) / _SIDE
    gradient = tf.fill([options.elements], float(hvd.rank() + 1))

    def measured(rounds: int, computes: bool, communicates: bool) -> tuple[float, Any]:
        function = _step(options.layers, options.elements, rounds, computes, communicates)
        return _time(lambda: function(x, gradient), options.warm), function

    neither = measured(1, False, False)[0]
    communication = measured(1, False, True)[0]
    some = measured(10, True, False)[0]
    rounds = max(1, round(10 * communication * options.compute / max(some - neither, 1e-3)))
    compute = measured(rounds, True, False)[0]
    both, function = measured(rounds, True, True)
    want = sum(range(1, hvd.size() + 1)) + np.arange(options.layers) * hvd.size()
    np.testing.assert_allclose([float(one) for one in function(x, gradient)[1]], want)
    return _Found(0.0, compute, communication, both)


def _of_tape(options: argparse.Namespace) -> _Found:
    def measured(examples: int, backward: bool, communicates: bool) -> tuple[float, Any]:
        step, weights = _training(options.layers, options.elements, examples, backward, communicates)
        return _time(step, options.warm), weights

    communication = measured(1, True, True)[0]
    some = measured(64, True, False)[0] - measured(64, False, False)[0]
    examples = max(1, round(64 * communication * options.compute / max(some, 1e-3)))
    forward = measured(examples, False, False)[0]
    compute = measured(examples, True, False)[0]
    both, weights = measured(examples, True, True)
    for one in weights:
        np.testing.assert_array_equal(one, hvd.broadcast(one, 0))
    return _Found(forward, compute, communication, both)


def main() -> None:
    """Measures, and prints on rank 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tape", action="store_true", help="a step of training")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--elements", type=int, default=1 << 18, help="of a layer's gradient, float32")
    parser.add_argument("--compute", type=float, default=1.0, help="compute, as a multiple of communication")
    parser.add_argument("--threads", type=int, default=1, help="inter-op threads")
    parser.add_argument("--warm", type=int, default=3, help="steps before those that count")
    options = parser.parse_args()
    tf.config.threading.set_inter_op_parallelism_threads(options.threads)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
    found = _of_tape(options) if options.tape else _of_chain(options)
    ideal = found.forward + max(found.compute - found.forward, found.communication)
    if hvd.rank() == 0:
        graphs = os.environ.get("SLIPSTREAM_TENSORFLOW_GRAPHS", "native")
        print(f"graphs: {graphs}, inter-op threads: {options.threads}, {'tape' if options.tape else 'chain'}")
        forward = f", {found.forward:.1f} of them forward," if options.tape else ","
        print(f"compute {found.compute:.1f} ms{forward} communication {found.communication:.1f} ms,", end=" ")
        print(f"both {found.both:.1f} ms")
        row = (found.compute + found.communication) / ideal
        print(f"a step takes {found.both / ideal:.2f} times the ideal, {row:.2f} in a row")
    hvd.shutdown()


if __name__ == "__main__":
    main()
