"""How much memory a control group and its machine have left."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.base.free_memory import free_memory

MACHINE = "MemTotal:  9000 kB\nMemAvailable:   8000 kB\nSwapTotal:  500 kB\nSwapFree:        100 kB\n"
STAT = "anon 900000\nactive_file 1000\ninactive_file 2000\n"
STAT_1 = "inactive_file 7\ntotal_inactive_file 7\nactive_file 0\ntotal_active_file 1\n"
SWAP = 100 << 10


def _left(root: Path, groups: str, files: dict[str, str], machine: str = MACHINE) -> tuple[int, str] | None:
    files = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in {"proc/self/cgroup": groups, "proc/meminfo": machine, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return free_memory(root)


def test_without_a_limit_the_machine_counts_with_its_swap(tmp_path: Path) -> None:
    assert _left(tmp_path, "0::/job\n", {"job/memory.max": "max\n", "job/memory.current": "5\n"}) == (
        8100 << 10,
        "this machine",
    )


@pytest.mark.parametrize(
    ("groups", "files", "left", "group"),
    [
        (
            "0::/pod/job\n",
            {"pod/job/memory.max": "900000", "pod/job/memory.current": "600000", "pod/job/memory.stat": STAT},
            303_000,
            "pod/job",
        ),
        (
            "0::/pod/job\n",
            {
                "pod/memory.max": "500",
                "pod/memory.current": "499",
                "pod/job/memory.max": "max",
                "pod/job/memory.current": "499",
            },
            1,
            "pod",
        ),
        ("0::/full\n", {"full/memory.max": "500", "full/memory.current": "501"}, 0, "full"),
        (
            "3:cpu:/x\n4:memory:/a\n",
            {
                "memory/a/memory.limit_in_bytes": "100",
                "memory/a/memory.usage_in_bytes": "30",
                "memory/a/memory.stat": STAT_1,
            },
            78,
            "memory/a",
        ),
    ],
)
def test_the_least_that_a_group_has_left(
    groups: str, files: dict[str, str], left: int, group: str, tmp_path: Path
) -> None:
    assert _left(tmp_path, groups, files) == (
        left + SWAP,
        f"the control group {tmp_path}/sys/fs/cgroup/{group}",
    )


def test_a_system_that_says_nothing(tmp_path: Path) -> None:
    assert free_memory(tmp_path) is None
