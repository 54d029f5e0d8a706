"""`torch.distributed` on slipstream: ``init_process_group("slipstream")``.

`register` is called by PyTorch itself at the end of ``import torch`` (entry point ``torch.backends``), in every
process that can import slipstream; so it does little, and cannot fail.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

__all__ = ["register"]


def register() -> None:
    """Makes the backend known to `torch.distributed`, and lets it stand in for those in SLIPSTREAM_REPLACE.

    Warns (RuntimeWarning) where this PyTorch is not as expected: ``import torch`` must not fail because of us.
    """
    try:
        _register()
    except Exception as error:
        text = (
            f"the backend slipstream of torch.distributed is not available: {type(error).__name__}: {error}"
        )
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def _register() -> None:
    import torch.distributed as dist

    if not dist.is_available() or hasattr(dist.Backend, "SLIPSTREAM"):
        return
    from slipstream.faces.torch_distributed import objects, patches

    replaced = os.environ.get("SLIPSTREAM_REPLACE", "")
    patches.install(frozenset(name.strip() for name in replaced.split(",") if name.strip()))
    objects.install()
    dist.Backend.register_backend("slipstream", _make_group, extended_api=True, devices=["cpu", "cuda"])


def _make_group(options: Any, group_options: Any) -> Any:
    from slipstream.faces.torch_distributed.backend import make_group

    return make_group(options, group_options)
