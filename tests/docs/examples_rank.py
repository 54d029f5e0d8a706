"""Runs the examples of a module's public functions and classes, as one of the ranks that they are written for."""

from __future__ import annotations

import doctest
import importlib
import inspect
import sys
from types import ModuleType
from typing import Any

import numpy


class AnyOutput(doctest.OutputChecker):
    """Examples show what rank 0 prints."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        """True."""
        return True


def objects(module: ModuleType) -> list[tuple[str, Any]]:
    """The public functions, and the classes that are not errors."""
    found = [(name, getattr(module, name)) for name in module.__all__]
    return [
        (name, one)
        for name, one in found
        if inspect.isroutine(one) or (inspect.isclass(one) and not issubclass(one, Exception))
    ]


def names_for(module: ModuleType) -> dict[str, Any]:
    """What examples may use without importing it."""
    import slipstream

    known: dict[str, Any] = {"slipstream": slipstream, "numpy": numpy}
    if module.__name__.startswith("slipstream.torch"):
        known["torch"] = importlib.import_module("torch")
        known["hvd"] = importlib.import_module("slipstream.torch")
    for name, framework, known_as in (("tensorflow", "tensorflow", "tf"), ("keras", "keras", "keras")):
        if module.__name__.startswith(f"slipstream.{name}"):
            known[known_as] = importlib.import_module(framework)
            known["hvd"] = importlib.import_module(f"slipstream.{name}")
    if module.__name__ == "slipstream.keras":
        keras = known["keras"]
        known["model"] = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        known["model"].compile("sgd", "mse")
    if module.__name__ == "slipstream.lab":
        known |= vars(module)
    return known


def run_examples(module: ModuleType, rank: int, names: list[str]) -> int:
    """Returns how many failed, which it prints."""
    checker = doctest.OutputChecker() if rank == 0 else AnyOutput()
    runner = doctest.DocTestRunner(checker, verbose=False)
    parser = doctest.DocTestParser()
    for name, one in objects(module):
        if name in names:
            text = inspect.getdoc(one) or ""
            runner.run(parser.get_doctest(text, names_for(module), name, None, 0), clear_globs=False)
    return runner.summarize(verbose=False).failed


if __name__ == "__main__":
    import slipstream

    target = importlib.import_module(sys.argv[1])
    face = ".".join(sys.argv[1].split(".")[:2])
    (importlib.import_module(face) if face != "slipstream.lab" else slipstream).init()
    code = run_examples(target, slipstream.rank(), sys.argv[2:])
    sys.stdout.flush()
    slipstream.barrier()
    sys.exit(1 if code else 0)
