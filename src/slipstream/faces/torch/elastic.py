"""Elastic training of PyTorch models (public path: `slipstream.torch.elastic`)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch

from slipstream.faces.horovod.elastic import ObjectState, reform, run_fn
from slipstream.faces.horovod.job import rank
from slipstream.faces.horovod.objects import broadcast_object
from slipstream.faces.torch.optimizer import watch_in_new_job
from slipstream.faces.torch.sampler import ElasticSampler
from slipstream.faces.torch.state import broadcast_optimizer_state, broadcast_parameters

__all__ = ["ElasticSampler", "TorchState", "run"]

_Func = TypeVar("_Func", bound=Callable[..., Any])


class _HasState(Protocol):
    """A model, an optimizer, a sampler, a scheduler, a GradScaler."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Any) -> object: ...


class _Kept:
    """Something that has a state, the copy of it at the last commit, and how ranks give it to each other."""

    def __init__(self, value: _HasState) -> None:
        self.value = value
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        # of the copy again: optimizers keep the tensors that they load, and change them in place
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self) -> None:
        value: Any = self.value
        if isinstance(value, torch.nn.Module):
            broadcast_parameters(value.state_dict(), root_rank=0)
        elif isinstance(value, torch.optim.Optimizer):
            broadcast_optimizer_state(value, root_rank=0)
        else:
            value.load_state_dict(broadcast_object(value.state_dict()))
        self.save()


def _has_state(value: object) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


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

    _kept: dict[str, _Kept]

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        given = {"model": model, "optimizer": optimizer, **kwargs}
        kept = {name: _Kept(value) for name, value in given.items() if _has_state(value)}
        self.__dict__ |= {"_kept": kept} | {name: one.value for name, one in kept.items()}
        others = {name: value for name, value in given.items() if name not in kept}
        super().__init__(broadcast_object, rank, **others)

    def save(self) -> None:
        """Keeps copies of all states and objects."""
        for one in self._kept.values():
            one.save()
        super().save()

    def restore(self) -> None:
        """Goes back to the last copies; gradients are gone then."""
        for one in self._kept.values():
            one.restore()
            if isinstance(one.value, torch.nn.Module):
                one.value.zero_grad(set_to_none=True)
        super().restore()

    def sync(self) -> None:
        """Gives all ranks the states and objects of rank 0, and keeps copies of them; every rank calls it."""
        for name in sorted(self._kept):
            self._kept[name].sync()
        super().sync()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._kept:
            if not _has_state(value):
                raise TypeError(
                    f"{name} has been something with a state_dict: it cannot become {type(value).__name__}"
                )
            self._kept[name] = _Kept(value)
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
