"""Elastic training of models of any Keras: their state, what runs the training again, and what callbacks do.

A face joins each of the callbacks with the base of its Keras, which comes second.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from slipstream.faces.arrays.kept import of_compiled
from slipstream.faces.arrays.operands import Array
from slipstream.faces.horovod.elastic import ObjectState, reform, run_fn
from slipstream.faces.horovod.job import rank
from slipstream.faces.horovod.objects import broadcast_object

__all__ = ["CommitsState", "ModelState", "UpdatesBatch", "UpdatesEpoch", "VariablesState", "run"]


class VariablesState(ObjectState):
    """Variables that ``variables()`` lists, and Python objects: each keyword becomes an attribute.

    ``broadcast``: gives all ranks the variables of a rank. ``arrays``: their values, which may be their memory.
    `commit` keeps copies of all of it in memory, `restore` goes back to these, `sync` gives all ranks what rank 0 has.
    """

    def __init__(
        self,
        variables: Callable[[], list[Any]],
        broadcast: Callable[[list[Any], int], object],
        arrays: Callable[[list[Any]], list[Array]],
        **kwargs: Any,
    ) -> None:
        self._variables, self._broadcast, self._arrays = variables, broadcast, arrays
        self._values: list[Any] = []
        super().__init__(broadcast_object, rank, **kwargs)
        self._keep()

    def _keep(self) -> None:
        self._values = [one.copy() for one in self._arrays(self._variables())]

    def save(self) -> None:
        """Keeps copies of the variables and objects."""
        self._keep()
        super().save()

    def restore(self) -> None:
        """Goes back to the last copies; variables that were made since stay as they are."""
        for variable, value in zip(self._variables(), self._values, strict=False):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Gives all ranks the variables and objects of rank 0, and keeps copies of them; every rank calls it."""
        self._broadcast(self._variables(), 0)
        self._keep()
        super().sync()


class ModelState(VariablesState):
    """A model, its optimizer, and other objects. ``optimizer``: that of the model by default. Both must be built."""

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        broadcast: Callable[[list[Any], int], object],
        arrays: Callable[[list[Any]], list[Array]],
        **kwargs: Any,
    ) -> None:
        self.model = model
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        super().__init__(self._all, broadcast, arrays, **kwargs)

    def _all(self) -> list[Any]:
        sync = getattr(self.model, "jax_state_sync", None)
        if sync is not None:
            sync()
        found = getattr(self.optimizer, "variables", ())
        return [*self.model.weights, *(found() if callable(found) else found)]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates training that outlives lost ranks: ``func(state, ...)``, with a `KerasState` first.

    As `slipstream.torch.elastic.run`. Errors of the job come out of compiled functions as the framework's; they are
    known by their text. ``func`` must not keep compiled functions across failures if the number of ranks is in them.

    >>> @hvd.elastic.run
    ... def train(state):
    ...     return state.epoch
    """

    @functools.wraps(func)
    def told(*args: Any, **kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except Exception as error:
            found = of_compiled(error)
            if found is None or found is error:
                raise
            raise found from error

    return run_fn(told, reform)


class CommitsState:
    """Commits the state after each ``batches_per_commit`` batches, and after each epoch."""

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self._left = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Counts anew."""
        self._left = self.batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commits, if it is due."""
        self._left -= 1
        if self._left == 0:
            self.state.commit()
            self._left = self.batches_per_commit

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commits."""
        self.state.commit()


class UpdatesBatch:
    """Keeps ``state.batch``: the number of the next batch. The first epoch after a failure is shorter by it."""

    params: dict[str, Any]

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.steps_per_epoch: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """The steps of a whole epoch are to be found out again."""
        self.steps_per_epoch = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Has the epoch go on where the state is."""
        if self.params.get("steps"):
            if self.steps_per_epoch is None:
                self.steps_per_epoch = self.params["steps"]
            self.params["steps"] = self.steps_per_epoch - self.state.batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts it."""
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """The next epoch begins at its first batch."""
        self.state.batch = 0


class UpdatesEpoch:
    """Keeps ``state.epoch``: how many epochs have ended, failures and all."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.initial_epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Goes on counting where the state is."""
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Counts it."""
        self.state.epoch = self.initial_epoch + epoch + 1
