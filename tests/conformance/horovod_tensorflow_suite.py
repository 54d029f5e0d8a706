"""Runs Horovod's own tests of its TensorFlow and Keras APIs on slipstream: `horovod_suite.py` with other files.

CHECKOUT is a source tree of Horovod. TensorFlow and tf_keras must be installed.
"""

from __future__ import annotations

import horovod_page
from horovod_suite import DOCS, HERE, Suite, command

TENSORFLOW = Suite(
    name="horovod_tensorflow_suite.py",
    api="TensorFlow and Keras",
    files=(
        "parallel/test_tensorflow.py",
        "parallel/test_tensorflow_process_sets*.py",
        "parallel/test_adasum_tensorflow.py",
        "parallel/test_tensorflow2_keras*.py",
        "parallel/test_tensorflow_keras.py",
        "parallel/test_keras.py",
    ),
    exceptions=HERE / "horovod_tensorflow_exceptions.json",
    page=DOCS / "horovod_tensorflow_tests.md",
    intro=horovod_page.TENSORFLOW,
    packages=["tensorflow-cpu", "tf-keras"],
    # Two tests build graphs of so many operations that they take minutes on 3 ranks and two cores.
    limit=300.0,
)

if __name__ == "__main__":
    command(TENSORFLOW)()
