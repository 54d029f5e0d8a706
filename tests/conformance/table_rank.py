"""One rank of `torch_table.py`: runs one cell of the table at a time on the backend named by BACKEND."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from persistent_ranks import serve
from table_operations import DTYPES, LAYOUTS, OPERATIONS, PLAIN, Bench, meaningful

PATIENCE = timedelta(seconds=3)  # of the group, for operations that would hang
NONE = "-"  # type and layout of operations without tensors
GAP = 1  # what lies between the elements of a strided tensor (`Bench.blank`)


def renew(store: str) -> None:
    """A fresh default group, meeting at the file ``store``."""
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group(
        os.environ["BACKEND"],
        init_method=f"file://{store}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=PATIENCE,
    )


def same(found: Any, expected: Any) -> bool:
    """Whether an object is what it should be; tensors to a rounding of their type."""
    if not isinstance(found, torch.Tensor):
        return bool(found == expected)
    wide = torch.complex128 if found.is_complex() else torch.float64
    expected = expected.to(found.dtype)
    exact = not (found.is_complex() or found.is_floating_point())
    rtol = 0.0 if exact else 2 * torch.finfo(found.dtype).eps
    return found.shape == expected.shape and torch.allclose(
        found.to(wide), expected.to(wide), rtol=rtol, atol=0.0
    )


def gaps_untouched(found: Any) -> bool:
    """Whether the memory between the elements of a strided tensor is as it was."""
    if not isinstance(found, torch.Tensor) or found._base is None or found.stride()[-1:] != (2,):
        return True
    wide = torch.complex128 if found.is_complex() else torch.float64
    return bool((found._base[..., 1::2].to(wide) == GAP).all())


def run(operation: str, dtype: str, layout: str, store: str) -> tuple[str, str]:
    """("right" | "wrong" | "error", why) of one cell on this rank; ``store``: see `renew`, "" keeps the group."""
    if store:
        renew(store)
    bench = Bench(dist.get_rank(), dist.get_world_size(), dtype, layout)
    check = OPERATIONS.get(operation) or PLAIN[operation]
    try:
        pairs = check(bench)
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        return "error", f"{type(error).__name__}: {lines[0] if lines else ''}"
    if not all(same(found, expected) for found, expected in pairs):
        return "wrong", "values"
    if not all(gaps_untouched(found) for found, _ in pairs):
        return "wrong", "wrote between the elements"
    return "right", ""


def keys() -> list[tuple[str, str, str]]:
    """All (operation, type, layout) that mean something."""
    cells = [
        (operation, dtype, layout)
        for operation in OPERATIONS
        for layout in LAYOUTS
        for dtype in DTYPES
        if meaningful(operation, dtype, layout)
    ]
    return cells + [(operation, NONE, NONE) for operation in PLAIN]


def handle(request: dict[str, str]) -> Any:
    """``{}`` asks for `keys` and PyTorch's version, the arguments of `run` for a verdict."""
    return run(**request) if request else {"keys": keys(), "torch": torch.__version__}


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(handle)
