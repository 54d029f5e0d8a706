"""Optimizer steps that go on while the next forward pass runs: each module waits for its own parameters alone.

`step` launches what is left of the exchange of gradients and returns. Before a module runs forward, the buckets of its
parameters are waited for, and the optimizer updates the parameters in them.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.optim.optimizer as _hooks

from slipstream.base.training import step_ended
from slipstream.comm.membership.job import Job
from slipstream.faces.torch_steps import count_step
from slipstream.gradients.exchange import GradientExchange

__all__ = ["ForwardOverlap"]

_WITHOUT_FORWARD = torch.nn.ParameterList, torch.nn.ParameterDict


class ForwardOverlap:
    """Steps of ``optimizer`` beside forward passes of ``model``. ValueError if the optimizer cannot do that.

    ``watch`` comes before the first step. Whatever reads parameters without running their modules calls ``settle``.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
        if not isinstance(model, torch.nn.Module):
            raise ValueError(
                f"overlap_forward must be the model, a torch.nn.Module, not {type(model).__name__}"
            )
        if not _updates_each_alone(optimizer):
            raise ValueError(
                f"overlap_forward updates some parameters at a time, which {type(optimizer).__name__} may not bear: "
                "use an optimizer of torch.optim other than LBFGS, or leave overlap_forward out"
            )
        own = {id(param) for group in optimizer.param_groups for param in group["params"]}
        if own.isdisjoint(map(id, model.parameters())):
            raise ValueError("overlap_forward: this model has none of the optimizer's parameters")
        # weak: a model outlives its optimizer, and must not keep the buckets
        self._optimizer: Callable[[], Any] = lambda: None
        self._exchange: GradientExchange | None = None
        self._job: Job | None = None  # that is told to settle before it is left
        self._params: list[torch.Tensor] = []
        self._number: dict[int, int] = {}
        self._of_modules: set[int] | None = set()  # ids of parameters whose modules ran, in the first steps
        self._elsewhere: list[int] = []  # parameters that are used without running their modules
        self._options: list[dict[str, Any]] = []  # of the groups of parameters, at the last step
        self._hook(model)

    def _hook(self, model: torch.nn.Module) -> None:
        settle = _Settle(self)
        for module in model.modules():
            if module is model or any(True for _ in _own(module)):
                # before the hooks of the program, which may read parameters
                module.register_forward_pre_hook(_BeforeForward(self, is_whole=module is model), prepend=True)
        untyped: Any = model
        untyped.register_state_dict_pre_hook(settle)
        untyped.register_load_state_dict_pre_hook(settle)

    def watch(self, optimizer: Any, params: list[torch.Tensor], exchange: GradientExchange) -> None:
        """Goes on with this exchange of the gradients of ``params``."""
        self._optimizer = weakref.ref(optimizer)
        self._exchange = exchange
        self._params = params
        self._number = {id(param): number for number, param in enumerate(params)}
        self._of_modules = set()
        self._job = None

    def forget(self) -> None:
        """Steps are taken at once until `watch` is called again."""
        self._exchange = None

    @property
    def unsettled(self) -> bool:
        """Whether some parameters have to be updated yet."""
        return self._exchange is not None and self._exchange.unsettled

    def settle(self) -> None:
        """Completes the last step: all parameters are updated. Raises SlipstreamError if the job has failed."""
        if self._exchange is not None:
            self._exchange.settle()

    def settle_copied(self, copies: dict[int, Any]) -> None:
        """Completes the last step, also for parameters that have been copied: ``copies`` has them by their ids."""
        if not self.unsettled:
            return
        self.settle()
        for param in self._params:
            if (copied := copies.get(id(param))) is not None:
                copied.data.copy_(param.data)

    def step(self) -> bool:
        """Takes the step, in part later. False: it has to be taken at once."""
        optimizer = self._optimizer()
        if self._exchange is None or _has_step_hooks(optimizer):
            return False
        self._exchange.settle()
        self._settle_before_leaving(optimizer._settings["process_set"].group.job)
        self._options = [
            {name: _kept(value) for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups
        ]
        if not self._exchange.launch(self._update):
            return False
        if self._of_modules is not None:
            ran, self._of_modules = self._of_modules, None
            self._elsewhere = [number for number, param in enumerate(self._params) if id(param) not in ran]
        step_ended(id(optimizer))
        return True

    def _settle_before_leaving(self, job: Job) -> None:
        if self._job is job:
            return
        self._job = job
        me = weakref.ref(self)

        def settle() -> None:
            target = me()
            if target is not None and isinstance(sys.exc_info()[1], SystemExit | None):
                target.settle()

        job.before_leaving(settle)

    def before_forward(self, module: torch.nn.Module, *, is_whole: bool) -> None:
        """Updates the parameters that ``module`` is about to use."""
        if self._of_modules is not None:
            self._of_modules.update(id(param) for param in _own(module))
        if self._exchange is None or not self.unsettled:
            return
        for number in self._elsewhere if is_whole else ():
            self._exchange.settle(number)
        for param in _own(module):
            if (own := self._number.get(id(param))) is not None:
                self._exchange.settle(own)

    def _update(self, numbers: list[int]) -> None:
        """Has the optimizer update these parameters, with the options that it had at the step."""
        optimizer = self._optimizer()
        params = [self._params[number] for number in numbers]
        wanted = {id(param) for param in params}
        now = [dict(group) for group in optimizer.param_groups]
        try:
            for group, options in zip(optimizer.param_groups, self._options, strict=True):
                group |= options | {"params": [param for param in group["params"] if id(param) in wanted]}
            _plain_step(optimizer)(optimizer)
        finally:
            for group, before in zip(optimizer.param_groups, now, strict=True):
                group |= before
        for param in params:
            param.grad = None


class _Hook:
    """A hook of the model. It does nothing in a copy of the model, which has no step under way.

    A copy has the updated parameters. Pickling cannot wait for them, since it may be amid the model: it is refused.
    """

    def __init__(self, target: ForwardOverlap | None = None) -> None:
        self._target: Callable[[], ForwardOverlap | None] = _nobody if target is None else weakref.ref(target)

    def __deepcopy__(self, copies: dict[int, Any]) -> _Hook:
        target = self._target()
        if target is not None:
            target.settle_copied(copies)
        return type(self)()

    def __reduce__(self) -> tuple[type[_Hook], tuple[()]]:
        target = self._target()
        if target is not None and target.unsettled:
            raise RuntimeError(
                "the model cannot be pickled while the step that updates it is under way: "
                "with overlap_forward, call optimizer.settle() before"
            )
        return type(self), ()


class _Settle(_Hook):
    def __call__(self, *_: Any) -> None:
        target = self._target()
        if target is not None:
            target.settle()


class _BeforeForward(_Hook):
    def __init__(self, target: ForwardOverlap | None = None, *, is_whole: bool = False) -> None:
        super().__init__(target)
        self._is_whole = is_whole

    def __call__(self, module: torch.nn.Module, _: Any) -> None:
        target = self._target()
        if target is not None:
            target.before_forward(module, is_whole=self._is_whole)


def _nobody() -> None:
    return None


def _has_step_hooks(optimizer: Any) -> bool:
    """Whether the program has something called at each step, which is one whole then."""
    own = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    of_all = [*_hooks._global_optimizer_pre_hooks.values(), *_hooks._global_optimizer_post_hooks.values()]
    return bool(own) or any(hook is not count_step for hook in of_all)


def _own(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """The parameters that the module itself uses: also those of lists of parameters, which do not run."""
    yield from module.parameters(recurse=False)
    for child in module.children():
        if isinstance(child, _WITHOUT_FORWARD):
            yield from _own(child)


def _kept(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _plain_step(optimizer: torch.optim.Optimizer) -> Any:
    """The step of the user's optimizer, without the hooks around it: it is called for parts of a step."""
    own: Any = type(optimizer).__mro__[2]  # after that of `DistributedOptimizer` and what it adds
    return getattr(own.step, "__wrapped__", own.step)


def _updates_each_alone(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step is the same if it is taken for some parameters after others."""
    step = type(optimizer).step
    return getattr(step, "__module__", "").startswith("torch.optim") and not isinstance(
        optimizer, torch.optim.LBFGS
    )
