"""What may take a result: anything whose memory an array can share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from slipstream._core import address_of
from slipstream.base.dtypes import BLOCK_FIELDS
from slipstream.comm.collectives.buffers import check_memory


class Wrapped:
    """Shares its memory through ``__array__`` alone, or gives copies of it."""

    def __init__(self, copies: bool) -> None:
        self.memory = np.zeros(3)
        self.copies = copies

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.memory.copy() if self.copies else self.memory


def test_an_object_that_shares_its_memory_may_take_a_result() -> None:
    out: Any = Wrapped(copies=False)
    check_memory(out)


def test_an_object_that_gives_copies_may_not() -> None:
    out: Any = Wrapped(copies=True)
    with pytest.raises(TypeError, match=r"^out must be a writable array, tensor or buffer, not Wrapped$"):
        check_memory(out)


@pytest.mark.parametrize("dtype", ["f4", "c16", "?", "f2", "datetime64[s]", np.dtype(BLOCK_FIELDS), ">i8"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)])
def test_the_address_of_an_array_of_any_kind(dtype: Any, shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, dtype)
    assert address_of(array) == array.ctypes.data
    array.flags.writeable = False
    assert address_of(array) == array.ctypes.data
