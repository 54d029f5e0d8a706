"""Python imports this as it starts, in the ranks of `slipstream run`: when JAX comes, it learns of the job.

It costs a program without JAX nothing, and gives way to a `sitecustomize` of the machine or of the user.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_ADDED = {
    "jax._src.clusters": "slipstream.as_jax.cluster",
    "jax._src.lax.parallel": "slipstream.as_jax.float16",
}


class _Finder:
    """Waits for the modules of JAX that get something from us: `add` of our module is called once they are loaded."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        ours = _ADDED.pop(name, None)
        if ours is None:
            return None
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module):
                load(module)
                _add(ours)

            spec.loader.exec_module = exec_module
        return spec


def _add(ours):
    from importlib import import_module

    try:
        import_module(ours).add()
    except Exception as error:  # whatever it is, JAX works without
        where = f"{type(error).__name__}: {error}"
        print(
            f"slipstream: {sys.executable} cannot load {ours}, and JAX goes on without: {where}",
            file=sys.stderr,
        )


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
