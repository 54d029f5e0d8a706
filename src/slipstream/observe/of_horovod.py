"""What has become of the ``HOROVOD_*`` variables of a job, told once by its rank 0."""

from __future__ import annotations

import os
from typing import Any

from slipstream.base.horovod_knobs import told
from slipstream.base.log import Log
from slipstream.base.settings import of_horovod

__all__ = ["tell"]

_log = Log("slipstream")
_said: set[str] = set()  # a process may join several jobs, one after another


def tell(job: Any) -> None:
    """Says a line for each variable that this process has not spoken of: a warning, unless nothing is otherwise."""
    if job.rank != 0:
        return
    for variable in sorted(of_horovod()):
        warns, text = told(variable, os.environ)
        if text not in _said:
            _said.add(text)
            (_log.warning if warns else _log.info)("%s", text)
