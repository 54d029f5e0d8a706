"""The network that LightGBM trains over in one thread: slipstream's, for the time of a `with` block."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from lightgbm.basic import _LIB, Booster, LightGBMError

from slipstream import _core
from slipstream import comm as _comm
from slipstream.base.errors import Mismatch, SlipstreamError
from slipstream.base.log import Log
from slipstream.comm.collectives import addresses
from slipstream.comm.collectives.native_calls import handle_of
from slipstream.comm.membership.group import Group, check_group

__all__ = ["network"]

_LEARNERS = "data", "voting"  # LightGBM has "feature" for its own command alone
_inside = threading.local()  # LightGBM's network belongs to a thread
_log = Log("slipstream.lightgbm")


_ALIKE = (
    "LightGBM needs the same parameters, iterations and callbacks on all ranks, which leave the block together, also "
    "by an exception"
)


class _Network:
    """What `network` returns. After the block it raises what has ended the training, as slipstream's error."""

    def __init__(self, learner: str, group: Group | None) -> None:
        self._learner = learner
        self._group = group
        self._met: Group  # the ranks of the block
        self._native: _core.LightgbmNetwork | None = None

    def __enter__(self) -> dict[str, Any]:
        if getattr(_inside, "network", None) is not None:
            raise RuntimeError("this thread is in a network of LightGBM already: leave that block first")
        if self._group is None:
            _comm.init()
        group = _comm.world() if self._group is None else self._group
        if group.size == 1:
            return {}
        self._met = group
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
        native = self._native
        if native is None:
            return
        if (
            getattr(_inside, "network", None) is not self
        ):  # LightGBM still has the functions in the other thread
            raise RuntimeError(
                "a block of slipstream.lightgbm.network() is left in another thread than the one that entered it"
            ) from error
        self._native = _inside.network = None
        _checked(_LIB.LGBM_NetworkFree())
        native.leave()
        try:
            native.check()
        except Mismatch as failure:
            raise Mismatch(f"{failure}. {_ALIKE}") from error
        except BaseException as failure:
            raise failure from error
        if _comm.is_initialized():
            if isinstance(error, KeyboardInterrupt):  # as if it had come while LightGBM communicated
                self._met.abort("its training by LightGBM ended: KeyboardInterrupt")
            else:
                self._meet(error)
        if error is None and not native.used:
            _log.warning(
                "LightGBM has trained nothing in this block: train in the block, in the thread that entered it, not "
                "behind the block, in other threads or in processes of its own (n_jobs of scikit-learn)"
            )

    def _meet(self, error: BaseException | None) -> None:
        """All ranks leave their blocks together: one that has left by an exception would be waited for in training."""
        try:
            addresses.barrier(self._met, name="LightGBM: the end of the block", sync=True)
        except Mismatch as failure:
            if error is None:
                raise Mismatch(f"{failure}. {_ALIKE}") from None
        except SlipstreamError:
            if error is None:
                raise


def network(tree_learner: str = "data", *, group: Group | None = None) -> _Network:
    """A block in which LightGBM trains with all ranks of ``group``: each with its own rows, all with the same model.

    Enters the job, if `slipstream.init` has not been called. The block's value is a dict of the parameters that
    LightGBM needs, for `lightgbm.train` and `lightgbm.Dataset` or as keywords of ``LGBMClassifier`` and its like; it is
    empty with one rank. Make the datasets and train within the block, in the thread that entered it: LightGBM keeps its
    network per thread. ``tree_learner``: "data", or "voting", which sends less for many features and may choose worse
    splits. ``group``: default all ranks.

    If a rank is lost, the call of LightGBM that runs fails on all others, and the block raises slipstream's error, such
    as PeerLost. So does the next call of LightGBM in the block. All ranks leave the block together: where one
    leaves it by an exception while others train, those raise Mismatch. Raises ValueError for another ``tree_learner``,
    RuntimeError where the thread is in such a block already. Training with these parameters raises RuntimeError
    outside of the block, and in another thread.

    >>> with slipstream.lightgbm.network() as parallel:
    ...     model = lightgbm.train({"objective": "binary", **parallel}, lightgbm.Dataset(x, y))
    """
    if tree_learner not in _LEARNERS:
        raise ValueError(
            f"tree_learner must be one of {', '.join(_LEARNERS)}, not {tree_learner!r}: LightGBM has others for "
            "its own command alone"
        )
    check_group("group", group)
    _guard_boosters()
    return _Network(tree_learner, group)


@functools.cache
def _guard_boosters() -> None:
    """Without its network LightGBM would train a model of each rank's own, and say nothing."""
    make = Booster.__init__

    @functools.wraps(make)
    def guarded(
        self: Any, params: Mapping[str, Any] | None = None, train_set: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        if train_set is not None and _is_ours(params or {}) and getattr(_inside, "network", None) is None:
            raise RuntimeError(
                "LightGBM would train with num_machines, but without its network: train in the block of "
                "slipstream.lightgbm.network(), and in the thread that entered it"
            )
        make(self, params, train_set, *args, **kwargs)

    Booster.__init__ = guarded


def _is_ours(params: Mapping[str, Any]) -> bool:
    """Whether a model is trained with parameters of `network`, and not with those of LightGBM's own sockets.

    `Booster.refit` computes new values for the leaves of a model, which has these parameters, on one rank.
    """
    if "refit_decay_rate" in params:
        return False
    sockets = (
        "machines",
        "workers",
        "nodes",
        "machine_list_filename",
        "machine_list_file",
        "machine_list",
        "mlist",
    )
    count = params.get("num_machines", params.get("num_machine", 1))
    return int(count or 1) > 1 and all(params.get(name) is None for name in sockets)


def _checked(code: int) -> None:
    if code != 0:
        text: str = _LIB.LGBM_GetLastError().decode()
        raise LightGBMError(text)
