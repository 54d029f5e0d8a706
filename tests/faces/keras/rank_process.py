"""One rank of a test job with Keras: runs the functions it is told to until the pipe closes."""

from __future__ import annotations

import os
from typing import Any

from faces.persistent import load, serve

if os.environ["KERAS_BACKEND"] == "tensorflow":
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
elif os.environ["KERAS_BACKEND"] == "torch":
    import torch

    torch.set_num_threads(1)

if os.environ.get("TF_USE_LEGACY_KERAS") == "1":
    import slipstream.tensorflow.keras as hvd
else:
    import slipstream.keras as hvd


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
