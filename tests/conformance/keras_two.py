"""Names of Keras 2 that Keras 3 has not, for tests that are written for Keras 2. They translate, and do nothing else.

Gradients are reduced where slipstream does it for Keras 3: when they are applied, not when they are computed.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

__all__ = ["install"]

DEFAULT = 0.1  # the learning rate of an optimizer that is made without one


def install() -> None:
    """Gives the names to Keras, for the rest of the process."""
    import keras
    import tensorflow as tf

    for place in (keras, tf.keras):
        place.losses.mean_squared_error = keras.losses.MeanSquaredError()
        with_names(place)
    keras.Variable.ref = lambda self: self.value.ref()
    keras.Model.compile = without(keras.Model.compile, "experimental_run_tf_function")
    base = keras.optimizers.Optimizer
    base.__init__ = with_rate(base.__init__)
    base.__init_subclass__ = classmethod(with_two_arguments)
    base.lr = property(lambda self: self.learning_rate)
    base.iterations = property(
        lambda self: self._iterations
    )  # counts batches whose gradients are accumulated, too
    base.apply_gradients = without(base.apply_gradients, "experimental_aggregate_gradients")
    base._compute_gradients = compute_gradients


def with_names(place: Any) -> None:
    """What has moved."""
    from keras.src.legacy.layers import ThresholdedReLU

    place.layers.ThresholdedReLU = ThresholdedReLU
    for name in ("RMSprop", "Adam", "SGD"):
        kind = getattr(place.optimizers, name)
        if not hasattr(kind.__init__, "__wrapped__"):
            kind.__init__ = with_lr(kind.__init__)


def without(call: Any, name: str) -> Any:
    """A method that ignores this argument."""

    @functools.wraps(call)
    def translated(self: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop(name, None)
        return call(self, *args, **kwargs)

    return translated


def with_lr(init: Any) -> Any:
    """An optimizer's, whose learning rate was called ``lr``."""

    @functools.wraps(init)
    def translated(self: Any, *args: Any, **kwargs: Any) -> None:
        if "lr" in kwargs:
            kwargs["learning_rate"] = kwargs.pop("lr")
        init(self, *args, **kwargs)

    return translated


def with_rate(init: Any) -> Any:
    """That of all optimizers, which needed no learning rate."""

    @functools.wraps(init)
    def translated(self: Any, *args: Any, **kwargs: Any) -> None:
        if not args:
            kwargs.setdefault("learning_rate", DEFAULT)
        init(self, *args, **kwargs)

    return translated


def with_two_arguments(kind: Any) -> None:
    """Optimizers' ``update_step`` was not given the learning rate."""
    own = kind.__dict__.get("update_step")
    if own is not None and len(inspect.signature(own).parameters) == 3:
        kind.update_step = lambda self, gradient, variable, _: own(self, gradient, variable)


def compute_gradients(self: Any, loss: Any, var_list: Any, tape: Any = None) -> list[tuple[Any, Any]]:
    """Of a loss, or of a function that gives it."""
    import tensorflow as tf

    if tape is None:
        with tf.GradientTape() as tape:
            loss = loss()
    return list(zip(tape.gradient(loss, var_list), var_list, strict=True))
