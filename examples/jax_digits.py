"""Trains a small convolutional network on handwritten digits with JAX and optax, data-parallel over all workers.

    slipstream run -np 2 -- python examples/jax_digits.py

The digits are those of examples/torch_digits.py. The whole step is one compiled function: the gradient, the average
over the workers and the update. One worker and N workers with the same --batch-size see the same batches and walk down
the same loss curve, to rounding: try --dtype float64 --loss-file.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import slipstream.jax as hvd


def load_data(dtype: Any) -> list[np.ndarray[Any, Any]]:
    """Training images (n, 8, 8, 1) and labels, then those held out for the test, the same on every worker."""
    digits = load_digits()
    images = (digits.images / 16.0)[..., np.newaxis].astype(dtype)
    split = train_test_split(images, digits.target, test_size=0.2, random_state=0, stratify=digits.target)
    return [split[0], split[2], split[1], split[3]]


def initial(seed: int, dtype: Any) -> dict[str, jax.Array]:
    """Weights of two convolutions and two linear layers."""
    keys = iter(jax.random.split(jax.random.key(seed), 4))
    shapes = {"conv1": (3, 3, 1, 16), "conv2": (3, 3, 16, 32), "fc1": (32 * 4 * 4, 64), "fc2": (64, 10)}
    made = {}
    for name, shape in shapes.items():
        scale = (2 / np.prod(shape[:-1])) ** 0.5
        made[name] = jax.random.normal(next(keys), shape, dtype) * scale
        made[f"{name}_bias"] = jnp.zeros(shape[-1], dtype)
    return made


def logits_of(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Logits (batch, 10) of images (batch, 8, 8, 1)."""
    for name in ("conv1", "conv2"):
        form = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(x, params[name], (1, 1), "SAME", dimension_numbers=form)
        x = jax.nn.relu(x + params[f"{name}_bias"])
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = jax.nn.relu(x.reshape(len(x), -1) @ params["fc1"] + params["fc1_bias"])
    return x @ params["fc2"] + params["fc2_bias"]


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="images per step, over all workers")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--loss-file", type=Path, help="write the mean loss of every step there, as JSON")
    return parser.parse_args()


def main() -> None:
    """Trains, tests and prints the accuracy on worker 0."""
    args = parse_args()
    jax.config.update("jax_enable_x64", args.dtype == "float64")
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    train_x, train_y, test_x, test_y = load_data(args.dtype)
    params = hvd.broadcast_parameters(initial(rank, args.dtype))  # rank 0's, whatever the others have drawn
    optimizer = hvd.DistributedOptimizer(optax.sgd(args.lr, momentum=0.9))
    state = optimizer.init(params)

    def loss_of(params: Any, x: jax.Array, y: jax.Array, weight: jax.Array) -> jax.Array:
        # Workers' gradients are averaged with equal weights. Each takes an equal share of the batch as its divisor, so
        # the average is right even when the batch does not divide evenly.
        return (optax.softmax_cross_entropy_with_integer_labels(logits_of(params, x), y) * weight).sum()

    @jax.jit
    def step(params: Any, state: Any, x: jax.Array, y: jax.Array, weight: jax.Array) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, x, y, weight)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, hvd.allreduce(loss)

    losses: list[float] = []
    for epoch in range(args.epochs):
        order = np.random.default_rng(epoch).permutation(len(train_x))
        for begin in range(0, len(order), args.batch_size):
            batch = order[begin : begin + args.batch_size]
            share = -(-len(batch) // size)
            mine = np.resize(
                batch[rank::size] if len(batch) > rank else batch, share
            )  # one shape on all ranks
            weight = np.full(share, size / len(batch), args.dtype) * (
                np.arange(share) < len(batch[rank::size])
            )
            params, state, loss = step(params, state, train_x[mine], train_y[mine], weight)
            losses.append(float(loss))
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {losses[-1]:.4f}", flush=True)

    mine = slice(rank, None, size)
    right = (jax.jit(logits_of)(params, test_x[mine]).argmax(1) == test_y[mine]).sum()
    accuracy = int(hvd.allreduce(right, hvd.Sum)) / len(test_y)
    if rank == 0:
        if args.loss_file:
            args.loss_file.write_text(json.dumps(losses))
        print(f"accuracy: {accuracy:.4f}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
