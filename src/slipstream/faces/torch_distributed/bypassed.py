"""Says so where a job of `slipstream run` communicates by another backend: nothing of slipstream acts there.

Whoever asked for encryption, above all, has to know that his bytes travel without.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from slipstream.base.excepthook import is_reporting
from slipstream.base.log import Log
from slipstream.base.settings import Settings
from slipstream.comm.membership import job

__all__ = ["notice", "say_if_bypassed"]

_log = Log("slipstream")
_REAL = {"gloo", "nccl", "mpi", "ucc", "xccl"}  # the backends of PyTorch that talk to other processes


def notice(backends: Collection[str], settings: Settings) -> str:
    """What rank 0 says where ``backends`` serve the default group, and none of them is slipstream."""
    names = " and ".join(sorted(backends))
    usual = Settings()
    given = [
        f"--{name.replace('_', '-')}"
        for name in (
            "encrypt",
            "wire",
            "reducers",
            "lanes",
            "autotune",
            "timeline",
            "summary",
            "metrics_port",
        )
        if getattr(settings, name) != getattr(usual, name)
    ]
    lost = f": {', '.join(given)} {'has' if len(given) == 1 else 'have'} no effect on it" if given else ""
    return (
        f"torch.distributed communicates by {names} in this job, not by slipstream{lost}; to use slipstream, give "
        f"`slipstream run` the option --replace {','.join(sorted(backends))}, or have the script call "
        'init_process_group("slipstream")'
    )


def say_if_bypassed(backends: Collection[str]) -> None:
    """Logs `notice` as a warning on rank 0, if `slipstream run` has started it and it is in no job of ours."""
    others = _REAL.intersection(backends)
    first = os.environ.get("SLIPSTREAM_RANK") == "0" and os.environ.get("SLIPSTREAM_SIZE", "1") != "1"
    if others and first and is_reporting() and not job.is_initialized():
        _log.warning("%s", notice(others, Settings.from_environment()))
