"""Trains a small network on handwritten digits by Keras 3, on any of its back ends, data-parallel over all workers.

    KERAS_BACKEND=jax slipstream run -np 2 -- python examples/keras_digits.py

The back ends are tensorflow, jax and torch. The digits are real scans (UCI Optical Recognition of Handwritten Digits),
which come with scikit-learn. One worker and N workers with the same --batch-size see the same batches and walk down the
same loss curve.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import slipstream.keras as hvd


def load_data() -> list[Any]:
    """Training images and labels, then those held out for the test, the same on every worker."""
    digits = load_digits()
    images = (digits.images[..., None] / 16.0).astype(np.float32)
    train_x, test_x, train_y, test_y = train_test_split(
        images, digits.target, test_size=0.2, random_state=0, stratify=digits.target
    )
    return [train_x, train_y, test_x, test_y]


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="images per step, over all workers")
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--loss-file", type=Path, help="write the mean loss of every epoch there, as JSON")
    return parser.parse_args()


def main() -> None:
    """Trains, tests and prints the accuracy on worker 0."""
    args = parse_args()
    hvd.init()
    keras.utils.set_random_seed(0)
    train_x, train_y, test_x, test_y = load_data()
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.Adam(args.lr)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    losses = []
    rows = len(train_x) // args.batch_size * args.batch_size  # whole batches: each worker has an equal share
    for epoch in range(args.epochs):
        order = np.random.default_rng(epoch).permutation(len(train_x))[:rows]
        mine = order.reshape(-1, args.batch_size)[:, hvd.rank() :: hvd.size()].reshape(-1)
        told = model.fit(
            train_x[mine],
            train_y[mine],
            batch_size=args.batch_size // hvd.size(),
            shuffle=False,
            verbose=0,
            callbacks=callbacks,
        )
        losses.append(told.history["loss"][0])

    found = np.argmax(model.predict(test_x[hvd.rank() :: hvd.size()], verbose=0), 1)
    right = int((found == test_y[hvd.rank() :: hvd.size()]).sum())
    accuracy = int(hvd.allreduce(right, op=hvd.Sum)) / len(test_y)
    if hvd.rank() == 0:
        if args.loss_file:
            args.loss_file.write_text(json.dumps(losses))
        print(f"loss: {losses[0]:.4f} in the first epoch, {losses[-1]:.4f} in the last")
        print(f"accuracy: {accuracy:.4f}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
