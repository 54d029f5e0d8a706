"""slipstream.mpi4jax on several ranks, against NumPy, and programs of mpi4jax that run unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from comm import ranks

pytest.importorskip("jax")
FOLDER = Path(__file__).parent
EXAMPLE = FOLDER.parents[2] / "examples" / "mpi4jax_heat.py"


@pytest.mark.parametrize(
    "parts", ["operations", "dtypes", "messages communicators mistakes", "order mapped", "derivatives"]
)
@pytest.mark.parametrize(("n", "transport"), [(1, "shm"), (2, "shm"), (3, "tcp"), (4, "mixed")])
def test_functions(n: int, transport: str, parts: str) -> None:
    ranks.run(FOLDER / "mpi4jax_rank.py", n, transport=transport, args=parts.split())


@pytest.mark.parametrize("how", ["length", "operation"])
def test_ranks_that_differ_all_raise(how: str) -> None:
    ranks.run(FOLDER / "mpi4jax_failure_rank.py", 2, args=[how])


@pytest.mark.parametrize("how", ["dead", "waiting"])
def test_a_dead_rank_is_named_on_the_others(how: str) -> None:
    with ranks.started(FOLDER / "mpi4jax_failure_rank.py", 3, args=[how]) as started:
        for rank in started:
            rank.process.wait(240)
        assert [rank.process.returncode for rank in started] == [0, -9, 0], [r.text() for r in started]


def test_an_error_that_nobody_waits_for_is_shown_at_the_end() -> None:
    with ranks.started(FOLDER / "mpi4jax_failure_rank.py", 1, args=["alone"]) as started:
        started[0].process.wait(240)
        assert "has sent itself no message" in started[0].text()


def launched(
    n: int, *command: str, options: tuple[str, ...] = ("--mpi4jax",)
) -> subprocess.CompletedProcess[str]:
    words = [
        sys.executable,
        "-m",
        "slipstream",
        "run",
        "-np",
        str(n),
        "--no-prefix",
        *options,
        "--",
        *command,
    ]
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    return subprocess.run(words, capture_output=True, text=True, timeout=240, env=env)


def test_the_example_gives_the_same_on_any_number_of_ranks() -> None:
    told = []
    for n in (1, 2, 3):
        done = launched(n, sys.executable, str(EXAMPLE), "--points", "48", "--steps", "200")
        assert done.returncode == 0, done.stderr
        assert f"on {n} processes" in done.stdout
        told.append([line for line in done.stdout.splitlines() if line.startswith("heat")])
    assert told[0] == told[1] == told[2]
    assert len(told[0]) == 3


def test_programs_find_mpi4jax_and_mpi4py_only_when_asked() -> None:
    code = (
        "from mpi4py import MPI\nimport mpi4jax, mpi4py\nassert mpi4py.MPI is MPI\n"
        "print(mpi4jax.__slipstream__, MPI.get_vendor()[0], MPI.COMM_WORLD.Get_size(), sorted(mpi4jax.__all__)[0])"
    )
    done = launched(2, sys.executable, "-c", code)
    assert done.stdout.splitlines() == ["True slipstream 2 allgather"] * 2, done.stderr
    code = "import mpi4jax; print(getattr(mpi4jax, '__slipstream__', 'no'))"
    done = launched(1, sys.executable, "-c", code, options=())
    assert "True" not in done.stdout


def test_importing_mpi_loads_no_jax_and_joins_no_job() -> None:
    code = (
        "import sys\nfrom mpi4py import MPI\nimport slipstream\n"
        "print('jax' in sys.modules, slipstream.is_initialized())"
    )
    assert launched(1, sys.executable, "-c", code).stdout.split() == ["False", "False"]


class _Real:
    """As much of the real mpi4py as arguments are asked for. MPICH's numbers."""

    class Op:
        pass

    class Status:
        pass

    class Group:
        def __init__(self, ranks: list[int]) -> None:
            self.ranks = ranks

        def Get_size(self) -> int:
            return len(self.ranks)

        @staticmethod
        def Translate_ranks(mine: _Real.Group, numbers: list[int], other: _Real.Group) -> list[int]:
            return [other.ranks.index(mine.ranks[number]) for number in numbers]

    class Intracomm:
        def __init__(self, size: int) -> None:
            self.size = size

        def Get_rank(self) -> int:
            return 0

        def Get_size(self) -> int:
            return self.size

        def Get_group(self) -> _Real.Group:
            return _Real.Group([*range(self.size)])

    SUM, LAND, MAXLOC = Op(), Op(), Op()
    PROD = MAX = MIN = BAND = BOR = BXOR = LOR = LXOR = None
    ANY_SOURCE, ANY_TAG, PROC_NULL = -2, -1, -1
    COMM_WORLD = Intracomm(1)
    _handleof = None


def test_what_mpi4py_has_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    from slipstream.base.dtypes import Op
    from slipstream.faces.jax.mpi import arguments
    from slipstream.faces.mpi.ops import ANY_TAG, PROC_NULL

    monkeypatch.setitem(sys.modules, "mpi4py.MPI", _Real)
    assert arguments.as_op("allreduce", _Real.SUM) == (Op.SUM, False)
    assert arguments.as_op("allreduce", _Real.LAND) == (Op.BAND, True)
    with pytest.raises(TypeError, match="no reduction"):
        arguments.as_op("allreduce", _Real.MAXLOC)
    with pytest.raises(TypeError, match=r"mpi4jax.MPI.Status"):
        arguments.as_status("recv", _Real.Status())
    assert arguments.as_tag("recv", "tag", -1, any_tag=True) == ANY_TAG
    try:
        group = arguments.as_group("allreduce", _Real.Intracomm(1))
        assert group.ranks == (0,)
        assert arguments.as_rank("send", "dest", _Real.PROC_NULL, group, nobody=True) == PROC_NULL
        monkeypatch.setattr(_Real, "COMM_WORLD", _Real.Intracomm(2))
        with pytest.raises(ValueError, match=r"rank 0 of 2.*--mpi4jax"):
            arguments.as_group("allreduce", _Real.Intracomm(2))
    finally:
        import slipstream

        slipstream.shutdown()
