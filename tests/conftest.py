"""Settings for all Python tests."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

import daily
import parallel

# A shared machine's clock says nothing about our code, so no deadlines. Drawn examples are the same in every
# run: a failure is then a change, not luck. Set HYPOTHESIS_PROFILE=explore to look for new ones.
settings.register_profile(
    "repeatable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# A shell starts what it runs in the background with SIGINT ignored, and processes inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_inherited_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away the variables by which a test could believe it was started as part of some job."""
    jobs = ("SLIPSTREAM_", "HOROVOD_", "OMPI_COMM_", "SLURM_", "PMI_")
    plain = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    for name in list(os.environ):
        if name.startswith(jobs) or name in plain:
            monkeypatch.delenv(name)


def pytest_configure(config: pytest.Config) -> None:
    """What is said there holds for the tests of all folders."""
    config.pluginmanager.register(daily)
    config.pluginmanager.register(parallel)
