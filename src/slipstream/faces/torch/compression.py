"""Gradients in fewer bits: what travels is a cast of the tensor, and the result is cast back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from slipstream.base.dtypes import WIRE_NAMES
from slipstream.base.misspelt import did_you_mean
from slipstream.faces.torch_tensors import DTYPES
from slipstream.gradients.compression import BF16, EXACT, FP16, Cast, PowerSGD, TopK, Way, Wire
from slipstream.gradients.states import Saved

__all__ = [
    "AnyCompression",
    "BF16Compressor",
    "CastCompressor",
    "Compression",
    "Compressor",
    "ExactCompressor",
    "FP16Compressor",
    "NoneCompressor",
    "WayCompressor",
    "as_compressor",
    "makes_tensors",
    "state_of_arrays",
    "state_of_tensors",
    "way_and_compressor",
    "wire_name",
]


class Compressor:
    """Turns a tensor into what travels, and back. Subclass it for compressions of your own.

    >>> class Halves(hvd.Compressor):
    ...     @staticmethod
    ...     def compress(tensor):
    ...         return tensor.half(), tensor.dtype
    ...     @staticmethod
    ...     def decompress(tensor, ctx):
    ...         return tensor.to(ctx)
    >>> hvd.allreduce(torch.ones(2), op=hvd.Sum, compression=Halves)
    tensor([2., 2.])
    """

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns the tensor to send, of the same shape, and whatever `decompress` needs."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Returns the tensor in its former dtype."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns ``tensor`` itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Returns ``tensor`` itself."""
        return tensor


class ExactCompressor(NoneCompressor):
    """Sends tensors as they are, whatever SLIPSTREAM_WIRE says."""


class CastCompressor(Compressor):
    """Base of the compressions that only cast."""

    cast: Cast


def _shrink(tensor: torch.Tensor, cast: Cast) -> tuple[torch.Tensor, Any]:
    if cast.to is None or not tensor.dtype.is_floating_point:
        return tensor, tensor.dtype
    return tensor.to(DTYPES[cast.to]), tensor.dtype


def _restore(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
    return tensor.to(ctx) if ctx.is_floating_point else tensor


class FP16Compressor(CastCompressor):
    """Sends floating-point tensors as float16 (sums are still formed in float32)."""

    cast = FP16

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns ``tensor`` as float16, and its dtype; what is not floating point stays as it is."""
        return _shrink(tensor, FP16)

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Returns ``tensor`` in the dtype ``ctx``."""
        return _restore(tensor, ctx)


class BF16Compressor(CastCompressor):
    """Sends floating-point tensors as bfloat16: the range of float32 with 8 bits of precision."""

    cast = BF16

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns ``tensor`` as bfloat16, and its dtype; what is not floating point stays as it is."""
        return _shrink(tensor, BF16)

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Returns ``tensor`` in the dtype ``ctx``."""
        return _restore(tensor, ctx)


class WayCompressor(Compressor):
    """A compression that the exchange of gradients knows: wires of the engine, top-k, PowerSGD."""

    def __init__(self, way: Way) -> None:
        self.way = way

    def __repr__(self) -> str:
        return f"<compression: {self.way}>"

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:  # type: ignore[override]
        """Returns ``tensor`` itself: a wire rounds what is sent. Raises ValueError for what owes something to the next
        call, because single operations keep nothing from call to call.
        """
        if not isinstance(self.way, Wire) or self.way.feedback:
            raise ValueError(
                f"{self.way} is for gradients: DistributedOptimizer(compression=...). Operations on single tensors "
                'take Compression.none, exact, fp16, bf16, f8, int8, wire("f16") or a Compressor of your own'
            )
        return tensor, None

    def decompress(self, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:  # type: ignore[override]
        """Returns ``tensor`` itself."""
        return tensor


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

    What owes something to the next gradient is for gradients alone (`DistributedOptimizer`,
    `slipstream.torch.comm_hooks`): topk, powersgd, and wires with error feedback.

    >>> hvd.allreduce(torch.ones(2), op=hvd.Sum, compression=hvd.Compression.fp16)
    tensor([2., 2.])
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


_CALLS = {"wire": 'wire("int8")', "topk": "topk(0.01)", "powersgd": "powersgd(rank=4)"}

AnyCompression: TypeAlias = "type[Compressor] | Compressor"


def as_compressor(compression: Any) -> Any:
    """``compression`` itself; TypeError that says what is accepted if it compresses nothing."""
    if not callable(getattr(compression, "compress", None)):
        raise TypeError(
            "compression takes Compression.none, Compression.fp16, another one of hvd.Compression, or a Compressor of "
            f"your own, not {compression!r:.40}{_meant(compression)}"
        )
    return compression


def _meant(compression: Any) -> str:
    """What was probably meant by something that compresses nothing: a compression's name, or one that is not called."""
    for name, call in _CALLS.items():
        if compression is getattr(Compression, name):
            return f". Call it: Compression.{call}"
    if isinstance(compression, str) and compression in vars(Compression):
        return f". Write hvd.Compression.{_CALLS.get(compression, compression)}, without quotes"
    return ""


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
    return EXACT, compression


def makes_tensors(compression: AnyCompression) -> bool:
    """Whether what a single operation reduces is another tensor than the caller's: not so with a wire."""
    return not (
        isinstance(compression, WayCompressor) or compression in (Compression.none, Compression.exact)
    )


def wire_name(compression: AnyCompression) -> str | None:
    """What sums of a single operation travel as between hosts, "exact" for as they are; None: what the job says."""
    if compression is Compression.none:
        return None
    return (
        compression.way.name
        if isinstance(compression, WayCompressor) and isinstance(compression.way, Wire)
        else WIRE_NAMES[0]
    )


def state_of_tensors(saved: Saved) -> dict[str, Any]:
    """A saved state with tensors in place of arrays, which share their memory."""
    return _mapped(saved, torch.from_numpy)


def state_of_arrays(saved: Mapping[str, Any]) -> Saved:
    """A saved state with arrays in place of tensors, which share their memory."""
    return _mapped(saved, torch.Tensor.numpy)


def _mapped(saved: Mapping[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    parameters = {
        name: {what: convert(array) for what, array in arrays.items()}
        for name, arrays in saved["parameters"].items()
    }
    return {"compression": saved["compression"], "parameters": parameters}
