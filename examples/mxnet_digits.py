"""Trains a small network on handwritten digits by MXNet's Gluon, data-parallel over all workers.

    slipstream run -np 2 -- .venv-mxnet/bin/python examples/mxnet_digits.py

MXNet 1.9 needs NumPy 1 (`make test-mxnet` makes the environment). The digits (UCI Optical Recognition of Handwritten
Digits) come with scikit-learn. One worker and N workers with the same --batch-size walk down the same loss curve.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import slipstream.mxnet as hvd  # isort: skip  (before MXNet: it gives NumPy the names that MXNet needs)

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def main() -> None:
    """Trains, tests and prints the accuracy on worker 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="images per step, over all workers")
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--loss-file", type=Path, help="write the mean loss of every step there, as JSON")
    parser.add_argument("--kvstore", action="store_true", help="train by gluon.Trainer and a KVStore")
    args = parser.parse_args()
    hvd.init()
    digits = load_digits()
    split = train_test_split(
        digits.data / 16, digits.target, test_size=0.2, random_state=0, stratify=digits.target
    )
    train_x, test_x, train_y, test_y = (np.ascontiguousarray(one, dtype=np.float32) for one in split)

    mx.random.seed(hvd.rank())  # broadcast_parameters makes them one
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(64, activation="relu", in_units=64), gluon.nn.Dense(10, in_units=64))
    net.initialize(mx.init.Xavier())
    params = net.collect_params()
    hvd.broadcast_parameters(params, root_rank=0)
    options = {"learning_rate": args.lr}
    if args.kvstore:
        trainer = gluon.Trainer(params, "sgd", options, kvstore=hvd.Slipstream())
    else:
        trainer = hvd.DistributedTrainer(params, "sgd", options)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

    losses: list[float] = []
    for epoch in range(args.epochs):
        order = np.random.default_rng(epoch).permutation(len(train_x))
        for begin in range(0, len(order), args.batch_size):
            batch = order[begin : begin + args.batch_size]
            mine = batch[hvd.rank() :: hvd.size()]
            with autograd.record():
                loss = loss_of(net(mx.nd.array(train_x[mine])), mx.nd.array(train_y[mine]))
            loss.backward()
            # DistributedTrainer divides the sum over the workers by their number, a KVStore does not.
            trainer.step(len(batch) if args.kvstore else len(batch) / hvd.size())
            if args.loss_file:
                losses.append(float(hvd.allreduce(loss.sum(), average=False).asscalar()) / len(batch))

    mine = slice(hvd.rank(), None, hvd.size())
    guesses = net(mx.nd.array(test_x[mine])).argmax(axis=1).asnumpy()
    right = hvd.allreduce(mx.nd.array([(guesses == test_y[mine]).sum()]), average=False).asscalar()
    if hvd.rank() == 0:
        if args.loss_file:
            args.loss_file.write_text(json.dumps(losses))
        print(f"accuracy: {right / len(test_y):.4f}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
