"""Which parameters travel as they are: what users say of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import torch

from slipstream.gradients.buckets import Parameter
from slipstream.gradients.policy import is_sensitive

__all__ = ["Exact", "check_exact", "exact_rule"]

Exact: TypeAlias = "Callable[[str, torch.Tensor], bool] | Iterable[str] | None"


def check_exact(exact: Exact, names: Iterable[str] | None) -> Any:
    """``exact`` itself, names as a tuple; TypeError for what it cannot be, ValueError for a name that nothing has."""
    if exact is None or callable(exact):
        return exact
    if isinstance(exact, str) or not isinstance(exact, Iterable):
        raise TypeError(
            f"exact takes a function of (name, parameter) or a list of names, such as ['head.*'], not {exact!r:.40}"
        )
    patterns = tuple(exact)
    if any(not isinstance(pattern, str) for pattern in patterns):
        raise TypeError(
            "exact takes names of parameters, such as ['head.*'], or a function of (name, parameter)"
        )
    if patterns and names is None:
        raise ValueError("exact has names: give named_parameters=model.named_parameters(), too")
    known = list(names or ())
    unknown = [one for one in patterns if not any(fnmatchcase(name, one) for name in known)]
    if unknown:
        raise ValueError(f"exact: no parameter is called {unknown[0]!r}")
    return patterns


def exact_rule(exact: Any, params: Sequence[torch.Tensor]) -> Callable[[Parameter], bool]:
    """What `check_exact` returned, as a rule for the parameters, which are numbered as in ``params``.

    Names add to the rule that there is without any; a function takes its place.
    """
    if exact is None:
        return is_sensitive
    if callable(exact):
        return lambda parameter: bool(exact(parameter.name, params[parameter.index]))
    return lambda parameter: is_sensitive(parameter) or any(fnmatchcase(parameter.name, one) for one in exact)
