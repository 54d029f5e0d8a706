"""One rank of a test job with TensorFlow: runs the functions it is told to until the pipe closes."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from faces.persistent import load, serve

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)

import slipstream.tensorflow as hvd  # noqa: E402


def run(request: tuple[str, str, tuple[Any, ...]]) -> Any:
    """Calls a function of a test file: (file, function, arguments)."""
    file, name, arguments = request
    return getattr(load(file), name)(*arguments)


def main() -> None:
    """Serves as a rank."""
    hvd.init()
    serve(run)
    hvd.shutdown()


if __name__ == "__main__":
    main()
