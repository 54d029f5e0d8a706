"""One rank of PyTorch's own `DistributedTest` suite: runs the tests it is told to, in a fresh default group each.

The environment holds RANK, WORLD_SIZE and the name of the backend (BACKEND): the suite reads them while it is
imported. GROUP is the backend that the default group is made with, if it is another.
"""

from __future__ import annotations

import os
import traceback
import unittest
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from persistent_ranks import serve
from torch.testing._internal import common_distributed
from torch.testing._internal.common_distributed import TEST_SKIPS, DistTestCases
from torch.testing._internal.common_utils import set_rng_seed

BACKEND = os.environ["BACKEND"]
GROUP = os.environ.get("GROUP", BACKEND)
RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])

# What the suite believes a backend can do decides which tests it runs.
for _feature in ("gpu", "cuda", "ddp", "subgroup", "plugin"):
    DistTestCases.backend_feature[_feature].add(BACKEND)

# PyTorch runs its tests of sub-groups on 8 ranks or more; the group they make is [1, 2], so 3 are enough.
common_distributed.skip_if_small_worldsize = unittest.skipIf(
    WORLD_SIZE < 3, TEST_SKIPS["small_worldsize"].message
)

from torch.testing._internal.distributed import distributed_test  # noqa: E402

SOURCE = distributed_test.__file__
SKIPS = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}
Verdict = dict[str, str]


class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):  # type: ignore[misc]
    """The suite on one backend."""


def names() -> list[str]:
    """The names of all tests, sorted."""
    return sorted(name for name in dir(Suite) if name.startswith("test_"))


def run(name: str, folder: str) -> Verdict:
    """Runs one test; ``folder`` is empty and the same on all ranks. Returns {"verdict", "reason", "traceback"}."""
    case = Suite(name)
    method = getattr(case, name)
    if getattr(method, "__unittest_skip__", False):
        return _verdict("skipped", str(method.__unittest_skip_why__))
    environment = dict(os.environ)
    verdict = _attempt(case, name, Path(folder))
    os.environ.clear()
    os.environ.update(environment)
    dist.set_debug_level_from_env()
    if verdict["verdict"] != "failed" and dist.is_initialized():
        dist.destroy_process_group()
    return verdict


def _attempt(case: Suite, name: str, folder: Path) -> Verdict:
    try:
        _run_in_group(case, name, folder)
    except unittest.SkipTest as skip:
        return _verdict("skipped", str(skip))
    except SystemExit as end:
        if end.code in SKIPS:
            return _verdict("skipped", SKIPS[end.code])
        if end.code not in (0, None):
            return _verdict("failed", f"exit status {end.code}", traceback.format_exc())
    except BaseException as error:
        return _verdict("failed", _one_line(error), traceback.format_exc())
    return _verdict("passed")


def _verdict(verdict: str, reason: str = "", text: str = "") -> Verdict:
    return {"verdict": verdict, "reason": reason, "traceback": text}


def _run_in_group(case: Suite, name: str, folder: Path) -> None:
    """What `TestDistBackend._run` does in a process of its own."""
    for part in ("barrier", "test_dir", "init_dir"):
        (folder / part).mkdir(exist_ok=True)
    os.environ["TEMP_DIR"] = str(folder)
    distributed_test.INIT_METHOD = f"file://{folder}/init_dir/shared_init_file"
    distributed_test.Barrier.barrier_id = 0
    case.rank = RANK
    case.file_name = str(folder / "store")
    seconds = distributed_test.CUSTOM_PG_TIMEOUT.get(name, distributed_test.default_pg_timeout)
    dist.init_process_group(
        init_method=case.init_method,
        backend=GROUP,
        world_size=WORLD_SIZE,
        rank=RANK,
        timeout=timedelta(seconds=seconds),
    )
    case._barrier(timeout=60)
    set_rng_seed()
    getattr(case, name)()
    case._barrier()


def _one_line(error: BaseException) -> str:
    """The error's first line, and the line of the suite it comes from."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{frame.name}, line {frame.lineno}" for frame in frames if frame.filename == SOURCE]
    return f"{text} ({places[-1]})" if places else text


def handle(request: dict[str, Any]) -> Any:
    """``{}`` asks for the names of the tests, ``{"name", "folder"}`` for the verdict on one."""
    return run(**request) if request else names()


if __name__ == "__main__":
    serve(handle)
