"""`DistributedOptimizer`: any PyTorch optimizer, stepping on gradients reduced over the job."""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch

from slipstream.base.arguments import as_number
from slipstream.base.errors import SlipstreamError
from slipstream.faces.horovod.process_sets import ProcessSet, global_process_set
from slipstream.faces.horovod.reduce_ops import Adasum, Average, engine_op
from slipstream.faces.horovod.words import adding_words
from slipstream.faces.torch.adasum_steps import AdasumSteps, check_plain
from slipstream.faces.torch.compression import (
    AnyCompression,
    Compression,
    as_compressor,
    state_of_arrays,
    state_of_tensors,
    way_and_compressor,
)
from slipstream.faces.torch.exact import Exact, check_exact, check_wires, exact_rule, ways_of_groups
from slipstream.faces.torch.gradients import exchange_gradients
from slipstream.faces.torch.overlap import ForwardOverlap
from slipstream.faces.torch.parameters import (
    as_indices,
    check_groups,
    check_names,
    cut,
    in_order,
    names_of,
    unfrozen,
)
from slipstream.faces.torch.reduction_operations import grouped_allreduce_
from slipstream.gradients.compression import Cast, Way
from slipstream.gradients.exchange import GradientExchange
from slipstream.gradients.reductions import check_sums
from slipstream.gradients.states import check_kind, saved_of
from slipstream.gradients.wires import check_unscaled

__all__ = ["DistributedOptimizer", "watch_in_new_job"]

# Attributes of an instance that would hide the methods below; learning-rate schedulers set them.
_HIDING = ("step", "zero_grad", "synchronize", "load_state_dict", "add_param_group")


class _Distributed:
    """Comes before the user's optimizer class in the classes made by `DistributedOptimizer`."""

    param_groups: list[dict[str, Any]]
    _exchange: GradientExchange | None
    _reduced: list[torch.Tensor]  # the parameters of the exchange
    _hooked: set[int]  # their ids
    _settings: dict[str, Any]
    _overlap: ForwardOverlap | None
    _synchronized: bool
    _should_synchronize: bool
    backward_passes_per_step: int

    def _watch(self) -> None:
        """Hooks up the parameters that there are now."""
        check_wires(self.param_groups)
        before = self._exchange
        if before is not None:
            before.detach()  # may raise: without an exchange the next steps would reduce nothing
            self._exchange = None
        process_set: ProcessSet = self._settings["process_set"]
        if not process_set.included() or process_set.group.size == 1:
            return
        settings = dict(self._settings)
        params, settings["names"] = in_order(self.param_groups, settings["names"])
        groups = settings.pop("groups") or cut(params, settings.pop("num_groups"))
        settings.pop("num_groups", None)
        settings["exact"] = exact_rule(settings["exact"], params)
        settings["wires"] = ways_of_groups(self.param_groups, params)
        self._exchange = exchange_gradients(
            params,
            groups=as_indices(params, groups),
            passes=self.backward_passes_per_step,
            overlaps=self._overlap is not None,
            **settings,
        )
        if before is not None:
            number_of = {id(param): number for number, param in enumerate(params)}
            self._exchange.inherit(before, [number_of.get(id(param)) for param in self._reduced])
        self._reduced = params
        self._hooked = set(map(id, params))
        if self._overlap is not None:
            self._overlap.watch(self, params, self._exchange)

    def _late(self) -> list[torch.Tensor]:
        """The parameters that have come to require gradients since the others were hooked up."""
        return [] if self._exchange is None else unfrozen(self.param_groups, self._hooked)

    def _reduce_unfrozen(self) -> None:
        """Those that `zero_grad` has not hooked up: backward came before it was called."""
        params = self._late()
        if not params:
            return
        for param in params:
            if param.grad is None:
                param.grad = torch.zeros_like(param)
            elif param.grad.is_sparse:
                param.grad = param.grad.to_dense()
        grouped_allreduce_(
            [param.grad for param in params if param.grad is not None],
            op=self._settings["op"],
            name="gradients of unfrozen parameters",
            process_set=self._settings["process_set"],
        )

    def watch_in_new_job(self) -> None:
        """Hooks up the parameters again, in the job that has taken the place of one that failed.

        The step under way is lost, with its gradients, and so is what compressions owed. An optimizer whose process set
        has ended with the old job stays as it is, and raises ValueError in its next step.
        """
        if self._settings["process_set"].process_set_id is None:
            return
        before, self._exchange = self._exchange, None
        if before is not None:
            with suppress(SlipstreamError):  # of the job that has failed
                before.settle()
            before.detach()
        if self._overlap is not None:
            self._overlap.forget()
        for group in self.param_groups:
            for param in group["params"]:
                param.grad = None
        self._synchronized = False
        self._watch()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """TypeError, at the copy and not in its first step: a copy would not know the exchange of gradients."""
        raise TypeError(
            f"a DistributedOptimizer ({type(self).__name__}) cannot be copied or pickled: copy the model, make an "
            "optimizer of the copy's parameters, load the state_dict() of this one into it, and wrap that on all ranks"
        )

    def set_backward_passes_per_step(self, passes: int) -> None:
        """How many backward passes are accumulated locally before gradients are reduced."""
        self.backward_passes_per_step = passes
        if self._exchange is not None:
            self._exchange.set_passes(passes)

    def synchronize(self) -> None:
        """Waits until all gradients are reduced; for what must come before `step`, such as clipping.

        Every rank calls it. Raises SlipstreamError when the job has failed.
        """
        if self._exchange is not None:
            with adding_words():
                self._exchange.synchronize()
                self._reduce_unfrozen()
        self._synchronized = True

    def settle(self) -> None:
        """Completes a step that goes on after `step` (``overlap_forward``): parameters are updated afterwards.

        Raises SlipstreamError when the job has failed.
        """
        if self._overlap is not None:
            self._overlap.settle()

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The state after the last step, which this completes."""
        self.settle()
        state: dict[str, Any] = super().state_dict(*args, **kwargs)  # type: ignore[misc]
        return state

    @contextmanager
    def skip_synchronize(self) -> Generator[None, None, None]:
        """Within it `step` does not synchronise, because `synchronize` has been called."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Steps on the reduced gradients; returns what the closure returns.

        A ``closure`` computes the loss and calls backward; its gradients are reduced each time it has run.
        """
        step: Callable[..., Any] = super().step  # type: ignore[misc]
        if not self._should_synchronize:
            self._synchronized = False
            result = step() if closure is None else step(closure)
            self._clear()
            return result
        if closure is not None:
            self.settle()
            inner = closure

            def reduced() -> Any:
                with torch.enable_grad():
                    loss = inner()
                self.synchronize()
                return loss

            if self._exchange is not None and self._exchange.touched:
                self.synchronize()
            result = step(reduced)
            self._synchronized = False
            self._clear()
            return result
        late = self._late()
        if self._overlap is not None and not self._synchronized and not late and self._overlap.step():
            return None
        again = self._exchange is None or self._exchange.touched
        if self._synchronized:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after "
                "optimizer.synchronize(). Use `with optimizer.skip_synchronize(): optimizer.step()` there.",
                stacklevel=2,
            )
        if again or not self._synchronized:
            self.synchronize()
        self._synchronized = False
        result = step()
        if late:
            self._watch()
        self._clear()
        return result

    def _clear(self) -> None:
        """After a step that was taken at once, gradients are gone, as after those that overlap a forward pass."""
        if self._overlap is not None:
            super().zero_grad()  # type: ignore[misc]

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Clears the gradients; AssertionError between backward and `step` or `synchronize`, when they travel.

        Parameters that have come to require gradients are reduced from now on. Every rank calls it then.
        """
        if self._exchange is not None and self._exchange.touched:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                "optimizer.synchronize(). This is prohibited as it can cause a race condition."
            )
        if self._late():
            self.settle()
            self._watch()
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Loads a state; a step under way is forgotten. The parameter group objects stay the same."""
        if self._exchange is not None:
            self._exchange.reset()
        self._synchronized = False
        kept = self.param_groups
        super().load_state_dict(*args, **kwargs)  # type: ignore[misc]
        # Schedulers made for the optimizer before it was wrapped hold on to these.
        for old, new in zip(kept, self.param_groups, strict=True):
            old.clear()
            old.update(new)
        self.param_groups = kept

    def compression_state_dict(self) -> dict[str, Any]:
        """The kind of the compression, and what it remembers of each parameter: residuals, and the factors of PowerSGD.

        Every rank has its own: a checkpoint that goes on exactly keeps those of all ranks. Without it a compression
        begins anew: the parts of gradients that this rank had not sent yet are lost. All tensors are copies.

        >>> torch.save(optimizer.compression_state_dict(), f"compression-{hvd.rank()}.pt")
        """
        self.settle()
        return state_of_tensors(
            saved_of(self._way(), {}) if self._exchange is None else self._exchange.state_dict()
        )

    def load_compression_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `compression_state_dict` returned on this rank; after `load_state_dict`, which forgets it.

        Raises ValueError for a state of another kind of compression or of other parameters.
        """
        check_kind(state, self._way())
        if self._exchange is not None:
            self._exchange.load_state_dict(state_of_arrays(state))

    @property
    def _parameter_names(self) -> dict[torch.Tensor, str]:
        """The name of each parameter; by its place where it has none. Scripts for Horovod read it."""
        return names_of(self.param_groups, self._settings["names"])

    def _way(self) -> Way | None:
        return way_and_compressor(self._settings["compression"])[0]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters, reduced like the others. Every rank calls it, between steps.

        Raises ValueError for a "wire" that there is not, and adds nothing then.
        """
        self.settle()  # what is under way was launched with the groups that there were
        check_wires([param_group])
        super().add_param_group(param_group)  # type: ignore[misc]
        self._watch()


_made: list[weakref.ref[_Distributed]] = []  # in their order, which is the same on all ranks


def watch_in_new_job() -> None:
    """Has every `DistributedOptimizer` of this process go on in the job that there is now."""
    for one in list(_made):
        optimizer = one()
        if optimizer is not None:
            optimizer.watch_in_new_job()


# Without this mark Optimizer.__setstate__ would wrap this step too, and hooks around steps would run twice.
_Distributed.step.hooked = True  # type: ignore[attr-defined]


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: AnyCompression = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | list[list[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    overlap_forward: torch.nn.Module | None = None,
    exact: Exact = None,
) -> Any:
    """Wraps an optimizer so that it steps on gradients reduced over the ranks, sent while backward runs.

    Returns an instance of a new subclass of the optimizer's class, which shares its parameter groups and
    state, with ``synchronize``, ``skip_synchronize`` and ``set_backward_passes_per_step`` added.

    named_parameters: must be complete and unique. Ranks match parameters by name, whatever their order; the first step
    raises Mismatch if names, shapes or dtypes differ. Without names ranks match them by their order, and compare shapes
    and dtypes. Equal shapes in another order raise Mismatch if all ranks began with equal values
    compression: what travels, see `Compression`; sums are formed in float32. A parameter group with a key "wire"
    (exact, bf16, f16, f8 or int8) has its own
    backward_passes_per_step: local accumulation before gradients are reduced (their sum, not their mean)
    op: Average, Sum, Min, Max or Product of the gradients; or Adasum: each rank steps on its own gradients, and the
    changes that its parameters take by that are reduced in ``step`` (docs/migrating.md)
    gradient_predivide_factor: with Average, gradients are divided by it before the sum, and by size/it after;
    not with a wire that has error feedback
    groups: number of groups, or lists of parameters, whose gradients travel together; num_groups is its old
    name
    sparse_as_dense: sparse gradients travel dense; the optimizer gets them sparse
    process_set: the ranks to reduce over; on others the optimizer works alone
    overlap_forward: the model; not in Horovod. ``step`` then does not wait for gradients that still travel: before one
    of the model's modules runs forward, the parameters of that module are updated. The values are the same. Gradients
    are gone after ``step``, as after ``zero_grad``. What reads parameters in another way calls ``settle`` before. On
    all ranks or on none
    exact: which gradients no compression touches. By default those with at most one dimension (biases, norms) or fewer
    than 4096 numbers. A list of names, or patterns such as "head.*", adds to these; a function of (name, parameter)
    decides instead

    Gradients live in memory that the ranks of a host share. If a script keeps ``p.grad`` of an earlier step, that
    tensor keeps its values; views of it (``p.grad[0]``) take those of later steps. Raises ValueError for names,
    groups, wires or an ``op`` that do not fit.

    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    >>> model(torch.ones(2)).sum().backward()
    >>> optimizer.step()
    """
    if op != Adasum:
        engine_op(op)
    predivide = as_number("gradient_predivide_factor", gradient_predivide_factor)
    if not 0 < predivide < math.inf:
        raise ValueError(f"gradient_predivide_factor must be a positive number, not {predivide:g}")
    if predivide != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if backward_passes_per_step < 1:
        raise ValueError("backward_passes_per_step must be at least 1")
    names = check_names(optimizer, named_parameters)
    group_lists, group_count = check_groups(groups, num_groups)
    way, compressor = way_and_compressor(as_compressor(compression))
    if op != Adasum and compressor is None and way is not None and not isinstance(way, Cast):
        check_sums(way, engine_op(op))
        check_unscaled(way, 1.0 / predivide)
    bases: Any = (_Distributed, type(optimizer))
    if op == Adasum:
        check_plain(compressor, way, exact, overlap_forward)
        bases = (AdasumSteps, *bases)
    made: Any = type(type(optimizer).__name__, bases, {})
    wrapped: Any = made.__new__(made)
    wrapped.__dict__.update(
        {name: value for name, value in optimizer.__dict__.items() if name not in _HIDING}
    )
    wrapped.backward_passes_per_step = backward_passes_per_step
    wrapped._exchange = None
    wrapped._overlap = None if overlap_forward is None else ForwardOverlap(optimizer, overlap_forward)
    wrapped._synchronized = False
    wrapped._should_synchronize = True
    wrapped._settings = {
        "compression": compression,
        "exact": check_exact(exact, None if names is None else names.values()),
        "names": names,
        "op": op,
        "predivide": predivide,
        "groups": group_lists,
        "num_groups": group_count,
        "sparse_as_dense": sparse_as_dense,
        "process_set": process_set,
    }
    wrapped._watch()
    _made.append(weakref.ref(wrapped, _made.remove))
    return wrapped
