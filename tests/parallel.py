"""How tests run several at a time, in the processes of pytest-xdist: which stay together, and which run alone.

A test with the mark ``alone`` measures a rate or a time that a neighbour would change: it waits for the tests that are
under way, and others wait for it. `conftest.py` makes this a plugin.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

# Tests whose names begin so run in one process, one after another. The marks of pytest-xdist that say the same
# (xdist_group) are lost with pytest 9.2.
GROUPS = {
    # They share processes that have imported PyTorch, a lab, or a wheel.
    "c10d": (
        "tests/faces/torch_distributed/test_ddp_steps.py",
        "tests/faces/torch_distributed/test_groups.py",
        "tests/faces/torch_distributed/test_operations.py",
        "tests/faces/torch_distributed/test_short_messages.py",
        "tests/faces/torch_distributed/test_users_",
    ),
    "jobs": (
        "tests/faces/test_torch_autograd.py",
        "tests/faces/test_torch_names.py",
        "tests/faces/test_torch_op",
    ),
    "stage": ("tests/docs/test_commands.py::test_a_command_works",),
    "wheel": ("tests/packaging/test_wheel.py",),
    "manylinux": ("tests/packaging/test_manylinux.py",),
    # They look at all labs of the machine.
    "lab": ("tests/lab/test_lab.py",),
    # They keep the processors busy, with many ranks each: one at a time is enough.
    "busy": (
        "tests/comm/test_conformance.py",
        "tests/comm/test_extremes.py",
        "tests/comm/test_random_operations.py",
        "tests/conformance/",
        "tests/lab/test_many_hosts.py",
        "tests/plan/test_many_ranks.py",
        "tests/soak/",
    ),
}
# These take longest: they come first, after all groups, lest one process has much left when the others are done.
FIRST = ("tests/bench/", "benchmarks/")
BESIDE_OTHERS = "PYTEST_XDIST_WORKER" in os.environ


def group_of(test: str) -> str | None:
    """The group of a test, by its name; None if it has none."""
    return next((group for group, names in GROUPS.items() if test.startswith(names)), None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Who gets which test: a group goes to one process as a whole, any other test to whoever is free."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid) or nodeid

    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups and long tests come first. The order must be the same in all processes."""
    if BESIDE_OTHERS:
        items.sort(key=lambda item: (group_of(item.nodeid) is None, not item.nodeid.startswith(FIRST)))


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before the test's time-out begins
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    """A test runs when it may."""
    if not BESIDE_OTHERS:
        return (yield)
    with _turn(alone=item.get_closest_marker("alone") is not None):
        return (yield)


@contextmanager
def _turn(*, alone: bool) -> Iterator[None]:
    """Holds while a test runs: as one of many, or as the only one that runs from this folder."""
    with Path(__file__).open() as gate, Path(__file__).with_name("conftest.py").open() as place:
        # Who wants to be alone keeps the gate shut until the others are done.
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(place, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(place, fcntl.LOCK_UN)  # a forked child would keep it
