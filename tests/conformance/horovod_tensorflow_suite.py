"""Runs Horovod's own tests of its TensorFlow and Keras APIs on slipstream: `horovod_suite.py` with other files.

CHECKOUT is a source tree of Horovod. TensorFlow and Keras 3 must be installed.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import horovod_suite

HERE = Path(__file__).resolve().parent
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
    horovod_suite.EXCEPTIONS = HERE / "horovod_tensorflow_exceptions.json"
    print(", ".join(f"{name} {metadata.version(name)}" for name in ("tensorflow-cpu", "keras")), flush=True)
    horovod_suite.main()


if __name__ == "__main__":
    main()
