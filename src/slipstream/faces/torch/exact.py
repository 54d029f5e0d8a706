"""Which parameters travel as they are, and which by a wire of their own: what users say of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import torch

from slipstream.base.dtypes import WIRE_NAMES
from slipstream.base.misspelt import did_you_mean
from slipstream.gradients.buckets import Parameter
from slipstream.gradients.compression import EXACT, Way, Wire
from slipstream.gradients.policy import is_sensitive

__all__ = ["Exact", "check_exact", "check_wires", "exact_rule", "ways_of_groups"]

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


def check_wires(groups: Sequence[Mapping[str, Any]]) -> None:
    """ValueError if a parameter group has a "wire" that there is not."""
    for wire in [group["wire"] for group in groups if group.get("wire") is not None]:
        if wire not in WIRE_NAMES:
            raise ValueError(
                f'the "wire" of a parameter group is one of {", ".join(WIRE_NAMES)}, not {wire!r:.40}'
                f"{did_you_mean(str(wire), WIRE_NAMES)}"
            )


def ways_of_groups(groups: Sequence[Mapping[str, Any]], params: Sequence[torch.Tensor]) -> dict[int, Way]:
    """The ways of the parameters in groups with a "wire" (`check_wires`), by number."""
    number_of = {id(param): number for number, param in enumerate(params)}
    found: dict[int, Way] = {}
    for group in groups:
        wire = group.get("wire")
        if wire is None:
            continue
        way = EXACT if wire == "exact" else Wire(wire)
        found |= {number_of[id(param)]: way for param in group["params"] if id(param) in number_of}
    return found
