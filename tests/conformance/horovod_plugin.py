"""A plug-in of pytest for a rank that runs Horovod's tests: `results_plugin`, and stand-ins for what is not installed.

The tests that import `mock` get `unittest.mock`, those that import `parameterized` what is here; those of process sets,
which are written for TensorFlow and use none of it, get `horovod.torch`; those of Adasum want MPI, and with PyTorch
GPUs: they run on the CPU.
"""

from __future__ import annotations

import faulthandler
import fnmatch
import functools
import importlib.util
import os
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import results_plugin

pytest_plugins = ["results_plugin"]

os.environ["CHECKOUT_RESULTS"] += os.environ.get("HOROVOD_RANK", "0")  # a file for each rank
STACKS = open(os.environ["CHECKOUT_RESULTS"] + ".stacks", "w", encoding="utf-8")  # noqa: SIM115 - it stays open
TESTS_FAILED, NO_TESTS = 1, 5  # pytest's exit statuses


class Stand:
    """``module`` with other values of some of its names."""

    def __init__(self, module: ModuleType, **names: Any) -> None:
        self.__dict__.update(names, _module=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def in_thread(
    target: Any, args: Any = (), name: Any = None, daemon: bool = True, silent: bool = False
) -> Any:
    """What the tests take from Horovod's launcher."""
    thread = threading.Thread(target=target, args=args, name=name, daemon=daemon)
    thread.start()
    return thread


def expand(arguments: list[Any]) -> Any:
    """A decorator that makes a method of each of the arguments, with names as `parameterized.expand` gives."""

    def with_arguments(method: Any, given: list[Any]) -> Any:
        return functools.wraps(method)(lambda self: method(self, *given))

    def decorate(method: Any) -> None:
        names = sys._getframe(1).f_locals  # of the class that is being made
        for number, given in enumerate(arguments):
            names[f"{method.__name__}_{number}_{given[0]}"] = with_arguments(method, given)

    return decorate


def is_there(name: str) -> bool:
    """Whether a module can be imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False


def pytest_configure(config: Any) -> None:
    if not is_there("mock"):
        sys.modules["mock"] = mock
    if not is_there("parameterized"):
        sys.modules["parameterized"] = SimpleNamespace(parameterized=SimpleNamespace(expand=expand))  # type: ignore[assignment]
    if not is_there("horovod.runner.util.threads"):
        sys.modules["horovod.runner.util.threads"] = SimpleNamespace(in_thread=in_thread)  # type: ignore[assignment]
    if any("mxnet" in path for path in config.args):
        importlib.import_module("horovod.mxnet")  # gives NumPy names that MXNet wants: before MXNet
    if any("tensorflow" in path or "keras" in path for path in config.args):
        os.environ["TF_USE_LEGACY_KERAS"] = "1"  # they are written for Keras 2
    if any("process_sets" in path for path in config.args) and not is_there("tensorflow"):
        sys.modules["horovod.tensorflow"] = importlib.import_module("horovod.torch")


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Chooses the tests of the patterns in CHECKOUT_TESTS, but those of CHECKOUT_WITHOUT, and says which they are."""
    patterns, without = os.environ["CHECKOUT_TESTS"].split(), os.environ["CHECKOUT_WITHOUT"].split()
    named = {results_plugin.name_of(item.nodeid): item for item in items}
    items[:] = [
        item
        for name, item in named.items()
        if name not in without and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]
    for item in items:
        results_plugin.write(
            name=results_plugin.name_of(item.nodeid), verdict="collected", reason="", seconds=0.0
        )
    for module in {item.module for item in items if "adasum" in item.module.__name__}:
        on_cpu(module)


def on_cpu(module: Any) -> None:
    """Has the tests of Adasum find MPI and GPUs, as which the CPU serves."""
    module.hvd = Stand(module.hvd, mpi_enabled=lambda: True, nccl_built=lambda: 0)
    torch = getattr(module, "torch", None)
    if torch is not None:
        cuda = SimpleNamespace(is_available=lambda: True)
        module.torch = Stand(torch, device=lambda name: torch.device("cpu"), cuda=cuda)
    np.alltrue = np.all  # type: ignore[attr-defined]  # which NumPy 2 has dropped


def pytest_runtest_logstart() -> None:
    """Has the stacks written shortly before the job is ended, if this test hangs."""
    faulthandler.dump_traceback_later(0.9 * float(os.environ["CHECKOUT_LIMIT"]), file=STACKS)


def pytest_runtest_logfinish() -> None:
    faulthandler.cancel_dump_traceback_later()


def pytest_sessionfinish(session: Any) -> None:
    """A rank that ends with an error would end the others, which still have verdicts to write."""
    Path(os.environ["CHECKOUT_RESULTS"] + ".over").touch()
    if session.exitstatus in (TESTS_FAILED, NO_TESTS):
        session.exitstatus = 0
