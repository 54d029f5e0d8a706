"""What ranks must agree on in an operation, beside what the engine knows of: counts, scales and shapes. Pure."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np

__all__ = ["detailed", "digest", "digest_of_scales", "shape_to_compare"]


def digest(counts: Sequence[int]) -> int:
    """A number of 32 bits that differs if the counts of the ranks do."""
    return zlib.crc32(np.asarray(counts, dtype="<i8").tobytes())


def digest_of_scales(prescale: float, postscale: float) -> int:
    """0 without scales; else a number that differs if any bit of them does."""
    if prescale == 1.0 and postscale == 1.0:
        return 0
    return zlib.crc32(struct.pack("<dd", prescale, postscale)) | 1 << 32


def shape_to_compare(shape: Sequence[int]) -> tuple[int, ...]:
    """What is compared: the number of elements says all of a vector, or a scalar."""
    return tuple(shape) if len(shape) > 1 else ()


def detailed(operation: str, shape: Sequence[int], prescale: float, postscale: float) -> str:
    """The operation's name with its shape and its scales, so that ranks that differ in them read what differs."""
    details = [f"shape={'x'.join(map(str, shape))}"] if shape else []
    details += [
        f"{name}={value!r}"
        for name, value in (("prescale", prescale), ("postscale", postscale))
        if value != 1.0
    ]
    if not details:
        return operation
    kind, slash, rest = operation.partition("/")
    return f"{kind}[{', '.join(details)}]{slash}{rest}"
