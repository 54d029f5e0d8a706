"""Horovod's `DistributedTrainer`, `DistributedOptimizer` and `broadcast_parameters` for MXNet.

MXNet computes gradients in threads of its own, the last layer's first. So they are taken from the last to the first:
each is under way while MXNet still computes those before it. MXNet's engine runs the sums, and the update of each
parameter waits for its own alone.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import mxnet

from slipstream.comm.collectives.interruption import Together
from slipstream.faces.horovod.job import size
from slipstream.faces.horovod.process_sets import ProcessSet, global_process_set, require_init
from slipstream.faces.mxnet.compression import Compression
from slipstream.faces.mxnet.operations import broadcast_, start_sum

__all__ = ["DistributedOptimizer", "DistributedTrainer", "broadcast_parameters", "sum_all"]


def sum_all(
    gradients: Sequence[tuple[str, Any]],
    prescale: float,
    process_set: ProcessSet,
    line: str,
    takes_reducers: bool = False,
) -> None:
    """Sums arrays over a set's ranks, in place: name and array of each, in the order in which layers use them.

    MXNet's engine does it, if it can. ``line``: what all ranks sum in one order; ``takes_reducers``: as of `line_for`.
    """
    with Together(process_set.group, "a step"):
        started = [
            start_sum(one, name, prescale, process_set, line, takes_reducers)
            for name, one in reversed(gradients)
        ]
        for work in started:
            if work is not None:
                work.wait()


def _is_alone(process_set: ProcessSet) -> bool:
    """Whether this rank sums with nobody: it is not in the set, or alone there. ValueError before `hvd.init`."""
    included = process_set.included()
    if included is None:
        require_init()
        raise ValueError("the process set is not known: give it to hvd.add_process_set or hvd.init first")
    return not included or process_set.size() == 1


def _scale_of(process_set: ProcessSet, predivide: float) -> float:
    """What makes an average of the sum of gradients that have been divided by ``predivide``."""
    return 1.0 if _is_alone(process_set) else predivide / (process_set.size() or 1)


class DistributedOptimizer(mxnet.optimizer.Optimizer):  # type: ignore[misc]
    """Wraps an optimizer of MXNet: each update averages the gradients over all ranks before.

    For `Module.fit` and updaters; Gluon's programs take `DistributedTrainer`. ``gradient_predivide_factor``: gradients
    are divided by it before the sum, and by size()/factor after it. ``num_groups`` is accepted and changes nothing.
    ``process_set``: the ranks to average over; on others the optimizer works alone. Every rank of the set updates the
    same parameters in the same order.

    >>> optimizer = hvd.DistributedOptimizer(mx.optimizer.SGD(learning_rate=0.1))
    """

    def __init__(
        self,
        optimizer: Any,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:  # not that of the base: all that is not here is the wrapped one's
        self._optimizer = optimizer
        self._scale = _scale_of(process_set, gradient_predivide_factor)
        self._optimizer.rescale_grad *= self._scale
        self._gradient_predivide_factor = gradient_predivide_factor
        self._process_set = process_set

    def __getattr__(self, item: str) -> Any:
        return getattr(self.__dict__["_optimizer"], item)

    def _sum(self, index: Any, grad: Any) -> None:
        if _is_alone(self._process_set):
            return
        scale = 1.0 / self._gradient_predivide_factor
        several = isinstance(index, list | tuple)
        pairs = list(zip(index, grad, strict=True)) if several else [(index, grad)]
        for (
            i,
            one,
        ) in pairs:  # a line for each: who calls this begins with the first layer's, which comes last
            sum_all([(f"gradient.{i}", one)], scale, self._process_set, f"gradient {i}")

    def create_state(self, index: Any, weight: Any) -> Any:
        """The wrapped optimizer's state of a parameter."""
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        """The same for parameters of half precision."""
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Averages the gradients, and has the wrapped optimizer update."""
        self._sum(index, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """The same for parameters of half precision."""
        self._sum(index, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        """Sets the wrapped optimizer's."""
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: Any) -> None:
        """Sets the wrapped optimizer's."""
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Any) -> None:
        """Sets the wrapped optimizer's."""
        self._optimizer.set_wd_mult(args_wd_mult)


class DistributedTrainer(mxnet.gluon.Trainer):  # type: ignore[misc]
    """Gluon's `Trainer` whose `step` averages the gradients over all ranks.

    Parameters as of `Trainer`; ``compression``: `Compression.none` or `Compression.fp16`;
    ``gradient_predivide_factor`` as in `DistributedOptimizer`; ``prefix``: a part of the operations' names, which tells
    several trainers apart; ``num_groups`` is accepted and changes nothing; ``process_set``: the ranks to average over,
    on others the trainer works alone. ``step(batch_size)`` takes the batch of one rank. Gradients are dense.

    >>> trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: Mapping[str, Any] | None = None,
        compression: Any = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if isinstance(optimizer, DistributedOptimizer):
            if process_set is global_process_set:
                process_set = optimizer._process_set
            elif optimizer._process_set not in (global_process_set, process_set):
                raise ValueError(
                    "the process sets of the DistributedTrainer and of its DistributedOptimizer differ"
                )
            scale, optimizer = optimizer._scale, optimizer._optimizer
            optimizer.rescale_grad /= scale
            warnings.warn(
                "DistributedTrainer takes the optimizer that DistributedOptimizer wraps", stacklevel=2
            )
        super().__init__(params, optimizer, optimizer_params=optimizer_params, kvstore=None)
        self._scale *= _scale_of(process_set, gradient_predivide_factor)
        self._process_set = process_set
        self._compression = compression
        self._gradient_predivide_factor = gradient_predivide_factor
        self._prefix = prefix or ""

    def _allreduce_grads(self) -> None:
        """Gluon calls it in `step`, and as `allreduce_grads`."""
        if _is_alone(self._process_set):
            return
        sent = []
        for i, param in enumerate(self._params):
            if param.grad_req != "null":
                gradient = param.list_grad()[0]
                sent.append((f"{self._prefix}{i}", gradient, *self._compression.compress(gradient)))
        scale = 1.0 / self._gradient_predivide_factor
        named = [(f"gradient.{name}", compressed) for name, _, compressed, _ in sent]
        sum_all(named, scale, self._process_set, f"gradients {self._prefix}", takes_reducers=True)
        for _, gradient, compressed, context in sent:
            if compressed is not gradient:
                gradient[:] = self._compression.decompress(compressed, context)


def broadcast_parameters(params: Any, root_rank: int = 0, prefix: str | None = None) -> None:
    """Gives all ranks the parameters of ``root_rank``: a dict of arrays, or what ``net.collect_params()`` gives.

    Parameters whose shape is not known yet are broadcast when MXNet has initialised them, which all ranks must come
    to. ``prefix``: a part of the operations' names. Raises ValueError for other ``params``.

    >>> hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    """
    if not isinstance(params, dict | mxnet.gluon.ParameterDict):
        raise ValueError(
            f"params must be a dict of arrays or parameters, or a ParameterDict, not {type(params).__name__}"
        )
    if size() == 1:
        return
    for name, value in sorted(params.items()):
        label = f"parameter.{prefix or ''}{name}"
        if not isinstance(value, mxnet.gluon.Parameter):
            broadcast_(value, root_rank, label)
            continue
        try:
            array = value.data()
        except mxnet.gluon.parameter.DeferredInitializationError:
            _broadcast_later(value, root_rank, label)
        else:
            broadcast_(array, root_rank, label)


def _broadcast_later(param: Any, root_rank: int, label: str) -> None:
    initialise = param._init_impl

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        initialise(*args, **kwargs)
        broadcast_(self.data(), root_rank, label, process_set=global_process_set)

    param._init_impl = types.MethodType(wrapped, param)
