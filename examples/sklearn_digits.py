"""Trains a linear classifier on handwritten digits by scikit-learn's `partial_fit`, data-parallel over all workers.

    slipstream run -np 2 -- python examples/sklearn_digits.py

Each worker takes steps over its own images, and the coefficients of all workers are averaged after every pass (local
SGD). The digits (UCI Optical Recognition of Handwritten Digits) come with scikit-learn.
"""

from __future__ import annotations

import argparse

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import train_test_split

import slipstream


def average(model: SGDClassifier) -> None:
    """Gives the model the mean of all workers' coefficients, which `partial_fit` goes on from."""
    for values in (model.coef_, model.intercept_):
        slipstream.all_reduce(values, "avg", out=values)


def main() -> None:
    """Trains, tests and prints the accuracy on worker 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--passes", type=int, default=20)
    args = parser.parse_args()
    slipstream.init()
    digits = load_digits()
    split = train_test_split(
        digits.data / 16, digits.target, test_size=0.2, random_state=0, stratify=digits.target
    )
    train_x, test_x, train_y, test_y = split
    mine = slice(slipstream.rank(), None, slipstream.size())

    model = SGDClassifier(loss="log_loss", alpha=1e-4, random_state=0)
    for _ in range(args.passes):
        model.partial_fit(train_x[mine], train_y[mine], classes=np.arange(10))
        average(model)

    mine_right = (model.predict(test_x[mine]) == test_y[mine]).sum()
    right = slipstream.all_reduce(np.array([mine_right]))[0]
    if slipstream.rank() == 0:
        print(f"accuracy: {right / len(test_y):.4f}", flush=True)


if __name__ == "__main__":
    main()
