"""A `KVStore` of MXNet that is slipstream: sums over all ranks, for `Trainer(kvstore=...)` and `Module.fit`."""

from __future__ import annotations

from typing import Any

import mxnet

from slipstream import comm
from slipstream.faces.horovod import job
from slipstream.faces.mxnet.operations import barrier, broadcast_, sum_of

__all__ = ["NAMES", "Slipstream", "replace_stores"]

NAMES = "dist_sync", "dist_device_sync", "dist_sync_device"


class Slipstream(mxnet.kvstore.KVStoreBase):  # type: ignore[misc]
    """Enters the job, if nobody has. Values are one dense array or, of several devices, a list of them.

    What is pushed is summed over all ranks, as MXNet's "dist_sync" does; optimizers run on the ranks, with
    ``update_on_kvstore=False``. ``mx.kv.create("slipstream")`` and ``mx.kv.create("dist_slipstream")`` make one, too.
    `Trainer` makes no store from a name without "dist" where there is one device: give it an instance, or the second
    name.

    >>> trainer = mx.gluon.Trainer(net.collect_params(), "sgd", kvstore=hvd.Slipstream())
    """

    def __init__(self) -> None:
        super().__init__()
        if not job.is_initialized():
            job.init()
        self._pushed: dict[str, Any] = {}

    @property
    def type(self) -> str:
        """MXNet takes a store for distributed that has "dist" in this."""
        return "dist_slipstream"

    @property
    def rank(self) -> int:
        """This process's number."""
        return int(comm.rank())

    @property
    def num_workers(self) -> int:
        """How many processes there are."""
        return int(comm.size())

    def is_capable(self, capability: str) -> bool:
        """False for "optimizer": optimizers run on the ranks."""
        return False

    def init(self, key: Any, value: Any) -> None:
        """Gives all ranks the values of rank 0."""
        for name, array in _pairs(key, value):
            broadcast_(_listed(array)[0], 0, f"init.{name}")

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """``out`` = the value of rank 0."""
        for (name, array), (_, outs) in zip(_pairs(key, value), _pairs(key, out), strict=True):
            first = _listed(array)[0]
            result = first if self.num_workers == 1 else broadcast_(first.copy(), 0, f"broadcast.{name}")
            _give(result, _listed(outs))

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """``out``, or else ``value`` itself, = the sum of all ranks' values."""
        for (name, array), (_, outs) in zip(
            _pairs(key, value), _pairs(key, value if out is None else out), strict=True
        ):
            targets = _listed(outs)
            total = self._sum(name, _listed(array), targets[0])
            _give(total, targets)

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """The first half of `pushpull`."""
        for name, array in _pairs(key, value):
            parts = _listed(array)
            self._pushed[name] = self._sum(name, parts, parts[0].zeros_like())

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """The second half; KeyError for a key that nobody has pushed."""
        for name, outs in _pairs(key, out):
            _give(self._pushed[name], _listed(outs))

    def barrier(self) -> None:
        """Waits for all ranks."""
        barrier()

    def _sum(self, name: str, parts: list[Any], into: Any) -> Any:
        first = (
            parts[0]
            if len(parts) == 1
            else mxnet.nd.add_n(*(one.as_in_context(into.context) for one in parts))
        )
        if first is not into:
            first.copyto(into)
        # A line of its own for each key: MXNet pushes them from the first layer on, and computes the last one's first.
        return sum_of(into, f"push.{name}", f"key {name}")


def replace_stores() -> None:
    """Has the names "dist_sync", "dist_device_sync" and "dist_sync_device" make a `Slipstream`, unchanged programs too.

    Call it before the program makes its store. ``dist_async`` stays MXNet's: slipstream has no servers that update.

    >>> hvd.replace_stores()
    """
    for name in NAMES:
        mxnet.kvstore.KVStoreBase.kv_registry[name] = Slipstream


def _pairs(key: Any, value: Any) -> list[tuple[str, Any]]:
    """Keys and values come alone, or as lists of the same length."""
    if isinstance(key, list | tuple):
        return [(str(one), array) for one, array in zip(key, value, strict=True)]
    return [(str(key), value)]


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _give(result: Any, targets: list[Any]) -> None:
    for target in targets:
        if target is not result:
            result.copyto(target)


mxnet.kvstore.KVStoreBase.register(Slipstream)
mxnet.kvstore.KVStoreBase.kv_registry["dist_slipstream"] = Slipstream
