"""The modules of Horovod that programs reach into, and scripts of other people's shapes that run unchanged."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import pickle
import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from slipstream import SlipstreamError  # noqa: E402
from slipstream.as_horovod.importing import _Finder  # noqa: E402
from slipstream.as_horovod.modules import GONE, MODULES  # noqa: E402

ON_PATH = Path(importlib.import_module("slipstream").__file__ or "").parent / "as_horovod" / "on_path"
SCRIPTS = Path(__file__).with_name("horovod_scripts")

# Modules, and names in them, that public programs and Horovod's own tests import.
REACHED = {
    "horovod": "run __version__",
    "horovod.torch": "init rank size local_rank allreduce allreduce_async_ broadcast_parameters DistributedOptimizer "
    "Compression Average Sum Adasum join ProcessSet global_process_set mpi_ops compression functions optimizer "
    "mpi_threads_supported nccl_built start_timeline HorovodInternalError poll synchronize grouped_allreduce",
    "horovod.torch.mpi_ops": "size rank local_rank allreduce_async_ allgather_async broadcast_async_ synchronize poll "
    "Average Sum Adasum Min Max Product init shutdown handle_average_backwards_compatibility rocm_built _basics "
    "gpu_available num_rank_is_power_2 check_installed_version get_average_backwards_compatibility_fun",
    "horovod.torch.functions": "broadcast_parameters broadcast_optimizer_state broadcast_object allgather_object "
    "rank size broadcast_ broadcast_async_ allgather synchronize ProcessSet global_process_set",
    "horovod.torch.compression": "Compression Compressor NoneCompressor FP16Compressor",
    "horovod.torch.optimizer": "DistributedOptimizer _DistributedOptimizer _DistributedAdasumOptimizer "
    "Adasum Average Sum Compression ProcessSet global_process_set allreduce_async_ grouped_allreduce_async_ "
    "sparse_allreduce_async broadcast_object rocm_built size synchronize split_list",
    "horovod.torch.sync_batch_norm": "SyncBatchNorm",
    "horovod.torch.elastic": "TorchState ElasticSampler run run_fn init shutdown state sampler",
    "horovod.torch.elastic.state": "TorchState ElasticSampler StateHandler ModelStateHandler OptimizerStateHandler "
    "SamplerStateHandler get_handler_registry set_handler_registry",
    "horovod.torch.elastic.sampler": "ElasticSampler",
    "horovod.tensorflow": "init rank size allreduce DistributedGradientTape DistributedOptimizer Compression keras "
    "broadcast_variables BroadcastGlobalVariablesHook SyncBatchNormalization elastic _executing_eagerly size_op",
    "horovod.tensorflow.mpi_ops": "init rank size allgather alltoall broadcast join rank_op Average _basics "
    "handle_average_backwards_compatibility",
    "horovod.tensorflow.functions": "broadcast_object broadcast_object_fn broadcast_variables allgather_object",
    "horovod.tensorflow.compression": "Compression Compressor NoneCompressor FP16Compressor",
    "horovod.tensorflow.elastic": "run TensorFlowState TensorFlowKerasState",
    "horovod.tensorflow.keras": "init DistributedOptimizer callbacks elastic load_model allreduce",
    "horovod.tensorflow.keras.callbacks": "BroadcastGlobalVariablesCallback MetricAverageCallback",
    "horovod.tensorflow.keras.elastic": "run KerasState CommitStateCallback",
    "horovod.keras": "init rank DistributedOptimizer PartialDistributedOptimizer callbacks elastic load_model "
    "broadcast",
    "horovod.keras.callbacks": "LearningRateWarmupCallback LearningRateScheduleCallback BestModelCheckpoint",
    "horovod.keras.elastic": "run KerasState UpdateBatchStateCallback UpdateEpochStateCallback",
    "horovod.common.basics": "HorovodBasics",
    "horovod.common.elastic": "State ObjectState run_fn HorovodInternalError HostsUpdatedInterrupt",
    "horovod.common.exceptions": "HorovodInternalError HostsUpdatedInterrupt HorovodVersionMismatchError "
    "get_version_mismatch_message",
    "horovod.common.process_sets": "ProcessSet global_process_set add_process_set remove_process_set",
    "horovod.common.util": "gpu_available check_extension extension_available gloo_built mpi_built nccl_built env "
    "split_list is_version_greater_equal_than num_rank_is_power_2 _cache get_ext_suffix get_extension_full_path "
    "check_installed_version get_average_backwards_compatibility_fun HorovodVersionMismatchError "
    "get_version_mismatch_message",
    "horovod.runner": "run",
    "horovod.runner.launch": "run_commandline",
    "horovod.runner.common.util.env": "get_env_rank_and_size",
    "horovod.runner.util.threads": "in_thread on_event execute_function_multithreaded",
}


@pytest.fixture
def horovod(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The package, as a script finds it; gone after the test."""
    monkeypatch.syspath_prepend(ON_PATH)
    yield importlib.import_module("horovod")
    for name in [name for name in sys.modules if name == "horovod" or name.startswith("horovod.")]:
        del sys.modules[name]
    sys.meta_path[:] = [one for one in sys.meta_path if not isinstance(one, _Finder)]


def _can_load(module: str) -> bool:
    needs = {"horovod.tensorflow": "tensorflow", "horovod.keras": "keras", "horovod.mxnet": "mxnet"}
    return all(
        importlib.util.find_spec(framework) is not None
        for name, framework in needs.items()
        if f"{module}.".startswith(f"{name}.")
    )


def test_names_are_where_programs_look(horovod: Any) -> None:
    missing = set()
    for module, names in ((one, REACHED[one]) for one in REACHED if _can_load(one)):
        try:
            found = importlib.import_module(module)
        except ImportError:
            missing.add(module)
            continue
        missing |= {f"{module}.{name}" for name in names.split() if not hasattr(found, name)}
    assert not missing


def test_every_module_of_the_table_loads_and_has_what_it_lists(horovod: Any) -> None:
    for module, names in ((one, MODULES[one]) for one in MODULES if _can_load(one)):
        found = importlib.import_module(module)
        assert set(names.others) >= {name for name in found.__all__ if name not in _public(names.of)}
        missing = {f"{module}.{name}" for name in (*found.__all__, *names.others) if not hasattr(found, name)}
        assert not missing
        assert hasattr(found, "__path__") == any(other.startswith(f"{module}.") for other in MODULES)


def _public(modules: tuple[str, ...]) -> set[str]:
    return {name for module in modules for name in importlib.import_module(module).__all__}


def test_what_it_is_can_be_seen(horovod: Any) -> None:
    hvd = importlib.import_module("horovod.torch")
    ours = importlib.import_module("slipstream.torch")
    assert horovod.__version__ == "0.28.1"
    assert horovod.__slipstream__
    assert hvd.allreduce is ours.allreduce
    assert hvd.mpi_ops is importlib.import_module("horovod.torch.mpi_ops")
    assert hvd.HorovodInternalError is SlipstreamError
    assert pickle.loads(pickle.dumps(hvd.allreduce)) is ours.allreduce
    assert importlib.util.find_spec("horovod.torch") is not None
    names: dict[str, Any] = {}
    exec("from horovod.torch.mpi_ops import *", names)
    assert names["allreduce_async_"] is ours.allreduce_async_


def test_version_checks_pass(horovod: Any) -> None:
    version = pytest.importorskip("packaging.version")
    assert version.parse("0.21.0") <= version.parse(horovod.__version__) < version.parse("1.0")
    assert [int(part) for part in horovod.__version__.split(".")] >= [0, 28]


@pytest.mark.parametrize("name", [*GONE, "horovod.spark.common", "horovod.ray.runner"])
def test_what_is_not_there_yet_says_what_to_use(horovod: Any, name: str) -> None:
    with pytest.raises(ImportError, match=r"horovod\.\w+: slipstream, .* does not have it yet\. Meanwhile: "):
        importlib.import_module(name)
    with pytest.raises(AttributeError, match="Meanwhile: "):
        getattr(horovod, name.split(".")[1])


def test_what_never_was_is_not_found(horovod: Any) -> None:
    """ignite asks for ``horovod.run.runner`` first, which older versions had."""
    for name in ("horovod.run.runner", "horovod.torch.mpi_lib_v2"):
        with pytest.raises(ModuleNotFoundError, match="has no such module"):
            importlib.import_module(name)
    with pytest.raises(ModuleNotFoundError, match=r"; below horovod\.runner it has common, launch, util$"):
        importlib.import_module("horovod.runner.mpi_run")
    assert not hasattr(horovod, "no_such_name")


@pytest.mark.parametrize(
    ("module", "name", "said"),
    [
        ("horovod.torch", "no_such_name", r"\(horovod\.torch\) lists what it has"),
        ("horovod.torch.mpi_ops", "_allreduce_async", "did you mean allreduce_async"),
        ("horovod.torch.mpi_ops", "mpi_lib", "no such library"),
        ("horovod.torch", "spark", "Meanwhile: write the data to files by Spark"),
        ("horovod.common.process_sets", "_temp_process_set_object", "hvd.add_process_set"),
        ("horovod.common.util", "no_such_name", "lists what it has"),
        ("horovod.common.elastic", "TorchState", r"horovod\.torch\.elastic.* has it"),
        ("horovod.torch.functions", "gpu_available", r"horovod\.torch\.mpi_ops has it"),
    ],
)
def test_a_name_that_is_not_there_says_what_is(horovod: Any, module: str, name: str, said: str) -> None:
    with pytest.raises(AttributeError, match=rf"^module '{module}'.* has no attribute '{name}'.*{said}"):
        getattr(importlib.import_module(module), name)


def test_what_the_object_of_basics_lacks(horovod: Any) -> None:
    basics = importlib.import_module("horovod.common.basics").HorovodBasics("file", "mpi_lib")
    assert "local_rank" in dir(basics)
    for name, said in {
        "_add_process_set_impl": r"use hvd\.add_process_set\(ranks\)",
        "_process_set_size": r"hvd\.ProcessSet has rank\(\), size\(\)",
        "MPI_LIB_CTYPES": "no such library",
        "lokal_rank": "did you mean local_rank",
        "HOROVOD_PROCESS_SET_ERROR_INIT": r"dir\(\) of it",
    }.items():
        with pytest.raises(
            AttributeError, match=rf"'HorovodBasics' object has no attribute '{name}'.*{said}"
        ):
            getattr(basics, name)


def test_small_tools(horovod: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = importlib.import_module("horovod.common.util")
    assert tools.split_list([1, 2, 3, 4, 5], 2) == [[1, 2, 3], [4, 5]]
    assert [tools.num_rank_is_power_2(n) for n in (0, 1, 3, 4)] == [False, True, False, True]
    assert tools.extension_available("torch")
    assert tools.extension_available("tensorflow") == (importlib.util.find_spec("tensorflow") is not None)
    assert not tools.extension_available("mxnet")
    assert tools.gpu_available("torch") == torch.cuda.is_available()
    tools.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", "file", "mpi_lib_v2")
    with pytest.raises(ImportError, match="slipstream has no mxnet here"):
        tools.check_extension("horovod.mxnet", "HOROVOD_WITH_MXNET", "file", "mpi_lib")
    monkeypatch.setenv("KEPT", "before")
    with tools.env(KEPT="inside", ADDED="inside", LEFT=None):
        assert (os.environ["KEPT"], os.environ["ADDED"]) == ("inside", "inside")
    assert os.environ["KEPT"] == "before"
    assert "ADDED" not in os.environ
    assert tools.is_version_greater_equal_than("1.10.0", "1.9.1")


def test_tools_of_the_build(horovod: Any) -> None:
    tools = importlib.import_module("horovod.common.util")
    file = importlib.import_module("_ctypes").__file__  # some native module
    folder, name = os.path.split(file)
    short = name.removesuffix(tools.get_ext_suffix())
    assert short != name
    assert tools.get_extension_full_path(os.path.join(folder, "x.py"), short) == file
    assert tools.get_extension_full_path("/a/b.py", "c", "d").startswith("/a/c/d.")
    assert tools.check_installed_version("pytorch", torch.__version__) is None
    error = tools.HorovodVersionMismatchError("pytorch", "2.5", "2.4")
    assert isinstance(error, ImportError)
    assert (error.name, error.version, error.installed_version) == ("pytorch", "2.5", "2.4")
    assert str(error) == tools.get_version_mismatch_message("pytorch", "2.5", "2.4")


def test_the_older_average_means_an_operation_of_whoever_asks(horovod: Any) -> None:
    class Theirs:
        Average, Sum = "the mean", "the sum"

    choose = importlib.import_module("horovod.common.util").get_average_backwards_compatibility_fun(Theirs)
    found = [choose(None, None), choose(None, True), choose(None, False), choose("max", None)]
    assert found == ["the mean", "the mean", "the sum", "max"]
    with pytest.raises(ValueError, match="supersedes average"):
        choose("max", False)


def test_threads(horovod: Any) -> None:
    threads = importlib.import_module("horovod.runner.util.threads")
    said: list[int] = []
    threads.in_thread(said.append, (1,)).join()
    threads.in_thread(lambda: 1 / 0, silent=True).join()
    event, stop = threading.Event(), threading.Event()
    waiting = threads.on_event(event, said.append, (2,), stop=stop, daemon=False, check_stop_interval_s=0.01)
    event.set()
    waiting.join()
    stopped = threads.on_event(threading.Event(), said.append, (3,), stop, 0.01)
    stop.set()
    stopped.join()
    assert said == [1, 2]
    assert threads.execute_function_multithreaded(pow, [[2, 3], [3, 2]]) == {0: 8, 1: 9}


def run_script(name: str, ranks: int, *arguments: str) -> list[dict[str, Any]]:
    """What the ranks of a script print, each one line of JSON, in order of rank."""
    command = [sys.executable, "-m", "slipstream", "run", "-np", str(ranks), "--horovod", "--no-prefix", "--"]
    done = subprocess.run(
        [*command, sys.executable, str(SCRIPTS / name), *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda one: one["rank"])


def test_a_script_trains_as_one_process_would(horovod: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Sampler by rank, broadcasts, optimizer with named parameters, averaged metric, checkpoint of rank 0."""
    first, second = run_script("train.py", 2)
    assert first["weights"] == second["weights"]
    assert first["loss"] == second["loss"]
    threads = torch.get_num_threads()
    try:
        runpy.run_path(str(SCRIPTS / "train.py"), run_name="__main__")  # as a job of one rank
    finally:
        torch.set_num_threads(threads)
        importlib.import_module("horovod.torch").shutdown()
    alone = json.loads(capsys.readouterr().out)
    assert first["weights"] == pytest.approx(alone["weights"], rel=1e-5, abs=1e-6)
    assert first["loss"] == pytest.approx(alone["loss"], rel=1e-5)


def test_a_script_that_reaches_into_modules_runs() -> None:
    """An optimizer wrapper of its own over mpi_ops, clipping between synchronize and step, and a child process."""
    first, second = run_script("wrapper.py", 2)
    assert first["weights"] == second["weights"]
    assert first["norm"] <= 0.1001
    assert [one["wrapped"] for one in (first, second)] == [True, True]
    assert first["child"] == "0.28.1"
