"""Forks the processes that PyTorch's tests spawn from one that has imported what they import.

A spawned process imports PyTorch first, which takes more time than most tests. Here the start method "spawn" means a
fork server that imports, once for a file, what the test's process had imported when it started its first child. A
child gets its parent's environment of that moment, and runs what is registered for its exit.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from multiprocessing import context, forkserver, process
from typing import Any

import pretended

__all__ = ["install"]

LIST = "CHECKOUT_MODULES"  # the file with the names of what the fork server imports
ROOTS = {"_pytest", "expecttest", "hypothesis", "numpy", "pytest", "scipy", "slipstream", "torch"}
BACK_END = "slipstream.faces.torch_distributed.backend"  # as gloo's, which comes with PyTorch
# It starts processes of its own when it is imported.
LEFT_OUT = "torch._inductor"


class _Process(context.ForkServerProcess):
    _start_method = "spawn"

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        if LIST not in os.environ:
            os.environ[LIST] = os.environ["CHECKOUT_RESULTS"] + ".modules"
            names = [name for name in sys.modules if name.split(".")[0] in ROOTS]
            with open(os.environ[LIST], "w", encoding="utf-8") as file:
                file.write("\n".join(name for name in names if not name.startswith(LEFT_OUT)))
        process_obj.checkout_environment = dict(os.environ)
        return context.ForkServerProcess._Popen(process_obj)


class _Context(context.ForkServerContext):
    _name = "spawn"
    Process = _Process


def install() -> None:
    """From now on "spawn" forks, in this process."""
    forkserver.set_forkserver_preload([__name__])
    context._concrete_contexts["spawn"] = _Context()


def _serve() -> None:
    """In the fork server: imports what the list names, and has its children take over what their parent gave them."""
    pretended.install()
    with open(os.environ[LIST], encoding="utf-8") as file:
        for name in [*file.read().split(), BACK_END]:
            with contextlib.suppress(Exception):
                __import__(name)
    bootstrap = process.BaseProcess._bootstrap

    def with_environment(self: Any, parent_sentinel: int | None = None) -> int:
        os.environ.clear()
        os.environ.update(self.__dict__.pop("checkout_environment"))
        status: int = bootstrap(self, parent_sentinel)
        atexit._run_exitfuncs()
        return status

    process.BaseProcess._bootstrap = with_environment


if LIST in os.environ and "pytest" not in sys.modules:
    _serve()
