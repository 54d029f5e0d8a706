"""What compressions remember of each parameter from step to step: residuals, and the factors of PowerSGD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from slipstream.gradients.buckets import Parameter

__all__ = ["FACTOR", "RESIDUAL", "Array", "State", "States", "check_state", "key_of"]

Array: TypeAlias = "NDArray[np.float32]"
State: TypeAlias = "dict[str, Array]"

RESIDUAL = "residual"  # what is owed: numbers that this rank's gradients had, and that have not travelled yet
FACTOR = "factor"  # Q of PowerSGD, with which the next step begins


def key_of(parameter: Parameter) -> str:
    """By what a saved state finds its parameter: the name, or the number where there is none."""
    return parameter.name or str(parameter.index)


def check_state(saved: Mapping[str, Mapping[str, Array]], parameters: Sequence[Parameter]) -> None:
    """ValueError unless a saved state is one of these parameters."""
    counts = {key_of(parameter): parameter.count for parameter in parameters}
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

    def state_dict(self) -> dict[str, State]:
        """Copies of all, by the parameter's name and what it is."""
        return {key: {what: array.copy() for what, array in state.items()} for key, state in self._of.items()}

    def load_state_dict(self, saved: Mapping[str, Mapping[str, Array]]) -> None:
        """Takes over what `state_dict` returned, of parameters of the same names and sizes."""
        self.forget()
        for key, arrays in saved.items():
            state = self._of.setdefault(key, {})
            for what, array in arrays.items():
                if what in state:
                    state[what][...] = array
                else:
                    state[what] = np.array(array, dtype=np.float32)
