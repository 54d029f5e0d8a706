"""What ranks must agree on in an operation, beside what the engine knows of: counts, scales and shapes. Pure."""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from slipstream.base.arguments import as_number
from slipstream.base.dtypes import name_of

__all__ = ["as_scales", "detailed", "digest", "digest_of_scales", "shape_to_compare"]

_MOST_LISTED = 16  # counts, ranks


@functools.lru_cache(maxsize=256)
def digest(counts: tuple[int, ...]) -> int:
    """A number of 32 bits that differs if the counts of the ranks do."""
    return zlib.crc32(np.asarray(counts, dtype="<i8").tobytes())


def digest_of_scales(prescale: float, postscale: float) -> int:
    """0 without scales; else a number that differs if any bit of them does."""
    if prescale == 1.0 and postscale == 1.0:
        return 0
    return zlib.crc32(struct.pack("<dd", prescale, postscale)) | 1 << 32


def as_scales(prescale: Any, postscale: Any) -> tuple[float, float]:
    """Both as floats; TypeError that names the one that is no number."""
    return as_number("prescale", prescale), as_number("postscale", postscale)


def shape_to_compare(shape: Sequence[int]) -> tuple[int, ...]:
    """What is compared: the number of elements says all of a vector, or a scalar."""
    return tuple(shape) if len(shape) > 1 else ()


def detailed(
    operation: str,
    *,
    ranks: Sequence[int] = (),
    shape: Sequence[int] = (),
    counts: Sequence[int] = (),
    of: int | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
) -> str:
    """The operation's name with what it was called with, so that ranks that differ in that read what differs.

    ``ranks``: of a group in another order than ascending; ``counts``: elements of each rank; ``of``: the dtype of what
    travels as bytes.
    """
    details = [f"ranks={_listed(ranks, ',')}"] if ranks else []
    if shape:
        details.append(f"shape={'x'.join(map(str, shape))}")
    if any(count != counts[0] for count in counts):
        details.append(f"counts={_listed(counts)}")
    if of is not None:
        details.append(f"dtype={name_of(of)}")
    details += [
        f"{name}={value!r}"
        for name, value in (("prescale", prescale), ("postscale", postscale))
        if value != 1.0
    ]
    if not details:
        return operation
    kind, slash, rest = operation.partition("/")
    return f"{kind}[{', '.join(details)}]{slash}{rest}"


def _listed(counts: Sequence[int], sign: str = "+") -> str:
    if len(counts) <= _MOST_LISTED:
        return sign.join(map(str, counts))
    first = sign.join(map(str, counts[:_MOST_LISTED]))
    return f"{first}{sign}... of {len(counts)} ranks, digest {digest(tuple(counts)):08x}"
