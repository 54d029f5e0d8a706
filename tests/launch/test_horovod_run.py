"""`horovod.run`: Horovod's parameters, each honoured or answered."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import pytest

from launch import called
from launch.test_as_horovod import ON_PATH
from slipstream.as_horovod.running import IGNORED, run

# What Horovod 0.28 takes, and what of it makes a difference here.
_HONOURED = """
func args kwargs num_proc np hosts hostfile start_timeout output_filename verbose network_interface
network_interfaces executable host_discovery_script slots min_num_proc min_np max_num_proc max_np
"""
HONOURED = _HONOURED.split()


def test_every_parameter_is_honoured_or_answered() -> None:
    assert set(inspect.signature(run).parameters) == {*HONOURED, *IGNORED}
    assert not set(HONOURED) & set(IGNORED)


def test_results_of_all_ranks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks find what their caller finds, `horovod` among it."""
    monkeypatch.syspath_prepend(ON_PATH)
    options: dict[str, Any] = {
        "output_filename": str(tmp_path / "logs"),
        "hosts": "localhost:2",
        "use_gloo": True,
    }
    found = run(called.place_by_horovod, ("x",), {"more": 1}, num_proc=1, np=2, start_timeout=30, **options)
    assert found == [(rank, 2, "x", 1, True, "30") for rank in range(2)]
    assert (tmp_path / "logs" / "rank.1" / "stdout").read_text() == "hello from 1\n"
    assert "[1] hello from 1" in capfd.readouterr().out


def test_what_a_rank_raises_names_it() -> None:
    with pytest.raises(KeyError, match="no such column") as caught:
        run(called.one_raises, num_proc=2, executable=sys.executable, verbose=2, network_interfaces=["lo"])
    assert str(caught.value.__cause__).startswith("\nrank 1:\nTraceback")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"num_proc": 2, "min_num_proc": 1},
            "min_num_proc=1, num_proc=2: the call returns when all ranks have",
        ),
        ({"np": 2, "min_np": 1}, "min_num_proc=1, num_proc=2"),
        ({"num_proc": 0}, "a job has at least one rank"),
        ({"num_proc": 2, "hosts": "localhost:1"}, "2 ranks do not fit the 1 slot given"),
        (
            {"num_proc": 2, "hosts": "localhost:1,192.0.2.1:1"},
            "this host alone, not on 192.0.2.1: make it a script",
        ),
        (
            {"hosts": "localhost", "hostfile": "hosts"},
            "give one of hosts, hostfile and host_discovery_script",
        ),
        ({"hostfile": "/nowhere"}, "cannot read /nowhere"),
        ({"use_gloo": True, "use_mpi": True}, "use_gloo or use_mpi, not both"),
        ({"host_discovery_script": "echo 192.0.2.1"}, "this host alone, not on 192.0.2.1"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        run(called.one_raises, **given)


@pytest.mark.parametrize("name", [*(name for name, why in IGNORED.items() if why), "max_np"])
def test_what_means_nothing_is_said(name: str) -> None:
    """The call itself is refused, so that no job starts."""
    with (
        pytest.warns(
            UserWarning, match=rf"horovod.run: {name.replace('max_np', 'max_num_proc')}.* has no meaning"
        ),
        pytest.raises(ValueError, match="cannot read /nowhere"),
    ):
        run(called.one_raises, hostfile="/nowhere", **{name: 2})
