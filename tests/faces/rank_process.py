"""One rank of a test job: runs the functions it is told to, from files it is told, until the pipe closes."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from multiprocessing.connection import Connection
from types import ModuleType

import slipstream.torch as hvd

_modules: dict[str, ModuleType] = {}


def load(file: str) -> ModuleType:
    """The module in a file, loaded once."""
    if file not in _modules:
        spec = importlib.util.spec_from_file_location(f"checks_{len(_modules)}", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        _modules[file] = module
    return _modules[file]


def main() -> None:
    """Answers requests (file, function, arguments) with (True, result) or (False, traceback)."""
    pipe = Connection(int(sys.argv[1]))
    hvd.init()
    while True:
        try:
            file, name, arguments = pipe.recv()
        except EOFError:
            break
        try:
            pipe.send((True, getattr(load(file), name)(*arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
    hvd.shutdown()


if __name__ == "__main__":
    main()
