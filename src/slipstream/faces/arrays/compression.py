"""Gradients in fewer bits, for frameworks whose tensors can be cast: what travels is a cast of the tensor.

The casts ask the tensor for the framework that made it, which is loaded then.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeAlias

from slipstream.base.dtypes import WireType, as_wire, name_of
from slipstream.base.misspelt import did_you_mean
from slipstream.comm.collectives.wires import wire_of_job
from slipstream.comm.membership.group import Group
from slipstream.gradients.compression import BF16, EXACT, FP16, Cast, PowerSGD, TopK, Way, Wire

__all__ = [
    "AnyCompression",
    "Compression",
    "Compressor",
    "as_compressor",
    "cast",
    "way_and_compressor",
    "wire_for",
]

_FLOATS = ("float64", "float32", "float16", "bfloat16")


def dtype_name(tensor: Any) -> str:
    """The name of a tensor's dtype, such as "float32", whatever framework made it."""
    dtype = tensor.dtype
    return str(getattr(dtype, "name", dtype)).rpartition(".")[2]


def cast(tensor: Any, name: str) -> Any:
    """``tensor`` in the dtype of this name."""
    if dtype_name(tensor) == name:
        return tensor
    made_by = type(tensor).__module__.partition(".")[0]
    if made_by == "tensorflow":
        return sys.modules["tensorflow"].cast(tensor, name)
    if made_by == "torch":
        return tensor.to(getattr(sys.modules["torch"], name))
    return tensor.astype(name)


class Compressor:
    """Turns a tensor into what travels, and back. Subclass it for compressions of your own.

    >>> class Halves(hvd.Compressor):
    ...     @staticmethod
    ...     def compress(tensor):
    ...         return tf.cast(tensor, tf.float16), tensor.dtype
    ...     @staticmethod
    ...     def decompress(tensor, ctx):
    ...         return tf.cast(tensor, ctx)
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor to send, of the same shape, and whatever `decompress` needs."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns the tensor in its former dtype."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns ``tensor`` itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns ``tensor`` itself."""
        return tensor


class ExactCompressor(NoneCompressor):
    """Sends tensors as they are, whatever SLIPSTREAM_WIRE says."""


def _shrink(tensor: Any, way: Cast) -> tuple[Any, Any]:
    name = dtype_name(tensor)
    if way.to is None or name not in _FLOATS:
        return tensor, None
    return cast(tensor, name_of(way.to)), name


class CastCompressor(Compressor):
    """Base of the compressions that only cast."""

    cast: Cast = EXACT

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns ``tensor`` in the dtype ``ctx``."""
        return tensor if ctx is None else cast(tensor, ctx)


class FP16Compressor(CastCompressor):
    """Sends floating-point tensors as float16 (sums are still formed in float32)."""

    cast = FP16

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns ``tensor`` as float16, and its dtype; what is not floating point stays as it is."""
        return _shrink(tensor, FP16)


class BF16Compressor(CastCompressor):
    """Sends floating-point tensors as bfloat16: the range of float32 with 8 bits of precision."""

    cast = BF16

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns ``tensor`` as bfloat16, and its dtype; what is not floating point stays as it is."""
        return _shrink(tensor, BF16)


class WayCompressor(NoneCompressor):
    """A compression that the exchange of gradients knows: wires of the engine, top-k, PowerSGD."""

    def __init__(self, way: Way) -> None:
        self.way = way

    def __repr__(self) -> str:
        return f"<compression: {self.way}>"


class _Names(type):
    """Of `Compression`: an attribute that is not there is probably misspelt."""

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> Any:
            names = [one for one in vars(cls) if not one.startswith("_")]
            raise AttributeError(f"hvd.Compression has no {name!r}{did_you_mean(name, names)}")


class Compression(metaclass=_Names):
    """The compressions to choose from. none and fp16 are Horovod's; [compression.md](compression.md) compares them.

    | name | what travels |
    |---|---|
    | ``none`` | tensors as they are, or by the job's wire (``slipstream run --wire``) |
    | ``exact`` | tensors as they are, also where the job has a wire |
    | ``fp16``, ``bf16`` | 16 bits a number |
    | ``f8``, ``int8`` | 8 bits a number and a scale for each block of numbers, between hosts |
    | ``wire(name)`` | the same of bf16, f16, f8 or int8 |
    | ``wire(name, error_feedback=True)`` | the same; rounding is made up for |
    | ``topk(ratio)`` | the largest numbers of each gradient, a share of ``ratio``; the others later |
    | ``powersgd(rank)`` | two thin factors of each gradient that is a matrix |

    What owes something to the next gradient is for gradients alone: topk, powersgd, and wires with error feedback.
    """

    none = NoneCompressor
    exact = ExactCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    f8 = WayCompressor(Wire("f8"))
    int8 = WayCompressor(Wire("int8"))

    @staticmethod
    def wire(name: str, error_feedback: bool = False) -> WayCompressor:
        """Large float32 tensors travel between hosts as ``name``: bf16, f16, f8 or int8. ValueError for others.

        ``error_feedback``: what rounding takes from this rank's gradient is added to its next one.
        """
        return WayCompressor(Wire(name, bool(error_feedback)))

    @staticmethod
    def topk(ratio: float) -> WayCompressor:
        """Of each gradient the largest numbers travel, a share of ``ratio`` (0.01: 1 %); the others are added to the
        next gradient. ValueError unless 0 < ratio < 1.
        """
        return WayCompressor(TopK(ratio))

    @staticmethod
    def powersgd(rank: int = 4) -> WayCompressor:
        """Two factors of ``rank`` columns travel of each gradient that is a matrix; what they leave out is added to the
        next gradient. ValueError unless rank is at least 1.
        """
        return WayCompressor(PowerSGD(rank))


AnyCompression: TypeAlias = "type[Compressor] | Compressor"


def as_compressor(compression: Any) -> Any:
    """``compression`` itself; TypeError that says what is accepted if it compresses nothing."""
    if not callable(getattr(compression, "compress", None)):
        raise TypeError(
            "compression takes Compression.none, Compression.fp16, another one of hvd.Compression, or a Compressor of "
            f"your own, not {compression!r:.40}"
        )
    return compression


def way_and_compressor(compression: AnyCompression) -> tuple[Way | None, AnyCompression | None]:
    """How gradients travel (None: as the job's setting says), and what the user compresses them with before, if so."""
    if isinstance(compression, WayCompressor):
        return compression.way, None
    if compression is Compression.none:
        return None, None
    if compression is Compression.exact:
        return EXACT, None
    if isinstance(compression, type) and issubclass(compression, CastCompressor):
        return compression.cast, None
    return EXACT, as_compressor(compression)


def wire_for(compression: AnyCompression, group: Group) -> WireType:
    """What sums of a single operation travel as between hosts. ValueError for what is for gradients alone."""
    if compression is Compression.none:
        return wire_of_job(group)
    if not isinstance(compression, WayCompressor):
        as_compressor(compression)
        return WireType.EXACT
    way = compression.way
    if not isinstance(way, Wire) or way.feedback:
        raise ValueError(
            f"{way} is for gradients: DistributedOptimizer(compression=...). Operations on single tensors take "
            'Compression.none, exact, fp16, bf16, f8, int8, wire("f16") or a Compressor of your own'
        )
    return as_wire(way.name)
