"""What is built in, and small tools, under the names that Horovod's programs import from ``horovod.common``."""

from __future__ import annotations

import contextlib
import importlib
import os
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any, TypeVar

from slipstream.faces.horovod.reduce_ops import Sum, choose_op

__all__ = [
    "EXTENSIONS",
    "HorovodVersionMismatchError",
    "ccl_built",
    "check_extension",
    "check_installed_version",
    "ddl_built",
    "env",
    "extension_available",
    "get_average_backwards_compatibility_fun",
    "get_env_rank_and_size",
    "get_ext_suffix",
    "get_extension_full_path",
    "get_version_mismatch_message",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "split_list",
]

T = TypeVar("T")

EXTENSIONS = ["tensorflow", "torch", "mxnet"]
_FACES = ("tensorflow", "torch")


class HorovodVersionMismatchError(ImportError):
    """Horovod was built for another version of a framework: slipstream is built for none, and never raises it."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version), name=name)
        self.version, self.installed_version = version, installed_version


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """What `HorovodVersionMismatchError` says."""
    return f"built for {name} {installed_version}, and this is {name} {version}"


def check_installed_version(name: str, version: str, exception: BaseException | None = None) -> None:
    """Does nothing: slipstream is built for no version of a framework."""


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether slipstream has a face for this framework, and Python finds the framework."""
    return ext_base_name in _FACES and find_spec(ext_base_name) is not None


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """ImportError unless `extension_available`; ``ext_name`` is such as "horovod.torch"."""
    framework = ext_name.removeprefix("horovod.").partition(".")[0]
    if not extension_available(framework):
        raise ImportError(f"{ext_name}: slipstream has no {framework} here; it has: {', '.join(_FACES)}")


def get_ext_suffix() -> str:
    """How the names of this Python's native modules end, such as ".so"."""
    return sysconfig.get_config_var("EXT_SUFFIX") or ".so"


def get_extension_full_path(pkg_path: str, *args: str) -> str:
    """Where Horovod would have a native module: folders and a name, beside the file ``pkg_path``. It need not exist."""
    return os.path.join(os.path.dirname(pkg_path), *args) + get_ext_suffix()


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether tensors of this framework may live on a GPU here."""
    if not extension_available(ext_base_name):
        return False
    framework = importlib.import_module(ext_base_name)
    if ext_base_name == "tensorflow":
        return bool(framework.config.list_physical_devices("GPU"))
    return bool(framework.cuda.is_available())


def gloo_built(verbose: bool = False) -> bool:
    """True: it is how programs ask whether jobs run without MPI."""
    return True


def mpi_built(verbose: bool = False) -> bool:
    """False: slipstream uses no MPI."""
    return False


def nccl_built(verbose: bool = False) -> bool:
    """False: slipstream uses no NCCL."""
    return False


def ddl_built(verbose: bool = False) -> bool:
    """False: slipstream uses no DDL."""
    return False


def ccl_built(verbose: bool = False) -> bool:
    """False: slipstream uses no oneCCL."""
    return False


@contextlib.contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Variables of the environment for the time of a ``with`` block; those that are None stay as they are."""
    given = {name: value for name, value in kwargs.items() if value is not None}
    before = {name: os.environ.pop(name, None) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})


def get_env_rank_and_size() -> tuple[int, int]:
    """Rank and size as the launcher has told them; 0 and 1 without one."""
    for family in ("HOROVOD_{}", "OMPI_COMM_WORLD_{}", "PMI_{}"):
        rank, size = (os.environ.get(family.format(name)) for name in ("RANK", "SIZE"))
        if rank is not None and size is not None:
            return int(rank), int(size)
    return 0, 1


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[Any, bool | None], Any]:
    """A function of ``op`` and the older ``average``: which of ``reduce_ops``' operations they mean.

    Without both that is Average. With both it raises ValueError.
    """

    def choose(op: Any, average: bool | None) -> Any:
        chosen = choose_op(op, average)
        return chosen if op is not None else reduce_ops.Sum if chosen == Sum else reduce_ops.Average

    return choose


def is_iterable(x: Any) -> bool:
    """Whether a loop can run over it."""
    try:
        iter(x)
    except TypeError:
        return False
    return True


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether a version is at least ``target``, which has three numbers; ValueError for anything else."""
    if not isinstance(ver, str) or not isinstance(target, str) or target.count(".") != 2:
        raise ValueError(f"expected a version and another one such as 1.2.3, got {ver!r} and {target!r}")
    version = importlib.import_module("packaging.version")
    return bool(version.parse(ver) >= version.parse(target))


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether it is 1, 2, 4, 8 and so on."""
    return num_rank > 0 and num_rank.bit_count() == 1


def split_list(items: Sequence[T], parts: int) -> list[Sequence[T]]:
    """``items`` in ``parts`` pieces in their order, whose lengths differ by 1 at most, the longer ones first."""
    short, more = divmod(len(items), parts)
    ends = [number * short + min(number, more) for number in range(parts + 1)]
    return [items[ends[number] : ends[number + 1]] for number in range(parts)]
