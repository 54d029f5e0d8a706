"""What a user finds by exploring `slipstream`: completion, help, misspelt names, short representations."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest

import slipstream
from slipstream.base.spans import format_spans

FUNCTIONS = [name for name in slipstream.__all__ if inspect.isroutine(getattr(slipstream, name))]


def test_completion_shows_the_public_names_and_loads_nothing() -> None:
    code = (
        "import sys, slipstream; print(*dir(slipstream)); "
        "print({'numpy', 'slipstream._core', 'slipstream.launch'} & set(sys.modules))"
    )
    names, loaded = subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()
    public = [name for name in names.split() if not name.startswith("__")]
    assert public == sorted(slipstream.__all__)
    assert {"all_reduce", "init", "run", "PeerLost", "link_statistics", "SUM"} <= set(public)
    assert loaded == "set()"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("allreduce", "did you mean all_reduce?"),
        ("Alltoall", "did you mean all_to_all?"),
        ("peerlost", "did you mean PeerLost?"),
        ("get_world_size", "did you mean size?"),
        ("init_process_group", "did you mean init?"),
        ("sum", "did you mean SUM?"),
    ],
)
def test_a_misspelt_name_is_told_what_was_meant(name: str, hint: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'slipstream' has no attribute '{name}'; {hint}"):
        getattr(slipstream, name)


def test_a_name_like_no_other_gets_no_guess() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'qqqq'$"):
        _ = slipstream.qqqq
    with pytest.raises(AttributeError, match=r"no attribute '__wrapped__'$"):  # what tools ask for
        _ = slipstream.__wrapped__


def test_a_submodule_is_no_misspelling() -> None:
    code = "import slipstream\ntry: slipstream.torch\nexcept AttributeError as error: print(error)"
    text = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert text.strip().endswith("import slipstream.torch first")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_help_of_a_function_stands_alone(name: str) -> None:
    """It names every parameter, what comes back, and what is raised: nobody has to read the module for it."""
    function: Any = getattr(slipstream, name)
    text = inspect.getdoc(function) or ""
    parameters = inspect.signature(function).parameters
    missing = [one for one in parameters if f"``{one}``" not in text and f"``{one}``," not in text]
    assert missing == []
    if parameters:
        assert "Error" in text


def test_spans() -> None:
    assert format_spans([0, 1, 2, 3, 8]) == "0-3, 8"
    assert format_spans([1, 0]) == "1, 0"
    assert format_spans([]) == ""
    assert format_spans(range(0, 400, 2)) == "0, 2, 4, 6, 8, 10, 12, ..., 398"


def test_representations_are_short() -> None:
    slipstream.init(rank=0, size=1)
    try:
        group = slipstream.world()
        assert repr(group) == "<Group of ranks 0: this is rank 0 of 1>"
        assert repr(group.job) == "<Job 'job': this is rank 0 of 1>"
    finally:
        slipstream.shutdown()
