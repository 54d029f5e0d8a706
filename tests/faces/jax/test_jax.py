"""slipstream.jax on several ranks, against NumPy."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from comm import ranks

pytest.importorskip("jax")
FOLDER = Path(__file__).parent


@pytest.mark.parametrize(("n", "transport"), [(1, "shm"), (2, "shm"), (3, "tcp")])
def test_operations(n: int, transport: str) -> None:
    ranks.run(FOLDER / "operations_rank.py", n, transport=transport)


@pytest.mark.parametrize("how", ["mismatch", "shape"])
def test_a_mismatch_raises_on_all_ranks(how: str) -> None:
    ranks.run(FOLDER / "failure_rank.py", 2, args=[how])


@pytest.mark.parametrize("how", ["end", "shutdown", "fork"])
def test_a_rank_that_reads_no_result_takes_part_to_the_end(how: str, tmp_path: Path) -> None:
    ranks.run(FOLDER / "leaving_rank.py", 2, args=[str(tmp_path), how])
    assert (tmp_path / "last").read_text() == "1.0"


def test_a_rank_that_reads_no_result_ends_though_another_one_has_died(tmp_path: Path) -> None:
    with ranks.started(FOLDER / "leaving_rank.py", 3, args=[str(tmp_path), "dead"]) as started:
        codes = [rank.process.wait(60) for rank in started]
        assert codes[1] == -signal.SIGKILL
        assert codes[0] == 1
        assert "rank 1" in started[0].text()


@pytest.mark.parametrize("how", ["dead", "small-dead"])
def test_a_dead_rank_is_named_on_the_others(how: str) -> None:
    with ranks.started(FOLDER / "failure_rank.py", 3, args=[how]) as started:
        for rank in started:
            rank.process.wait(240)
        assert [rank.process.returncode for rank in started] == [0, -9, 0], [r.text() for r in started]


def test_without_jax_the_import_says_what_to_install() -> None:
    code = "import sys; sys.modules['jax'] = None\nimport slipstream.jax"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install jax" in done.stderr
