"""Models of legacy Keras that were saved, with an optimizer that reduces gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tf_keras

from slipstream.faces.arrays.compression import AnyCompression, Compression
from slipstream.faces.tensorflow.legacy_keras.optimizer import DistributedOptimizer, is_distributed

__all__ = ["load_model"]


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: AnyCompression = Compression.none,
    legacy_opts: bool = False,
    **kwargs: Any,
) -> Any:
    """`tf_keras.models.load_model`, with the model's optimizer wrapped by `DistributedOptimizer`.

    ``custom_optimizers``: classes of optimizers that Keras does not know, ``custom_objects`` others, by name.
    ``compression``: of the optimizer. ``legacy_opts`` is accepted, and changes nothing: the file tells. Further
    keywords go to Keras.

    >>> model.save(f"model-{hvd.rank()}.keras")
    >>> model = hvd.load_model(f"model-{hvd.rank()}.keras")
    """
    known = {one.__name__: one for one in custom_optimizers or ()} | dict(custom_objects or {})
    model = tf_keras.models.load_model(filepath, custom_objects=known, **kwargs)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not is_distributed(optimizer):
        model.optimizer = DistributedOptimizer(optimizer, compression=compression)
    return model
