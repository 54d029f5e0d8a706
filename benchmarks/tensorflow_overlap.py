"""How much of communication one function of TensorFlow hides behind its compute.

    slipstream run -np 2 -- python benchmarks/tensorflow_overlap.py --threads 1
    slipstream lab run --hosts 2 --rate 1gbit -- slipstream run -np 2 -- python benchmarks/tensorflow_overlap.py

A function goes through layers like a backward pass: each makes a gradient, which is summed over the ranks while the
next layers compute. The ideal is the larger of compute and communication, each measured alone; the compute of a layer
is chosen so that all of it takes about as long as all communication, or the multiple that --compute says. Medians in
milliseconds, after --warm steps. Ranks check every sum of the last step. With
SLIPSTREAM_TENSORFLOW_GRAPHS=negotiated operations go through Python.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
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


def main() -> None:
    """Measures, and prints on rank 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--elements", type=int, default=1 << 18, help="of a layer's gradient, float32")
    parser.add_argument("--compute", type=float, default=1.0, help="compute, as a multiple of communication")
    parser.add_argument("--threads", type=int, default=1, help="inter-op threads")
    parser.add_argument("--warm", type=int, default=3, help="steps before those that count")
    options = parser.parse_args()
    tf.config.threading.set_inter_op_parallelism_threads(options.threads)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
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
    ideal = max(compute, communication)
    if hvd.rank() == 0:
        graphs = os.environ.get("SLIPSTREAM_TENSORFLOW_GRAPHS", "native")
        print(f"graphs: {graphs}, inter-op threads: {options.threads}")
        print(f"compute {compute:.1f} ms, communication {communication:.1f} ms, both {both:.1f} ms")
        print(
            f"a step takes {both / ideal:.2f} times the ideal, {(compute + communication) / ideal:.2f} in a row"
        )
    hvd.shutdown()


if __name__ == "__main__":
    main()
