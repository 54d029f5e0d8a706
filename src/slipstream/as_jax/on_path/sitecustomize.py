"""Python imports this as it starts, in the ranks of `slipstream run`: when JAX comes, it learns of the job.

It costs a program without JAX nothing, and gives way to a `sitecustomize` of the machine or of the user.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_CLUSTERS = "jax._src.clusters"


class _Finder:
    """Waits for JAX's module of clusters, and has `slipstream.as_jax.cluster` add one once it is loaded."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != _CLUSTERS:
            return None
        from importlib.machinery import PathFinder

        sys.meta_path.remove(cls)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module):
                load(module)
                _add_cluster()

            spec.loader.exec_module = exec_module
        return spec


def _add_cluster():
    try:
        from slipstream.as_jax.cluster import add
    except ImportError as error:
        print(
            f"slipstream: jax.distributed.initialize() needs its arguments, as {sys.executable} cannot import "
            f"slipstream: {error}",
            file=sys.stderr,
        )
    else:
        add()


def _give_way():
    """Imports the `sitecustomize` that Python would have found without this folder, if there is one."""
    ours = sys.modules.pop(__name__)
    before = sys.path[:]
    sys.path[:] = [one for one in before if os.path.abspath(one or os.getcwd()) != _HERE]
    try:
        import sitecustomize  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules[__name__] = ours


sys.meta_path.insert(0, _Finder)
_give_way()
