"""Ray's collective groups on slipstream (public path: `slipstream.ray`)."""

from __future__ import annotations

from slipstream.faces.ray.group import SlipstreamGroup, register

__all__ = ["SlipstreamGroup", "register"]
