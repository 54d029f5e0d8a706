"""Says so where a job of `slipstream run` communicates by another backend: nothing of slipstream acts there.

Users who asked for encryption, above all, have to know that their bytes travel without it.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from slipstream.base.excepthook import is_reporting
from slipstream.base.log import Log
from slipstream.base.settings import REPLACEABLE, Settings

__all__ = ["notice", "say_if_bypassed"]

_log = Log("slipstream")
_said = False
_OPTIONS = ("encrypt", "wire", "reducers", "lanes", "autotune", "timeline", "summary", "metrics_port")


def notice(backends: Collection[str], settings: Settings) -> str:
    """What rank 0 says where ``backends`` serve the default group, and none of them is slipstream."""
    names = " and ".join(sorted(backends))
    usual = Settings()
    changed = [name for name in _OPTIONS if getattr(settings, name) != getattr(usual, name)]
    given = [f"--{name.replace('_', '-')}" for name in changed]
    lost = f": {', '.join(given)} {'has' if len(given) == 1 else 'have'} no effect on it" if given else ""
    return (
        f"torch.distributed communicates by {names} in this job, not by slipstream{lost}; to use slipstream, give "
        f"`slipstream run` the option --replace {','.join(sorted(backends))}, or have the script call "
        'init_process_group("slipstream"); where it calls hvd.init() or slipstream.init() as well, that part is served'
    )


def say_if_bypassed(backends: Collection[str]) -> None:
    """Logs `notice` as a warning once, on rank 0, if `slipstream run` has started it and nobody uses slipstream there.

    A process that is in a job of ours has only asked for another backend beside it; where it asked for encryption, too,
    it is told all the same.
    """
    global _said
    others = set(REPLACEABLE).intersection(backends)
    first = os.environ.get("SLIPSTREAM_RANK") == "0" and os.environ.get("SLIPSTREAM_SIZE", "1") != "1"
    if _said or not others or not first or not is_reporting():
        return
    from slipstream.comm.membership import job  # `import torch` has no need of it

    try:
        settings = Settings.from_environment()
    except ValueError:  # that concerns jobs of ours alone
        settings = Settings()
    if settings.encrypt or not job.is_initialized():
        _said = True
        _log.warning("%s", notice(others, settings))
