"""How many processors a control group may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.base.cpus import cpu_quota


def _system(root: Path, groups: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": groups, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        ("0::/\n", {}, None),
        ("0::/pod/job\n", {"pod/job/cpu.max": "150000 100000\n"}, 1.5),
        ("0::/pod/job\n", {"pod/job/cpu.max": "max 100000\n", "pod/cpu.max": "200000 100000"}, 2.0),
        ("0::/pod/job\n", {"pod/job/cpu.max": "300000 100000\n", "cpu.max": "100000 50000"}, 2.0),
        ("1:name=systemd:/\n4:cpu,cpuacct:/a\n", {"cpu/a/cpu.cfs_quota_us": "-1"}, None),
        (
            "4:cpu,cpuacct:/a\n",
            {"cpu/a/cpu.cfs_quota_us": "50000\n", "cpu/a/cpu.cfs_period_us": "100000\n"},
            0.5,
        ),
        ("0::/a\n", {"a/cpu.max": "nonsense"}, None),
        ("nonsense\n\n0::/a\n", {"a/cpu.max": "100000 100000", "cpu.max": "50000 100000"}, 0.5),
    ],
)
def test_the_least_limit_of_a_group_and_those_above_it(
    groups: str, files: dict[str, str], quota: float | None, tmp_path: Path
) -> None:
    root = _system(tmp_path, groups, {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    assert cpu_quota(root) == quota


def test_a_system_without_control_groups_has_no_limit(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None
