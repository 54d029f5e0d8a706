"""Trains a small network on handwritten digits by TensorFlow, data-parallel over all workers.

    slipstream run -np 2 -- python examples/tensorflow_digits.py

The digits are real scans (UCI Optical Recognition of Handwritten Digits), which come with scikit-learn. One worker and
N workers with the same --batch-size see the same batches and walk down the same loss curve.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import slipstream.tensorflow as hvd


def load_data() -> list[Any]:
    """Training images and labels, then those held out for the test, the same on every worker."""
    digits = load_digits()
    images = (digits.data / 16.0).astype(np.float32)
    labels = digits.target.astype(np.int32)
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=0.2, random_state=0, stratify=labels
    )
    return [train_x, train_y, test_x, test_y]


def make_weights() -> list[tf.Variable]:
    """Of two layers: 64 pixels, 64 hidden units, 10 digits."""
    generator = np.random.default_rng(0)
    shapes = (64, 64), (64, 10)
    matrices = [tf.Variable(generator.normal(0, n**-0.5, (n, m)).astype(np.float32)) for n, m in shapes]
    return [matrices[0], tf.Variable(tf.zeros(64)), matrices[1], tf.Variable(tf.zeros(10))]


def logits(weights: list[tf.Variable], x: Any) -> Any:
    """Of images (batch, 64): (batch, 10)."""
    return tf.nn.relu(x @ weights[0] + weights[1]) @ weights[2] + weights[3]


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="images per step, over all workers")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--eager", action="store_true", help="no tf.function")
    parser.add_argument("--loss-file", type=Path, help="write the mean loss of every epoch there, as JSON")
    return parser.parse_args()


def main() -> None:
    """Trains, tests and prints the accuracy on worker 0."""
    args = parse_args()
    hvd.init()
    threads = max(
        1, len(os.sched_getaffinity(0)) // hvd.local_size()
    )  # the workers of a host share its cores
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    train_x, train_y, test_x, test_y = load_data()
    weights = make_weights()
    momenta = [tf.Variable(tf.zeros_like(one)) for one in weights]
    hvd.broadcast_variables(weights, root_rank=0)

    def step(x: Any, y: Any, whole: Any) -> Any:
        with tf.GradientTape() as tape:
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits(weights, x))
            # Workers' gradients are averaged with equal weights. Each divides its sum by an equal share of the batch,
            # so the average is right even when the batch does not divide evenly.
            loss = tf.reduce_sum(each) * hvd.size() / whole
        tape = hvd.DistributedGradientTape(tape)
        for weight, momentum, grad in zip(weights, momenta, tape.gradient(loss, weights), strict=True):
            momentum.assign(0.9 * momentum + grad)
            weight.assign_sub(args.lr * momentum)
        return loss

    run = step if args.eager else tf.function(step, reduce_retracing=True)
    losses = []
    for epoch in range(args.epochs):
        order = np.random.default_rng(epoch).permutation(len(train_x))
        total = 0.0
        for start in range(0, len(order), args.batch_size):
            batch = order[start : start + args.batch_size]
            mine = batch[hvd.rank() :: hvd.size()]
            x, y = tf.constant(train_x[mine]), tf.constant(train_y[mine])
            total += run(x, y, tf.constant(float(len(batch)))).numpy() * len(batch)
        losses.append(float(hvd.allreduce(tf.constant(total / len(order)))))

    found = tf.argmax(logits(weights, test_x[hvd.rank() :: hvd.size()]), 1, output_type=tf.int32)
    right = tf.reduce_sum(tf.cast(found == test_y[hvd.rank() :: hvd.size()], tf.int32))
    accuracy = int(hvd.allreduce(right, op=hvd.Sum)) / len(test_y)
    if hvd.rank() == 0:
        if args.loss_file:
            args.loss_file.write_text(json.dumps(losses))
        print(f"loss: {losses[0]:.4f} after the first epoch, {losses[-1]:.4f} after the last")
        print(f"accuracy: {accuracy:.4f}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
