"""Models that were saved, with an optimizer that reduces gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import keras

from slipstream.faces.arrays.compression import AnyCompression, Compression
from slipstream.faces.keras.optimizer import DistributedOptimizer, is_distributed

__all__ = ["load_model"]


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: AnyCompression = Compression.none,
    **kwargs: Any,
) -> Any:
    """`keras.saving.load_model`, with the model's optimizer wrapped by `DistributedOptimizer`.

    ``custom_optimizers``: classes of optimizers that Keras does not know, ``custom_objects`` others, by name.
    ``compression``: of the optimizer. Further keywords go to Keras.

    >>> model.save(f"model-{hvd.rank()}.keras")
    >>> model = hvd.load_model(f"model-{hvd.rank()}.keras")
    """
    known = {one.__name__: one for one in custom_optimizers or ()} | dict(custom_objects or {})
    model = keras.saving.load_model(filepath, custom_objects=known, **kwargs)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not is_distributed(optimizer):
        model.optimizer = DistributedOptimizer(optimizer, compression=compression)
    return model
