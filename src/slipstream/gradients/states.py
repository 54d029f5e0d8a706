"""What compressions remember of each parameter from step to step: residuals, and the factors of PowerSGD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slipstream.gradients.buckets import Parameter
from slipstream.gradients.compression import Way, kind_of

__all__ = [
    "FACTOR",
    "RESIDUAL",
    "Array",
    "Saved",
    "State",
    "States",
    "check_kind",
    "check_state",
    "key_of",
    "saved_of",
]

Array: TypeAlias = "NDArray[np.float32]"
State: TypeAlias = "dict[str, Array]"
Saved: TypeAlias = "dict[str, Any]"  # see `saved_of`

RESIDUAL = "residual"  # what is owed: numbers that this rank's gradients had, and that have not travelled yet
FACTOR = "factor"  # Q of PowerSGD, with which the next step begins


def key_of(parameter: Parameter) -> str:
    """By what a saved state finds its parameter: the name, or the number where there is none."""
    return parameter.name or str(parameter.index)


def saved_of(way: Way | None, parameters: Mapping[str, Any]) -> Saved:
    """What is saved: the kind of the compression, and what it remembers of each parameter, by the parameter's key."""
    return {"compression": kind_of(way), "parameters": dict(parameters)}


def check_kind(saved: Any, way: Way | None) -> None:
    """ValueError unless this is a saved state, and of a compression of the same kind."""
    if not isinstance(saved, Mapping) or set(saved) != {"compression", "parameters"}:
        raise ValueError(f"this is no saved state of a compression: {saved!r:.80}")
    kind, own = saved["compression"], kind_of(way)
    if kind != own:
        raise ValueError(f"the saved state is of compression {kind}, but the compression here is {own}")
    if not isinstance(saved["parameters"], Mapping):
        raise ValueError(f"the saved state has no parameters: {saved['parameters']!r:.80}")


def check_state(saved: Mapping[str, Mapping[str, Array]], parameters: Sequence[Parameter]) -> None:
    """ValueError unless a saved state is one of all of these parameters, or empty."""
    counts = {key_of(parameter): parameter.count for parameter in parameters}
    missing = next((key for key in counts if key not in saved), None)
    if saved and missing is not None:
        raise ValueError(f"the state of compressions lacks the parameter {missing!r}")
    for key, arrays in saved.items():
        if key not in counts:
            raise ValueError(f"the state of compressions has a parameter {key!r}, which there is not")
        if set(arrays) - {RESIDUAL, FACTOR}:
            raise ValueError(f"the state of compressions has {sorted(arrays)} of {key!r}")
        size = np.size(arrays.get(RESIDUAL, np.empty(counts[key])))
        if size != counts[key]:
            raise ValueError(f"the residual of {key!r} has {size} numbers, and the parameter {counts[key]}")


class States:
    """The state of each parameter, by its name (by its number, where it has no name). Each rank has its own."""

    def __init__(self) -> None:
        self._of: dict[str, State] = {}

    def of(self, parameter: Parameter) -> State:
        """That of one parameter, empty at first."""
        return self._of.setdefault(key_of(parameter), {})

    def keep_residual(self, parameter: Parameter, memory: Array) -> None:
        """``memory`` (flat) holds the parameter's residual from now on: what there was, or else zeros."""
        state = self.of(parameter)
        memory[...] = state.get(RESIDUAL, 0)
        state[RESIDUAL] = memory

    def forget(self) -> None:
        """Nothing is owed any more, and PowerSGD begins anew."""
        for state in self._of.values():
            if RESIDUAL in state:
                state[RESIDUAL][...] = 0
            state.pop(FACTOR, None)

    def inherit(self, before: States, kept: Sequence[tuple[Parameter, Parameter]]) -> None:
        """Takes over those of ``before``, of parameters as they are there and here."""
        states = before.copies([there for there, _ in kept])
        self.take_over({key_of(here): states[key_of(there)] for there, here in kept})

    def share_factors(self, others: States) -> None:
        """Takes over the factors of PowerSGD, which all ranks have alike."""
        for key, state in others._of.items():
            if FACTOR in state:
                self._of.setdefault(key, {})[FACTOR] = state[FACTOR]

    def copies(self, parameters: Sequence[Parameter] = ()) -> dict[str, State]:
        """Copies of all, by the parameter's key and what it is. Those of ``parameters`` are there also if empty."""
        states = {
            key_of(parameter): self._of.get(key_of(parameter), {}) for parameter in parameters
        } | self._of
        return {key: {what: array.copy() for what, array in state.items()} for key, state in states.items()}

    def take_over(self, saved: Mapping[str, Mapping[str, Array]]) -> None:
        """Takes over what `copies` returned, of parameters of the same names and sizes."""
        self.forget()
        for key, arrays in saved.items():
            state = self._of.setdefault(key, {})
            for what, array in arrays.items():
                if what in state:
                    state[what][...] = array
                else:
                    state[what] = np.array(array, dtype=np.float32)
