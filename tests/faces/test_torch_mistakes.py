"""What slipstream.torch says of wrong names and arguments, before `init`, and where PyTorch is missing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import slipstream.torch as hvd  # noqa: E402
from slipstream.faces.horovod import process_sets  # noqa: E402

ONE_TENSOR = [
    hvd.allreduce,
    hvd.allreduce_,
    hvd.allreduce_async,
    hvd.allreduce_async_,
    hvd.allgather,
    hvd.allgather_async,
    hvd.alltoall,
    hvd.alltoall_async,
    hvd.reducescatter,
    hvd.reducescatter_async,
]
SEVERAL = [
    hvd.grouped_allreduce,
    hvd.grouped_allreduce_,
    hvd.grouped_allreduce_async,
    hvd.grouped_allreduce_async_,
    hvd.grouped_allgather,
    hvd.grouped_allgather_async,
    hvd.grouped_reducescatter,
    hvd.grouped_reducescatter_async,
]
ROOTED = [hvd.broadcast, hvd.broadcast_, hvd.broadcast_async, hvd.broadcast_async_]


@pytest.mark.parametrize("operation", ONE_TENSOR + ROOTED)
def test_what_is_no_tensor_is_named(operation: Callable[..., Any]) -> None:
    more = [0] if operation in ROOTED else []
    with pytest.raises(TypeError, match=f"^{operation.__name__} takes a torch.Tensor, not list$"):
        operation([1, 2], *more)


@pytest.mark.parametrize("compression", ["fp16", None, torch.float16])
def test_what_compresses_nothing_is_told_what_does(compression: Any) -> None:
    hvd.init()
    try:
        with pytest.raises(TypeError, match=r"^compression takes Compression.none, Compression.fp16, "):
            hvd.allreduce(torch.ones(2), compression=compression)
        parameter = torch.nn.Parameter(torch.ones(2))
        with pytest.raises(TypeError, match=r"^compression takes Compression.none, Compression.fp16, "):
            hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=0.1), compression=compression)
    finally:
        hvd.shutdown()


@pytest.mark.parametrize("operation", SEVERAL)
def test_what_is_no_list_of_tensors_is_named(operation: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=f"^{operation.__name__} takes a list of torch.Tensor, not of float$"):
        operation([torch.ones(2), 1.0])


@pytest.mark.parametrize(
    "call",
    [
        hvd.rank,
        hvd.start_timeline,
        hvd.barrier,
        hvd.allreduce,
        hvd.allgather,
        hvd.broadcast_,
        hvd.alltoall,
        hvd.reducescatter_async,
        hvd.grouped_allreduce,
        hvd.grouped_reducescatter,
        hvd.add_process_set,
    ],
)
def test_before_init_everything_says_the_same(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not hvd.is_initialized()
    arguments: dict[str, list[Any]] = {"rank": [], "barrier": [], "start_timeline": ["t.json"]}
    arguments |= {"broadcast_": [torch.ones(2), 0], "add_process_set": [[0]]}
    given = arguments.get(call.__name__, [[torch.ones(2)] if "grouped" in call.__name__ else torch.ones(2)])
    words = r"Horovod has not been initialized; use hvd\.init\(\)\.$"
    said = rf"^slipstream has not been initialized: call hvd\.init\(\) first\. In Horovod's words: {words}"
    monkeypatch.setattr(process_sets, "_shut_down", False)  # as in a process that has not been in a job
    with pytest.raises(ValueError, match=said):
        call(*given)
    hvd.init()
    hvd.shutdown()
    said = rf"^slipstream has been shut down: .* In Horovod's words: Horovod has been shut down\. {words}"
    with pytest.raises(ValueError, match=said):
        call(*given)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("all_reduce", "did you mean allreduce?"),
        ("DistributedOptimiser", "did you mean DistributedOptimizer?"),
        ("spark", "slipstream has no face for it yet. Meanwhile: write the data to files by Spark"),
        ("_handle_map", "hvd.synchronize(handle)"),
    ],
)
def test_a_name_that_is_not_there_is_explained(name: str, hint: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(hvd, name)
    assert str(caught.value).startswith(f"module 'slipstream.torch' has no attribute '{name}'")
    assert hint in str(caught.value)


def test_a_name_like_no_other_gets_no_guess() -> None:
    for name in ("qqqq", "__wrapped__"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'$"):
            getattr(hvd, name)


def test_without_pytorch_one_sentence_says_what_to_install() -> None:
    code = "import sys; sys.modules['torch'] = None\nimport slipstream.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: slipstream.torch needs PyTorch: pip install torch, "
        "or pip install '.[torch]' in the clone of slipstream"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"process_set": [0]}, r"process_set must be a ProcessSet, not list: hvd.add_process_set\(\[0\]\)"),
        ({"prescale_factor": "2"}, "prescale_factor must be one number, not str"),
        ({"postscale_factor": None}, "postscale_factor must be one number, not NoneType"),
        ({"name": 5}, "name must be a string, not int"),
    ],
)
@pytest.mark.parametrize("operation", [hvd.allreduce, hvd.allreduce_async_, hvd.reducescatter])
def test_an_argument_of_a_wrong_type_is_named(
    operation: Callable[..., Any], arguments: dict[str, Any], said: str
) -> None:
    hvd.init()
    try:
        with pytest.raises(TypeError, match=f"^{said}$"):
            operation(torch.ones(2), **arguments)
        if operation is hvd.allreduce and "name" not in arguments:
            with pytest.raises(TypeError, match=f"^{said}$"):
                hvd.grouped_allreduce([torch.ones(2)], **arguments)
    finally:
        hvd.shutdown()


@pytest.mark.parametrize("factor", [0, -1.0, float("nan")])
def test_gradients_are_divided_by_positive_numbers_only(factor: float) -> None:
    hvd.init()
    try:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
        with pytest.raises(ValueError, match=r"^gradient_predivide_factor must be a positive number, not "):
            hvd.DistributedOptimizer(optimizer, gradient_predivide_factor=factor)
    finally:
        hvd.shutdown()
