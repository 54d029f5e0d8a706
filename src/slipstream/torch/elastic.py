"""Horovod's elastic training, which slipstream does not have yet: to import it says what to use instead."""

from __future__ import annotations

from slipstream.torch import NOT_YET

raise ImportError(
    f"slipstream.torch.elastic: slipstream does not have it yet; {NOT_YET['elastic']}", name=__name__
)
