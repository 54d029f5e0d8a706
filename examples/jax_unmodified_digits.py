"""Trains a small network on handwritten digits with JAX, data-parallel over all processes, without naming slipstream.

    slipstream run -np 2 -- python examples/jax_unmodified_digits.py

The digits are real scans (UCI Optical Recognition of Handwritten Digits), which come with scikit-learn. Batches are
sharded over the processes and parameters are on all of them, so `jit` puts the sums of gradients in by itself. One
process and N processes see the same batches and walk down the same loss curve: try --dtype float64 --loss-file.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

Parameters = list[tuple[jax.Array, jax.Array]]


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="images per step, over all processes")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--loss-file", type=Path, help="write the loss of every step there, as JSON")
    return parser.parse_args()


def initial(sizes: tuple[int, ...], dtype: str) -> Parameters:
    """Weights (rows, columns) and biases (columns,) of the layers, the same in every process."""
    random = np.random.default_rng(0)
    return [
        (
            jnp.asarray(random.normal(0.0, np.sqrt(2.0 / rows), (rows, columns)), dtype),
            jnp.zeros(columns, dtype),
        )
        for rows, columns in itertools.pairwise(sizes)
    ]


def logits(parameters: Parameters, x: jax.Array) -> jax.Array:
    """(batch, 64) to (batch, 10)."""
    for weights, biases in parameters[:-1]:
        x = jax.nn.relu(x @ weights + biases)
    weights, biases = parameters[-1]
    return x @ weights + biases


def mean_loss(parameters: Parameters, x: jax.Array, y: jax.Array) -> jax.Array:
    """Cross entropy, over all images of the batch."""
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits(parameters, x)), y[:, None], axis=1)
    return -jnp.mean(chosen)


@jax.jit
def step(parameters: Parameters, x: jax.Array, y: jax.Array, lr: float) -> tuple[Parameters, jax.Array]:
    """One step of gradient descent; the loss before it."""
    loss, gradients = jax.value_and_grad(mean_loss)(parameters, x, y)
    return jax.tree.map(lambda value, slope: value - lr * slope, parameters, gradients), loss


@jax.jit
def right(parameters: Parameters, x: jax.Array, y: jax.Array) -> jax.Array:
    """How many images get their own digit."""
    return jnp.sum(jnp.argmax(logits(parameters, x), axis=1) == y)


def main() -> None:
    """Trains, tests and prints the accuracy on process 0."""
    args = parse_args()
    jax.distributed.initialize()
    jax.config.update("jax_enable_x64", args.dtype == "float64")
    mesh = Mesh(np.array(jax.devices()), ("data",))
    spread, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))
    processes, mine = jax.process_count(), jax.process_index()

    def placed(values: np.ndarray[Any, Any]) -> jax.Array:
        """The global array, of which each process holds its rows."""
        rows = np.array_split(values, processes)[mine]
        return jax.make_array_from_process_local_data(spread, rows, values.shape)

    digits = load_digits()
    images = (digits.data / 16.0).astype(args.dtype)
    split = train_test_split(images, digits.target.astype(np.int32), test_size=0.2, random_state=0)
    train_x, test_x, train_y, test_y = split
    parameters = jax.device_put(initial((64, 128, 64, 10), args.dtype), everywhere)
    losses: list[float] = []
    steps = len(train_x) // args.batch_size
    for epoch in range(args.epochs):
        order = np.random.default_rng(epoch).permutation(len(train_x))[: steps * args.batch_size]
        for batch in order.reshape(steps, -1):
            parameters, loss = step(parameters, placed(train_x[batch]), placed(train_y[batch]), args.lr)
            losses.append(float(loss))
    tested = len(test_x) // processes * processes  # equal shares
    hits = right(parameters, placed(test_x[:tested]), placed(test_y[:tested]))
    if mine == 0:
        if args.loss_file:
            args.loss_file.write_text(json.dumps(losses))
        print(f"accuracy: {int(hits) / tested:.4f}", flush=True)


if __name__ == "__main__":
    main()
