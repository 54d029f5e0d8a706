"""Python imports this as it starts, in the ranks of `slipstream run`: when JAX comes, it learns of the job.

It costs a program without JAX nothing, and gives way to a `sitecustomize` of the machine or of the user.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False  # as that of typing, which programs need not load
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_ADDED = {
    "jax._src.clusters": "slipstream.as_jax.cluster",
    "jax._src.distributed": "slipstream.as_jax.ending",
    "jax._src.lax.parallel": "slipstream.as_jax.float16",
    "jaxlib": "slipstream.as_jax.memory",
}


class _Finder:
    """Waits for the modules of JAX that get something from us: `add` of our module is called once they are loaded."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        ours = _ADDED.pop(fullname, None)
        if ours is None:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        loader: Any = spec.loader if spec is not None else None
        if loader is not None:
            load = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                _add(ours)

            loader.exec_module = exec_module
        return spec


def _add(ours: str) -> None:
    try:
        importlib.import_module(ours).add()
    except Exception as error:  # whatever it is, JAX works without
        where = f"{type(error).__name__}: {error}"
        print(
            f"slipstream: {sys.executable} cannot load {ours}, and JAX goes on without: {where}",
            file=sys.stderr,
        )


def _give_way() -> None:
    """Imports the `sitecustomize` that Python would have found without this folder, if there is one."""
    ours = sys.modules.pop(__name__)
    before = sys.path[:]
    sys.path[:] = [one for one in before if os.path.abspath(one or os.getcwd()) != _HERE]
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules[__name__] = ours


sys.meta_path.insert(0, _Finder)
_give_way()
