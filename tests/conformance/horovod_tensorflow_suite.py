"""Runs Horovod's own tests of its TensorFlow and Keras APIs on slipstream: `horovod_suite.py` with other files.

CHECKOUT is a source tree of Horovod. TensorFlow and Keras 3 must be installed.
"""

from __future__ import annotations

import horovod_page
import horovod_suite

FILES = (
    "parallel/test_tensorflow.py",
    "parallel/test_tensorflow_process_sets*.py",
    "parallel/test_adasum_tensorflow.py",
    "parallel/test_tensorflow2_keras*.py",
    "parallel/test_tensorflow_keras.py",
    "parallel/test_keras.py",
)


def main() -> None:
    """Runs the suite with the files and the excuses of TensorFlow."""
    horovod_suite.FILES = FILES
    horovod_suite.EXCEPTIONS = horovod_suite.HERE / "horovod_tensorflow_exceptions.json"
    horovod_suite.PAGE = horovod_suite.DOCS / "horovod_tensorflow_tests.md"
    horovod_suite.INTRO = horovod_page.TENSORFLOW
    horovod_suite.PACKAGES = ["tensorflow-cpu", "keras"]
    # Two tests build graphs of so many operations that they take minutes on 3 ranks and two cores.
    horovod_suite.main(default_map={"limit": 300.0})


if __name__ == "__main__":
    main()
