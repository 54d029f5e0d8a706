"""Elastic training of PyTorch models (public path: `slipstream.torch.elastic`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from slipstream.faces.horovod.elastic import ObjectState, reform, run_fn
from slipstream.faces.horovod.job import rank
from slipstream.faces.horovod.objects import broadcast_object
from slipstream.faces.torch.optimizer import watch_in_new_job
from slipstream.faces.torch.sampler import ElasticSampler
from slipstream.faces.torch.state_handlers import StateHandler, handler_type

__all__ = ["ElasticSampler", "TorchState", "run"]

_Func = TypeVar("_Func", bound=Callable[..., Any])


class TorchState(ObjectState):
    """What training goes back to after a failure: models, optimizers, and any other objects.

    ``model``, ``optimizer`` and further keywords become attributes. What has ``state_dict`` and ``load_state_dict``
    (models, optimizers, `ElasticSampler`, learning-rate schedulers, GradScaler) stays the same object, and its state is
    kept. Other objects are copied (`copy.deepcopy`), and pickled to get to other ranks: numbers, lists, dicts. `commit`
    keeps all of it in memory, `restore` goes back to the last commit, `sync` gives all ranks what rank 0 has, and keeps
    that. The gradients are not kept: after `restore` there are none. Raises TypeError if a model, say, is to become
    something without a state.

    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> state = hvd.elastic.TorchState(model, optimizer, epoch=0)
    >>> state.epoch = 1
    >>> state.commit()
    >>> state.epoch = 2
    >>> state.restore()
    >>> state.epoch
    1
    """

    _handlers: dict[str, StateHandler]

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        given = {"model": model, "optimizer": optimizer, **kwargs}
        types = {name: handler_type(value) for name, value in given.items()}
        handlers = {name: kind(given[name]) for name, kind in types.items() if kind is not None}
        self.__dict__ |= {"_handlers": handlers} | {name: one.value for name, one in handlers.items()}
        others = {name: value for name, value in given.items() if name not in handlers}
        super().__init__(broadcast_object, rank, **others)

    def save(self) -> None:
        """Keeps copies of all states and objects."""
        for one in self._handlers.values():
            one.save()
        super().save()

    def restore(self) -> None:
        """Goes back to the last copies; gradients are gone then."""
        for one in self._handlers.values():
            one.restore()
        super().restore()

    def sync(self) -> None:
        """Gives all ranks the states and objects of rank 0, and keeps copies of them; every rank calls it."""
        for name in sorted(self._handlers):
            self._handlers[name].sync()
        super().sync()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._handlers:
            kind = handler_type(value)
            if kind is None:
                raise TypeError(
                    f"{name} has been something with a state_dict: it cannot become {type(value).__name__}"
                )
            if kind is type(self._handlers[name]):
                self._handlers[name].set_value(value)
            else:
                self._handlers[name] = kind(value)
        super().__setattr__(name, value)


def _reset() -> None:
    reform()
    watch_in_new_job()


def run(func: _Func) -> _Func:
    """Decorates training that outlives lost ranks: ``func(state, ...)``, with a `TorchState` first.

    All ranks get the state of rank 0, then ``func`` runs. If a rank dies meanwhile, those that live start a smaller
    job, go back to the last `State.commit`, call the reset callbacks, get the state of the first of them, and run
    ``func`` again. ``func`` begins where the state says, so it has to keep the epoch there, for example. Start the
    script with ``slipstream run -np 4 --min-np 2``; without ``--min-np`` the error ends the job.

    Errors of the program are raised: operations that differ between ranks, and failures that come again although no
    rank was lost and nothing was committed since. Ranks that are lost are not replaced. Returns what ``func`` does. A
    rank waits at the end until ``func`` has returned on all others.

    >>> @hvd.elastic.run
    ... def train(state):
    ...     while state.step < 3:
    ...         state.step += 1
    ...         state.commit()
    ...     return state.step
    >>> train(hvd.elastic.TorchState(step=0))
    3
    """
    decorated: Any = run_fn(func, _reset)
    return decorated  # type: ignore[no-any-return]
