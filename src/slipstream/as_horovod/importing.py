"""How Python comes to the modules of `modules`: a finder makes them, and their names are got on first use."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from slipstream.as_horovod.modules import GONE, MODULES, Names, is_package, modules_in
from slipstream.base.protocol import HOROVOD
from slipstream.faces.horovod.absent import hint

__all__ = ["stand_in"]


class _Finder(MetaPathFinder):
    """Finds all below ``horovod``. ModuleNotFoundError for what is not there, so that nobody else is asked."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("horovod."):
            return None
        why = next((_gone(name) for name in GONE if f"{fullname}.".startswith(f"{name}.")), None)
        if why is None and fullname in MODULES:
            return ModuleSpec(fullname, _Loader(), is_package=is_package(fullname))
        raise ModuleNotFoundError(why or _no_module(fullname), name=fullname)


class _Loader(Loader):
    """Gives a module its names."""

    def exec_module(self, module: ModuleType) -> None:
        names = MODULES[module.__name__]
        for one in names.of:
            importlib.import_module(one)  # what is missing there shall be said now
        module.__doc__ = f"Horovod's `{module.__name__}`, by slipstream."
        _fill(module, names)


def stand_in(name: str) -> None:
    """Makes the package ``name``, which is being imported, the one of `modules`, with all modules below it."""
    if not any(isinstance(one, _Finder) for one in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    module: Any = sys.modules[name]
    module.__version__ = HOROVOD
    module.__slipstream__ = True  # for those who have to know that it is not Horovod
    _fill(module, MODULES[name])


def _fill(module: ModuleType, names: Names) -> None:
    public = [name for one in names.of for name in importlib.import_module(one).__all__]
    public = sorted({*public, *(name for name in names.others if not name.startswith("_"))})
    namespace = vars(module)
    namespace["__all__"] = public
    namespace["__dir__"] = lambda: sorted({*public, *names.others, *namespace})
    namespace["__getattr__"] = _getter(module, names)


def _getter(module: ModuleType, names: Names) -> Callable[[str], Any]:
    def get(name: str) -> Any:
        below = f"{module.__name__}.{name}"
        if below in GONE:
            raise AttributeError(_gone(below))
        value = _value(module, names, name)
        setattr(module, name, value)
        return value

    return get


def _value(module: ModuleType, names: Names, name: str) -> Any:
    """The value of a name; AttributeError if there is none, or not yet."""
    below = f"{module.__name__}.{name}"
    try:
        if name in names.others:
            place, _, there = names.others[name].partition(":")
            return getattr(importlib.import_module(place), there)
        if below in MODULES:
            return importlib.import_module(below)
    except ImportError as error:
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}: {error}") from error
    for one in () if name.startswith("__") else names.of:
        found = vars(importlib.import_module(one))
        if name in found:
            return found[name]
    instead = _elsewhere(name) or hint(name, vars(module)["__all__"])
    raise AttributeError(
        f"module {module.__name__!r}, for which slipstream stands in, has no attribute {name!r}"
        f"{instead or f': dir({module.__name__}) lists what it has'}"
    )


def _elsewhere(name: str) -> str:
    """Which other module has it, among those that need not be imported for the answer."""
    for module, names in MODULES.items():
        loaded = (sys.modules[one] for one in names.of if one in sys.modules)
        if name in names.others or any(name in one.__all__ for one in loaded):
            return f": {module} has it"
    return ""


def _no_module(name: str) -> str:
    package = name.rpartition(".")[0]
    there = modules_in(package)
    has = f"; below {package} it has {', '.join(there)}" if there else ""
    return f"{name}: slipstream stands in for Horovod here, and has no such module{has}"


def _gone(name: str) -> str:
    return (
        f"{name}: slipstream, which stands in for Horovod here, does not have it yet. Meanwhile: {GONE[name]}"
    )
