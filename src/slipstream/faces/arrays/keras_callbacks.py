"""What Horovod's callbacks do in ``model.fit``. A face joins each with the base of its Keras, which comes second."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from slipstream.faces.arrays import starting
from slipstream.faces.horovod import job
from slipstream.faces.horovod.process_sets import ProcessSet, global_process_set
from slipstream.faces.horovod.reduce_ops import Average, Min

__all__ = ["AveragesMetrics", "BroadcastsVariables", "SavesBestModel", "SchedulesRate", "WarmsUpRate"]


class _Callback:
    """What Keras's base gives a callback."""

    model: Any
    params: dict[str, Any]


class BroadcastsVariables(_Callback):
    """Gives all ranks the variables of ``root_rank``, once in its life: `_broadcast` is the face's.

    A model that Keras builds in its first batch has no variables before: the face then calls `_broadcast_once` after
    that batch.
    """

    _may_be_late = True

    def __init__(
        self,
        root_rank: int,
        device: str = "",
        local_variables: Iterable[Any] | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__()
        self.root_rank = root_rank
        self._local = {id(one) for one in local_variables or ()}
        self._process_set = process_set
        self.broadcast_done = False

    def register_local_var(self, var: Any) -> None:
        """Has this variable stay as it is on each rank."""
        self._local.add(id(var))

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcasts, if the model is built on all ranks, or is never built later."""
        if not self._may_be_late or self._is_built_everywhere():
            self._broadcast_once()

    def _is_built_everywhere(self) -> bool:
        if self.broadcast_done:
            return False
        built = np.array([self.model.built], np.int32)
        asked = starting.all_reduce(built, "whether the model is built", Min, 1.0, 1.0, self._process_set)
        return bool(asked.wait()[0])

    def _broadcast_once(self) -> None:
        if not self.broadcast_done:
            self._broadcast()
            self.broadcast_done = True

    def _broadcast(self) -> None:
        raise NotImplementedError

    def _shared(self, variables: Iterable[Any]) -> list[Any]:
        """Those that are not to stay as they are."""
        return [one for one in variables if id(one) not in self._local]


class AveragesMetrics(_Callback):
    """Averages the metrics of an epoch over all ranks."""

    def __init__(self, device: str = "", process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self._process_set = process_set

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Puts the averages in the place of the metrics."""
        names = sorted(logs or ())
        if not names:
            return
        mine = np.array([float(logs[name]) for name in names], np.float64)
        shared = f"metrics {', '.join(names)}"  # ranks that have others learn of it
        found = starting.all_reduce(mine, shared, Average, 1.0, 1.0, self._process_set).wait()
        logs.update(zip(names, found.tolist(), strict=True))


class SchedulesRate(_Callback):
    """Sets the learning rate to ``initial_lr`` times a multiplier: `_set_rate` and `_rate` are the face's."""

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        self.initial_lr = initial_lr
        self.start_epoch, self.end_epoch = start_epoch, end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self.multiplier: Callable[[float], float]
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            base = multiplier
            self.multiplier = lambda epoch: float(base ** (epoch - start_epoch))

    def on_train_begin(self, logs: Any = None) -> None:
        """Finds out how many steps an epoch has; ValueError if that is needed, and not known."""
        if self.staircase or self.steps_per_epoch:
            return
        self.steps_per_epoch = self.params.get("steps")
        if not self.steps_per_epoch:
            raise ValueError(
                f"Could not autodetect the number of steps per epoch. Please specify the steps_per_epoch parameter to "
                f"the {type(self).__name__}()."
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Takes note of the epoch."""
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the learning rate, if it is due."""
        ended = self.end_epoch is not None and self.current_epoch >= self.end_epoch
        if self.current_epoch < self.start_epoch or ended:
            return
        if not self.staircase:
            self._set(self.current_epoch + batch / (self.steps_per_epoch or 1))
        elif batch == 0:
            self._set(self.current_epoch)

    def _set(self, epoch: float) -> None:
        self._set_rate(self.initial_lr * self.multiplier(epoch))

    def _set_rate(self, rate: float) -> None:
        raise NotImplementedError

    def _rate(self) -> float:
        raise NotImplementedError

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds the learning rate to the metrics."""
        if logs is not None:
            logs["lr"] = self._rate()


class WarmsUpRate(SchedulesRate):
    """Raises the learning rate from ``initial_lr`` divided by the number of ranks to ``initial_lr``, batch by batch."""

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            size = job.size()
            # The last batch of an epoch ends at a whole number, as plots of the learning rate have it.
            epoch += 1.0 / (self.steps_per_epoch or 1)
            return 1.0 / size * (epoch * (size - 1) / warmup_epochs + 1)

        super().__init__(
            initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds the learning rate to the metrics, and says when the warm-up is over."""
        super().on_epoch_end(epoch, logs)
        if (
            self.end_epoch is not None
            and epoch == self.end_epoch - 1
            and self.verbose > 0
            and job.rank() == 0
        ):
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {self._rate():g}.")


class SavesBestModel:
    """Of a ModelCheckpoint: only rank 0 writes, and only the best model."""

    def __init__(self, filepath: str, monitor: str = "val_loss", **kwargs: Any) -> None:
        super().__init__(filepath, monitor=monitor, save_best_only=True, **kwargs)  # type: ignore[call-arg]

    def _save_model(self, *args: Any, **kwargs: Any) -> None:
        if job.rank() == 0:
            super()._save_model(*args, **kwargs)  # type: ignore[misc]
