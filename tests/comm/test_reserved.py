"""Where memory is short, ``slipstream.empty`` raises an error; no signal ends a rank."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from comm import ranks
from slipstream.base.control_groups import control_groups

RANK = Path(__file__).with_name("reserved_rank.py")
LIMIT_MIB = 400


@contextlib.contextmanager
def _group_of(mib: int) -> Iterator[Path]:
    """A control group below this process's own; skips where none can be made."""
    above = [folder for folder in map(Path, control_groups("memory")) if (folder / "memory.stat").exists()]
    if not above:
        pytest.skip("there are no control groups of memory here")
    group = above[-1] / f"slipstream-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        limits = [group / name for name in ("memory.max", "memory.limit_in_bytes")]
        limit = next((file for file in limits if file.exists()), None)
        if limit is None:
            pytest.skip("control groups here do not limit memory")
        limit.write_text(str(mib << 20))
        yield group
    finally:
        group.rmdir()


def test_an_array_that_is_too_large_for_the_control_group_is_refused() -> None:
    with _group_of(LIMIT_MIB) as group:
        for text in ranks.run(RANK, 2, args=[str(group), str(3 * LIMIT_MIB)]):
            assert text.startswith(f"slipstream.empty: an array of {3 * LIMIT_MIB}.0 MiB needs"), text
            assert f"the control group {group} has" in text


def test_arrays_that_are_too_large_together() -> None:
    with _group_of(LIMIT_MIB) as group:
        texts = ranks.run(RANK, 2, args=[str(group), str(LIMIT_MIB * 3 // 4)])
    assert any("slipstream.empty: an array of" in text for text in texts), texts
