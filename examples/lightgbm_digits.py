"""Trains boosted trees on handwritten digits by LightGBM; each worker has a part of the images.

    slipstream run -np 2 -- python examples/lightgbm_digits.py

All workers end with the same model. The digits (UCI Optical Recognition of Handwritten Digits) come with scikit-learn.
"""

from __future__ import annotations

import argparse
import os

import numpy as np
from lightgbm import LGBMClassifier
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import slipstream
import slipstream.lightgbm


def main() -> None:
    """Trains, tests and prints the accuracy on worker 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trees", type=int, default=50, help="for each of the ten digits")
    args = parser.parse_args()
    slipstream.init()
    digits = load_digits()
    split = train_test_split(
        digits.data, digits.target, test_size=0.2, random_state=0, stratify=digits.target
    )
    train_x, test_x, train_y, test_y = split
    mine = slice(slipstream.rank(), None, slipstream.size())
    # The workers of a host share its cores: trees wait for each other often, and badly for one without a core.
    threads = max(1, len(os.sched_getaffinity(0)) // slipstream.local_size())
    with slipstream.lightgbm.network() as parallel:
        model = LGBMClassifier(
            n_estimators=args.trees, learning_rate=0.1, n_jobs=threads, verbose=-1, **parallel
        )
        model.fit(train_x[mine], train_y[mine])

    mine_right = (model.predict(test_x[mine]) == test_y[mine]).sum()
    right = slipstream.all_reduce(np.array([mine_right]))[0]
    if slipstream.rank() == 0:
        print(f"accuracy: {right / len(test_y):.4f}", flush=True)


if __name__ == "__main__":
    main()
