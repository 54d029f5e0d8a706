"""Arrays of any kind as NumPy views, for collectives to take: NumPy, the buffer protocol, DLPack, PyTorch's tensors.

PyTorch is never imported here. Where an argument is a tensor, it has been already.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.base.dtypes import DType, from_numpy, lone_field
from slipstream.comm.collectives.copies_back import await_memory
from slipstream.comm.collectives.reserving import reserve
from slipstream.comm.collectives.work import Work
from slipstream.comm.membership import job
from slipstream.comm.membership.group import Group, check_group

__all__ = ["Buffer", "as_given", "check_memory", "contiguous", "empty", "view", "writable"]


Buffer = Any
"""A NumPy array, or anything that NumPy or DLPack can view: memoryview, array.array, a CPU tensor."""


def view(x: Buffer) -> NDArray[Any]:
    """``x`` as a NumPy array that shares its memory where it has any; TypeError if there is no way."""
    if isinstance(x, np.ndarray):
        return x
    if _torch_of(x) is not None:
        return _tensor_view(x)
    if hasattr(x, "__dlpack__") and not isinstance(x, np.generic):
        return np.from_dlpack(x)
    # NumPy would take bytes for text
    array = np.asarray(memoryview(x) if isinstance(x, bytes) else x)
    if array.dtype == object:
        raise TypeError(
            f"slipstream cannot communicate {type(x).__name__}: not an array, buffer or DLPack tensor"
        )
    return array


def _torch_of(x: Any) -> Any:
    """The module torch if ``x`` is one of its tensors, else None."""
    torch = sys.modules.get("torch")
    return torch if isinstance(x, getattr(torch, "Tensor", ())) else None


def _tensor_view(x: Any) -> NDArray[Any]:
    """A tensor's memory. A type that NumPy lacks (bfloat16, float8) becomes a record of one field of that name."""
    if x.device.type != "cpu":
        raise TypeError(
            f"the tensor is on {x.device}: slipstream.all_reduce and its like take CPU tensors; use x.cpu(), or "
            'torch.distributed with the backend "slipstream"'
        )
    tensor = x.detach()
    field = lone_field(str(x.dtype).removeprefix("torch."))
    if field is None:
        array: NDArray[Any] = tensor.numpy()
        return array
    bits = getattr(sys.modules["torch"], f"int{8 * x.element_size()}")
    array = tensor.view(bits).numpy()
    return array.view(field)


def _tensor_like(result: NDArray[Any], x: Any, torch: Any) -> Any:
    """A result as a tensor of the kind of ``x``, in the same memory."""
    if result.dtype.names is None:
        return torch.from_numpy(result)
    return torch.from_numpy(result.view(f"i{result.dtype.itemsize}")).view(x.dtype)


def as_given(found: Any, x: Buffer, out: Buffer | None) -> Any:
    """A result, or a `Work`, as a tensor if ``out`` is one, or else ``x``: ``out`` itself, or a new one."""
    like = x if out is None else out
    torch = _torch_of(like)
    if torch is None:
        return found

    def as_tensor(result: Any) -> Any:
        if result is None:
            return None  # of a rank that gets no result
        return _tensor_like(result, like, torch) if out is None else out

    return found.then(as_tensor) if isinstance(found, Work) else as_tensor(found)


def contiguous(
    x: Buffer, group: Group | None = None, name: str = "", ends: tuple[int, int, int] | None = None
) -> tuple[NDArray[Any], DType]:
    """``x`` as a C-contiguous array (copied only if it must be) with the code of its dtype.

    ``group``: the copy is for its operation ``name``, and waits until earlier ones no longer write to ``x``. ``ends``:
    sender, receiver and tag.
    """
    array = view(x)
    if not array.flags.c_contiguous:
        if group is not None and array.size:
            steps = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
            begin = array.ctypes.data + sum(step for step in steps if step < 0)
            nbytes = sum(abs(step) for step in steps) + array.itemsize
            channel = 0 if ends is None else group.channel(*ends)
            await_memory(group, name, begin, nbytes, writes=False, channel=channel)
        array = np.ascontiguousarray(array)
    return array, from_numpy(array.dtype)


def check_memory(out: Buffer, name: str = "out") -> None:
    """TypeError unless ``out`` has memory that an array can share: what is written into a copy would be lost."""
    if isinstance(out, np.ndarray) or _torch_of(out) is not None:
        return
    if not isinstance(out, np.generic):
        if hasattr(out, "__dlpack__") or hasattr(out, "__array_interface__"):
            return
        with contextlib.suppress(TypeError):
            memoryview(out)
            return
        if hasattr(out, "__array__") and _is_shared_by_arrays(out, name):
            return
    raise TypeError(f"{name} must be a writable array, tensor or buffer, not {type(out).__name__}")


def _is_shared_by_arrays(out: Any, name: str) -> bool:
    """Whether ``out.__array__`` gives its own memory: two copies that live at a time have two addresses."""
    try:
        first, second = np.asarray(out), np.asarray(out)
    except (TypeError, ValueError, RuntimeError) as error:  # what __array__ may raise
        raise TypeError(f"{name} is no array, and cannot be read as one: {error}") from error
    return first.ctypes.data == second.ctypes.data


def writable(out: Buffer, shape: tuple[int, ...], like: NDArray[Any], name: str = "out") -> NDArray[Any]:
    """``out`` as an array to write into; ValueError unless it has this shape and dtype and is C-contiguous."""
    if type(out) is np.ndarray:  # nearly always
        array = out
    else:
        check_memory(out, name)
        array = view(out)
    dtype = array.dtype
    if array.shape != shape or (dtype is not like.dtype and dtype != like.dtype):  # NumPy compares slowly
        raise ValueError(
            f"{name} is {array.dtype}{list(array.shape)}, the result is {like.dtype}{list(shape)}"
        )
    flags = array.flags
    if not flags.c_contiguous or not flags.writeable:
        raise ValueError(f"{name}, which takes the result, must be C-contiguous and writable")
    return array


def empty(
    shape: int | tuple[int, ...], dtype: Any = np.float32, *, group: Group | None = None
) -> NDArray[Any]:
    """An uninitialised NumPy array in memory that the ranks of this host share: collectives on it copy nothing.

    ``shape``: its dimensions, or one number. ``dtype``: anything that NumPy makes a dtype of, default float32.
    ``group``: whose job the memory belongs to, default the job of `slipstream.init`.
    Each such array is a mapping of its own (4 KiB pages): use it for large, long-lived buffers. All of its memory is
    taken at once. Raises ValueError for a negative dimension, TypeError for a dtype that cannot be communicated,
    MemoryError where the machine or its control group has not that much memory left.

    >>> x = slipstream.empty(3)
    >>> x[...] = 1
    >>> slipstream.all_reduce(x, out=x)
    array([2., 2., 2.], dtype=float32)
    """
    dims = (shape,) if isinstance(shape, int) else tuple(shape)
    if any(n < 0 for n in dims):
        raise ValueError(f"negative dimension in {list(dims)}")
    kind = np.dtype(dtype)
    from_numpy(kind)
    check_group("group", group)
    nbytes = int(np.prod(dims, dtype=np.int64)) * kind.itemsize
    session = job.current().session if group is None else group.session
    memory = session.allocate(max(nbytes, 1))
    reserve(memory)
    array: NDArray[Any] = memory[:nbytes].view(kind).reshape(dims)
    return array
