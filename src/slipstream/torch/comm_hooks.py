"""Communication hooks for `torch.nn.parallel.DistributedDataParallel`: gradients that travel in fewer bits.

from slipstream.torch import Compression, comm_hooks

ddp = DistributedDataParallel(model)
state = comm_hooks.CompressionState(model, Compression.powersgd(rank=4))
ddp.register_comm_hook(state, comm_hooks.compress_hook)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from slipstream.faces.torch.compression import (
    AnyCompression,
    Compression,
    as_compressor,
    state_of_arrays,
    state_of_tensors,
    way_and_compressor,
)
from slipstream.faces.torch.exact import Exact, check_exact, exact_rule
from slipstream.faces.torch_distributed.comm_hooks import DdpGradients
from slipstream.gradients.policy import Policy
from slipstream.gradients.states import check_kind

__all__ = ["CompressionState", "compress_hook"]


class CompressionState:
    """What `compress_hook` works with, one for each model.

    ``model``: the one that DDP wraps, or DDP itself. ``compression``: one of `slipstream.torch.Compression`, but for
    compressors of your own; its default is the job's wire (``slipstream run --wire``). ``exact``: which gradients
    travel as they are nevertheless, as in `slipstream.torch.DistributedOptimizer`: by default those with at most one
    dimension or fewer than 4096 numbers. ``process_group``: the one that DDP has, None for the default group; its
    timeout at this moment limits each operation of the hook.

    Buckets that are not float32 travel as they are. Raises TypeError if the group is not slipstream's, ValueError if
    there is no default group yet, and for names in ``exact`` that no parameter has.

    >>> state = comm_hooks.CompressionState(model, Compression.topk(0.01))
    >>> ddp.register_comm_hook(state, comm_hooks.compress_hook)
    """

    def __init__(
        self,
        model: torch.nn.Module,
        compression: AnyCompression = Compression.none,
        exact: Exact = None,
        process_group: Any = None,
    ) -> None:
        way, compressor = way_and_compressor(as_compressor(compression))
        if compressor is not None:
            raise TypeError(
                "comm_hooks take one of Compression, such as Compression.int8; not a Compressor of your own"
            )
        self._way = way
        inner = model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model
        params = {name: param for name, param in inner.named_parameters() if param.requires_grad}
        rule = exact_rule(check_exact(exact, params), list(params.values()))
        self._gradients = DdpGradients(Policy(way, rule), params, process_group)

    def state_dict(self) -> dict[str, Any]:
        """The kind of the compression, and what it remembers of each parameter on this rank. Between steps.

        Each rank has its own state. All tensors are copies.

        >>> torch.save(state.state_dict(), f"compression-{dist.get_rank()}.pt")
        """
        return state_of_tensors(self._gradients.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` returned on this rank.

        Raises ValueError for a state of another kind of compression or of other parameters.
        """
        check_kind(state, self._way)
        self._gradients.load_state_dict(state_of_arrays(state))

    def average(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Starts to average a bucket of gradients (`torch.distributed.GradBucket`); a future of its buffer."""
        return self._gradients.average(bucket)


def compress_hook(state: CompressionState, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """The hook to register: averages a bucket of DDP's, each gradient in its way. Errors are raised by backward."""
    return state.average(bucket)


# DDP compares them with the classes themselves.
compress_hook.__annotations__.update(
    {"bucket": torch._C._distributed_c10d.GradBucket, "return": torch.futures.Future[torch.Tensor]}
)
