"""The network that LightGBM trains over in one thread: slipstream's, for the time of a `with` block."""

from __future__ import annotations

import ctypes
import threading
from types import TracebackType
from typing import Any

from lightgbm.basic import _LIB, LightGBMError

from slipstream import _core
from slipstream import comm as _comm
from slipstream.comm.collectives.native_calls import handle_of
from slipstream.comm.membership.group import Group, check_group

__all__ = ["network"]

_LEARNERS = "data", "voting"  # LightGBM has "feature" for its own command alone
_inside = threading.local()  # LightGBM's network belongs to a thread


class _Network:
    """What `network` returns. After the block it raises what has ended the training, as slipstream's error."""

    def __init__(self, learner: str, group: Group | None) -> None:
        self._learner = learner
        self._group = group
        self._native: _core.LightgbmNetwork | None = None

    def __enter__(self) -> dict[str, Any]:
        if getattr(_inside, "network", None) is not None:
            raise RuntimeError("this thread is in a network of LightGBM already: leave that block first")
        if self._group is None:
            _comm.init()
        group = _comm.world() if self._group is None else self._group
        if group.size == 1:
            return {}
        self._native = _core.LightgbmNetwork(handle_of(group))
        scatter, gather = self._native.enter()
        _checked(
            _LIB.LGBM_NetworkInitWithFunctions(
                group.size, group.rank, ctypes.c_void_p(scatter), ctypes.c_void_p(gather)
            )
        )
        _inside.network = self
        return {"tree_learner": self._learner, "num_machines": group.size, "pre_partition": True}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        native, self._native = self._native, None
        if native is None:
            return
        _inside.network = None
        _checked(_LIB.LGBM_NetworkFree())
        native.leave()
        try:
            native.check()
        except BaseException as failure:
            raise failure from error


def network(tree_learner: str = "data", *, group: Group | None = None) -> _Network:
    """A block in which LightGBM trains with all ranks of ``group``: each with its own rows, all with the same model.

    Enters the job, if `slipstream.init` has not been called. The block's value is a dict of the parameters that
    LightGBM needs, for `lightgbm.train` and `lightgbm.Dataset` or as keywords of ``LGBMClassifier`` and its like; it is
    empty with one rank. Make the datasets and train within the block, in the thread that entered it: LightGBM keeps its
    network per thread. ``tree_learner``: "data", or "voting", which sends less for many features and may choose worse
    splits. ``group``: default all ranks.

    If a rank is lost, the call of LightGBM that runs fails on all others, and the block raises slipstream's error, such
    as PeerLost. So does the next call of LightGBM in the block. Raises ValueError for another ``tree_learner``,
    RuntimeError where the thread is in such a block already.

    >>> with slipstream.lightgbm.network() as parallel:
    ...     model = lightgbm.train({"objective": "binary", **parallel}, lightgbm.Dataset(x, y))
    """
    if tree_learner not in _LEARNERS:
        raise ValueError(
            f"tree_learner must be one of {', '.join(_LEARNERS)}, not {tree_learner!r}: LightGBM has others for "
            "its own command alone"
        )
    check_group("group", group)
    return _Network(tree_learner, group)


def _checked(code: int) -> None:
    if code != 0:
        text: str = _LIB.LGBM_GetLastError().decode()
        raise LightGBMError(text)
